"""Shape arithmetic on the host: nodes on integers, bools and strings that are known before a run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .context import Array, Context, Item, Value
from .items import as_array, is_foldable
from .registry import OpDef

MISTAKES = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, MemoryError)
"""What an op, or numpy in its hands, raises on attributes and inputs that it did not expect."""

MAX_RESULT = 1 << 16
"""Elements of the largest numeric results: kernels make larger ones, as Expand may of one number."""


def folded(cx: Context, form: OpDef, args: Sequence[Item | None]) -> list[Item | None] | None:
    """The results of the node in hand, if shape arithmetic is all that it does; None, if not."""
    if form.fold is None:
        return None
    arrays: list[Array | None] = []
    const = True
    for item in args:
        if item is None:
            arrays.append(None)
        elif isinstance(item, Value) and item.known is not None and is_foldable(item):
            arrays.append(item.known)
            const = const and item.const
        else:
            return None
    try:
        made = form.fold(*arrays, **cx.node.attributes)
    except MISTAKES:
        # The op itself says what is wrong, and where.
        return None
    if made is NotImplemented:
        return None
    results = made if isinstance(made, tuple) else (made,)
    if any(np.size(array) > MAX_RESULT and np.asarray(array).dtype.kind not in "OUS" for array in results):
        return None
    values: list[Item | None] = []
    for array in results:
        value = cx.known(as_array(array))
        value.const = const
        values.append(value)
    return values
