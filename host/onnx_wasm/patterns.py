"""Operators that a model has written out in simpler ones, as exporters do for older opsets: replaced before lowering.

    x / sqrt(2) -> Erf -> + 1 -> * x -> * 0.5           Gelu
    * tanh(sqrt(2 / pi) (x + 0.044715 x^3))             Gelu, its approximation
    x * sigmoid(x), x * sigmoid(k x)                    Swish
    clip(x + 3, 0, 6) / 6, and that times x             HardSigmoid, HardSwish
    (x - mean) / sqrt(mean of squares + epsilon) ...    LayerNormalization
    Shape -> Gather one -> Unsqueeze                    Extent, of our own
    Concat of extents and constants                     Extents, of our own

Only where what lies between is read by nobody else; extents also where others read the shape, or them. Constants that
are combined with x must be float32, so x is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .dtypes import F32, I32, I64
from .initializers import Initializer
from .model import INTERNAL, Graph, Node

_LIKE_INPUTS = frozenset(
    ["Add", "Sub", "Mul", "Div", "Relu", "Clip", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Erf", "Identity"]
)
_INPUTS: dict[str, Sequence[int]] = {
    **dict.fromkeys(["Add", "Sub", "Mul", "Div", "Pow", "Gather"], (2,)),
    **dict.fromkeys(["ReduceMean", "Unsqueeze"], (1, 2)),
    "Clip": (1, 3),
    "Concat": range(1, 1 << 8),
}
"""How many inputs a node must have to be looked at; others have one."""
# How many nodes back the number of axes is looked for.
_DEPTH = 8
# Longer vectors among what a Concat joins are no shapes.
_LONGEST = 64


@dataclass(frozen=True)
class _Match:
    """What takes the place of ``nodes``, at the place of the last of them."""

    op_type: str
    x: str
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...] = ()
    """Further ones."""
    attributes: dict[str, Any] | None = None
    domain: str = ""
    opset: int = 0


def simplify(graph: Graph) -> Graph:
    """The graph with such operators in the place of what they are written out in; itself, if there are none."""
    return _Finder(graph).simplified()


class _Finder:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.producers = {name: node for node in graph.nodes for name in node.outputs if name}
        self.uses = graph.uses()
        self.numbers: dict[str, tuple[float | None, int]] = {}
        self.declared = {i.name: i.shape for i in graph.parameters}

    def simplified(self) -> Graph:
        kept = {node.index: node for node in self.graph.nodes}
        found = False
        for node in self.graph.nodes:
            if node.index not in kept or not _is_sound(node):
                continue
            for pattern in _PATTERNS.get(node.op_type, ()):
                match = pattern(self, node)
                if match is None or not self.closed(match.nodes, node):
                    continue
                found = True
                made = replace(
                    node,
                    op_type=match.op_type,
                    domain=match.domain,
                    inputs=(match.x, *match.inputs),
                    attributes=match.attributes or {},
                    opset=match.opset,
                )
                for consumed in match.nodes:
                    kept.pop(consumed.index, None)
                    self.uses.subtract(i for i in consumed.inputs if i)
                self.uses.update(i for i in made.inputs if i)
                kept[node.index] = made
                self.producers[node.outputs[0]] = made
                break
        if not found:
            return self.graph
        return replace(self.graph, nodes=[kept[n.index] for n in self.graph.nodes if n.index in kept])

    def closed(self, nodes: tuple[Node, ...], last: Node) -> bool:
        """Whether nobody but these nodes reads what all but the last of them make."""
        read = [name for node in nodes for name in node.inputs]
        return all(
            self.uses[name] == read.count(name) for node in nodes if node is not last for name in node.outputs if name
        )

    def made_by(self, name: str, *kinds: str) -> Node | None:
        """The node of one of these kinds that makes a value."""
        node = self.producers.get(name)
        return node if node is not None and node.op_type in kinds and _is_sound(node) else None

    def number(self, name: str, within: str | None = None) -> float | None:
        """A constant of one f32 element, with no more axes than what it is combined with is known to have; where that
        is not said, than one."""
        if name not in self.numbers:
            self.numbers[name] = self._number(name)
        value, rank = self.numbers[name]
        return value if rank <= (1 if within is None or not rank else self.least_rank(within)) else None

    def _number(self, name: str) -> tuple[float | None, int]:
        value = self.constant(name)
        if value is None or value.dtype is not F32 or value.size != 1:
            return None, 0
        return float(value.array().reshape(-1)[0]), len(value.shape)

    def constant(self, name: str) -> Initializer | None:
        """A weight that no feed can replace."""
        if name in self.graph.initializers:
            return None if name in self.graph.overridable else self.graph.initializers[name]
        node = self.producers.get(name)
        if node is None or node.domain or node.op_type != "Constant":
            return None
        value = node.attributes.get("value")
        return value if isinstance(value, Initializer) else None

    def is_near(self, name: str, expected: float, within: str | None = None) -> bool:
        """Whether a value is this number in f32, or what is left of it in 4 to 8 decimals."""
        value = self.number(name, within)
        return value is not None and _is_written(value, expected)

    def with_number(self, node: Node, expected: float, x: str) -> str | None:
        """The other operand of a commutative node that has this number as one, which gives no axes to what ``x`` is."""
        return next((a for a, b in _both(node) if self.is_near(b, expected, x or a)), None)

    def least_rank(self, name: str, depth: int = _DEPTH) -> int:
        """So many axes a value certainly has."""
        value, node = self.constant(name), self.producers.get(name)
        if value is not None:
            return len(value.shape)
        if name in self.declared:
            return len(self.declared[name] or ())
        if node is None or not depth:
            return 0
        kind, ranks = node.op_type, [self.least_rank(i, depth - 1) for i in node.inputs if i]
        if not ranks:
            return 0
        if kind in ("Conv", "ConvTranspose"):
            return max(3, *ranks[:2])
        if kind == "MatMul":
            # A product with a vector has one axis less.
            return max(0, max(ranks) - (min(ranks) < 2))
        if kind == "Gemm":
            return 2
        if kind in ("BatchNormalization", "LayerNormalization"):
            return max(1, ranks[0])
        return max(ranks) if kind in _LIKE_INPUTS else 0

    def is_long(self, name: str, depth: int = _DEPTH) -> bool:
        """Whether a value certainly has more than one element along its last axis."""
        value = self.constant(name)
        shape = self.declared.get(name) if value is None else value.shape
        if shape is not None:
            return bool(shape) and isinstance(shape[-1], int) and shape[-1] > 1
        node = self.producers.get(name)
        if node is None or not depth:
            return False
        if node.op_type in ("MatMul", "Gemm") and len(node.inputs) > 1:
            weights = self.constant(node.inputs[1])
            across = 0 if node.attributes.get("transB") else -1
            return weights is not None and len(weights.shape) > 1 and weights.shape[across] > 1
        if node.op_type == "LayerNormalization":
            return self.is_long(node.inputs[0], depth - 1)
        return node.op_type in _LIKE_INPUTS and any(self.is_long(i, depth - 1) for i in node.inputs if i)


def _is_written(value: float, expected: float) -> bool:
    spelled = [expected, *(round(expected, digits) for digits in range(4, 9))]
    spelled += [math.floor(expected * 10**digits) / 10**digits for digits in range(4, 9)]
    return value in [float(np.float32(s)) for s in spelled]


def _is_sound(node: Node) -> bool:
    """Whether a node is of ONNX's own operators and has as many inputs and outputs as a pattern looks at."""
    counts = _INPUTS.get(node.op_type, (1,))
    if node.op_type in ("Add", "Sub", "Mul", "Div", "Pow") and node.attributes:
        # Before opset 7 an attribute said along which axes to broadcast.
        return False
    return not node.domain and len(node.outputs) == 1 and len(node.inputs) in counts and all(node.inputs)


