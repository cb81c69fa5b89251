"""If, Loop and Scan, with conditions and counts that depend on data, and subgraphs that read outer tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from . import elementwise, movement
from .builder import DTYPES, Builder, Skip, Tensor
from .peers import value_info

INNER: list[Callable[[Builder], Any]] = [
    elementwise.unary, elementwise.binary, elementwise.binary, elementwise.where, elementwise.clip, movement.transpose,
    movement.slice_, movement.concat, movement.glue,
]  # fmt: skip


class Inner(Builder):
    """A subgraph: no inputs but those of the operator, and the tensors around it."""

    def __init__(self, outer: Builder, inputs: Sequence[tuple[np.ndarray, bool]]) -> None:
        super().__init__(outer.draw, outer.opset, special=False)
        self.names = outer.names
        self.outer = [t for t in outer.tensors if t.rank <= 4]
        self.hidden = set(outer.hidden)
        self.depth = outer.depth + 1
        self.parameters = [Tensor(self._name("p"), a, False, exact) for a, exact in inputs]
        self.tensors = [*self.outer, *self.parameters]

    def given(self, array: np.ndarray, *, const: bool | None = None, hidden: bool = False) -> Tensor:
        return super().given(array, const=True, hidden=hidden)

    def grow(self, most: int) -> None:
        for _ in range(self.int(0, most)):
            self.attempt(if_ if self.depth < 3 and self.chance(6) else self.choice(INNER))

    def result(self, dtype: str | None = None, shape: tuple[int, ...] | None = None) -> Tensor:
        """A tensor for an output, computed here."""
        made = [t for s in self.steps for t in s.outputs]
        tensor = self.pick(lambda t: t in made and (shape is None or t.shape == shape) and dtype in (None, t.dtype))
        if tensor is None:
            tensor = self.pick(lambda t: (shape is None or t.shape == shape) and dtype in (None, t.dtype))
            if tensor is None:
                found = self.pick(lambda t: t.exact and (shape is None or t.shape == shape))
                if found is None or dtype is None or (found.floating and dtype not in ("float32", "float64")):
                    raise Skip("no result")
                (tensor,) = self.node("Cast", [found], exact=True, to=helper.np_dtype_to_tensor_dtype(DTYPES[dtype]))
            if self.chance(70) or any(tensor is t for t in self.weights):
                (tensor,) = self.node("Identity", [tensor], exact=True)
        return tensor

    def finished(
        self, outputs: Sequence[Tensor], *, straight: bool = False, scalars: int = 0, shaped: int = 0
    ) -> onnx.GraphProto:
        """The subgraph; outer tensors among the outputs pass an Identity, which ONNX demands. The first `scalars`
        inputs have a known shape, which native demands of a Loop's; the last `shaped` outputs have one."""
        named = list[str]()
        # Native divides by the size of what a Scan puts together.
        if straight and any(t.array.size == 0 for t in self.tensors):
            raise Skip("an empty tensor in Scan")
        for tensor in outputs:
            # Native leaves a Scan's output uninitialized if it is an input of the body.
            passed = straight and any(tensor is t for t in self.parameters)
            # It counts on in the memory of an iteration number that is an output as it is.
            passed = passed or (scalars > 0 and tensor is self.parameters[0])
            if passed or any(tensor is t for t in self.outer) or tensor.name in named:
                (tensor,) = self.node("Identity", [tensor], exact=True)
            named.append(tensor.name)
        self._prune(named)
        read = {n for s in self.steps for n in s.reads}
        infos = {t.name: t for t in self.tensors}
        graph: onnx.GraphProto = helper.make_graph(
            [s.node for s in self.steps],
            self._name("body"),
            [value_info(t.name, t.array.dtype, () if i < scalars else None) for i, t in enumerate(self.parameters)],
            [
                value_info(n, infos[n].array.dtype, infos[n].shape if i >= len(named) - shaped else None)
                for i, n in enumerate(named)
            ],
            [numpy_helper.from_array(t.array, t.name) for t in self.weights if t.name in read or t.name in named],
        )
        return graph

    def _prune(self, named: Sequence[str]) -> None:
        """Leave out what no output needs: this package does not look at it, so it finds nothing wrong with it."""
        needed, kept = set(named), []
        for step in reversed(self.steps):
            if any(t.name in needed for t in step.outputs):
                kept.append(step)
                needed |= set(step.reads)
        self.steps = kept[::-1]

    @property
    def captured(self) -> list[Tensor]:
        read = {n for s in self.steps for n in s.reads}
        return [t for t in self.outer if t.name in read]

    @property
    def exact(self) -> bool:
        return all(t.exact for s in self.steps for t in s.outputs) and all(p.exact for p in self.parameters)


def condition(g: Builder) -> Tensor:
    """A scalar bool: fed, constant, or computed of data."""
    kind = g.int(0, 2)
    if kind == 0:
        return g.given(np.asarray(g.chance(50)), hidden=True)
    if kind == 1:
        x = g.value(g.choice([(), (1,)]), "int64", const=False)
        (y,) = g.node("Greater" if g.opset >= 9 else "Equal", [x, g.value((), "int64")], exact=True)
        return y
    x = g.pick(lambda t: t.exact and t.dtype in ("float32", "int64", "int32") and t.array.size > 0)
    if x is None or g.opset < 9:
        raise Skip("no data")
    if g.opset < 18:
        (y,) = g.node("ReduceMax", [x], exact=True, keepdims=0)
    else:
        (y,) = g.node("ReduceMin", [x], exact=True, keepdims=0)
    (y,) = g.node(g.choice(["Greater", "Less"]), [y, g.given(np.asarray(g.int(-4, 4), x.array.dtype))], exact=True)
    return y


