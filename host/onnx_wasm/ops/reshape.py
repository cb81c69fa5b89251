"""The same elements under another shape: nothing is copied."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..context import Array, Context, Value
from ..registry import op
from ..words import counted
from ._copy import normal_axes, normal_axis
from ._shapes import extents


def fold_reshape(x: Array, shape: Array, *, allowzero: int = 0) -> Array:
    if shape.min(initial=0) < -1:
        raise ValueError(f"shape {shape.tolist()}")
    return x.reshape([x.shape[i] if d == 0 and not allowzero else int(d) for i, d in enumerate(shape)])


@op("Reshape", since=5, host=("shape",), fold=fold_reshape)
def reshape(cx: Context, x: Value, shape: Array, *, allowzero: int = 0) -> Value:
    """0 keeps the extent of that axis (unless ``allowzero``, since opset 14), one -1 takes what is left."""
    asked = extents(cx, "shape", shape)
    target = asked.copy()
    for i, d in enumerate(asked):
        if d == 0 and not allowzero:
            if i >= x.rank:
                cx.fail(f"shape {asked} keeps axis {i}, but {x} has rank {x.rank}")
            target[i] = x.shape[i]
    if target.count(-1) == 1:
        rest = -math.prod(target)
        if rest == 0 or x.size % rest:
            cx.fail(f"{x} of {counted(x.size, 'element')} cannot take shape {asked}")
        target[target.index(-1)] = x.size // rest
    if min(target, default=0) < 0 or math.prod(target) != x.size:
        cx.fail(f"{x} of {counted(x.size, 'element')} cannot take shape {asked}")
    return cx.alias(x, target)


def fold_flatten(x: Array, *, axis: int = 1) -> Array:
    if not -x.ndim <= axis <= x.ndim:
        raise ValueError(f"axis {axis} of {x.ndim}")
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


@op("Flatten", fold=fold_flatten)
def flatten(cx: Context, x: Value, *, axis: int = 1) -> Value:
    """A matrix: the axes before ``axis``, and the others."""
    axis = normal_axis(cx, axis, x.rank, end=True)
    return cx.alias(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


def fold_squeeze(x: Array, axes: Array | Sequence[int] | None = None) -> Array:
    return np.squeeze(x, None if axes is None else tuple(int(a) for a in axes))


@op("Squeeze", since=1, fold=lambda x, *, axes=None: fold_squeeze(x, axes))
def squeeze_1(cx: Context, x: Value, *, axes: Sequence[int] | None = None) -> Value:
    """Without the axes of one element that are listed, or without any of them."""
    if axes is None:
        return cx.alias(x, [d for d in x.shape if d != 1])
    gone = normal_axes(cx, axes, x.rank)
    for a in gone:
        if x.shape[a] != 1:
            cx.fail(f"axis {a} of {x} has {x.shape[a]} elements, cannot be squeezed")
    return cx.alias(x, [d for i, d in enumerate(x.shape) if i not in gone])


@op("Squeeze", since=13, host=("axes",), fold=fold_squeeze)
def squeeze(cx: Context, x: Value, axes: Array | None = None) -> Value:
    """As before; the axes are an input."""
    return squeeze_1(cx, x, axes=None if axes is None else axes.reshape(-1).tolist())


def fold_unsqueeze(x: Array, axes: Array) -> Array:
    # numpy.expand_dims takes ten times as long.
    rank, old = x.ndim + axes.size, iter(x.shape)
    new = {a + rank if a < 0 else a for a in axes.reshape(-1).tolist()}
    if len(new) != axes.size or not new.issubset(range(rank)):
        raise ValueError("axes do not fit")
    return x.reshape([1 if i in new else next(old) for i in range(rank)])


@op("Unsqueeze", since=1, fold=lambda x, *, axes: fold_unsqueeze(x, np.array(axes, np.int64)))
def unsqueeze_1(cx: Context, x: Value, *, axes: Sequence[int]) -> Value:
    """With axes of one element where the result has the listed ones."""
    rank = x.rank + len(axes)
    new = normal_axes(cx, axes, rank)
    old = iter(x.shape)
    return cx.alias(x, [1 if i in new else next(old) for i in range(rank)])


@op("Unsqueeze", since=13, host=("axes",), fold=fold_unsqueeze)
def unsqueeze(cx: Context, x: Value, axes: Array) -> Value:
    """As before; the axes are an input."""
    return unsqueeze_1(cx, x, axes=axes.reshape(-1).tolist())
