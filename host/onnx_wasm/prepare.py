"""What is made of a graph once, before any shape is known: its operators' forms, and whether it makes sense."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from . import ops, registry
from .context import Item, Value
from .errors import InvalidModelError, UnsupportedModelError
from .functions import check_opset, has_body
from .initializers import Initializer
from .model import Graph, Node, function_graph
from .order import reads
from .patterns import simplify
from .registry import OpDef

_TRACED = frozenset({"MatMul", "Add", "Mul", "Div", "Where", "IsNaN", "Softmax", "Identity"})
_MOVES = """
    CenterCropPad Compress Concat DepthToSpace Expand Flatten Gather GatherElements GatherND Identity OneHot Pad Reshape
    Resize ReverseSequence Scatter ScatterElements ScatterND Slice SpaceToDepth Split Squeeze Tile Transpose Trilu
    Unsqueeze Upsample Where
"""
MOVING = frozenset(_MOVES.split())
"""Operators that only move elements, which therefore work on the numbers of strings."""
PASSING = frozenset({"If", "Loop", "Scan", "Identity", "SequenceMap"})
"""Operators that hand items on without looking at them."""


class Step(NamedTuple):
    """One node to lower, and what lowering would otherwise find out about it again for every shape."""

    node: Node
    opset: int
    form: OpDef | None
    expanded: bool
    """Its function's body is lowered in its place."""
    plain: bool
    """It is not, and its form answers at once: it asks for nothing that only a run can tell."""
    pure: bool
    """The same inputs give the same outputs, and no graph inside the node reads others."""
    traced: bool
    """Others may want to know what it has computed its output from."""
    host: tuple[int, ...]
    """The inputs that the form gets as arrays."""
    outputs: tuple[tuple[int, str, int], ...]
    """Of those that are read: index, name, number of readers."""
    last: tuple[str, ...]
    """Names that no node after it reads."""
    fitting: dict[tuple[Any, ...], bool]
    """The kinds of inputs that have passed the checks: the types of tensors, the classes of others. False: strings or
    views of the host are among them, and the node is not `plain`."""


@dataclass(eq=False)
class Prepared:
    """What lowering keeps of a graph between shapes."""

    graph: Graph
    forms: dict[int, OpDef | None]
    """By the nodes' indices; None for one that is expanded into its function's body."""
    uses: Mapping[str, int]
    weights: dict[str, Value] = field(default_factory=dict)
    """Of initializers, and of the outputs of settled nodes."""
    settled: set[int] = field(default_factory=set)
    """Nodes whose outputs depend on this graph's initializers alone: what the first lowering made of them holds."""
    steps: dict[tuple[str, ...], list[Step]] = field(default_factory=dict)
    """By fetches."""

    def settle(self, node: Node, results: Sequence[Item | None]) -> None:
        """Keep the constant results of a node for all lowerings, if it reads nothing from outside this graph."""
        graph = self.graph
        for name in node.inputs:
            if name and name not in self.weights:
                return
            if name in graph.overridable:
                return
        self.settled.add(node.index)
        for name, item in zip(node.outputs, results, strict=False):
            if name and isinstance(item, Value):
                self.weights[name] = item


@dataclass(eq=False)
class LoweringCache:
    """What lowering keeps for a session."""

    graph: Graph
    prepared: dict[Graph, Prepared] = field(default_factory=dict)
    derived: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    bodies: dict[tuple[Any, ...], Graph] = field(default_factory=dict)
    weights: int = 0
    """Bytes of the graph's weights as the model stores them."""

    def of(self, graph: Graph) -> Prepared:
        """What is kept of one graph."""
        found = self.prepared.get(graph)
        if found is None:
            forms = {n.index: form_of(n, graph) for n in graph.nodes}
            for node in graph.nodes:
                _check_attributes(node, forms[node.index], graph)
            found = Prepared(graph, forms, graph.uses())
            self.prepared[graph] = found
        return found


_FOR_ONE_PROCESSOR = "; it was optimised for one processor: save it at optimisation level extended or below"


def load_ops() -> None:
    """Register every operator."""
    registry.load(ops)


def prepare(graph: Graph, *, simplified: bool = False) -> LoweringCache:
    """Look up every node's op. Raises UnsupportedModelError that lists all that is missing. A ``simplified`` graph has
    single operators in the place of some that are written out (patterns.py)."""
    load_ops()
    missing = dict.fromkeys([*check_opset(graph), *_missing(graph, set())])
    if missing:
        hint = _FOR_ONE_PROCESSOR if any(m.startswith("com.microsoft.nchwc::") for m in missing) else ""
        raise UnsupportedModelError(f"{graph.where}: not supported: {', '.join(missing)}{hint}")
    _check_order(graph, set())
    if simplified:
        graph = simplify(graph)
    return LoweringCache(graph, weights=sum(w.nbytes for w in graph.initializers.values()))


