"""Products of 8-bit integers: MatMulInteger and QLinearMatMul.

The second operand is packed into panels once if it is constant; the first is widened block by block
(kernels_wat/qgemm.wat.j2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from ..context import Context, Value
from ..dtypes import F32, I8, I32, U8, DType
from ..errors import UnsupportedModelError
from ..registry import op
from ..words import counted
from .quantize import as_f32, dequantize, quantize, zero_points

_BLOCK_BYTES = 131072
_TILE_BYTES = 128
BYTES = (U8, I8)


class Finish(IntEnum):
    """What becomes of the sums: codes of kernels_wat/qgemm.wat.j2."""

    I32 = 0
    U8 = 1
    I8 = 2
    F32 = 3


FINISH = {I32: Finish.I32, U8: Finish.U8, I8: Finish.I8, F32: Finish.F32}


def padded(k: int) -> int:
    """k as the panels hold it."""
    return -(-k // 8) * 8


def flip(dtype: DType) -> int:
    """What makes i8 of the type by exclusive or, and is subtracted from its zero points."""
    return 128 if dtype is U8 else 0


def offsets(cx: Context, zero: Value | None, dtype: DType, n: int) -> Value | None:
    """The zero points of an operand of n rows or columns that became i8, one i32 each; None if all are 0."""
    if zero is None and dtype is I8:
        return None
    on_host = zero is not None and zero.const and (zero.known is not None or zero.source is not None)
    if zero is not None and on_host and (cx.read(zero).astype(int) == flip(dtype)).all():
        return None
    sources = () if zero is None else (zero,)

    def make() -> Value:
        count = n if zero is None else max(n, zero.size)
        made = cx.out((count,), I32)
        step = 0 if zero is None or zero.size == 1 else 1
        cx.emit("qgemm_zeros", src=zero, dst=made, n=count, step=step, flip=flip(dtype))
        return made

    return cx.derived(f"qgemm_zeros {n}", sources, make)


def scales(cx: Context, a: Value | None, b: Value, y: Value | None, n: int, alpha: float = 1.0) -> Value:
    """alpha * a * b / y for at least n columns."""
    sources = [as_f32(cx, v) if v is not None else None for v in (a, b, y)]

    def make() -> Value:
        count = max(n, b.size)
        made = cx.out((count,), F32)
        step = 0 if b.size == 1 else 4
        cx.emit(
            "qgemm_scales", a=sources[0], b=sources[1], y=sources[2], dst=made, n=count, step=step, alpha=alpha
        )  # fmt: skip
        return made

    present = "".join("01"[s is not None] for s in sources)
    return cx.derived(f"qgemm_scales {n} {alpha} {present}", [s for s in sources if s is not None], make)


def pack_columns(cx: Context, b: Value, k: int, n: int, transposed: bool) -> Value:
    """A matrix, or several one after the other, in i8 panels of 8 columns: [matrix][panel][kp / 2][8][2]."""

    def make() -> Value:
        kp, matrices = padded(k), b.size // (k * n)
        packed = cx.out((matrices, -(-n // 8), kp, 8), I8)
        if transposed:
            stream = ("src", 8 * k) if matrices == 1 or n % 8 == 0 else None
            cx.emit(
                "qpack_rows", units=matrices * -(-n // 8), stream=stream,
                src=b, dst=packed, k=k, n=n, kp=kp, width=8, flip=flip(b.dtype),
            )  # fmt: skip
        else:
            stream = ("src", 2 * n) if matrices == 1 or k % 8 == 0 else None
            cx.emit(
                "qpack_b8", units=matrices * kp // 2, stream=stream,
                src=b, dst=packed, k=k, n=n, kp=kp, flip=flip(b.dtype),
            )  # fmt: skip
        return packed

    return cx.derived(f"qgemm_b8 {k} {n} {transposed}", (b,), make)


@dataclass
class Product:
    """One product of 8-bit matrices, possibly a batch, and what becomes of its sums."""

    a: Value
    b: Value
    shape: tuple[int, ...]
    m: int
    k: int
    n: int
    dims: Sequence[int] = ()
    """Of the batch; the shapes that follow broadcast to it."""
    a_dims: Sequence[int] = ()
    b_dims: Sequence[int] = ()
    a_zero: Value | None = None
    b_zero: Value | None = None
    transposed: bool = False
    """Whether B is stored transposed."""
    dtype: DType = I32
    scale: Value | None = None
    """One f32 a column, or several matrices of them."""
    row_scale: Value | None = None
    c: Value | None = None
    c_strides: tuple[int, int] = (0, 0)
    shift: Value | None = None
    y_zero: Value | None = None
    packed: Value | None = None
    """B as `pack_columns` makes it, where it is at hand."""
    batch: list[int] = field(init=False)

    def emit(self, cx: Context) -> Value:
        """The record of the product."""
        for v in (self.a, self.b):
            if v.dtype not in BYTES:
                cx.fail(f"no product of type {v.dtype}", UnsupportedModelError)
        zero_points(cx, (self.a, self.a_zero), (self.b, self.b_zero))
        m, k, n = self.m, self.k, self.n
        y = cx.out(self.shape, self.dtype)
        if not y.size:
            return y
        kp = padded(k)
        b_zero = offsets(cx, self.b_zero, self.b.dtype, n)
        packed = self.packed or (pack_columns(cx, self.b, k, n, self.transposed) if k else self.b)
        matrices = math.prod(self.dims)
        by_rows = m >= 64 or matrices >= 8
        unit = 64
        if by_rows:
            unit = 32 if matrices < 8 else -(-m // 4) * 4
        per_matrix = -(-(m if by_rows else n) // unit)
        block_m = max(4, min(128, _BLOCK_BYTES // max(2 * kp, 1) // 4 * 4, -(-m // 4) * 4))
        cx.emit(
            f"qgemm_{self.a.dtype.short}",
            units=matrices * per_matrix,
            a=self.a,
            b=packed,
            y=y,
            a_zero=self.a_zero,
            b_zero=b_zero,
            scale=self.scale,
            row_scale=self.row_scale,
            c=self.c,
            shift=self.shift,
            y_zero=self.y_zero,
            scratch=cx.scratch(_TILE_BYTES + block_m // 4 * (kp * 8 + 16)),
            m=m,
            n=n,
            k=k,
            kp=kp,
            block_m=block_m,
            zero_step=int(self.a_zero is not None and self.a_zero.size > 1),
            c_row=self.c_strides[0],
            c_column=self.c_strides[1],
            by_rows=int(by_rows),
            unit=unit,
            per_matrix=per_matrix,
            mode=int(FINISH[self.dtype]),
            size=self.dtype.itemsize,
            batch=self._batch(kp),
        )
        return y

    def _batch(self, kp: int) -> list[int]:
        if not self.dims:
            return [0]
        m, n = self.m, self.n
        rows = self.a_zero if self.a_zero is not None and self.a_zero.size > 1 else self.row_scale
        words = [len(self.dims), *self.dims]
        words += _strides(self.a_dims, m * self.k)
        words += _strides(self.b_dims, -(-n // 8) * 8 * kp)
        words += _strides(self.a_dims if rows is not None and rows.size > m else (), m, len(self.dims))
        for columns in (self.b_zero, self.scale):
            several = columns is not None and columns.size > n
            words += _strides(self.b_dims if several else (), n, len(self.dims))
        return words


def _strides(dims: Sequence[int], step: int, rank: int = 0) -> list[int]:
    """Steps along the dimensions of a batch, 0 where it is broadcast."""
    strides = []
    for size in reversed(dims):
        strides.append(step if size != 1 else 0)
        step *= size
    return [0] * (rank - len(strides)) + strides[::-1]


def product(cx: Context, a: Value, b: Value, **more: Any) -> Product:
    """numpy.matmul's shapes."""
    if not a.shape or not b.shape:
        cx.fail(f"operands must have at least one dimension, got {a!r} and {b!r}")
    a_shape = a.shape if a.rank > 1 else (1, *a.shape)
    b_shape = b.shape if b.rank > 1 else (*b.shape, 1)
    m, k, n = a_shape[-2], a_shape[-1], b_shape[-1]
    if b_shape[-2] != k:
        cx.fail(f"{a!r} and {b!r} do not fit: {counted(k, 'column')} and {counted(b_shape[-2], 'row')}")
    rank = max(len(a_shape), len(b_shape)) - 2
    a_dims = (1,) * (rank + 2 - len(a_shape)) + a_shape[:-2]
    b_dims = (1,) * (rank + 2 - len(b_shape)) + b_shape[:-2]
    dims = []
    for p, q in zip(a_dims, b_dims, strict=True):
        if p != q and p != 1 and q != 1:
            cx.fail(f"the batch dimensions of {a!r} and {b!r} do not broadcast: {p} and {q}")
        dims.append(q if p == 1 else p)
    shape = (*dims, *((m,) if a.rank > 1 else ()), *((n,) if b.rank > 1 else ()))
    made = Product(a, b, shape, m, k, n, tuple(dims), a_dims, b_dims, **more)
    _check_rows(cx, made, made.a_zero, "the zero point of A")
    _check_rows(cx, made, made.row_scale, "the scale of A")
    _check_columns(cx, made, made.b_zero, "the zero point of B")
    if math.prod(b_dims) == 1:
        made.m *= math.prod(dims)
        made.dims = made.a_dims = made.b_dims = ()
    return made


