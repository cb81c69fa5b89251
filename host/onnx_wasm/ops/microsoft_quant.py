"""Quantized operators of the com.microsoft domain.

Elementwise ones and poolings go by way of f32, where onnxruntime has shortcuts of its own for some: results may
differ from its by one step where the quotient lies near one half. Functions of one 8-bit tensor are tables of 256
entries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ..context import Context, Value
from ..dtypes import BOOL, F32, I16, I32, U8, U16, U32
from ..errors import UnsupportedModelError
from ..registry import MICROSOFT, op
from ..words import counted
from . import _elementwise, activation, binary, compare, concat, matmul, pool, qlinear_conv, reduce, softmax, transpose
from ._widen import as_type
from .qlinear import BYTES, Product, product, scales
from .quantize import as_f32, dequantize, dynamic_quantize, quantize


@op("QuantizeLinear", domain=MICROSOFT)
def quantize_linear(
    cx: Context, x: Value, y_scale: Value, y_zero_point: Value | None = None, *, axis: int | None = None
) -> Value:
    """x / y_scale + y_zero_point."""
    _per_tensor(cx, y_scale, axis)
    dtype = U8 if y_zero_point is None else y_zero_point.dtype
    return quantize(cx, x, y_scale, y_zero_point, dtype, axis=axis or 0)


@op("DequantizeLinear", domain=MICROSOFT)
def dequantize_linear(
    cx: Context, x: Value, x_scale: Value, x_zero_point: Value | None = None, *, axis: int | None = None
) -> Value:
    """(x - x_zero_point) * x_scale."""
    _per_tensor(cx, x_scale, axis)
    return dequantize(cx, x, x_scale, x_zero_point, x_scale.dtype, axis=axis or 0)


def _per_tensor(cx: Context, scale: Value, axis: int | None) -> None:
    if axis is None and scale.size != 1:
        cx.fail(f"without an axis the scale must be a scalar, got {scale!r}")


def to_float(cx: Context, a: Value, b: Value, a_zero: Value | None, b_zero: Value | None, a_scale: Value,
              b_scale: Value, bias: Value | None) -> Value:  # fmt: skip
    dtype = b_scale.dtype
    if a_scale.size != 1:
        cx.fail(f"the scale of A must be a scalar, got {a_scale!r}", UnsupportedModelError)
    p = product(cx, a, b, a_zero=a_zero, b_zero=b_zero, dtype=F32)
    if b_scale.size not in (1, p.n, p.n * math.prod(p.b_dims)):
        cx.fail(f"the scale of B, {b_scale!r}, must be a scalar or have one element for each of {p.n} columns")
    if bias is not None:
        if bias.shape != (p.n,):
            cx.fail(f"the bias {bias!r} must have {counted(p.n, 'element')}")
        p.shift = as_f32(cx, bias)
    p.scale = scales(cx, a_scale, b_scale, None, p.n)
    y = p.emit(cx)
    return y if dtype is F32 else _elementwise.cast(cx, y, dtype)


@op("MatMulIntegerToFloat", domain=MICROSOFT)
def matmul_integer_to_float(
    cx: Context,
    a: Value,
    b: Value,
    a_scale: Value,
    b_scale: Value,
    a_zero_point: Value | None = None,
    b_zero_point: Value | None = None,
    bias: Value | None = None,
) -> Value:
    """The product of what a and b stand for, plus bias."""
    return to_float(cx, a, b, a_zero_point, b_zero_point, a_scale, b_scale, bias)


@op("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_quantize_matmul(
    cx: Context,
    a: Value,
    b: Value,
    b_scale: Value,
    b_zero_point: Value | None = None,
    bias: Value | None = None,
) -> Value:
    """The product of a, quantized by its range, and of what b stands for, plus bias."""
    quantized, scale, zero = dynamic_quantize(cx, a)
    return to_float(cx, quantized, b, zero, b_zero_point, scale, b_scale, bias)


@op("MatMulInteger16", domain=MICROSOFT)
def matmul_integer16(cx: Context, a: Value, b: Value) -> Value:
    """The product of 16-bit integers in 32 bits, of numpy.matmul's shapes; sums beyond that wrap around."""
    wide = {I16: I32, U16: U32}.get(a.dtype)
    if wide is None or b.dtype is not a.dtype:
        cx.fail(f"A {a!r} and B {b!r} must both be int16 or both uint16", UnsupportedModelError)
    return matmul.multiply(cx, as_type(cx, a, wide), as_type(cx, b, wide))


