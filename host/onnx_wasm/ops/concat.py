"""Joining tensors along an axis, and taking them apart."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..context import Array, Context, Value
from ..dtypes import STRING
from ..registry import op
from ._copy import copy, normal_axis, strides
from ._narrow import by_bytes
from ._shapes import extents
from .slice import part


def fold_concat(*xs: Array, axis: int) -> Array:
    return np.concatenate(xs, axis)


@op("Concat", since=4, fold=fold_concat)
@by_bytes
def concat(cx: Context, *xs: Value, axis: int) -> Value:
    """One copy for each input that has elements."""
    if not xs:
        cx.fail("needs at least one input")
    first = xs[0]
    axis = normal_axis(cx, axis, first.rank)
    outer, inner = first.shape[:axis], first.shape[axis + 1 :]
    for x in xs:
        if x.dtype != first.dtype or x.shape[:axis] != outer or x.shape[axis + 1 :] != inner:
            cx.fail(f"{x} and {first} cannot be joined along axis {axis}")
    if first.dtype is STRING:
        return cx.known(np.concatenate([x.known for x in xs if x.known is not None], axis))
    extent = sum(x.shape[axis] for x in xs)
    for x in xs:
        if x.shape[axis] == extent:
            return cx.alias(x, x.shape)
    y = cx.out((*outer, extent, *inner), first.dtype)
    rows, item, at = math.prod(outer), math.prod(inner), 0
    for x in xs:
        n = x.shape[axis] * item
        copy(cx, x, y, [(rows, n, extent * item), (n, 1, 1)], target=at)
        at += n
    return y


@op("Split", since=2)
@by_bytes
def split_2(cx: Context, x: Value, *, axis: int = 0, split: Sequence[int] | None = None) -> tuple[Value | None, ...]:
    """Parts of the extents listed, or equal ones."""
    axis = normal_axis(cx, axis, x.rank)
    if split is None:
        count = len(cx.node.outputs)
        if x.shape[axis] % max(count, 1):
            cx.fail(f"axis {axis} of {x} does not divide into {count} equal parts")
        split = [x.shape[axis] // count] * count
    return _parts(cx, x, axis, split)


@op("Split", since=13, host=("split",))
@by_bytes
def split_13(cx: Context, x: Value, split: Array | None = None, *, axis: int = 0) -> tuple[Value | None, ...]:
    """As before; the extents are an input."""
    return split_2(cx, x, axis=axis, split=None if split is None else extents(cx, "split", split))


@op("Split", since=18, host=("split",))
@by_bytes
def split(
    cx: Context, x: Value, split: Array | None = None, *, axis: int = 0, num_outputs: int | None = None
) -> tuple[Value | None, ...]:
    """As before; of ``num_outputs`` parts the last may be smaller."""
    if split is not None and num_outputs is not None:
        cx.fail("has both an input split and an attribute num_outputs")
    if num_outputs is None:
        return split_13(cx, x, split, axis=axis)
    axis = normal_axis(cx, axis, x.rank)
    extent = x.shape[axis]
    if num_outputs != len(cx.node.outputs):
        cx.fail(f"num_outputs is {num_outputs}, the node has {len(cx.node.outputs)} outputs")
    part = -(-extent // num_outputs)
    return _parts(cx, x, axis, [max(0, min(part, extent - i * part)) for i in range(num_outputs)])


def _parts(cx: Context, x: Value, axis: int, lengths: Sequence[int]) -> tuple[Value | None, ...]:
    if sum(lengths) != x.shape[axis] or min(lengths, default=0) < 0:
        cx.fail(f"parts of {list(lengths)} do not add up to the {x.shape[axis]} elements of axis {axis} of {x}")
    outer, item = x.shape[:axis], strides(x.shape)[axis]
    rows, row = math.prod(outer), x.shape[axis] * item
    parts: list[Value | None] = []
    at = first = 0
    for i, extent in enumerate(lengths):
        shape, n = (*outer, extent, *x.shape[axis + 1 :]), extent * item
        places = [range(first, first + extent) if a == axis else range(d) for a, d in enumerate(x.shape)]
        if x.known is not None:
            parts.append(cx.known(x.known.reshape(rows, row)[:, at : at + n].reshape(shape)))
        elif rows == 1 or extent == x.shape[axis]:
            y = cx.alias(x, shape, offset=at * x.dtype.itemsize)
            parts.append(part(cx, x, y, places) if x.moved_from is not None else y)
        elif i < len(cx.node.outputs) and not cx.node.outputs[i]:
            parts.append(None)
        else:
            y = part(cx, x, cx.out(shape, x.dtype), places)
            copy(cx, x, y, [(rows, row, n), (n, 1, 1)], source=at)
            parts.append(y)
        at, first = at + n, first + extent
    return tuple(parts)
