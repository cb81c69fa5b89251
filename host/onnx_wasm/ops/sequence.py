"""Sequences and optionals: the host holds them, their tensors are values like any other."""

from __future__ import annotations

import numpy as np

from .. import dtypes
from ..context import Context, EmptyOptional, Item, Steps, TensorSequence, Value
from ..registry import op
from ._copy import only
from .concat import concat
from .slice import pick


@op("SequenceConstruct", since=11)
def sequence_construct(cx: Context, *tensors: Value) -> TensorSequence:
    """A sequence of the inputs."""
    return TensorSequence(tensors, tensors[0].dtype if tensors else None)


@op("SequenceEmpty", since=11)
def sequence_empty(cx: Context, *, dtype: int = 1) -> TensorSequence:
    """A sequence of nothing."""
    return TensorSequence((), dtypes.from_onnx(dtype))


@op("SequenceLength", since=11)
def sequence_length(cx: Context, sequence: TensorSequence) -> Value:
    """How many tensors there are."""
    return cx.known(np.array(len(sequence.elements), np.int64))


def _position(cx: Context, position: int, low: int, high: int) -> int:
    if not low <= position < high:
        cx.fail(f"position {position} out of range [{low}, {high})")
    return position


@op("SequenceAt", since=11)
def sequence_at(cx: Context, sequence: TensorSequence, position: Value) -> Steps:
    """One tensor; negative positions count from the end."""
    count = len(sequence.elements)
    at = _position(cx, only(cx, "position", (yield position)), -count, count)
    return sequence.elements[at]


@op("SequenceInsert", since=11)
def sequence_insert(cx: Context, sequence: TensorSequence, tensor: Value, position: Value | None = None) -> Steps:
    """The sequence with a tensor more, at a place or at the end."""
    elements = list(sequence.elements)
    held = elements[0].dtype if elements else sequence.dtype
    if held not in (None, tensor.dtype):
        cx.fail(f"the tensor is {tensor.dtype}, the sequence holds {held}")
    at = len(elements)
    if position is not None:
        at = _position(cx, only(cx, "position", (yield position)), -len(elements), len(elements) + 1)
    elements.insert(at, tensor)
    return TensorSequence(tuple(elements), tensor.dtype)


@op("SequenceErase", since=11)
def sequence_erase(cx: Context, sequence: TensorSequence, position: Value | None = None) -> Steps:
    """The sequence without one tensor, the last unless said."""
    elements = list(sequence.elements)
    at = -1
    if position is not None:
        at = only(cx, "position", (yield position))
    del elements[_position(cx, at, -len(elements), len(elements))]
    return TensorSequence(tuple(elements), sequence.dtype)


@op("ConcatFromSequence", since=11)
def concat_from_sequence(cx: Context, sequence: TensorSequence, *, axis: int, new_axis: int = 0) -> Value:
    """The tensors joined along an axis, or stacked along a new one."""
    values = list(sequence.elements)
    if not values:
        cx.fail("the sequence is empty")
    if new_axis not in (0, 1):
        cx.fail(f"new_axis is {new_axis}, must be 0 or 1")
    if new_axis:
        rank = values[0].rank + 1
        if not -rank <= axis < rank:
            cx.fail(f"axis {axis} out of range [{-rank}, {rank})")
        axis %= rank
        values = [cx.alias(v, (*v.shape[:axis], 1, *v.shape[axis:])) for v in values]
    return concat(cx, *values, axis=axis)


@op("SplitToSequence", since=11)
def split_to_sequence(cx: Context, x: Value, split: Value | None = None, *, axis: int = 0, keepdims: int = 1) -> Steps:
    """Parts of a tensor: of one extent for all, of extents listed, or slices."""
    if not -x.rank <= axis < x.rank:
        cx.fail(f"axis {axis} out of range [{-x.rank}, {x.rank})")
    axis %= x.rank
    extent = x.shape[axis]
    if split is None:
        extents = [1] * extent
    else:
        given = yield split
        if given.ndim == 0:
            step = int(given)
            if step < 1:
                cx.fail(f"split {step} must be positive")
            extents = [min(step, extent - at) for at in range(0, extent, step)]
        else:
            extents = [int(v) for v in given]
        if sum(extents) != extent or min(extents, default=0) < 0:
            cx.fail(f"split {extents} does not add up to the {extent} places of axis {axis}")
    parts, at = [], 0
    for length in extents:
        places = [range(d) for d in x.shape]
        places[axis] = range(at, at + length)
        part = pick(cx, x, places)
        if split is None and not keepdims:
            part = cx.alias(part, (*x.shape[:axis], *x.shape[axis + 1 :]))
        parts.append(part)
        at += length
    return TensorSequence(tuple(parts), x.dtype)


@op("Optional", since=15)
def optional(cx: Context, x: Item | None = None, *, type: object = None) -> Item:
    """The input itself, or an optional without a value."""
    return EmptyOptional() if x is None else x


@op("OptionalHasElement", since=15)
def optional_has_element(cx: Context, x: Item | None = None) -> Value:
    """Whether there is a value."""
    return cx.known(np.array(x is not None and not isinstance(x, EmptyOptional)))


@op("OptionalGetElement", since=15)
def optional_get_element(cx: Context, x: Item) -> Item:
    """The value that must be there."""
    if isinstance(x, EmptyOptional):
        cx.fail("the optional has no value")
    return x