def _both(node: Node) -> Iterator[tuple[str, str]]:
    a, b = node.inputs
    yield a, b
    yield b, a


def _swish(find: _Finder, node: Node) -> _Match | None:
    for x, gate in _both(node):
        sigmoid = find.made_by(gate, "Sigmoid")
        if sigmoid is None:
            continue
        if sigmoid.inputs[0] == x:
            return _Match("Swish", x, (sigmoid, node), opset=24)
        scaled = find.made_by(sigmoid.inputs[0], "Mul")
        for a, k in _both(scaled) if scaled is not None else ():
            alpha = find.number(k, x)
            if scaled is not None and a == x and alpha is not None:
                return _Match("Swish", x, (scaled, sigmoid, node), attributes={"alpha": alpha}, opset=24)
    return None


def _clipped(find: _Finder, name: str) -> tuple[str, tuple[Node, ...]] | None:
    """x of clip(x + 3, 0, 6)."""
    clip = find.made_by(name, "Clip")
    if clip is None:
        return None
    low, high = clip.attributes.get("min"), clip.attributes.get("max")
    if len(clip.inputs) == 3:
        low, high = find.number(clip.inputs[1]), find.number(clip.inputs[2])
    add = find.made_by(clip.inputs[0], "Add")
    if (low, high) != (0.0, 6.0) or add is None:
        return None
    x = find.with_number(add, 3.0, "")
    return None if x is None else (x, (add, clip))