def if_(g: Builder) -> Tensor:
    """If: branches of different shapes, reading what is around them."""
    choose = condition(g)
    count = g.choice([1, 1, 2])
    dtypes = [g.choice(["float32", "float32", "int64"]) for _ in range(count)]
    branches = []
    shapes: list[tuple[int, ...] | None] = [None] * count
    for _ in range(2):
        inner = Inner(g, [])
        inner.grow(3)
        outputs = [inner.result(d, s) for d, s in zip(dtypes, shapes, strict=True)]
        if g.depth:
            # Native puts iterations of different shapes together if they have as many bytes.
            shapes = [t.shape for t in outputs]
        branches.append((inner, inner.finished(outputs)))
    (then, then_graph), (other, other_graph) = branches
    captured = list({t.name: t for t in (*then.captured, *other.captured)}.values())
    exact = then.exact and other.exact
    return g.node(
        "If", [choose], count, exact=exact, captured=captured, then_branch=then_graph, else_branch=other_graph
    )[0]


def loop(g: Builder) -> Tensor:
    """Loop: by count, by condition, by both; carried tensors that may grow, scan outputs."""
    start = g.pick(lambda t: t.dtype in ("float32", "int64") and t.rank <= 3)
    if start is None or g.chance(40):
        start = g.value(g.shape(0, 3, most=5), g.choice(["float32", "int64"]))
    trips = g.int(0, 5)
    count = g.given(np.asarray(trips, np.int64), hidden=True) if g.chance(75) else None
    conditional = g.chance(60)
    inner = Inner(g, [(np.asarray(0, np.int64), True), (np.asarray(True), True), (start.array, start.exact)])
    step, going, carried = inner.parameters
    inner.grow(3)
    grows = start.rank >= 1 and g.chance(25)
    if grows:
        (after,) = inner.node(
            "Concat",
            [carried, carried if g.chance(30) else start if start in inner.outer else carried],
            exact=True,
            axis=0,
        )
    else:
        after = inner.result(start.dtype, start.shape)
    if count is None or g.chance(50 if conditional else 5):
        if g.opset < 9:
            raise Skip("Less")
        (go,) = inner.node("Less", [step, inner.given(np.asarray(g.int(0, 3), np.int64))], exact=True)
    else:
        go = going
    if g.chance(30):
        (go,) = inner.node("And", [go, going], exact=True)
    outputs = [go, after]
    scans = g.int(0, 2)
    for _ in range(scans):
        outputs.append(step if g.chance(20) else after if not grows and g.chance(30) else inner.result())
    # Native compares no shapes but numbers of bytes, and takes different ones that have none.
    if grows and any(t.array.size == 0 for t in outputs[2:]):
        raise Skip("nothing of different shapes")
    first = g.given(np.asarray(not g.chance(10)), hidden=True) if conditional else None
    if count is None and first is None:
        first = g.given(np.asarray(True), hidden=True)
    # Without an iteration, only what is declared or inferred tells the shape of what is collected.
    none = (count is not None and not trips) or (first is not None and not first.array)
    body = inner.finished(outputs, scalars=2, shaped=scans if none else 0)
    return g.node("Loop", [count, first, start], 1 + scans, exact=inner.exact, captured=inner.captured, body=body)[0]


def scan(g: Builder) -> Tensor:
    """Scan from opset 9: directions, axes, states."""
    if g.opset < 9:
        raise Skip("Scan 8")
    dtype = g.choice(["float32", "float32", "int64"])
    length = g.int(1, 5)
    axes, arrays, tensors = list[int](), list[np.ndarray](), list[Tensor]()
    for _ in range(g.int(1, 2)):
        dims = list(g.shape(0, 2, most=4))
        axis = g.int(0, len(dims))
        dims.insert(axis, length)
        tensor = g.value(dims, dtype)
        axes.append(axis - len(dims) if g.opset >= 11 and g.chance(30) else axis)
        arrays.append(np.take(tensor.array, 0, axis=axis))
        tensors.append(tensor)
    states = [g.value(g.shape(0, 2, most=4), dtype) for _ in range(g.int(0, 1))]
    inner = Inner(g, [*((s.array, s.exact) for s in states), *((a, True) for a in arrays)])
    inner.grow(3)
    outputs = [inner.result(s.dtype, s.shape) for s in states]
    scans = g.int(0 if states else 1, 2)
    outputs += [inner.result() for _ in range(scans)]
    body = inner.finished(outputs, straight=True)
    made: dict[str, Any] = {}
    if any(axes) or g.chance(30):
        made["scan_input_axes"] = axes
    if g.chance(40):
        made["scan_input_directions"] = [g.int(0, 1) for _ in tensors]
    if scans and g.chance(40):
        made["scan_output_directions"] = [g.int(0, 1) for _ in range(scans)]
    if scans and g.chance(30):
        back = g.opset >= 11 and g.chance(40)
        made["scan_output_axes"] = [g.int(-t.rank - 1 if back else 0, t.rank) for t in outputs[len(states) :]]
    return g.node(
        "Scan",
        [*states, *tensors],
        len(states) + scans,
        exact=inner.exact,
        captured=inner.captured,
        body=body,
        num_scan_inputs=len(tensors),
        **made,
    )[0]


def start(g: Builder) -> Tensor:
    return g.value(g.shape(0, 3, most=5), g.choice(["float32", "float32", "int64"]), const=False)


STEPS = [if_, if_, loop, loop, scan, elementwise.unary, movement.glue]
