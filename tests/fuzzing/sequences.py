"""Sequences: made, changed and taken apart again, and optionals."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from .builder import Builder, Skip, Tensor
from .elementwise import binary, unary
from .movement import glue
from .peers import Elements

TYPES = ["float32", "float32", "float32", "int64", "int32", "float64", "bool", "uint8"]


def add(g: Builder, op: str, inputs: list[Tensor | None], **attributes: Any) -> Tensor:
    """A node that gives a sequence, which other families' steps must not pick."""
    return g.node(op, inputs, exact=True, hidden=True, **attributes)[0]


def sequence(g: Builder) -> Tensor:
    """A sequence that is there, or a new one."""
    found = [t for t in g.tensors if isinstance(t.array, Elements)]
    return construct(g) if not found or g.chance(10) else found[-1] if g.chance(70) else g.choice(found)


def like(g: Builder, s: Tensor, *, joined: int | None = None) -> Tensor:
    """A tensor for a sequence; with `joined` it differs from the others in that axis alone."""
    dtype = str(s.array.dtype.name)
    if joined is None or not s.array:
        found = g.pick(lambda t: t.dtype == dtype)
        return found if found is not None and g.chance(60) else g.value(g.shape(0, 3, most=5), dtype)
    dims = list(s.array[0].shape)
    dims[joined] = g.int(0 if g.chance(10) else 1, 4)
    return g.value(dims, dtype)


def position(g: Builder, low: int, high: int) -> Tensor:
    """A scalar of [low, high]: fed, constant or computed."""
    return g.host(g.int(low, high), g.choice(["int64", "int64", "int32"]))


def construct(g: Builder) -> Tensor:
    if g.chance(10):
        (s,) = g.node(
            "SequenceEmpty", [], exact=True, hidden=True, dtype=helper.np_dtype_to_tensor_dtype(np.dtype(np.float32))
        )
        return s
    first = g.pick(lambda t: t.dtype in TYPES and t.rank <= 4)
    if first is None or g.chance(30):
        first = g.value(g.shape(0, 3, most=5), g.choice(TYPES))
    axis = g.int(0, first.rank - 1) if first.rank and g.chance(60) else None
    parts = [first]
    for _ in range(g.int(0, 3)):
        dims = list(first.shape)
        if axis is not None:
            dims[axis] = g.int(1, 4)
        parts.append(g.value(dims if g.chance(85) else g.shape(0, 3, most=4), first.dtype))
    return add(g, "SequenceConstruct", [*parts])


def split(g: Builder) -> Tensor:
    """SplitToSequence: one by one, in equal parts with a rest, or as listed."""
    x = g.pick(lambda t: t.dtype in TYPES and t.rank >= 1)
    if x is None or g.chance(30):
        x = g.value(g.shape(1, 3), g.choice(TYPES))
    axis = g.int(-x.rank, x.rank - 1)
    extent, how = x.shape[axis], g.int(0, 2)
    given: dict[str, Any] = {"axis": axis if axis or g.chance(50) else None}
    if how == 0:
        return add(g, "SplitToSequence", [x], keepdims=g.choice([None, 0, 1]), **given)
    if how == 1:
        return add(g, "SplitToSequence", [x, position(g, 1, max(1, extent + 1))], keepdims=g.choice([None, 0]), **given)
    cuts = sorted(g.int(0, extent) for _ in range(g.int(0, 3)))
    lengths = np.diff([0, *cuts, extent]).astype(np.int64)
    return add(g, "SplitToSequence", [x, g.host(lengths)], keepdims=g.choice([None, 0]), **given)


def insert(g: Builder) -> Tensor:
    s = sequence(g)
    count, ranks = len(s.array), {a.ndim for a in s.array}
    joined = g.int(0, min(ranks) - 1) if len(ranks) == 1 and min(ranks) and g.chance(60) else None
    at = position(g, -count, count) if g.chance(65) else None
    return add(g, "SequenceInsert", [s, like(g, s, joined=joined), at])


def erase(g: Builder) -> Tensor:
    s = sequence(g)
    count = len(s.array)
    if not count:
        raise Skip("an empty sequence")
    return add(g, "SequenceErase", [s, position(g, -count, count - 1) if g.chance(65) else None])


def take(g: Builder) -> Tensor:
    s = sequence(g)
    count = len(s.array)
    if not count:
        raise Skip("an empty sequence")
    return g.node("SequenceAt", [s, position(g, -count, count - 1)], exact=True)[0]


def length(g: Builder) -> Tensor:
    return g.node("SequenceLength", [sequence(g)], exact=True)[0]


def join(g: Builder) -> Tensor:
    """ConcatFromSequence along an axis that is there, or a new one."""
    s = sequence(g)
    ranks = {a.ndim for a in s.array}
    if len(ranks) != 1:
        raise Skip("no common rank")
    (rank,) = ranks
    if len({a.shape for a in s.array}) == 1 and g.chance(40):
        return g.node("ConcatFromSequence", [s], exact=True, axis=g.int(-rank - 1, rank), new_axis=1)[0]
    if not rank:
        raise Skip("no axis")
    differ = [i for i in range(rank) if len({a.shape[i] for a in s.array}) > 1]
    axis = differ[0] if differ else g.int(0, rank - 1)
    return g.node("ConcatFromSequence", [s], exact=True, axis=axis - rank if g.chance(40) else axis)[0]


def hand_on(g: Builder) -> Tensor:
    """Identity of a sequence, and what opset 18 lets optionals' operators take."""
    s = sequence(g)
    kind = g.int(0, 3)
    if kind == 0 and g.opset >= 14:
        return add(g, "Identity", [s])
    if g.opset < 18:
        raise Skip("optionals")
    if kind == 2:
        # An optional with a value is just that value for peers, but not for other operators.
        s = add(g, "Optional", [g.pick(lambda t: t.dtype in TYPES) if g.chance(50) else s])
        g.tensors.remove(s)
    if g.chance(40):
        return g.node("OptionalHasElement", [s], exact=True)[0]
    return g.node("OptionalGetElement", [s], exact=True, hidden=isinstance(s.array, Elements))[0]


def start(g: Builder) -> None:
    if g.opset < 11:
        raise Skip("no sequences")
    g.value(g.shape(1, 3, most=5), g.choice(TYPES), const=False)
    g.attempt(split if g.chance(50) else construct)


STEPS = [construct, split, split, insert, insert, erase, take, take, length, join, join, hand_on, unary, binary, glue]
