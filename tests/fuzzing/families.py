"""The families of graphs, and the strategies that make cases of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import reject
from hypothesis import strategies as st

from . import (
    attention,
    control,
    conv,
    elementwise,
    layout,
    linear,
    movement,
    quant,
    recurrent,
    reduce,
    sequences,
    shapes,
)
from .builder import NEWEST, Builder, Case
from .spoil import spoil

Step = Callable[[Builder], Any]


@dataclass(frozen=True)
class Family:
    """How graphs of a kind begin and grow."""

    steps: list[Step]
    start: Step | None = None
    most: int = 6
    special: bool = False
    """Inputs may contain NaN, infinities and subnormals."""
    movable: bool = False


FAMILIES = {
    "elementwise": Family(elementwise.STEPS, elementwise.start, special=True),
    "matmul": Family(linear.STEPS),
    "conv": Family(conv.STEPS),
    "pool": Family(conv.POOLS, special=True, most=3),
    "reduce": Family(reduce.STEPS, reduce.start, special=True, most=4),
    "movement": Family(movement.STEPS, movement.start, special=True, movable=True),
    "shapes": Family(shapes.STEPS, shapes.start, most=12, movable=True),
    "control": Family(control.STEPS, control.start, most=4, movable=True),
    "sequences": Family(sequences.STEPS, sequences.start, most=8, movable=True),
    "quant": Family(quant.STEPS, quant.start, most=4, movable=True),
    "attention": Family(attention.STEPS, attention.start, most=4),
    "layout": Family(layout.STEPS, layout.start, most=7),
    "recurrent": Family(recurrent.STEPS, recurrent.start, most=4),
}


@st.composite
def cases(draw: st.DrawFn, family: str) -> Case:
    """Graphs of a family; one of eight is broken in some way."""
    kind = FAMILIES[family]
    opset = draw(st.one_of(st.just(21), st.just(17), st.just(13), st.integers(7, NEWEST)))
    g = Builder(draw, opset, special=kind.special and draw(st.integers(0, 3)) == 3)
    if kind.start is not None:
        g.attempt(kind.start)
    for _ in range(draw(st.integers(1, kind.most))):
        g.attempt(g.choice(kind.steps))
    if not g.steps:
        reject()
    case = g.finish(family, movable=kind.movable)
    if not case.outputs:
        reject()
    if draw(st.integers(0, 7)) == 7:
        spoil(g, case)
    return case