def _sixth(find: _Finder, node: Node, x: str = "") -> str | None:
    """What is divided by 6."""
    if node.op_type == "Mul":
        return find.with_number(node, 1 / 6, x)
    a, b = node.inputs
    return a if find.is_near(b, 6.0, x or a) else None


def _hard(find: _Finder, node: Node) -> _Match | None:
    """clip(x + 3, 0, 6) / 6, and x clip(x + 3, 0, 6) / 6."""
    if node.op_type == "Mul":
        for x, other in _both(node):
            gate = find.made_by(other, "HardSigmoid")
            if gate is not None and gate.inputs[0] == x and _is_sixth(gate):
                return _Match("HardSwish", x, (gate, node), opset=14)
            sixth = find.made_by(other, "Div", "Mul")
            inner = None if sixth is None else _sixth(find, sixth, x)
            clipped = None if inner is None else _clipped(find, inner)
            if sixth is not None and clipped is not None and clipped[0] == x:
                return _Match("HardSwish", x, (*clipped[1], sixth, node), opset=14)
    inner = _sixth(find, node)
    if inner is None:
        return None
    product = find.made_by(inner, "Mul")
    for x, other in _both(product) if product is not None else ():
        clipped = _clipped(find, other)
        if product is not None and clipped is not None and clipped[0] == x:
            return _Match("HardSwish", x, (*clipped[1], product, node), opset=14)
    clipped = _clipped(find, inner)
    if clipped is None:
        return None
    return _Match("HardSigmoid", clipped[0], (*clipped[1], node), opset=6, attributes={"alpha": 1 / 6, "beta": 0.5})


def _is_sixth(gate: Node) -> bool:
    alpha, beta = gate.attributes.get("alpha", 0.2), gate.attributes.get("beta", 0.5)
    return _is_written(float(np.float32(alpha)), 1 / 6) and beta == 0.5


def _half_product(find: _Finder, node: Node) -> Iterator[tuple[str, str, tuple[Node, ...]]]:
    """Ways in which the node is x * factor * 0.5: x, factor, and the nodes it takes."""
    inner = find.with_number(node, 0.5, "")
    product = None if inner is None else find.made_by(inner, "Mul")
    if product is not None:
        for x, factor in _both(product):
            yield x, factor, (product, node)
        return
    for a, b in _both(node):
        half = find.made_by(b, "Mul")
        other = None if half is None else find.with_number(half, 0.5, a)
        if half is not None and other is not None:
            yield a, other, (half, node)
            yield other, a, (half, node)


def _gelu(find: _Finder, node: Node) -> _Match | None:
    for x, factor, nodes in _half_product(find, node):
        add = find.made_by(factor, "Add")
        inner = None if add is None else find.with_number(add, 1.0, x)
        if add is None or inner is None:
            continue
        erf = find.made_by(inner, "Erf")
        if erf is not None:
            scaled = find.made_by(erf.inputs[0], "Div", "Mul")
            if scaled is not None and _root(find, scaled, x):
                return _Match("Gelu", x, (scaled, erf, add, *nodes), domain="com.microsoft", opset=1)
        tanh = find.made_by(inner, "Tanh")
        cubic = None if tanh is None else _cubic(find, tanh.inputs[0], x)
        if tanh is not None and cubic is not None:
            return _Match("FastGelu", x, (*cubic, tanh, add, *nodes), domain="com.microsoft", opset=1)
    return None


