"""Running sums and products."""

from __future__ import annotations

import math

import numpy as np

from .. import dtypes
from ..context import Array, Context, Value
from ..errors import UnsupportedModelError
from ..registry import op
from ._copy import normal_axis, only

_KERNELS = {
    dtypes.F32: "f32",
    dtypes.F64: "f64",
    dtypes.F16: "f16",
    dtypes.BF16: "bf16",
    dtypes.I32: "i32",
    dtypes.U32: "i32",
    dtypes.I64: "i64",
    dtypes.U64: "i64",
}


def fold_cumsum(x: Array, axis: Array, *, exclusive: int = 0, reverse: int = 0) -> Array:
    at = axis.item()
    y = np.flip(x, at) if reverse else x
    total: Array = np.cumsum(y, at, dtype=x.dtype)
    if exclusive:
        total = total - y
    return np.flip(total, at) if reverse else total


@op("CumSum", since=11, host=("axis",), fold=fold_cumsum)
def cumsum(cx: Context, x: Value, axis: Array, *, exclusive: int = 0, reverse: int = 0) -> Value:
    """Sums of the elements up to each place, from the end if ``reverse``, without its own if ``exclusive``."""
    return _running(cx, "cumsum", x, axis, exclusive, reverse)


def fold_cumprod(x: Array, axis: Array, *, exclusive: int = 0, reverse: int = 0) -> Array:
    lanes = np.moveaxis(x, axis.item(), 0)
    lanes = np.flip(lanes, 0) if reverse else lanes
    if exclusive:
        lanes = np.concatenate([np.ones_like(lanes[:1]), lanes[:-1]])
    total: Array = np.cumprod(lanes, 0, dtype=x.dtype)
    return np.moveaxis(np.flip(total, 0) if reverse else total, 0, axis.item())


@op("CumProd", since=26, host=("axis",), fold=fold_cumprod)
def cumprod(cx: Context, x: Value, axis: Array, *, exclusive: int = 0, reverse: int = 0) -> Value:
    """As CumSum, with products."""
    return _running(cx, "cumprod", x, axis, exclusive, reverse)


def _running(cx: Context, family: str, x: Value, axis: Array, exclusive: int, reverse: int) -> Value:
    at = normal_axis(cx, only(cx, "axis", axis), x.rank)
    kernel = _KERNELS.get(x.dtype)
    if kernel is None:
        cx.fail(f"type {x.dtype} is not implemented", UnsupportedModelError)
    y = cx.out(x.shape, x.dtype, reuse=(x,))
    if y.size:
        cx.emit(
            f"{family}_{kernel}",
            units=x.size // x.shape[at],
            x=x,
            y=y,
            n=x.shape[at],
            inner=math.prod(x.shape[at + 1 :]),
            exclusive=int(bool(exclusive)),
            reverse=int(bool(reverse)),
        )
    return y
