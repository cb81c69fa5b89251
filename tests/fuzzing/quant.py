"""Quantized operators. Scales are powers of two, so that all is exact, but for some."""

from __future__ import annotations

import numpy as np

from .builder import DTYPES, Builder, Skip, Tensor
from .conv import window
from .linear import dim, sizes

MS = "com.microsoft"


def scale(g: Builder, shape: tuple[int, ...] = (), *, const: bool | None = None) -> Tensor:
    random = np.random.default_rng(g.int(0, 9999))
    return g.given(np.asarray(2.0 ** random.integers(-4, 2, shape), np.float32), const=const, hidden=True)


def zero(g: Builder, dtype: str, shape: tuple[int, ...] = (), *, const: bool | None = None) -> Tensor:
    if g.chance(30):
        return g.given(np.zeros(shape, DTYPES[dtype]), const=const, hidden=True)
    low, high = (-20, 20) if dtype == "int8" else (100, 150)
    random = np.random.default_rng(g.int(0, 9999))
    return g.given(random.integers(low, high, shape).astype(DTYPES[dtype]), const=const, hidden=True)


def narrow(g: Builder, shape: list[int] | tuple[int, ...], dtype: str, *, const: bool | None = None) -> Tensor:
    return g.value(shape, dtype, kind="full", const=const)


def byte(g: Builder) -> str:
    return g.choice(["uint8", "int8"])


def quantize(g: Builder) -> Tensor:
    """QuantizeLinear of a tensor or an axis."""
    x = g.pick(lambda t: t.dtype == "float32" and t.exact and t.rank <= 5) or g.value(
        g.shape(0, 4, most=17), kind="exact"
    )
    to = g.choice(["uint8", "int8", *(["uint16", "int16"] if g.opset >= 21 else [])])
    if g.opset >= 13 and x.rank and g.chance(40):
        axis = g.int(-x.rank, x.rank - 1)
        n = (x.shape[axis],)
        return g.node(
            "QuantizeLinear",
            [x, scale(g, n), zero(g, to, n) if to in ("uint8", "int8") else None],
            exact=True,
            axis=axis,
        )[0]
    return g.node("QuantizeLinear", [x, scale(g), None if g.chance(15) else zero(g, to)], exact=True)[0]


