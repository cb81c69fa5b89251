"""QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear.

Scales become f32 first, and elements narrower than a byte one byte each; 8-bit floats and float4e2m1 are encoded
from and decoded to f32. The quotient is computed in f32 whatever the type of the scale, as in onnxruntime, unless the
attribute ``precision`` asks for less.
"""

from __future__ import annotations

import math
from typing import Any

from .. import dtypes
from ..context import Context, Quantized, Value
from ..dtypes import BF16, F16, F32, I8, I32, U8, DType
from ..errors import UnsupportedModelError
from ..registry import op
from ..words import counted
from . import _elementwise
from ._narrow import decode, encode, pack, unpack

INTEGERS = frozenset({"i8", "u8", "i16", "u16", "i4", "u4", "i2", "u2"})
SMALL_FLOATS = frozenset({"f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz", "f6e2m3", "f6e3m2", "f4e2m1"})
_FLOATS = ("f32", "f16", "bf16")
# Elements of one partial range of DynamicQuantizeLinear.
_RANGE = 16384


def as_f32(cx: Context, x: Value) -> Value:
    """A scale, or another float tensor, in f32."""
    if x.dtype is F32:
        return x
    if x.dtype.short in SMALL_FLOATS or x.dtype.short == "f8e8m0":
        return decode(cx, x)
    if x.dtype in (F16, BF16):
        return _elementwise.cast(cx, x, F32)
    cx.fail(f"{x!r} must be float32 or a shorter float type")


def limits(dtype: DType) -> tuple[int, int]:
    """The least and the greatest value of an integer type."""
    if dtype.is_signed:
        return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1
    return 0, (1 << dtype.bits) - 1