def _check_rows(cx: Context, p: Product, v: Value | None, what: str) -> None:
    if v is None or v.size == 1:
        return
    sizes = (p.m,) if v.rank == 1 else (p.m, p.m * math.prod(p.a_dims))
    if v.size not in sizes or (v.rank > 1 and v.shape[-1] != 1):
        cx.fail(f"{what}, {v!r}, must be a scalar or have one element for each of {p.m} rows")
    if v.size == p.m and math.prod(p.a_dims) > 1 and math.prod(p.b_dims) == 1:
        cx.fail(f"{what}, {v!r}, does not have the batch dimensions of {p.a!r}", UnsupportedModelError)


def _check_columns(cx: Context, p: Product, v: Value | None, what: str) -> None:
    if v is None or v.size == 1:
        return
    sizes = (p.n,) if v.rank == 1 else (p.n, p.n * math.prod(p.b_dims))
    if v.size not in sizes or (v.rank > 1 and v.shape[-2] != 1):
        cx.fail(f"{what}, {v!r}, must be a scalar or have one element for each of {p.n} columns")


@op("MatMulInteger", since=10)
def matmul_integer(
    cx: Context, a: Value, b: Value, a_zero_point: Value | None = None, b_zero_point: Value | None = None
) -> Value:
    """(a - a_zero_point) @ (b - b_zero_point) in int32."""
    return product(cx, a, b, a_zero=a_zero_point, b_zero=b_zero_point).emit(cx)


