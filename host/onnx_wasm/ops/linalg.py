"""Determinants and inverses of square matrices."""

from __future__ import annotations

import math

from ..context import Context, Value
from ..registry import MICROSOFT, op
from ._elementwise import FLOATS, require


def _square(cx: Context, x: Value) -> tuple[int, int]:
    """The number of matrices, and their extent."""
    require(cx, x, FLOATS)
    if x.rank < 2 or x.shape[-1] != x.shape[-2]:
        cx.fail(f"{x} must have two last axes of the same extent")
    return math.prod(x.shape[:-2]), x.shape[-1]


@op("Det", since=11)
def det(cx: Context, x: Value) -> Value:
    """The determinant of each matrix."""
    matrices, n = _square(cx, x)
    y = cx.out(x.shape[:-2], x.dtype)
    if matrices:
        cx.emit(f"det_{x.dtype.short}", units=matrices, x=x, y=y, work=cx.work(matrices * n * n * 8), n=n)
    return y


@op("Inverse", domain=MICROSOFT)
def inverse(cx: Context, x: Value) -> Value:
    """The inverse of each matrix; of a singular one, infinities."""
    matrices, n = _square(cx, x)
    y = cx.out(x.shape, x.dtype)
    if y.size:
        cx.emit(f"inverse_{x.dtype.short}", units=matrices, x=x, y=y, work=cx.work(matrices * n * n * 16), n=n)
    return y
