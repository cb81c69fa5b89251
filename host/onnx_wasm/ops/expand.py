"""Repeating elements along axes."""

from __future__ import annotations

import numpy as np

from ..context import Array, Context, Value
from ..registry import op
from ._copy import copy, fill, strides
from ._narrow import by_bytes
from ._shapes import extents


def fold_expand(x: Array, shape: Array) -> Array:
    target = tuple(int(d) for d in shape)
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, target))


@op("Expand", host=("shape",), fold=fold_expand)
@by_bytes
def expand(cx: Context, x: Value, shape: Array) -> Value:
    """Axes of one element repeated; where ``shape`` says 1, or is too short, x keeps its extent."""
    target = extents(cx, "shape", shape)
    rank = max(x.rank, len(target))
    old = (1,) * (rank - x.rank) + x.shape
    new = [1] * (rank - len(target)) + target
    for i, (a, b) in enumerate(zip(old, new, strict=True)):
        if a != b and a != 1:
            if b != 1:
                cx.fail(f"{x} cannot expand to {target}: axis {i} has {a} elements, not 1 or {b}")
            new[i] = a
    if tuple(new) == old:
        return cx.alias(x, new)
    y = cx.out(new, x.dtype)
    if x.size == 1:
        fill(cx, y, x)
    else:
        steps = [s if d > 1 else 0 for d, s in zip(old, strides(old), strict=True)]
        copy(cx, x, y, zip(new, steps, strides(new), strict=True))
    return y


def fold_tile(x: Array, repeats: Array) -> Array:
    if repeats.shape != (x.ndim,):
        raise ValueError("repeats do not fit")
    return np.tile(x, repeats)


@op("Tile", since=6, host=("repeats",), fold=fold_tile)
@by_bytes
def tile(cx: Context, x: Value, repeats: Array) -> Value:
    """The whole tensor repeated along each axis."""
    counts = extents(cx, "repeats", repeats)
    if len(counts) != x.rank or min(counts, default=0) < 0:
        cx.fail(f"repeats {counts} do not fit {x}: one count of 0 or more for each of {x.rank} axes")
    if all(r == 1 for r in counts):
        return cx.alias(x, x.shape)
    y = cx.out([d * r for d, r in zip(x.shape, counts, strict=True)], x.dtype)
    dims = []
    for d, r, s, t in zip(x.shape, counts, strides(x.shape), strides(y.shape), strict=True):
        dims += [(r, 0, d * t), (d, s, t)]
    copy(cx, x, y, dims)
    return y