def dequantize(g: Builder) -> Tensor:
    """DequantizeLinear of a tensor, an axis, or blocks."""
    x = g.pick(lambda t: t.dtype in ("uint8", "int8") and t.rank <= 5) or narrow(g, g.shape(0, 4, most=17), byte(g))
    if g.opset >= 13 and x.rank and g.chance(40):
        axis = g.int(-x.rank, x.rank - 1)
        n = (x.shape[axis],)
        return g.node(
            "DequantizeLinear", [x, scale(g, n), zero(g, x.dtype, n) if g.chance(70) else None], exact=True, axis=axis
        )[0]
    if g.opset >= 21 and x.rank >= 1 and 0 not in x.shape and g.chance(30):
        axis = g.int(0, x.rank - 1)
        block = g.choice([b for b in range(1, x.shape[axis] + 1) if x.shape[axis] % b == 0])
        dims = tuple(d // block if i == axis else d for i, d in enumerate(x.shape))
        return g.node(
            "DequantizeLinear",
            [x, scale(g, dims), zero(g, x.dtype, dims) if g.chance(70) else None],
            exact=True,
            axis=axis,
            block_size=block,
        )[0]
    return g.node("DequantizeLinear", [x, scale(g), zero(g, x.dtype) if g.chance(70) else None], exact=True)[0]


def dynamic(g: Builder) -> Tensor:
    x = g.value(g.shape(0, 3, most=33, zeros=False), kind="exact", const=False)
    return g.node("DynamicQuantizeLinear", [x], 3, hidden=True)[0]


def matmul_integer(g: Builder) -> Tensor:
    a = g.pick(lambda t: t.dtype in ("uint8", "int8") and 2 <= t.rank <= 3)
    m, k, n = sizes(g)
    a = a or narrow(g, [*g.shape(0, 1, most=3, zeros=False), m, k], byte(g))
    b = narrow(g, [a.shape[-1], n], byte(g))
    az = zero(g, a.dtype) if g.chance(60) else None
    bz = zero(g, b.dtype, (n,) if g.chance(40) else ()) if g.chance(60) else None
    return g.node("MatMulInteger", [a, b, az, bz], exact=True)[0]


def qlinear_matmul(g: Builder) -> Tensor:
    a = g.pick(lambda t: t.dtype in ("uint8", "int8") and 2 <= t.rank <= 3)
    m, k, n = sizes(g)
    a = a or narrow(g, [*g.shape(0, 1, most=3, zeros=False), m, k], byte(g))
    b = narrow(g, [a.shape[-1], n], byte(g))
    per = (n,) if g.chance(40) else ()
    to = a.dtype
    out = g.given(np.asarray(2.0 ** g.int(0, 4), np.float32), hidden=True)
    return g.node(
        "QLinearMatMul",
        [a, scale(g), zero(g, a.dtype), b, scale(g, per), zero(g, b.dtype, per), out, zero(g, to)],
        exact=True,
    )[0]


def _conv(g: Builder) -> tuple[Tensor, Tensor, dict[str, object]]:
    rank = g.choice([2, 2, 1, 3])
    c = g.choice([1, 2, 3, 4, 8, 16])
    group = g.choice([1, 1, c, *[d for d in range(2, c) if c % d == 0]])
    m = group * g.choice([1, 1, 2, 4])
    made = window(g, (1,) * rank, dilated=True)
    x = g.pick(lambda t: t.dtype in ("uint8", "int8") and t.rank == rank + 2 and t.shape[1] == c)
    x = x or narrow(g, [g.int(1, 2), c, *(g.int(1, {1: 16, 2: 9, 3: 4}[rank]) for _ in range(rank))], byte(g))
    w = narrow(g, [m, c // group, *made["kernel_shape"]], byte(g), const=not g.chance(15))
    return x, w, {"group": group if group > 1 else None, **made}


def conv_integer(g: Builder) -> Tensor:
    x, w, made = _conv(g)
    xz = zero(g, x.dtype) if g.chance(60) else None
    wz = zero(g, w.dtype) if g.chance(40) else None
    return g.node("ConvInteger", [x, w, xz, wz], exact=True, **made)[0]


def qlinear_conv(g: Builder) -> Tensor:
    x, w, made = _conv(g)
    m = w.shape[0]
    per = (m,) if g.chance(40) else ()
    wz = (
        g.given(np.zeros(per, w.array.dtype), const=True, hidden=True)
        if w.dtype == "int8"
        else zero(g, "uint8", const=True)
    )
    b = g.value([m], "int32", low=-500, high=500, const=True) if g.chance(50) else None
    out = g.given(np.asarray(2.0 ** g.int(0, 4), np.float32), const=True, hidden=True)
    return g.node(
        "QLinearConv",
        [
            x,
            scale(g, const=True),
            zero(g, x.dtype, const=True),
            w,
            scale(g, per, const=True),
            wz,
            out,
            zero(g, x.dtype, const=True),
            b,
        ],
        exact=True,
        **made,
    )[0]


def qdq(g: Builder) -> Tensor:
    """QuantizeLinear, DequantizeLinear, and a product of what comes out."""
    x = g.value([dim(g, zeros=False), dim(g, zeros=False)], kind="exact", const=False)
    s, z = scale(g, const=True), zero(g, byte(g), const=True)
    (q,) = g.node("QuantizeLinear", [x, s, z], exact=True)
    (d,) = g.node("DequantizeLinear", [q, s, z], exact=True)
    w = narrow(g, [x.shape[1], dim(g, zeros=False)], "int8", const=True)
    (dw,) = g.node("DequantizeLinear", [w, scale(g, const=True), None], exact=True)
    return g.node("MatMul", [d, dw])[0]


def microsoft(g: Builder) -> Tensor:
    """Operators of com.microsoft that add or multiply bytes."""
    dtype = byte(g)
    a = g.pick(lambda t: t.dtype == dtype and t.rank <= 4) or narrow(g, g.shape(1, 4), dtype)
    b = narrow(g, g.partner(a.shape), dtype)
    op = g.choice(["QLinearAdd", "QLinearMul"])
    out = g.given(np.asarray(2.0 ** g.int(0, 3), np.float32), hidden=True)
    return g.node(
        op, [a, scale(g), zero(g, dtype), b, scale(g), zero(g, dtype), out, zero(g, dtype)], hidden=True, domain=MS
    )[0]


def start(g: Builder) -> None:
    if g.opset < 10:
        raise Skip("no quantized operators")


STEPS = [
    quantize,
    quantize,
    dequantize,
    dequantize,
    dynamic,
    matmul_integer,
    qlinear_matmul,
    conv_integer,
    qlinear_conv,
    qdq,
    microsoft,
]
