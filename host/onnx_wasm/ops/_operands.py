"""Matrices that kernels read where their elements were moved from, rather than from the copy."""

from __future__ import annotations

from typing import NamedTuple

from ..context import Context, Value
from ..dtypes import F32

# Of a much larger tensor than the part that is read, the copy is what should stay in memory.
_LARGEST = 4


class Operand(NamedTuple):
    """Matrices of f32 in memory; steps count elements."""

    value: Value
    """From the first element on."""
    step: int
    """From a row to the next, or of a transposed one, from a column to the next."""
    transposed: bool
    batch: tuple[int, ...]
    """From a matrix to the next, for each axis but the last two; 0 for an axis of one element."""


def operand(cx: Context, x: Value) -> Operand | None:
    """Where the matrices of ``x`` can be read without the copy; None, if there is no such copy, or no such place."""
    seen = cx.view(x)
    if seen is None or x.rank < 2 or x.dtype is not F32 or seen.source.size > _LARGEST * x.size:
        return None
    layout = seen.layout
    (rows, columns), (row, column) = layout.shape[-2:], layout.strides[-2:]
    if column == 1 or columns == 1:
        step, transposed = columns if rows == 1 else row, False
    elif row == 1 or rows == 1:
        step, transposed = column, True
    else:
        return None
    batch = tuple(0 if n == 1 else s for n, s in zip(layout.shape[:-2], layout.strides[:-2], strict=True))
    return Operand(start(cx, seen.source, layout.offset), step, transposed, batch)


def start(cx: Context, source: Value, offset: int) -> Value:
    """A tensor from one of its elements on."""
    return cx.alias(source, (source.size - offset,), offset=4 * offset) if offset else source
