"""Quantized operators of the com.microsoft domain.

Elementwise ones and poolings go by way of f32, where onnxruntime has shortcuts of its own for some: results may
differ from its by one step where the quotient lies near one half. Functions of one 8-bit tensor are tables of 256
entries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..context import Context, Value
from ..dtypes import BOOL, F32, I32, U8
from ..errors import UnsupportedModelError
from ..registry import op
from ..words import counted
from . import _elementwise, activation, binary, compare, concat, pool, qlinear_conv, reduce, softmax, transpose
from .matmul import BLOCK_M, TILE_BYTES, gemm, split_k
from .qlinear import BYTES, Product, product, scales
from .quantize import as_f32, dequantize, dynamic_quantize, quantize

DOMAIN = "com.microsoft"
FEW_ROWS = 4
"""So many rows are multiplied by weights of a few bits as those are decoded; for more, they go into panels first."""
TILED_COLUMNS = 64
"""A unit of the kernel for many rows."""


@op("QuantizeLinear", domain=DOMAIN)
def quantize_linear(
    cx: Context, x: Value, y_scale: Value, y_zero_point: Value | None = None, *, axis: int | None = None
) -> Value:
    """x / y_scale + y_zero_point."""
    _per_tensor(cx, y_scale, axis)
    dtype = U8 if y_zero_point is None else y_zero_point.dtype
    return quantize(cx, x, y_scale, y_zero_point, dtype, axis=axis or 0)


@op("DequantizeLinear", domain=DOMAIN)
def dequantize_linear(
    cx: Context, x: Value, x_scale: Value, x_zero_point: Value | None = None, *, axis: int | None = None
) -> Value:
    """(x - x_zero_point) * x_scale."""
    _per_tensor(cx, x_scale, axis)
    return dequantize(cx, x, x_scale, x_zero_point, x_scale.dtype, axis=axis or 0)


def _per_tensor(cx: Context, scale: Value, axis: int | None) -> None:
    if axis is None and scale.size != 1:
        cx.fail(f"without an axis the scale must be a scalar, got {scale!r}")


def _to_float(cx: Context, a: Value, b: Value, a_zero: Value | None, b_zero: Value | None, a_scale: Value,
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


@op("MatMulIntegerToFloat", domain=DOMAIN)
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
    return _to_float(cx, a, b, a_zero_point, b_zero_point, a_scale, b_scale, bias)


@op("DynamicQuantizeMatMul", domain=DOMAIN)
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
    return _to_float(cx, quantized, b, zero, b_zero_point, scale, b_scale, bias)


@op("QGemm", domain=DOMAIN)
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


@op("QLinearAdd", "QLinearMul", domain=DOMAIN)
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


@op("QLinearSigmoid", domain=DOMAIN)
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


@op("QLinearLeakyRelu", domain=DOMAIN)
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


@op("QLinearConcat", domain=DOMAIN)
def qlinear_concat(cx: Context, y_scale: Value, y_zero_point: Value, *inputs: Value, axis: int) -> Value:
    """Tensors, each with a scale and a zero point of its own, quantized alike and joined."""
    if not inputs or len(inputs) % 3:
        cx.fail(f"{len(inputs)} inputs are not tensors with a scale and a zero point each")
    triples = zip(inputs[::3], inputs[1::3], inputs[2::3], strict=True)
    parts = [_requantize(cx, x, scale, zero, y_scale, y_zero_point) for x, scale, zero in triples]
    return concat.concat(cx, *parts, axis=axis)


@op("QLinearWhere", domain=DOMAIN)
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


@op("QLinearGlobalAveragePool", domain=DOMAIN)
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


@op("QLinearAveragePool", domain=DOMAIN)
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


@op("NhwcMaxPool", domain=DOMAIN)
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


@op("QLinearConv", domain=DOMAIN)
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


@op("QLinearSoftmax", domain=DOMAIN)
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


@op("QLinearReduceMean", domain=DOMAIN)
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


@op("MatMulNBits", domain=DOMAIN)
def matmul_nbits(
    cx: Context,
    a: Value,
    b: Value,
    scales: Value,
    zero_points: Value | None = None,
    g_idx: Value | None = None,
    bias: Value | None = None,
    *,
    K: int,
    N: int,
    bits: int = 4,
    block_size: int,
    accuracy_level: int = 0,
    weight_prepacked: int = 0,
) -> Value:
    """a [..., K] times weights of 2, 4 or 8 bits, [N, K] in blocks along K, transposed. Computed in f32 at every
    accuracy level."""
    if bits not in (2, 4, 8) or weight_prepacked:
        cx.fail(f"bits {bits} and weight_prepacked {weight_prepacked} are not supported", UnsupportedModelError)
    if block_size < 16 or block_size & (block_size - 1):
        cx.fail(f"block_size {block_size} must be a power of two and at least 16")
    blocks = -(-K // block_size)
    if not a.shape or a.shape[-1] != K:
        cx.fail(f"A {a!r} must have {counted(K, 'column')}")
    if b.dtype is not U8 or b.size != N * blocks * block_size * bits // 8:
        cx.fail(f"B {b!r} must be uint8{[N, blocks, block_size * bits // 8]}")
    if scales.size != N * blocks:
        cx.fail(f"the scales {scales!r} must be {[N, blocks]}")
    if bias is not None and bias.shape != (N,):
        cx.fail(f"the bias {bias!r} must have {counted(N, 'element')}")
    zeros = zeros_f = None
    if zero_points is not None:
        packed = zero_points.dtype is U8
        if zero_points.size != N * (-(-blocks * bits // 8) if packed else blocks):
            cx.fail(f"the zero points {zero_points!r} do not fit {N} columns of {blocks} blocks")
        zeros, zeros_f = (zero_points, None) if packed else (None, as_f32(cx, zero_points))
    shape, shift = (*a.shape[:-1], N), None if bias is None else as_f32(cx, bias)
    wide, scales = as_f32(cx, a), as_f32(cx, scales)
    if g_idx is not None:
        weights = _decoded(cx, b, scales, zeros, zeros_f, g_idx, bits, block_size, K, N)
        y = gemm(cx, cx.alias(wide, (wide.size // K, K)), weights, shift, transB=1)
        return _cast_to(cx, cx.alias(y, shape), a)
    y = cx.out(shape, F32)
    m = a.size // K
    numbers: dict[str, Any] = {
        "a": wide, "b": b, "scales": scales, "zeros": zeros, "zeros_f": zeros_f, "bias": shift, "y": y,
        "m": m, "n": N, "k": K, "block": block_size, "blocks": blocks,
    }  # fmt: skip
    if m > FEW_ROWS:
        kc = -(-split_k(K) // 16) * 16
        block_m = min(BLOCK_M, -(-m // 4) * 4)
        scratch = cx.scratch(TILE_BYTES + block_m * kc * 4 + 8 * kc * 4 + TILED_COLUMNS // 8 * (kc * 32 + 64))
        units = -(-N // TILED_COLUMNS)
        cx.emit(f"matmul_nbits_tiles_{bits}", units=units, **numbers, kc=kc, block_m=block_m, scratch=scratch)
    elif y.size:
        cx.emit(f"matmul_nbits_{bits}", units=N, **numbers)
    return _cast_to(cx, y, a)


def _cast_to(cx: Context, y: Value, like: Value) -> Value:
    return y if like.dtype is F32 else _elementwise.cast(cx, y, like.dtype)


def _decoded(
    cx: Context,
    b: Value,
    scales: Value,
    zeros: Value | None,
    zeros_f: Value | None,
    groups: Value,
    bits: int,
    block: int,
    k: int,
    n: int,
) -> Value:
    """Weights whose blocks are not consecutive, as f32 [n, k]."""
    if groups.dtype is not I32 or groups.size < k:
        cx.fail(f"g_idx {groups!r} must be int32{[k]}")

    def make() -> Value:
        weights = cx.out((n, k), F32)
        cx.emit(
            f"dequantize_nbits_{bits}", units=n, b=b, scales=scales, zeros=zeros, zeros_f=zeros_f, groups=groups,
            y=weights, k=k, block=block, blocks=-(-k // block),
        )  # fmt: skip
        return weights

    return cx.derived(
        f"nbits {bits} {block}", [v for v in (b, scales, zeros, zeros_f, groups) if v is not None], make
    )  # fmt: skip