def _root(find: _Finder, scaled: Node, x: str) -> bool:
    """Whether the node is x / sqrt(2)."""
    if scaled.op_type == "Mul":
        return find.with_number(scaled, math.sqrt(0.5), x) == x
    a, b = scaled.inputs
    return a == x and find.is_near(b, math.sqrt(2), x)


def _cubic(find: _Finder, name: str, x: str) -> tuple[Node, ...] | None:
    """The nodes of sqrt(2 / pi) (x + 0.044715 x^3)."""
    scaled = find.made_by(name, "Mul")
    inner = None if scaled is None else find.with_number(scaled, math.sqrt(2 / math.pi), x)
    add = None if inner is None else find.made_by(inner, "Add")
    if scaled is None or add is None:
        return None
    for a, b in _both(add):
        cube = _product_of(find, b, x) if a == x else None
        if cube is not None:
            return *cube, add, scaled
    return None


def _product_of(find: _Finder, name: str, x: str) -> tuple[Node, ...] | None:
    """The nodes of 0.044715 x^3, by a power or by products in any order."""
    nodes: list[Node] = []
    left, times, factors = [name], 0, 0
    while left:
        value = left.pop()
        node = find.made_by(value, "Mul", "Pow")
        if value == x:
            times += 1
        elif find.is_near(value, 0.044715, x):
            factors += 1
        elif node is None or len(nodes) == 3:
            return None
        elif node.op_type == "Mul":
            nodes.append(node)
            left += node.inputs
        elif node.inputs[0] == x and find.is_near(node.inputs[1], 3.0, x):
            nodes.append(node)
            times += 3
        else:
            return None
    return tuple(nodes) if (times, factors) == (3, 1) else None


def _mean(find: _Finder, name: str) -> tuple[str, Node] | None:
    """What a value is the mean of along the last axis, which is kept."""
    node = find.made_by(name, "ReduceMean")
    if node is None or node.attributes.get("keepdims", 1) != 1 or node.attributes.get("noop_with_empty_axes", 0):
        return None
    axes: Any = node.attributes.get("axes")
    if len(node.inputs) > 1:
        given = find.constant(node.inputs[1])
        axes = None if given is None or given.dtype is not I64 else tuple(given.array().reshape(-1).tolist())
    return (node.inputs[0], node) if axes == (-1,) else None


def _layer_norm(find: _Finder, node: Node) -> _Match | None:
    """d / sqrt(mean(d^2) + epsilon) * scale + bias, of which the node is the addition, for d = x - mean(x)."""
    for scaled_name, bias in _both(node):
        scaled = find.made_by(scaled_name, "Mul")
        for normal, scale in _both(scaled) if scaled is not None else ():
            div = find.made_by(normal, "Div")
            root = None if div is None else find.made_by(div.inputs[1], "Sqrt")
            add = None if root is None else find.made_by(root.inputs[0], "Add")
            if scaled is None or div is None or root is None or add is None:
                continue
            row = [find.constant(p) for p in (scale, bias)]
            if any(p is None or p.dtype is not F32 or len(p.shape) != 1 for p in row):
                continue
            for variance, epsilon in _both(add):
                found = _deviation(find, variance, div.inputs[0])
                small = find.number(epsilon)
                if found is None or small is None:
                    continue
                x, nodes = found
                # Along an axis of one element, scale and bias would be repeated.
                if not find.is_long(x):
                    continue
                attributes = {"axis": -1, "epsilon": small}
                consumed = (*nodes, add, root, div, scaled, node)
                return _Match("LayerNormalization", x, consumed, (scale, bias), attributes, opset=17)
    return None