@op("QLinearMatMul", since=10)
def qlinear_matmul(
    cx: Context,
    a: Value,
    a_scale: Value,
    a_zero_point: Value,
    b: Value,
    b_scale: Value,
    b_zero_point: Value,
    y_scale: Value,
    y_zero_point: Value,
) -> Value:
    """The product of what a and b stand for, quantized."""
    dtype = y_zero_point.dtype
    if a.dtype not in BYTES or b.dtype not in BYTES or dtype not in BYTES:
        return _dequantized(cx, a, a_scale, a_zero_point, b, b_scale, b_zero_point, y_scale, y_zero_point)
    if y_scale.size != 1 or y_zero_point.size != 1:
        cx.fail(f"the scale and zero point of y must be scalars, got {y_scale!r} and {y_zero_point!r}")
    by_row = a_scale.size > 1
    p = product(
        cx, a, b, a_zero=a_zero_point, b_zero=b_zero_point, y_zero=y_zero_point, dtype=dtype,
        row_scale=as_f32(cx, a_scale) if by_row else None,
    )  # fmt: skip
    _check_columns(cx, p, b_scale, "the scale of B")
    p.scale = scales(cx, None if by_row else a_scale, b_scale, y_scale, p.n)
    return p.emit(cx)


def _dequantized(
    cx: Context, a: Value, a_scale: Value, a_zero: Value, b: Value, b_scale: Value, b_zero: Value, y_scale: Value,
    y_zero: Value,
) -> Value:  # fmt: skip
    """The same for 8-bit floats, by way of f32."""
    from .matmul import matmul

    if any(v.size != 1 for v in (a_scale, b_scale, y_scale)):
        cx.fail("scales of 8-bit floats must be scalars", UnsupportedModelError)
    wide = matmul(cx, dequantize(cx, a, a_scale, a_zero), dequantize(cx, b, b_scale, b_zero))
    return quantize(cx, wide, y_scale, y_zero, y_zero.dtype)