def form_of(node: Node, graph: Graph) -> OpDef | None:
    return registry.find(node.domain, node.op_type, node.opset or graph.opsets.get(node.domain, 0))


def _missing(graph: Graph, checked: set[Any], calls: tuple[Any, ...] = ()) -> Iterator[str]:
    """Operators without an implementation. ``checked`` are the model's functions seen so far, ``calls`` those that this
    graph is in."""
    for node in graph.nodes:
        domain = node.domain or "ai.onnx"
        key = (node.domain, node.op_type)
        if key in graph.functions:
            if key in calls:
                raise InvalidModelError(f"{graph.where}: function {domain}::{node.op_type} calls itself")
            if key not in checked:
                body = function_graph(graph.functions[key], {}, graph)
                yield from _missing(body, checked, (*calls, key))
                _check_order(body, set())
                checked.add(key)
        elif node.domain not in graph.opsets:
            yield f"{domain}::{node.op_type} (the model imports no opset of {domain})"
        elif form_of(node, graph) is None and not has_body(node, graph.opsets):
            yield f"{domain}::{node.op_type} (opset {graph.opsets[node.domain]})"
        for inner in node.subgraphs():
            yield from _missing(inner, checked, calls)


_KINDS = {"int": int, "float": float, "str": str, "Graph": Graph, "Initializer": Initializer}


def _check_attributes(node: Node, form: OpDef | None, graph: Graph) -> None:
    """Attributes must be of the kinds that the operator's form takes."""
    if form is None or (node.domain, node.op_type) in graph.functions:
        return
    for name, value in node.attributes.items():
        kind = form.kinds.get(name, "")
        element = _KINDS.get(kind.removeprefix("Sequence[").removesuffix("]"))
        several = kind.startswith("Sequence[")
        # Those of a tuple are all of one type.
        values = value[:1] if several and isinstance(value, tuple) else (value,)
        if element is not None and not (
            isinstance(value, tuple) == several and all(isinstance(v, element) for v in values)
        ):
            raise InvalidModelError(f"{graph.where}: {node}: attribute {name!r} is {value!r}, must be {kind}")


def _check_order(graph: Graph, outer: set[str]) -> None:
    mine = {i.name for i in graph.inputs} | set(graph.overridable) | set(graph.initializers)
    defined = outer | mine
    for node in graph.nodes:
        for name in node.inputs:
            if name and name not in defined:
                raise InvalidModelError(f"{graph.where}: {node}: input {name!r} is not computed before it")
        _check_attributes(node, form_of(node, graph), graph)
        for inner in node.subgraphs():
            _check_order(inner, defined)
        for name in node.outputs:
            if name and name in mine:
                raise InvalidModelError(f"{graph.where}: {node}: output {name!r} has another producer")
            defined.add(name)
            mine.add(name)
    for output in graph.outputs:
        if output.name not in defined:
            raise InvalidModelError(f"{graph.where}: output {output.name!r} is computed by no node")


def steps(prepared: Prepared, fetches: tuple[str, ...]) -> list[Step]:
    """The nodes that the fetches depend on, in order."""
    found = prepared.steps.get(fetches)
    if found is None:
        wanted, found = set(fetches), []
        for node in reversed(prepared.graph.nodes):
            if not wanted.isdisjoint(node.outputs):
                read = reads(node)
                found.append(_step(prepared, node, tuple(n for n in read if n not in wanted)))
                wanted |= read
        found.reverse()
        prepared.steps[fetches] = found
    return found


def _step(prepared: Prepared, node: Node, last: tuple[str, ...]) -> Step:
    graph, form = prepared.graph, prepared.forms[node.index]
    expanded = form is None or (node.domain, node.op_type) in graph.functions
    given = form.inputs[: len(node.inputs)] if form is not None else ()
    return Step(
        node,
        opset=node.opset or graph.opsets.get(node.domain, 0),
        form=form,
        expanded=expanded,
        plain=form is not None and not expanded and not form.generator,
        pure=form is not None and form.pure and not node.nests,
        traced=node.op_type in _TRACED and not node.domain and not expanded,
        host=tuple(i for i, name in enumerate(given) if form is not None and name in form.host),
        outputs=tuple((i, n, prepared.uses[n]) for i, n in enumerate(node.outputs) if n and prepared.uses[n]),
        last=last,
        fitting={},
    )