@op("QGemm", domain=MICROSOFT)
def qgemm(
    cx: Context,
    a: Value,
    a_scale: Value,
    a_zero_point: Value,
    b: Value,
    b_scale: Value,
    b_zero_point: Value,
    c: Value | None = None,
    y_scale: Value | None = None,
    y_zero_point: Value | None = None,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Value:
    """alpha * A' * B' + C of what they stand for, where C counts in units of alpha * a_scale * b_scale."""
    if a.rank != 2 or b.rank != 2:
        cx.fail(f"A and B must be matrices, got {a!r} and {b!r}")
    if transA:
        a = transpose.permute(cx, a, a.shape, (1, 0))
    m, k = a.shape
    rows, n = b.shape[::-1] if transB else b.shape
    if rows != k:
        cx.fail(f"{a!r} and {b!r} do not fit: {counted(k, 'column')} and {counted(rows, 'row')}")
    if any(v.size not in (1, n) for v in (b_scale, b_zero_point)):
        cx.fail(f"{b_scale!r} and {b_zero_point!r} must be scalars or have one element for each of {n} columns")
    strides = (0, 0)
    if c is not None:
        if c.rank > 2 or any(d not in (1, full) for d, full in zip(c.shape[::-1], (n, m), strict=False)):
            cx.fail(f"C {c!r} does not broadcast to {[m, n]}")
        rows_c, columns_c = (1, 1, *c.shape)[-2:]
        strides = (columns_c * 4 if rows_c != 1 else 0, 4 if columns_c != 1 else 0)
    dtype = F32
    if y_scale is not None:
        dtype = U8 if y_zero_point is None else y_zero_point.dtype
    return Product(
        a, b, (m, n), m, k, n, a_zero=a_zero_point, b_zero=b_zero_point, transposed=bool(transB), dtype=dtype,
        scale=scales(cx, a_scale, b_scale, y_scale, n, alpha), c=c, c_strides=strides, y_zero=y_zero_point,
    ).emit(cx)  # fmt: skip


def _check_bytes(cx: Context, *values: Value) -> None:
    for v in values:
        if v.dtype not in BYTES:
            cx.fail(f"no form for {v.dtype}", UnsupportedModelError)


@op("QLinearAdd", "QLinearMul", domain=MICROSOFT)
def qlinear_binary(
    cx: Context,
    a: Value,
    a_scale: Value,
    a_zero_point: Value | None,
    b: Value,
    b_scale: Value,
    b_zero_point: Value | None,
    c_scale: Value,
    c_zero_point: Value | None = None,
) -> Value:
    """The sum or product of what a and b stand for, quantized."""
    _check_bytes(cx, a, b)
    function = binary.add if cx.node.op_type == "QLinearAdd" else binary.mul
    y = function(cx, dequantize(cx, a, a_scale, a_zero_point), dequantize(cx, b, b_scale, b_zero_point))
    return quantize(cx, y, c_scale, c_zero_point, a.dtype)


def _by_table(
    cx: Context,
    key: str,
    x: Value,
    x_scale: Value,
    x_zero: Value | None,
    y_scale: Value,
    y_zero: Value | None,
    function: Callable[[Context, Value], Value],
) -> Value:
    """A function of what x stands for, quantized: looked up in a table of all values of a byte."""
    _check_bytes(cx, x)
    dtype = x.dtype if y_zero is None else y_zero.dtype
    codes = cx.known(np.arange(256, dtype=np.uint8))

    def make() -> Value:
        every = cx.alias(codes, codes.shape, x.dtype) if x.dtype is not U8 else codes
        wide = dequantize(cx, every, x_scale, x_zero)
        return quantize(cx, function(cx, wide), y_scale, y_zero, dtype)

    sources = [v for v in (x_scale, x_zero, y_scale, y_zero) if v is not None]
    absent = "".join("01"[v is not None] for v in (x_zero, y_zero))
    table = cx.derived(f"table {key} {x.dtype.short} {dtype.short} {absent}", sources, make)
    y = cx.out(x.shape, dtype, reuse=(x,))
    if y.size:
        cx.emit("quant_lookup", units=cx.chunks(y), x=x, table=table, y=y, n=y.size)
    return y


@op("QLinearSigmoid", domain=MICROSOFT)
def qlinear_sigmoid(
    cx: Context,
    x: Value,
    x_scale: Value,
    x_zero_point: Value | None,
    y_scale: Value,
    y_zero_point: Value | None = None,
) -> Value:
    """The sigmoid of what x stands for, quantized."""
    return _by_table(cx, "sigmoid", x, x_scale, x_zero_point, y_scale, y_zero_point, activation.sigmoid)


@op("QLinearLeakyRelu", domain=MICROSOFT)
def qlinear_leaky_relu(
    cx: Context,
    x: Value,
    x_scale: Value,
    x_zero_point: Value | None,
    y_scale: Value,
    y_zero_point: Value | None = None,
    *,
    alpha: float = 0.01,
) -> Value:
    """LeakyRelu of what x stands for, quantized."""

    def leaky(cx: Context, v: Value) -> Value:
        return activation.leaky_relu(cx, v, alpha=alpha)

    return _by_table(cx, f"leaky {alpha}", x, x_scale, x_zero_point, y_scale, y_zero_point, leaky)


def _requantize(
    cx: Context, x: Value, x_scale: Value, x_zero: Value | None, y_scale: Value, y_zero: Value | None
) -> Value:
    if x_scale is y_scale and x_zero is y_zero:
        return x
    return _by_table(cx, "same", x, x_scale, x_zero, y_scale, y_zero, lambda _, v: v)


@op("QLinearConcat", domain=MICROSOFT)
def qlinear_concat(cx: Context, y_scale: Value, y_zero_point: Value, *inputs: Value, axis: int) -> Value:
    """Tensors, each with a scale and a zero point of its own, quantized alike and joined."""
    if not inputs or len(inputs) % 3:
        cx.fail(f"{len(inputs)} inputs are not tensors with a scale and a zero point each")
    triples = zip(inputs[::3], inputs[1::3], inputs[2::3], strict=True)
    parts = [_requantize(cx, x, scale, zero, y_scale, y_zero_point) for x, scale, zero in triples]
    return concat.concat(cx, *parts, axis=axis)


@op("QLinearWhere", domain=MICROSOFT)
def qlinear_where(
    cx: Context,
    condition: Value,
    x: Value,
    x_scale: Value,
    x_zero_point: Value,
    y: Value,
    y_scale: Value,
    y_zero_point: Value,
    z_scale: Value,
    z_zero_point: Value,
) -> Value:
    """x where the condition holds and y elsewhere, quantized alike."""
    if condition.dtype is not BOOL:
        cx.fail(f"the condition is {condition.dtype}")
    a = _requantize(cx, x, x_scale, x_zero_point, z_scale, z_zero_point)
    b = _requantize(cx, y, y_scale, y_zero_point, z_scale, z_zero_point)
    return compare.where(cx, condition, a, b)


def _channels_first(cx: Context, x: Value) -> Value:
    return transpose.permute(cx, x, x.shape, (0, x.rank - 1, *range(1, x.rank - 1)))


def _channels_last(cx: Context, x: Value) -> Value:
    return transpose.permute(cx, x, x.shape, (0, *range(2, x.rank), 1))


@op("QLinearGlobalAveragePool", domain=MICROSOFT)
def qlinear_global_average_pool(
    cx: Context,
    x: Value,
    x_scale: Value,
    x_zero_point: Value,
    y_scale: Value,
    y_zero_point: Value,
    *,
    channels_last: int = 0,
) -> Value:
    """The average over all spatial dimensions, quantized."""
    _check_bytes(cx, x)
    if channels_last:
        x = _channels_first(cx, x)
    y = pool.global_average_pool(cx, dequantize(cx, x, x_scale, x_zero_point))
    y = quantize(cx, y, y_scale, y_zero_point, x.dtype)
    return _channels_last(cx, y) if channels_last else y


@op("QLinearAveragePool", domain=MICROSOFT)
def qlinear_average_pool(
    cx: Context,
    x: Value,
    x_scale: Value,
    x_zero_point: Value | None,
    y_scale: Value,
    y_zero_point: Value | None = None,
    *,
    kernel_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    channels_last: int = 0,
    count_include_pad: int = 0,
) -> Value:
    """The average over windows, quantized."""
    _check_bytes(cx, x)
    if channels_last:
        x = _channels_first(cx, x)
    y = pool.average_pool(
        cx, dequantize(cx, x, x_scale, x_zero_point), kernel_shape=kernel_shape, strides=strides, pads=pads,
        auto_pad=auto_pad, ceil_mode=ceil_mode, count_include_pad=count_include_pad,
    )  # fmt: skip
    y = quantize(cx, y, y_scale, y_zero_point, x.dtype)
    return _channels_last(cx, y) if channels_last else y


@op("NhwcMaxPool", domain=MICROSOFT)
def nhwc_max_pool(
    cx: Context,
    x: Value,
    *,
    kernel_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
) -> Value:
    """MaxPool of [N, ..., C]."""
    _check_bytes(cx, x)
    y = pool.max_pool(
        cx, _channels_first(cx, x), kernel_shape=kernel_shape, strides=strides, pads=pads, dilations=dilations,
        auto_pad=auto_pad, ceil_mode=ceil_mode,
    )[0]  # fmt: skip
    assert y is not None
    return _channels_last(cx, y)


@op("QLinearConv", domain=MICROSOFT)
def qlinear_conv_nhwc(
    cx: Context,
    x: Value,
    x_scale: Value,
    x_zero_point: Value,
    w: Value,
    w_scale: Value,
    w_zero_point: Value,
    y_scale: Value,
    y_zero_point: Value,
    b: Value | None = None,
    *,
    auto_pad: str = "NOTSET",
    channels_last: int = 0,
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Value:
    """ai.onnx's QLinearConv, also of [N, ..., C]; weights are [M, C / group, ...] either way."""
    y = qlinear_conv.qlinear_conv(
        cx, _channels_first(cx, x) if channels_last else x, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale,
        y_zero_point, b, auto_pad=auto_pad, dilations=dilations, group=group, kernel_shape=kernel_shape, pads=pads,
        strides=strides,
    )  # fmt: skip
    return _channels_last(cx, y) if channels_last else y


@op("QLinearSoftmax", domain=MICROSOFT)
def qlinear_softmax(
    cx: Context,
    x: Value,
    x_scale: Value,
    x_zero_point: Value | None,
    y_scale: Value,
    y_zero_point: Value,
    *,
    opset: int,
    axis: int = -1,
) -> Value:
    """Softmax of what x stands for, quantized; ``opset`` tells which ai.onnx form."""
    _check_bytes(cx, x)
    wide = dequantize(cx, x, x_scale, x_zero_point)
    if not -x.rank <= axis < max(x.rank, 1):
        cx.fail(f"axis {axis} out of range [{-x.rank}, {x.rank})")
    axis %= max(x.rank, 1)
    if opset < 13:
        n, inner = math.prod(x.shape[axis:]), 1
    else:
        n, inner = x.shape[axis], math.prod(x.shape[axis + 1 :])
    return quantize(cx, softmax.softmax_over(cx, "softmax", wide, n, inner), y_scale, y_zero_point, x.dtype)


@op("QLinearReduceMean", domain=MICROSOFT)
def qlinear_reduce_mean(
    cx: Context,
    data: Value,
    data_scale: Value,
    data_zero_point: Value | None,
    reduced_scale: Value,
    reduced_zero_point: Value | None = None,
    *,
    axes: Sequence[int],
    keepdims: int,
) -> Value:
    """The mean over axes, quantized."""
    _check_bytes(cx, data)
    reduced = set(reduce.normalize_axes(cx, axes, data.rank))
    shape = [1 if i in reduced else d for i, d in enumerate(data.shape) if keepdims or i not in reduced]
    wide = dequantize(cx, data, data_scale, data_zero_point)
    y = reduce.reduce_to(cx, "ReduceMean", wide, sorted(reduced), shape)
    return quantize(cx, y, reduced_scale, reduced_zero_point, data.dtype)


def cast_to(cx: Context, y: Value, like: Value) -> Value:
    """y in the type of ``like``."""
    return y if like.dtype is F32 else _elementwise.cast(cx, y, like.dtype)