def _walk(cx: Context, x: Value, scale: Value, zero: Value | None, axis: int, block: int) -> dict[str, int]:
    """Which scale each element has, as kernels_wat/quant.wat.j2 describes it."""
    if zero is not None and (zero.size != scale.size or (zero.size > 1 and zero.shape != scale.shape)):
        cx.fail(f"scale {scale!r} and zero point {zero!r} differ in shape")
    if not block and scale.size == 1 and scale.rank <= 1:
        return {"axis": x.size, "block": x.size, "blocks": 1, "outer_stride": 0, "inner": 1}
    if not -x.rank <= axis < x.rank:
        cx.fail(f"axis {axis} out of range [{-x.rank}, {x.rank})")
    axis %= x.rank
    extent, inner = x.shape[axis], math.prod(x.shape[axis + 1 :])
    if not block:
        if scale.shape != (extent,):
            cx.fail(
                f"scale {scale!r} must be a scalar or have {counted(extent, 'element')}, "
                f"one for each index of axis {axis}"
            )
        if inner == 1:
            outer = max(1, x.size // max(1, extent))
            return {"axis": outer, "block": outer, "blocks": 1, "outer_stride": 0, "inner": extent}
        return {"axis": extent * inner, "block": inner, "blocks": extent, "outer_stride": 0, "inner": 1}
    if block < 0:
        cx.fail(f"block_size {block} is negative")
    blocks = -(-extent // block)
    if scale.shape != (*x.shape[:axis], blocks, *x.shape[axis + 1 :]):
        cx.fail(f"scale {scale!r} does not fit {x!r} in blocks of {block} along axis {axis}")
    return {
        "axis": extent,
        "block": min(block, max(extent, 1)),
        "blocks": blocks,
        "outer_stride": blocks,
        "inner": inner,
    }


def quantize(
    cx: Context,
    x: Value,
    scale: Value,
    zero: Value | None,
    dtype: DType,
    *,
    axis: int = 1,
    block: int = 0,
    saturate: bool = True,
    precision: DType | None = None,
) -> Value:
    """x / scale + zero in the type ``dtype``."""
    if x.dtype.short not in (*_FLOATS, "i32") or dtype.short not in INTEGERS | SMALL_FLOATS:
        cx.fail(f"no quantization of {x.dtype} to {dtype}", UnsupportedModelError)
    if zero is not None and zero.dtype is not dtype:
        cx.fail(f"the zero point is {zero.dtype}, the output {dtype}")
    walk: dict[str, Any] = _walk(cx, x, scale, zero, axis, block)
    walk["round"] = {None: 0, F32: 0, F16: 1, BF16: 2}.get(precision, 0)
    # A scale of int32 is QuantizeLinear's alone.
    scale = _elementwise.cast(cx, scale, F32) if scale.dtype is I32 else as_f32(cx, scale)
    if dtype.short in SMALL_FLOATS:
        quotient = cx.out(x.shape, F32)
        if quotient.size:
            zero = None if zero is None else decode(cx, zero)
            cx.emit(
                f"quantize_{x.dtype.short}_f32", units=cx.chunks(x),
                x=x, scale=scale, zero=zero, y=quotient, n=x.size, **walk,
            )  # fmt: skip
        return encode(cx, quotient, dtype, saturate)
    low, high = limits(dtype)
    wide = dtype if dtype.bits >= 8 else (I8 if dtype.is_signed else U8)
    y = cx.out(x.shape, wide)
    if y.size:
        zero = None if zero is None else unpack(cx, zero)
        round_ = walk.pop("round")
        cx.emit(
            f"quantize_{x.dtype.short}_{wide.short}", units=cx.chunks(x),
            x=x, scale=scale, zero=zero, y=y, n=x.size, **walk, lo=float(low), hi=float(high), round=round_,
        )  # fmt: skip
    return y if wide is dtype else pack(cx, y, dtype)


def dequantize(
    cx: Context,
    x: Value,
    scale: Value,
    zero: Value | None,
    dtype: DType = F32,
    *,
    axis: int = 1,
    block: int = 0,
) -> Value:
    """(x - zero) * scale in the type ``dtype``."""
    short = x.dtype.short
    if short not in INTEGERS | SMALL_FLOATS | {"i32"} or dtype.short not in _FLOATS:
        cx.fail(f"no dequantization of {x.dtype} to {dtype}", UnsupportedModelError)
    if zero is not None and zero.dtype is not x.dtype:
        cx.fail(f"the zero point is {zero.dtype}, the input {x.dtype}")
    walk: dict[str, Any] = _walk(cx, x, scale, zero, axis, block)
    wide_scale = as_f32(cx, scale)
    y = cx.out(x.shape, dtype)
    if not y.size:
        return y
    const = x.const and scale.const and (zero is None or zero.const)
    if const and x.dtype in (I8, U8) and dtype is F32 and scale.dtype is F32 and not block:
        y.quantized = Quantized(x, scale, zero, axis % x.rank if scale.size > 1 else -1)
    wide = decode if short in SMALL_FLOATS else unpack
    x, zero = wide(cx, x), None if zero is None else wide(cx, zero)
    cx.emit(
        f"dequantize_{x.dtype.short}_{dtype.short}", units=cx.chunks(x),
        x=x, scale=wide_scale, zero=zero, y=y, n=x.size, **walk,
    )  # fmt: skip
    return y


def _type(cx: Context, number: int) -> DType | None:
    if not number:
        return None
    try:
        return dtypes.from_onnx(number)
    except ValueError as error:
        cx.fail(str(error), UnsupportedModelError)


@op("QuantizeLinear", since=10)
def quantize_linear(
    cx: Context,
    x: Value,
    y_scale: Value,
    y_zero_point: Value | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
) -> Value:
    """x / y_scale + y_zero_point, per tensor, per index of an axis or per block along it."""
    dtype = _type(cx, output_dtype)
    if y_zero_point is not None:
        if dtype is not None and dtype is not y_zero_point.dtype:
            cx.fail(f"output_dtype is {dtype}, the zero point is {y_zero_point.dtype}")
        dtype = y_zero_point.dtype
    return quantize(
        cx, x, y_scale, y_zero_point, dtype or U8,
        axis=axis, block=block_size, saturate=bool(saturate), precision=_type(cx, precision),
    )  # fmt: skip


@op("DequantizeLinear", since=10)
def dequantize_linear(
    cx: Context,
    x: Value,
    x_scale: Value,
    x_zero_point: Value | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Value:
    """(x - x_zero_point) * x_scale, per tensor, per index of an axis or per block along it."""
    default = x_scale.dtype if x_scale.dtype.short in _FLOATS else F32
    return dequantize(
        cx, x, x_scale, x_zero_point, _type(cx, output_dtype) or default, axis=axis, block=block_size
    )  # fmt: skip


def dynamic_quantize(cx: Context, x: Value) -> tuple[Value, Value, Value]:
    """x as uint8, with the scale and the zero point that its range asks for."""
    if x.dtype is not F32:
        cx.fail(f"no dynamic quantization of {x.dtype}", UnsupportedModelError)
    scale, zero = cx.out((), F32), cx.out((), U8)
    count = -(-x.size // _RANGE)
    parts = cx.work(max(8 * count, 8))
    if count:
        cx.emit("quant_range_f32", units=count, x=x, parts=parts, n=x.size, per=_RANGE)
    cx.emit("quant_dynamic_u8", parts=parts, scale=scale, zero=zero, count=count)
    return quantize(cx, x, scale, zero, U8), scale, zero


@op("DynamicQuantizeLinear", since=11)
def dynamic_quantize_linear(cx: Context, x: Value) -> tuple[Value, Value, Value]:
    """As ``dynamic_quantize``."""
    return dynamic_quantize(cx, x)


def zero_points(cx: Context, *pairs: tuple[Value, Value | None]) -> None:
    """Fail unless every zero point has its tensor's type."""
    for x, zero in pairs:
        if zero is not None and zero.dtype is not x.dtype:
            cx.fail(f"the zero point is {zero.dtype}, its tensor {x.dtype}")
