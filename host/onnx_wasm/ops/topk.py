"""TopK, Unique and NonZero."""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any

import numpy as np

from ..context import Array, Context, Value
from ..dtypes import BOOL, I64
from ..errors import UnsupportedModelError
from ..registry import op
from ._copy import normal_axis, only
from ._elementwise import NUMBERS, require
from .gather import gather

Lazy = Generator[Any, Any, Any]


def _topk(cx: Context, x: Value, k: int, axis: int, largest: int) -> tuple[Value, Value]:
    require(cx, x, NUMBERS)
    axis = normal_axis(cx, axis, x.rank)
    n = x.shape[axis]
    if not 0 <= k <= n:
        cx.fail(f"k is {k}, must be in [0, {n}], the elements of {x} along axis {axis}")
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    y, index = cx.out(shape, x.dtype), cx.out(shape, I64)
    if y.size:
        cx.emit(
            f"topk_{x.dtype.short}",
            units=y.size // k,
            x=x,
            y=y,
            index=index,
            n=n,
            k=k,
            inner=math.prod(x.shape[axis + 1 :]),
            largest=int(bool(largest)),
        )
    return y, index


def fold_topk(x: Array, k: Array, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> tuple[Array, Array]:
    # A stable descending order is the reverse of a stable ascending order of the reverse.
    n = x.shape[axis]
    if k.item() < 0:
        raise ValueError(f"K {k.item()}")
    if largest:
        index = n - 1 - np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
    else:
        index = np.argsort(x, axis, kind="stable")
    index = np.take(index, np.arange(k.item()), axis)
    return np.take_along_axis(x, index, axis), index.astype(np.int64)


@op("TopK", since=11, host=("K",), fold=fold_topk)
def topk(cx: Context, x: Value, K: Array, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> tuple[Value, Value]:
    """The K largest or smallest along an axis, best first, and their indices; of equals the first. A NaN is largest."""
    return _topk(cx, x, only(cx, "K", K), axis, largest)


@op("TopK", since=10, host=("K",))
def topk_10(cx: Context, x: Value, K: Array, *, axis: int = -1) -> tuple[Value, Value]:
    """The K largest."""
    return _topk(cx, x, only(cx, "K", K), axis, 1)


@op("TopK", since=1)
def topk_1(cx: Context, x: Value, *, k: int, axis: int = -1) -> tuple[Value, Value]:
    """The k largest."""
    return _topk(cx, x, k, axis, 1)


def fold_unique(x: Array, *, axis: int | None = None, sorted: int = 1) -> tuple[Array, Array, Array, Array]:
    y, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    if not sorted:
        order = np.argsort(first)
        renumbered = np.empty_like(order)
        renumbered[order] = np.arange(order.size)
        y, first = np.take(y, order, 0 if axis is None else axis), first[order]
        inverse, counts = renumbered[inverse], counts[order]
    return y, first.astype(np.int64), inverse.astype(np.int64), counts.astype(np.int64)


@op("Unique", since=11, fold=fold_unique)
def unique(cx: Context, x: Value, *, axis: int | None = None, sorted: int = 1) -> Lazy:
    """The distinct elements, or slices along an axis; where each first occurs, which of them each is, how many."""
    if x.dtype is not BOOL:
        require(cx, x, NUMBERS)
    if axis is None:
        x = cx.alias(x, (x.size,))
    at = 0 if axis is None else normal_axis(cx, axis, x.rank)
    n = x.shape[at]
    if x.size == 0:
        nothing = tuple(cx.out((0,), I64) for _ in range(3))
        if n:
            cx.fail(f"{x} has slices without elements along axis {at}")
        return cx.alias(x, x.shape), *nothing
    count, work = cx.out((1,), I64), cx.work(8 * n)
    first, inverse, counts = (cx.out((n,), I64) for _ in range(3))
    cx.emit(
        f"unique_{'u8' if x.dtype is BOOL else x.dtype.short}",
        x=x,
        work=work,
        count=count,
        first=first,
        inverse=inverse,
        counts=counts,
        n=n,
        m=x.size // n,
        inner=math.prod(x.shape[at + 1 :]),
        sorted=int(bool(sorted)),
    )
    found = yield count, [x, first, inverse, counts]
    groups = (int(found[0]),)
    first, counts = cx.alias(first, groups), cx.alias(counts, groups)
    return gather(cx, x, first, axis=at), first, inverse, counts


def fold_nonzero(x: Array) -> Array:
    return np.array(np.nonzero(np.atleast_1d(x)), np.int64)[: x.ndim]


@op("NonZero", since=9, fold=fold_nonzero)
def nonzero(cx: Context, x: Value) -> Lazy:
    """The indices of the elements that are not 0: a row for each axis, a column for each element."""
    width = x.dtype.itemsize if x.dtype.bits >= 8 else 0
    if width not in (1, 2, 4, 8):
        cx.fail(f"type {x.dtype} is not supported", UnsupportedModelError)
    shift = int(x.dtype.is_float)
    if x.size == 0:
        return cx.out((x.rank, 0), I64)
    count = cx.out((1,), I64)
    cx.emit(f"nonzero_count_b{width}", x=x, count=count, n=x.size, shift=shift)
    found = yield count
    n = int(found[0])
    y = cx.out((x.rank, n), I64)
    if y.size:
        cx.emit(f"nonzero_b{width}", x=x, y=y, n=x.size, count=n, shift=shift, rank=x.rank, dims=x.shape)
    return y
