"""A copy of a tensor with elements replaced, or combined with updates, by index."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import dtypes
from ..context import Array, Context, Value
from ..errors import UnsupportedModelError
from ..registry import op
from ._copy import copy_flat, normal_axis, strides, width
from ._narrow import by_bytes
from .gather import check_places, element_rows, is_wide, tuple_axes

MODES = {"none": 0, "add": 1, "mul": 2, "max": 3, "min": 4}
_UFUNCS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
_REDUCED = (
    dtypes.F32,
    dtypes.F64,
    dtypes.F16,
    dtypes.BF16,
    dtypes.I8,
    dtypes.U8,
    dtypes.I16,
    dtypes.U16,
    dtypes.I32,
    dtypes.U32,
    dtypes.I64,
    dtypes.U64,
)


def _kernel(
    cx: Context, family: str, data: Value, updates: Value, reduction: str, plain: str
) -> tuple[str, dict[str, Any]]:
    if updates.dtype != data.dtype:
        cx.fail(f"{updates} and {data} have different types")
    mode = MODES.get(reduction)
    if mode is None:
        cx.fail(f"reduction {reduction!r} is none of {', '.join(MODES)}")
    if mode == 0:
        return plain, {}
    if data.dtype not in _REDUCED:
        cx.fail(f"reduction {reduction!r} of type {data.dtype} is not implemented", UnsupportedModelError)
    return f"{family}_{data.dtype.short}", {"mode": mode}


def _fold(x: Array, places: Any, updates: Array, reduction: str) -> Array:
    y = x.copy()
    if reduction == "none":
        y[places] = updates
    else:
        _UFUNCS[reduction].at(y, places, updates)
    return y


def fold_scatter_elements(x: Array, indices: Array, updates: Array, *, axis: int = 0, reduction: str = "none") -> Array:
    if indices.ndim != x.ndim or updates.shape != indices.shape:
        raise ValueError(f"shapes {x.shape}, {indices.shape} and {updates.shape}")
    places: list[Array] = list(np.indices(indices.shape))
    places[axis] = indices
    return _fold(x, tuple(places), updates, reduction)


@op("Scatter", "ScatterElements", since=9, fold=fold_scatter_elements)
def scatter_elements(
    cx: Context, x: Value, indices: Value, updates: Value, *, axis: int = 0, reduction: str = "none"
) -> Value:
    """Each update goes to its index's own place, except along the axis (``reduction`` since opset 16)."""
    axis = normal_axis(cx, axis, x.rank)
    check_places(cx, x, indices, axis)
    if updates.shape != indices.shape:
        cx.fail(f"{updates} and {indices} have different shapes")
    wide, size = is_wide(cx, indices), width(cx, x)
    kernel, mode = _kernel(cx, "scatter_elements", x, updates, reduction, f"scatter_elements_b{size}")
    y = cx.out(x.shape, x.dtype, reuse=(x,))
    copy_flat(cx, x, y)
    if indices.size:
        n, step, rows, rank, dims = element_rows(x.shape, indices.shape, axis, size)
        cx.emit(
            kernel,
            index=indices,
            updates=updates,
            y=y,
            wide=wide,
            rows=rows,
            n=n,
            step=step,
            axis=x.shape[axis],
            stride=strides(x.shape)[axis] * size,
            rank=rank,
            dims=dims,
            **mode,
        )
    return y


def fold_scatter_nd(x: Array, indices: Array, updates: Array, *, reduction: str = "none") -> Array:
    if updates.shape != (*indices.shape[:-1], *x.shape[indices.shape[-1] :]):
        raise ValueError(f"shapes {x.shape}, {indices.shape} and {updates.shape}")
    return _fold(x, tuple(np.moveaxis(indices, -1, 0)), updates, reduction)


@op("ScatterND", since=11, fold=fold_scatter_nd)
def scatter_nd(cx: Context, x: Value, indices: Value, updates: Value, *, reduction: str = "none") -> Value:
    """Each slice of updates goes where its tuple of indices says (``reduction`` since opset 16)."""
    depth = indices.shape[-1] if indices.rank else 0
    if not 1 <= depth <= x.rank or updates.shape != (*indices.shape[:-1], *x.shape[depth:]):
        cx.fail(f"{indices} and {updates} do not fit {x}")
    wide, size = is_wide(cx, indices), width(cx, x)
    kernel, mode = _kernel(cx, "scatter_nd", x, updates, reduction, "scatter_nd")
    y = cx.out(x.shape, x.dtype, reuse=(x,))
    copy_flat(cx, x, y)
    if updates.size:
        cx.emit(
            kernel,
            index=indices,
            updates=updates,
            y=y,
            wide=wide,
            n=math.prod(indices.shape[:-1]),
            depth=depth,
            run=math.prod(x.shape[depth:]) * size,
            axes=tuple_axes(x.shape, 0, depth, size),
            **mode,
        )
    return y


@op("TensorScatter", since=24)
@by_bytes
def tensor_scatter(
    cx: Context,
    past_cache: Value,
    update: Value,
    write_indices: Value | None = None,
    *,
    axis: int = -2,
    mode: str = "linear",
) -> Value:
    """The cache with updates from a place of each batch on; in mode "circular" they go on at the start of the axis."""
    at = normal_axis(cx, axis, past_cache.rank)
    shape, n = past_cache.shape, update.shape[at] if at < update.rank else 0
    if (
        at == 0
        or update.dtype != past_cache.dtype
        or update.shape != (*shape[:at], n, *shape[at + 1 :])
        or n > shape[at]
    ):
        cx.fail(f"{update} does not fit {past_cache} along axis {at}")
    if write_indices is not None and (write_indices.dtype is not dtypes.I64 or write_indices.shape != shape[:1]):
        cx.fail(f"{write_indices} must be int64{list(shape[:1])}")
    if mode not in ("linear", "circular"):
        cx.fail(f"mode {mode!r} is neither 'linear' nor 'circular'")
    y = cx.out(shape, past_cache.dtype, reuse=(past_cache,))
    copy_flat(cx, past_cache, y)
    if update.size:
        cx.emit(
            "tensor_scatter",
            units=math.prod(update.shape[: at + 1]),
            updates=update,
            first=write_indices,
            y=y,
            mid=math.prod(shape[1:at]),
            n=n,
            axis=shape[at],
            run=math.prod(shape[at + 1 :]) * width(cx, update),
            circular=int(mode == "circular"),
        )
    return y