def _deviation(find: _Finder, variance: str, difference: str) -> tuple[str, tuple[Node, ...]] | None:
    """x, and the nodes of ``difference``, x - mean(x), and ``variance``, the mean of its square."""
    sub = find.made_by(difference, "Sub")
    mean = None if sub is None else _mean(find, sub.inputs[1])
    squares = _mean(find, variance)
    if sub is None or mean is None or squares is None or mean[0] != sub.inputs[0]:
        return None
    square = find.made_by(squares[0], "Pow", "Mul")
    if square is None:
        return None
    first, second = square.inputs
    squared = find.is_near(second, 2.0) if square.op_type == "Pow" else second == difference
    return (mean[0], (mean[1], sub, square, squares[1])) if first == difference and squared else None


def _extent(find: _Finder, gather: Node) -> _Match | None:
    """One extent of a tensor, which exporters write out wherever they put a shape together."""
    shape = find.made_by(gather.inputs[0], "Shape")
    index = find.constant(gather.inputs[1])
    if shape is None or shape.attributes or gather.attributes not in ({}, {"axis": 0}) or index is None:
        return None
    if index.dtype not in (I32, I64) or index.size != 1 or len(index.shape) > 1:
        return None
    attributes = {"axis": int(index.array().reshape(-1)[0]), "vector": len(index.shape), "gather": gather}
    nodes = (shape, gather) if find.closed((shape, gather), gather) else (gather,)
    return _Match("Extent", shape.inputs[0], nodes, (), attributes, INTERNAL, opset=1)


def _extent_vector(find: _Finder, node: Node) -> _Match | None:
    """That extent as a vector."""
    axes: Any = node.attributes.get("axes")
    if find.graph.opsets[""] >= 13:
        given = find.constant(node.inputs[-1])
        if len(node.inputs) != 2 or node.attributes or given is None or given.dtype is not I64:
            return None
        axes = tuple(given.array().reshape(-1).tolist())
    elif len(node.inputs) != 1 or len(node.attributes) != 1:
        return None
    extent = find.producers.get(node.inputs[0])
    if extent is None or extent.domain != INTERNAL or extent.attributes.get("vector", 1) or axes not in ((0,), (-1,)):
        return None
    nodes = (extent, node) if find.closed((extent, node), node) else (node,)
    return _Match("Extent", extent.inputs[0], nodes, (), {**extent.attributes, "vector": 1}, INTERNAL, opset=1)


def _extents(find: _Finder, concat: Node) -> _Match | None:
    """A shape put together from extents of tensors and constants."""
    if concat.attributes not in ({"axis": 0}, {"axis": -1}):
        return None
    tensors: list[str] = []
    sources: list[int] = []
    numbers: list[int] = []
    gathers: list[Node | None] = []
    for name in concat.inputs:
        extent, constant = find.producers.get(name), find.constant(name)
        if extent is not None and extent.domain == INTERNAL and extent.op_type == "Extent":
            if not extent.attributes["vector"]:
                return None
            (x,) = extent.inputs
            if x not in tensors:
                tensors.append(x)
            sources.append(tensors.index(x))
            numbers.append(extent.attributes["axis"])
            gathers.append(extent.attributes["gather"])
        elif constant is not None and constant.dtype is I64 and len(constant.shape) == 1 and constant.size <= _LONGEST:
            sources += [-1] * constant.size
            numbers += constant.array().tolist()
            gathers += [None] * constant.size
        else:
            return None
    if not tensors:
        return None
    extents = [
        n for i in dict.fromkeys(concat.inputs) if (n := find.producers.get(i)) is not None and n.domain == INTERNAL
    ]
    nodes = (*(n for n in extents if find.closed((n, concat), concat)), concat)
    attributes = {"sources": tuple(sources), "numbers": tuple(numbers), "gathers": tuple(gathers)}
    return _Match("Extents", tensors[0], nodes, tuple(tensors[1:]), attributes, INTERNAL, opset=1)


_PATTERNS: dict[str, tuple[Callable[[_Finder, Node], _Match | None], ...]] = {
    "Mul": (_gelu, _hard, _swish),
    "Div": (_hard,),
    "Add": (_layer_norm,),
    "Gather": (_extent,),
    "Unsqueeze": (_extent_vector,),
    "Concat": (_extents,),
}
"""By the type of the last node."""

__all__ = ["simplify"]
