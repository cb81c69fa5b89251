"""Shapes as tensors, and nodes that hand their input on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .. import dtypes
from ..context import Array, Context, Item, Value
from ..dtypes import DType
from ..errors import NodeIndexError
from ..model import INTERNAL, Node
from ..registry import op
from ._copy import fill, only, wanted
from .random import drop


@op("Shape")
def shape(cx: Context, x: Value, *, start: int = 0, end: int | None = None) -> Value:
    """The extents of axes [start, end); both may count from the end, and are clamped (attributes since opset 15)."""
    return cx.known(np.array(x.shape[start:end], np.int64))


@op("Extent", domain=INTERNAL)
def extent(cx: Context, x: Value, *, axis: int, vector: int, gather: Node) -> Value:
    """One extent, as a scalar or as a vector (patterns.py); ``gather`` is the node that the model has for it."""
    value = _extent(cx, x, axis, gather)
    return cx.known(np.array([value] if vector else value, np.int64))


@op("Extents", domain=INTERNAL)
def extents(
    cx: Context, *xs: Value, sources: Sequence[int], numbers: Sequence[int], gathers: Sequence[Node | None]
) -> Value:
    """A vector: for a source among the inputs its extent along the axis that the number is; for -1, the number."""
    parts = zip(sources, numbers, gathers, strict=True)
    found = [n if gather is None else _extent(cx, xs[x], n, gather) for x, n, gather in parts]
    return cx.known(np.array(found, np.int64))


def _extent(cx: Context, x: Value, axis: int, gather: Node) -> int:
    if not -x.rank <= axis < x.rank:
        cx.node = gather
        cx.fail(f"index {axis} out of range [{-x.rank}, {x.rank}) of the shape of {x}", NodeIndexError)
    return x.shape[axis]


@op("Size")
def size(cx: Context, x: Value) -> Value:
    """The number of elements."""
    return cx.known(np.array(x.size, np.int64))


@op("Identity", fold=lambda x: x)
def identity(cx: Context, x: Item) -> Item:
    """The same memory."""
    return cx.alias(x, x.shape) if isinstance(x, Value) else x


@op("Dropout", since=7)
def dropout_7(cx: Context, x: Value, *, ratio: float = 0.5) -> tuple[Value, Value | None]:
    """The input; its mask has the input's type."""
    return cx.alias(x, x.shape), _ones(cx, x, x.dtype)


@op("Dropout", since=10)
def dropout_10(cx: Context, x: Value, *, ratio: float = 0.5) -> tuple[Value, Value | None]:
    """The input; its mask is bool."""
    return cx.alias(x, x.shape), _ones(cx, x, dtypes.BOOL)


@op("Dropout", since=12, host=("ratio", "training_mode"), pure=False)
def dropout(
    cx: Context, x: Value, ratio: Array | None = None, training_mode: Array | None = None, *, seed: int | None = None
) -> tuple[Value, Value | None]:
    """The input, or in training mode the input with elements dropped at random."""
    if training_mode is not None and only(cx, "training_mode", training_mode):
        dropped = 0.5 if ratio is None else float(only(cx, "ratio", ratio))
        if dropped:
            return drop(cx, x, dropped, seed, masked=wanted(cx, 1))
    return dropout_10(cx, x)


def _ones(cx: Context, x: Value, dtype: DType) -> Value | None:
    if not wanted(cx, 1):
        return None
    mask = cx.out(x.shape, dtype)
    fill(cx, mask, cx.known(np.ones(1, dtype.numpy)))
    return mask
