"""Elements picked by index."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import dtypes
from ..context import Array, Context, Quantized, Value
from ..dtypes import F32
from ..errors import NodeIndexError, UnsupportedModelError
from ..registry import op
from ..words import counted
from ._copy import collapse, normal_axis, strides, width, words
from ._elementwise import broadcast, cast
from ._narrow import by_bytes
from .slice import pick


def is_wide(cx: Context, indices: Value) -> int:
    """1 for i64 indices, 0 for i32, as kernels want it."""
    if indices.dtype not in (dtypes.I32, dtypes.I64):
        cx.fail(f"{indices} has type {indices.dtype}; indices are int32 or int64", UnsupportedModelError)
    return int(indices.dtype is dtypes.I64)


def fold_gather(x: Array, indices: Array, *, axis: int = 0) -> Array:
    # numpy.take takes ten times as long.
    return np.asarray(x.take(indices, axis))


@op("Gather", fold=fold_gather)
@by_bytes
def gather(cx: Context, x: Value, indices: Value, *, axis: int = 0) -> Value:
    """Slices of one axis, in the order and shape of the indices."""
    axis = normal_axis(cx, axis, x.rank)
    if indices.known is not None and indices.size == 1:
        return _pick_one(cx, x, indices.known.item(), axis, indices.shape)
    if x.quantized is not None and not indices.const:
        y = _gather_stored(cx, x, x.quantized, indices, axis)
        if y is not None:
            return y
    y = cx.out((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x.dtype)
    _emit_gather(cx, x, indices, y, axis)
    return y


def _gather_stored(cx: Context, x: Value, q: Quantized, indices: Value, axis: int) -> Value | None:
    """Gather what a constant is computed from, so that it need not lie in the heap itself."""
    if q.transposed or not (q.per_tensor or q.axis == axis):
        return None
    y = cast(cx, gather(cx, q.values, indices, axis=axis), F32)
    for name, part in (("sub", q.zero), ("mul", q.scale)):
        if part is None:
            continue
        if q.per_tensor:
            part = cx.alias(part, ())
        else:
            shape = (*indices.shape, *(1,) * (x.rank - 1 - axis))
            part = cx.alias(gather(cx, part, indices), shape)
        y = broadcast(cx, f"{name}_f32", "ab", (y, cast(cx, part, F32)), F32, act=0, alpha=0.0, beta=0.0)[0]
    return y


def _emit_gather(cx: Context, x: Value, indices: Value, y: Value, axis: int) -> None:
    wide, run = is_wide(cx, indices), strides(x.shape)[axis] * width(cx, x)
    if y.size == 0:
        return
    kernel = f"gather_b{run}" if run in (1, 2, 4, 8, 16) else "gather_rows"
    last: dict[str, Any] = {} if run in (1, 2, 4, 8, 16) else {"run": run}
    units = math.prod(x.shape[:axis]) * indices.size
    cx.emit(kernel, units=units, x=x, index=indices, y=y, wide=wide, n=indices.size, axis=x.shape[axis], **last)


def _pick_one(cx: Context, x: Value, index: int, axis: int, shape: tuple[int, ...]) -> Value:
    extent = x.shape[axis]
    if not -extent <= index < extent:
        cx.fail(f"index {index} out of range [{-extent}, {extent}) of axis {axis} of {x}", NodeIndexError)
    places = [range(d) for d in x.shape]
    places[axis] = places[axis][index % extent : index % extent + 1]
    return cx.alias(pick(cx, x, places), (*x.shape[:axis], *shape, *x.shape[axis + 1 :]))


def fold_gather_elements(x: Array, indices: Array, *, axis: int = 0) -> Array:
    if indices.ndim != x.ndim:
        raise ValueError(f"{indices.ndim} axes of {x.ndim}")
    places: list[Array] = list(np.indices(indices.shape))
    places[axis] = indices
    return x[tuple(places)]


@op("GatherElements", fold=fold_gather_elements)
def gather_elements(cx: Context, x: Value, indices: Value, *, axis: int = 0) -> Value:
    """For each index, the element of x at the index's own place, except along the axis."""
    axis = normal_axis(cx, axis, x.rank)
    check_places(cx, x, indices, axis)
    wide, size = is_wide(cx, indices), width(cx, x)
    y = cx.out(indices.shape, x.dtype)
    if y.size:
        n, step, rows, rank, dims = element_rows(x.shape, indices.shape, axis, size)
        cx.emit(
            f"gather_elements_b{size}",
            units=rows,
            x=x,
            index=indices,
            y=y,
            wide=wide,
            n=n,
            step=step,
            axis=x.shape[axis],
            stride=strides(x.shape)[axis] * size,
            rank=rank,
            dims=dims,
        )
    return y


def check_places(cx: Context, x: Value, indices: Value, axis: int) -> None:
    """Fail unless every index has a place in ``x``."""
    fits = indices.rank == x.rank and all(
        i == axis or n <= d for i, (n, d) in enumerate(zip(indices.shape, x.shape, strict=True))
    )
    if not fits:
        cx.fail(f"{indices} does not fit {x}: the same rank, and no axis but {axis} larger")


