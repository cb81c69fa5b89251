"""Shape arithmetic."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from ..context import Array, Context, Value

Shape = tuple[int, ...]


def broadcast_shape(cx: Context, *values: Value) -> Shape:
    """The shape that the values broadcast to; fails naming them if there is none."""
    shape = _broadcast(tuple([v.shape for v in values]))
    if shape is None:
        described = ", ".join(f"{v.name or 'input'} {list(v.shape)}" for v in values)
        cx.fail(f"shapes do not broadcast: {described}")
    return shape


@lru_cache(256)
def _broadcast(shapes: tuple[Shape, ...]) -> Shape | None:
    shape = shapes[0]
    for other in shapes[1:]:
        if other == shape:
            continue
        rank = max(len(shape), len(other))
        left, right = (1,) * (rank - len(shape)) + shape, (1,) * (rank - len(other)) + other
        if any(m != n and m != 1 and n != 1 for m, n in zip(left, right, strict=True)):
            return None
        shape = tuple(n if m == 1 else m for m, n in zip(left, right, strict=True))
    return shape


class Operand(NamedTuple):
    """How one operand is walked, in elements: along a row, from row to row, from group to group of rows."""

    step: int
    row: int
    groups: Shape


class Rows(NamedTuple):
    """An output as groups of ``mid`` rows of ``inner`` elements; the groups have dimensions ``dims``."""

    inner: int
    mid: int
    dims: Shape
    operands: tuple[Operand, ...]


_FLAT, _FIXED = Operand(1, 0, ()), Operand(0, 0, ())


@lru_cache(256)
def rows(shapes: tuple[Shape, ...], out: Shape, size: int) -> Rows:
    """Walk operands of these shapes over the ``size`` elements of ``out``, in the fewest dimensions."""
    if all(s == out for s in shapes):
        return Rows(size, 1, (), (_FLAT,) * len(shapes))
    padded = [(1,) * (len(out) - len(s)) + s for s in shapes]
    dims: list[int] = []
    moving: list[tuple[bool, ...]] = []
    for dim, *sources in zip(reversed(out), *(reversed(p) for p in padded), strict=True):
        if dim == 1:
            continue
        moves = tuple(s != 1 for s in sources)
        if moving and moving[-1] == moves:
            dims[-1] *= dim
        else:
            dims.append(dim)
            moving.append(moves)
    if len(dims) <= 1:
        return Rows(
            size, 1, (), tuple(_FLAT if not moving or m else _FIXED for m in (moving or [(True,) * len(shapes)])[0])
        )
    operands = []
    for k in range(len(shapes)):
        stride, strides = 1, []
        for dim, moves in zip(dims, moving, strict=True):
            strides.append(stride if moves[k] else 0)
            stride *= dim if moves[k] else 1
        operands.append(Operand(strides[0], strides[1], tuple(reversed(strides[2:]))))
    return Rows(dims[0], dims[1], tuple(reversed(dims[2:])), tuple(operands))


def extents(cx: Context, name: str, array: Array) -> list[int]:
    """The elements of an input that must be a vector."""
    if array.ndim != 1:
        cx.fail(f"{name} must have one dimension, got shape {list(array.shape)}")
    return [int(d) for d in array]
