"""What lowering asks about the items that names stand for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from . import dtypes
from .context import Array, HostView, Item, TensorSequence, Value
from .dtypes import STRING
from .initializers import Initializer

# Integer tensors up to this size take part in shape arithmetic on the host.
MAX_KNOWN = 4096
# Values up to this size are computed while lowering, if all that they depend on is known.
MAX_AT_ONCE = 64
_COUNTING = frozenset(d for d in dtypes.ALL if d.is_integer or d is dtypes.BOOL)


def as_array(array: Any) -> Array:
    made = np.asarray(array)
    return made.astype(object) if made.dtype.kind in "US" else made


def settle(value: Value) -> None:
    """Let nothing change how a value is computed."""
    value.producer = value.moved_from = value.computed_by = None


def named(strings: Array, numbers: Value) -> Item:
    """The strings of these numbers; a view, if only a run can tell the numbers."""
    if numbers.known is None:
        return HostView((numbers,), strings.take)
    value = Value(numbers.shape, STRING)
    value.known = strings.take(numbers.known)
    return value


def is_string(item: Item | None) -> bool:
    return isinstance(item, Value) and item.dtype is STRING


def listed(result: Any) -> list[Item | None]:
    return list(result) if isinstance(result, tuple) else [result]


def values_of(item: Item | None) -> Iterable[Value]:
    if isinstance(item, Value):
        return (item,)
    if isinstance(item, TensorSequence):
        return item.elements
    return item.sources if isinstance(item, HostView) else ()


def weight_of(initializer: Initializer) -> Value:
    value = Value(initializer.shape, initializer.dtype, name=initializer.name, const=True)
    value.source = initializer
    if initializer.dtype is STRING or (_is_small_integer(value) and initializer.dtype.bits >= 8):
        value.known = initializer.array()
    return value


def are_ready(args: Sequence[Item | None]) -> bool:
    """Whether there is nothing among a node's inputs that only a run can tell."""
    for item in args:
        if item is not None and not (isinstance(item, Value) and (item.known is not None or item.const)):
            return False
    return True


def _is_small_integer(value: Value) -> bool:
    return value.dtype in _COUNTING and value.size <= MAX_KNOWN


def is_small_known(item: Item) -> bool:
    if not isinstance(item, Value) or item.dtype is STRING or item.dtype.bits < 8 or item.size > MAX_AT_ONCE:
        return False
    return item.known is not None or item.const


def is_foldable(value: Value) -> bool:
    """Contents that the host works with: shape arithmetic, and strings, which it holds."""
    return value.known is not None and (_is_small_integer(value) or value.dtype is STRING)