def element_rows(
    shape: tuple[int, ...], indices: tuple[int, ...], axis: int, size: int
) -> tuple[int, int, int, int, tuple[int, ...]]:
    """How to walk indices in rows, at index 0 of a tensor of ``shape``: length, step in bytes, rows, rank and dims."""
    steps = strides(shape)
    steps[axis] = 0
    dims = collapse(zip(indices, steps, strides(indices), strict=True))
    n, step, _ = dims.pop() if dims else (1, 0, 0)
    return n, step * size, math.prod(d for d, _, _ in dims), max(len(dims), 1), words(dims, size)


def fold_gather_nd(x: Array, indices: Array, *, batch_dims: int = 0) -> Array:
    if not 0 <= batch_dims < min(x.ndim, indices.ndim) or x.shape[:batch_dims] != indices.shape[:batch_dims]:
        raise ValueError(f"batch_dims {batch_dims}")
    batch = [
        np.arange(d).reshape([-1 if i == j else 1 for j in range(indices.ndim - 1)])
        for i, d in enumerate(indices.shape[:batch_dims])
    ]
    return x[(*batch, *np.moveaxis(indices, -1, 0))]  # type: ignore[no-any-return]


@op("GatherND", fold=fold_gather_nd)
def gather_nd(cx: Context, x: Value, indices: Value, *, batch_dims: int = 0) -> Value:
    """The slices that tuples of indices name, within each of the leading ``batch_dims`` axes."""
    if indices.rank < 1 or not 0 <= batch_dims < min(x.rank, indices.rank):
        cx.fail(f"batch_dims {batch_dims} does not fit {x} and {indices}")
    depth = indices.shape[-1]
    if not 1 <= depth <= x.rank - batch_dims or x.shape[:batch_dims] != indices.shape[:batch_dims]:
        cx.fail(f"tuples of {indices} do not fit {x} with batch_dims {batch_dims}")
    wide, size = is_wide(cx, indices), width(cx, x)
    y = cx.out((*indices.shape[:-1], *x.shape[batch_dims + depth :]), x.dtype)
    if y.size:
        cx.emit(
            "gather_nd",
            units=math.prod(indices.shape[:-1]),
            x=x,
            index=indices,
            y=y,
            wide=wide,
            depth=depth,
            run=math.prod(x.shape[batch_dims + depth :]) * size,
            batch=math.prod(indices.shape[batch_dims:-1]),
            advance=math.prod(x.shape[batch_dims:]) * size,
            axes=tuple_axes(x.shape, batch_dims, depth, size),
        )
    return y


def tuple_axes(shape: tuple[int, ...], first: int, depth: int, size: int) -> list[int]:
    """[extent, stride in bytes] of the axes that tuples of indices count along."""
    steps = strides(shape)
    return [v for a in range(first, first + depth) for v in (shape[a], steps[a] * size)]


@op("Compress", host=("condition",))
def compress(cx: Context, x: Value, condition: Array, *, axis: int | None = None) -> Value:
    """The slices of the axis, or the elements if there is none, where the condition holds; it may be too short."""
    if axis is None:
        x, axis = cx.alias(x, (x.size,)), 0
    axis = normal_axis(cx, axis, x.rank)
    places = np.flatnonzero(condition)
    if places.size and places[-1] >= x.shape[axis]:
        cx.fail(f"condition of {counted(condition.size, 'element')} is longer than axis {axis} of {x}")
    y = cx.out((*x.shape[:axis], places.size, *x.shape[axis + 1 :]), x.dtype)
    _emit_gather(cx, x, cx.known(places.astype(np.int32)), y, axis)
    return y


@op("ReverseSequence")
def reverse_sequence(cx: Context, x: Value, sequence_lens: Value, *, batch_axis: int = 1, time_axis: int = 0) -> Value:
    """The first steps of each sequence in reverse order."""
    if sorted((batch_axis, time_axis)) != [0, 1]:
        cx.fail(f"batch_axis {batch_axis} and time_axis {time_axis} must be 0 and 1")
    if x.rank < 2 or sequence_lens.shape != (x.shape[batch_axis],):
        cx.fail(f"{sequence_lens} must have one length for each place of {x} on axis {batch_axis}")
    if sequence_lens.dtype is not dtypes.I64:
        cx.fail(f"{sequence_lens} has type {sequence_lens.dtype}, must be int64")
    y = cx.out(x.shape, x.dtype)
    n, m = x.shape[:2]
    if y.size:
        run = math.prod(x.shape[2:]) * width(cx, x)
        time_major = int(time_axis == 0)
        cx.emit(
            "reverse_sequence", units=n * m, x=x, lengths=sequence_lens, y=y, n=n, m=m, time_major=time_major, run=run
        )
    return y
