"""Transpose, and the ops that are a transpose between two reshapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ..context import Array, Context, Quantized, Value
from ..layout import Layout, whole
from ..registry import op
from ._copy import Dim, collapse, copy, strides, width, words
from ._narrow import by_bytes

# A unit of transpose_b* has so many columns, and rows that fill a cache line, or more if columns are few.
LINE, COLS, ELEMENTS = 64, 256, 2048


def fold_transpose(x: Array, *, perm: Sequence[int] | None = None) -> Array:
    if perm is not None and min(perm, default=0) < 0:
        raise ValueError(f"perm {perm}")
    return np.transpose(x, perm)


@op("Transpose", fold=fold_transpose)
@by_bytes
def transpose(cx: Context, x: Value, *, perm: Sequence[int] | None = None) -> Value:
    """A copy only if axes of more than one element change their order."""
    order = list(range(x.rank))[::-1] if perm is None else list(perm)
    if sorted(order) != list(range(x.rank)):
        cx.fail(f"perm {order} is not an order of the {x.rank} axes of {x}")
    y = permute(cx, x, x.shape, order)
    q = x.quantized
    if q is not None and order == [1, 0]:
        y.quantized = Quantized(q.values, q.scale, q.zero, q.axis if q.per_tensor else 1 - q.axis, not q.transposed)
    return y


def permute(
    cx: Context, x: Value, view: Sequence[int], order: Sequence[int], shape: Sequence[int] | None = None
) -> Value:
    """``x`` seen with shape ``view``, its axes put into ``order``, given as ``shape``."""
    result = tuple(view[a] for a in order) if shape is None else tuple(shape)
    if shape is None and tuple(view) == x.shape == x.root.shape:
        record = cx.fusable(x)
        if record is not None and record.permute is not None:
            y = cx.out(result, x.dtype)
            if record.permute(y, order):
                record.permute = None
                y.producer = record
                return y
    source, layout = _source(cx, x, tuple(view))
    dims, moved = _moves(layout, tuple(order), result)
    if not any(step == 1 for _, step, _ in dims):
        source, layout = x, whole(view)
        dims, moved = _moves(layout, tuple(order), result)
    if layout.offset:
        source = cx.alias(source, (source.size - layout.offset,), offset=layout.offset * x.dtype.bits // 8)
    if x.size == 0 or (len(dims) <= 1 and source.size <= x.size):
        return cx.alias(source, result)
    y = cx.out(result, x.dtype)
    if moved is not None:
        cx.seen(y, source, moved)
    _emit(cx, source, y, dims)
    return y


def _source(cx: Context, x: Value, view: tuple[int, ...]) -> tuple[Value, Layout]:
    """Where the elements of ``x``, seen with shape ``view``, can be read."""
    seen = cx.view(x)
    layout = seen.layout.reshaped(view) if seen is not None else None
    return (x, whole(view)) if seen is None or layout is None else (seen.source, layout)


@lru_cache(256)
def _moves(layout: Layout, order: tuple[int, ...], shape: tuple[int, ...]) -> tuple[tuple[Dim, ...], Layout | None]:
    """The fewest dims that visit a tensor with its axes in another order; and where its elements, from its first on,
    are with axes of that shape."""
    moved = layout.permuted(order)
    seen = moved.reshaped(shape)
    dims = collapse(zip(moved.shape, moved.strides, strides(moved.shape), strict=True))
    return tuple(dims), None if seen is None else seen._replace(offset=0)


def _emit(cx: Context, x: Value, y: Value, dims: Sequence[Dim]) -> None:
    size = width(cx, x)
    if dims[-1][1] == 1:
        run = dims[-1][0]
        if len(dims) < 3 or run * size not in (2, 4, 8, 16) or any(s % run for _, s, _ in dims[:-1]):
            copy(cx, x, y, dims)
            return
        # Runs so short move as one wide element, whose other axes are transposed.
        wide = [(n, s // run, d // run) for n, s, d in dims[:-1]]
        if not any(step == 1 for _, step, _ in wide):
            copy(cx, x, y, dims)
            return
        size, dims = size * run, wide
    emit_transpose(cx, x, y, dims, size)


def emit_transpose(cx: Context, x: Value, y: Value, dims: Sequence[Dim], size: int) -> None:
    units, numbers = _transpose(tuple(dims), size)
    cx.emit(f"transpose_b{size}", units=units, x=x, y=y, **numbers)


@lru_cache(256)
def _transpose(dims: tuple[Dim, ...], size: int) -> tuple[int, dict[str, Any]]:
    """The units and the numbers of a record."""
    # The plane of the axis that is last in y and the one that is last in x; the other axes are its batch.
    rows, ss, _ = dims[-1]
    a = next(i for i, dim in enumerate(dims) if dim[1] == 1)
    cols, _, ds = dims[a]
    batch = [*dims[:a], *dims[a + 1 : -1]]
    line = LINE // size
    block = line * max(1, ELEMENTS // (min(cols, COLS) * line))
    blocks = -(-rows // block) * -(-cols // COLS)
    numbers = {
        "rows": rows,
        "cols": cols,
        "ss": ss * size,
        "ds": ds * size,
        "block": block,
        "rank": max(len(batch), 1),
        "dims": words(batch, size),
    }
    return blocks * math.prod(n for n, _, _ in batch), numbers


@op("DepthToSpace")
def depth_to_space(cx: Context, x: Value, *, blocksize: int, mode: str = "DCR") -> Value:
    """Channels become blocks of pixels."""
    n, c, h, w = _image(cx, x)
    if blocksize < 1 or c % blocksize**2:
        cx.fail(f"{c} channels of {x} do not divide into blocks of {blocksize} x {blocksize}")
    depth, result = c // blocksize**2, (n, c // blocksize**2, h * blocksize, w * blocksize)
    if _is_dcr(cx, mode):
        return permute(cx, x, (n, blocksize, blocksize, depth, h, w), (0, 3, 4, 1, 5, 2), result)
    return permute(cx, x, (n, depth, blocksize, blocksize, h, w), (0, 1, 4, 2, 5, 3), result)


@op("SpaceToDepth")
def space_to_depth(cx: Context, x: Value, *, blocksize: int, mode: str = "DCR") -> Value:
    """Blocks of pixels become channels."""
    n, c, h, w = _image(cx, x)
    if blocksize < 1 or h % blocksize or w % blocksize:
        cx.fail(f"the {h} x {w} pixels of {x} do not divide into blocks of {blocksize} x {blocksize}")
    view = (n, c, h // blocksize, blocksize, w // blocksize, blocksize)
    result = (n, c * blocksize**2, h // blocksize, w // blocksize)
    return permute(cx, x, view, (0, 3, 5, 1, 2, 4) if _is_dcr(cx, mode) else (0, 1, 3, 5, 2, 4), result)


def _is_dcr(cx: Context, mode: str) -> bool:
    if mode not in ("DCR", "CRD"):
        cx.fail(f"mode {mode!r} is neither 'DCR' nor 'CRD'")
    return mode == "DCR"


def _image(cx: Context, x: Value) -> tuple[int, ...]:
    if x.rank != 4:
        cx.fail(f"{x} has rank {x.rank}, needs 4 (N, C, H, W)")
    return x.shape
