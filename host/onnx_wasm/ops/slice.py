"""Parts of a tensor at regular steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..context import Array, Context, Value
from ..dtypes import STRING
from ..layout import whole
from ..registry import MICROSOFT, op
from ._copy import Dim, collapse, copy, normal_axes, normal_axis, strides
from ._narrow import by_bytes
from ._shapes import extents


def _places(extent: int, start: int, end: int, step: int) -> range:
    # Python clamps bounds as ONNX does, except a start before the first element when going backwards.
    if step < 0 and start < -extent:
        start = 0
    return range(extent)[start:end:step]


def fold_slice(x: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None) -> Array:
    count = len(starts)
    places = range(count) if axes is None else axes.tolist()
    every = [1] * count if steps is None else steps.tolist()
    if len({p % x.ndim for p in places}) != count:
        raise ValueError("axes do not fit")
    for axis, start, end, step in zip(places, starts.tolist(), ends.tolist(), every, strict=True):
        picked = _places(x.shape[axis], start, end, step)
        x = np.take(x, np.array(picked, np.int64), axis)
    return x


def fold_slice_1(x: Array, *, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int] | None = None) -> Array:
    return fold_slice(x, np.array(starts), np.array(ends), None if axes is None else np.array(axes))


@op("Slice", since=1, fold=fold_slice_1)
@by_bytes
def slice_1(
    cx: Context, x: Value, *, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int] | None = None
) -> Value:
    """The places [start, end) of the axes listed, or of the first ones."""
    return _slice(cx, x, list(starts), list(ends), None if axes is None else list(axes), None)


@op("Slice", since=10, host=("starts", "ends", "axes", "steps"), fold=fold_slice)
@by_bytes
def slice_(
    cx: Context, x: Value, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None
) -> Value:
    """As before, all as inputs, and with steps, which may be negative."""
    given = {"starts": starts, "ends": ends, "axes": axes, "steps": steps}
    bounds = [None if a is None else extents(cx, name, a) for name, a in given.items()]
    return _slice(cx, x, bounds[0] or [], bounds[1] or [], bounds[2], bounds[3])


def _slice(
    cx: Context, x: Value, starts: list[int], ends: list[int], axes: list[int] | None, steps: list[int] | None
) -> Value:
    axes = normal_axes(cx, range(len(starts)) if axes is None else axes, x.rank)
    steps = [1] * len(axes) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps):
        cx.fail(f"has {len(starts)} starts, {len(ends)} ends, {len(axes)} axes and {len(steps)} steps")
    if 0 in steps:
        cx.fail(f"steps {steps} hold a 0")
    picked = [range(d) for d in x.shape]
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        picked[axis] = _places(x.shape[axis], start, end, step)
    return pick(cx, x, picked)


@op("UnfoldTensor", domain=MICROSOFT)
@by_bytes
def unfold(cx: Context, x: Value, *, size: int, dim: int = -1, step: int = 1) -> Value:
    """Slices of ``size`` places at every ``step`` of an axis: one for each place of that axis in y, whose last axis
    holds them."""
    axis = normal_axis(cx, dim, x.rank)
    if step < 1 or not 1 <= size <= x.shape[axis]:
        cx.fail(f"slices of {size} at steps of {step} do not fit axis {dim} of {x!r}")
    shape = [*x.shape, size]
    shape[axis] = (x.shape[axis] - size) // step + 1
    y = cx.out(shape, x.dtype)
    steps = strides(x.shape)
    steps.append(steps[axis])
    steps[axis] *= step
    copy(cx, x, y, zip(shape, steps, strides(shape), strict=True))
    return y


def pick(cx: Context, x: Value, picked: Sequence[range]) -> Value:
    """The elements at every combination of places, one range for each axis."""
    if x.dtype is STRING and x.known is not None:
        return cx.known(x.known[np.ix_(*picked)])
    shape = [len(p) for p in picked]
    steps = strides(x.shape)
    first = sum(p.start * s for p, s in zip(picked, steps, strict=True))
    dims: list[Dim] = [(n, p.step * s, d) for n, p, s, d in zip(shape, picked, steps, strides(shape), strict=True)]
    if 0 in shape:
        return cx.out(shape, x.dtype)
    left = collapse(dims)
    if not left or (len(left) == 1 and left[0][1] == 1):
        y = cx.alias(x, shape, offset=first * x.dtype.bits // 8)
        return part(cx, x, y, picked) if x.moved_from is not None else y
    y = part(cx, x, cx.out(shape, x.dtype), picked)
    copy(cx, x, y, dims, source=first)
    return y


def part(cx: Context, x: Value, y: Value, picked: Sequence[range]) -> Value:
    """``y``, to which these places of ``x`` are to be copied, with a note of where they can be read instead."""
    if min(p.step for p in picked) > 0:
        seen = cx.view(x)
        if seen is not None:
            y.moved_from = seen._replace(layout=seen.layout.part(picked))
        else:
            cx.seen(y, x, whole(x.shape).part(picked))
    return y
