"""A random graph in the making: every node is evaluated by a peer as soon as it is added, so shapes and values of all
tensors are known while it grows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
import onnx
import onnx.defs
import onnx.printer
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from onnx_wasm import ops, registry

from .peers import Array, Elements, NoPeer, Question, Refused, ask, info, parts, value_info

registry.load(ops)
NEWEST = 26
DTYPES = {
    n: np.dtype(n)
    for n in [
        "float32",
        "float64",
        "float16",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "bool",
    ]
} | {"bfloat16": np.dtype(ml_dtypes.bfloat16)}
FLOATS = ("float32", "float64", "float16", "bfloat16")
INTS = ("int64", "int32", "int8", "int16", "uint8", "uint16", "uint32", "uint64")
_ONNX = {f"tensor({'float' if n == 'float32' else 'double' if n == 'float64' else n})": n for n in DTYPES}
MAX_ELEMENTS = 3000
# By operator: why steps came to nothing. Only for looking at what the strategies cover.
SKIPPED: Counter[str] = Counter()
ADDED: Counter[str] = Counter()
T = TypeVar("T")
Dims = tuple[int, ...]


class Skip(Exception):
    """This step cannot be taken."""


@dataclass(eq=False)
class Tensor:
    """A tensor of the graph, or a sequence of them, and what it contains. `exact`: every right implementation computes
    these very bits."""

    name: str
    array: Array | Elements
    const: bool
    exact: bool

    @property
    def shape(self) -> Dims:
        return (len(self.array),) if isinstance(self.array, Elements) else self.array.shape

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def dtype(self) -> str:
        name = str(self.array.dtype.name)
        return f"sequence({name})" if isinstance(self.array, Elements) else name

    @property
    def floating(self) -> bool:
        return self.dtype in FLOATS


@dataclass(eq=False)
class Step:
    """A node and the tensors that it reads and makes."""

    node: onnx.NodeProto
    reads: dict[str, Tensor]
    outputs: list[Tensor]


@dataclass(eq=False)
class Case:
    """A finished graph, with what it is fed and how it is run."""

    opset: int
    steps: list[Step]
    inputs: list[Tensor]
    weights: list[Tensor]
    outputs: list[Tensor]
    declared: Mapping[str, Sequence[int | str | None] | None]
    listed: frozenset[str]
    """Weights that are graph inputs as well."""
    variant: str = "relaxed"
    planned: bool = True
    spoiled: str = ""
    """What was broken on purpose."""
    family: str = ""
    movable: bool = False
    """The graph stays valid when its inputs, other than `fixed`, have their elements in another order."""
    fixed: frozenset[str] = frozenset()
    nodes: list[onnx.NodeProto] = field(default_factory=list)

    def model(self) -> bytes:
        parameters = [value_info(t.name, t.array.dtype, self.declared[t.name]) for t in self.inputs]
        parameters += [value_info(t.name, t.array.dtype, t.shape) for t in self.weights if t.name in self.listed]
        graph = helper.make_graph(
            self.nodes,
            "fuzz",
            parameters,
            [
                helper.make_empty_tensor_value_info(t.name) if self.spoiled else info(t.name, t.array)
                for t in self.outputs
            ],
            [numpy_helper.from_array(t.array, t.name) for t in self.weights],
        )
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        data: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
        return data

    @property
    def feeds(self) -> dict[str, Array]:
        return {t.name: t.array for t in self.inputs}

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    def __repr__(self) -> str:
        lines = [f"{self.family}, opset {self.opset}, {self.variant}, {'planned' if self.planned else 'unplanned'}"]
        if self.spoiled:
            lines.append(f"spoiled: {self.spoiled}")
        for kind, tensors in (("input", self.inputs), ("weight", self.weights)):
            for t in tensors:
                shown = np.array2string(t.array, threshold=12, edgeitems=4).replace("\n", "")
                declared = f" declared {self.declared[t.name]}" if kind == "input" else ""
                lines.append(f"{kind} {t.name}: {t.dtype}{list(t.shape)}{declared} = {shown}")
        lines += [" ".join(onnx.printer.to_text(n).split()) for n in self.nodes]
        lines.append(f"outputs {[f'{t.name}: {t.dtype}{list(t.shape)}' for t in self.outputs]}")
        return "\n".join(lines)


@cache
def schema(op: str, opset: int, domain: str = "") -> onnx.defs.OpSchema | None:
    """The operator's schema in an opset, if there is one and this package has the operator."""
    try:
        found = onnx.defs.get_schema(op, opset, domain)
    except onnx.defs.SchemaError:
        return None
    here = registry.find(domain, op, opset) is not None or found.has_function or found.has_context_dependent_function
    return found if here and not found.deprecated else None


@cache
def allowed(op: str, opset: int, index: int = 0) -> tuple[str, ...]:
    """The types that an input can have, ours first to last."""
    found = schema(op, opset)
    if found is None or not found.inputs:
        return ()
    return tuple(_ONNX[t] for t in sorted(found.inputs[min(index, len(found.inputs) - 1)].types) if t in _ONNX)


class Builder:
    """Adds nodes; `draw` makes all choices."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any], opset: int, *, special: bool = False) -> None:
        self.draw = draw
        self.opset = opset
        self.special = special
        self.tensors: list[Tensor] = []
        self.steps: list[Step] = []
        self.fed: list[Tensor] = []
        self.weights: list[Tensor] = []
        self.hidden: set[str] = set()
        """Tensors not to be picked: shapes, indices, scales."""
        self.names = [0]
        self.depth = 0
        """Of subgraphs around this one."""

    # Choices

    def int(self, low: int, high: int) -> int:
        """An integer of [low, high]."""
        return int(self.draw(st.integers(low, high)))

    def choice(self, items: Sequence[T]) -> T:
        if not items:
            raise Skip("nothing to choose from")
        chosen: T = self.draw(st.sampled_from(items))
        return chosen

    def chance(self, percent: int) -> bool:
        """True in about that many of 100 cases; shrinks to False."""
        return self.int(0, 99) >= 100 - percent

    def has(self, op: str) -> bool:
        return schema(op, self.opset) is not None

    def shape(self, low: int = 0, high: int = 4, *, zeros: bool = True, most: int = 9) -> Dims:
        """A shape of few elements, now and then with an empty dimension."""
        rank, room, dims = self.int(low, high), MAX_ELEMENTS, list[int]()
        sizes = [s for s in (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33, 65) if s <= most]
        for _ in range(rank):
            dims.append(self.choice([s for s in sizes if s <= room]))
            room //= dims[-1]
        if dims and zeros and self.chance(6):
            dims[self.int(0, rank - 1)] = 0
        return tuple(dims)

    def partner(self, shape: Dims) -> Dims:
        """A shape that broadcasts with another one."""
        kind = self.int(0, 5)
        if kind <= 1:
            return shape
        kept = list(shape[self.int(0, len(shape)) :]) if kind != 3 else list(shape)
        for i, d in enumerate(kept):
            if self.chance(35):
                kept[i] = 1 if d != 1 else self.int(1, 4)
        if kind == 5 and len(kept) < 5:
            kept = [self.int(1, 3), *kept] if len(kept) >= len(shape) else kept
        return tuple(kept)

    def dtype(self, op: str, index: int = 0, among: Sequence[str] | None = None) -> str:
        """A type that an input may have: mostly the common ones."""
        types = [t for t in allowed(op, self.opset, index) if among is None or t in among]
        order = ["float32", "int64", *FLOATS[1:], *INTS[1:], "bool"]
        types.sort(key=order.index)
        if "float32" in types and not self.chance(35):
            return "float32"
        return self.choice(types)

    # Tensors

    def value(
        self,
        shape: Sequence[int],
        dtype: str = "float32",
        *,
        kind: str = "",
        const: bool | None = None,
        low: int = -4,
        high: int = 4,
        hidden: bool = False,
    ) -> Tensor:
        """A new input or weight with random contents. Kinds: "exact" small multiples of 1/4, "normal", "positive",
        "nonzero", "same" one repeated value; integers are of [low, high]."""
        random = np.random.default_rng(self.int(0, 2**31))
        shape = tuple(shape)
        if dtype == "bool":
            array = random.integers(0, 2, shape).astype(bool)
        elif dtype in FLOATS:
            if not kind:
                kind = self.choice(["exact", "exact", "normal", "normal", "same", "positive"])
            array = self._floats(random, kind, shape).astype(DTYPES[dtype])
            if self.special and kind in ("exact", "normal"):
                self._specials(random, array)
        else:
            if dtype.startswith("u"):
                low = max(low, 0)
            array = random.integers(low, high + 1, shape).astype(DTYPES[dtype])
            if kind == "nonzero":
                array[array == 0] = 1
            elif kind == "full":
                info = np.iinfo(DTYPES[dtype])
                array = random.integers(info.min, info.max, shape, DTYPES[dtype], endpoint=True)
        return self.given(array, const=const, hidden=hidden)

    @staticmethod
    def _floats(random: np.random.Generator, kind: str, shape: Dims) -> Array:
        if kind == "normal":
            return np.asarray(random.normal(0, 1, shape))
        if kind == "positive":
            return np.asarray(random.integers(1, 17, shape) / 4)
        if kind == "same":
            return np.full(shape, random.integers(-8, 9) / 4)
        if kind == "unit":
            return np.asarray(random.uniform(-1, 1, shape))
        numbers = np.asarray(random.integers(-16, 17, shape) / 4)
        if kind == "nonzero":
            numbers = np.where(numbers == 0, 1.0, numbers)
        return numbers

    def _specials(self, random: np.random.Generator, array: Array) -> None:
        info = ml_dtypes.finfo(array.dtype)
        pool = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, info.smallest_subnormal, -info.tiny], array.dtype)
        flat = array.reshape(-1)
        if flat.size:
            count = random.integers(1, max(2, flat.size // 4))
            flat[random.integers(0, flat.size, count)] = random.choice(pool, count)

    def given(self, array: Array, *, const: bool | None = None, hidden: bool = False) -> Tensor:
        """An input or weight of these contents."""
        if const is None:
            const = self.chance(45)
        tensor = Tensor(
            self._name("w" if const else "x"), np.ascontiguousarray(array).reshape(array.shape), const, True
        )
        (self.weights if const else self.fed).append(tensor)
        self.tensors.append(tensor)
        if hidden:
            self.hidden.add(tensor.name)
        return tensor

    def host(self, values: Any, dtype: str = "int64") -> Tensor:
        """A shape, axes, indices: a weight, an input, or computed from one."""
        array = np.asarray(values, DTYPES[dtype])
        kind = self.choice(["weight", "weight", "input", "computed", "constant"])
        if kind == "constant":
            (made,) = self.node("Constant", [], value=numpy_helper.from_array(array), exact=True, hidden=True)
            return made
        tensor = self.given(array, const=kind == "weight", hidden=True)
        if kind == "computed" and dtype in ("int64", "int32"):
            (tensor,) = self.node(
                "Add", [tensor, self.given(np.zeros((), DTYPES[dtype]), hidden=True)], exact=True, hidden=True
            )
        return tensor

    def _name(self, prefix: str) -> str:
        self.names[0] += 1
        return f"{prefix}{self.names[0]}"

    def pick(self, fits: Callable[[Tensor], bool] = lambda t: True) -> Tensor | None:
        """A tensor that is there, mostly a late one."""
        fitting = [t for t in self.tensors if t.name not in self.hidden and fits(t)]
        if not fitting:
            return None
        return fitting[-1] if len(fitting) == 1 or not self.chance(30) else self.choice(fitting)

    def operand(
        self, op: str, *, low: int = 0, high: int = 4, fits: Callable[[Tensor], bool] = lambda t: True
    ) -> Tensor:
        """A tensor that is there or a new one, of a type and rank that the op takes."""
        types = allowed(op, self.opset)
        found = self.pick(lambda t: t.dtype in types and low <= t.rank <= high and fits(t))
        if found is not None and not self.chance(10):
            return found
        for _ in range(3):
            made = self.value(self.shape(low, high), self.dtype(op), const=self.chance(15))
            if fits(made):
                return made
        raise Skip("no operand fits")

    # Nodes

    def node(
        self,
        op: str,
        inputs: Sequence[Tensor | None],
        outputs: int | Sequence[bool] = 1,
        *,
        exact: bool = False,
        hidden: bool = False,
        domain: str = "",
        captured: Sequence[Tensor] = (),
        bound: float | None = None,
        **attributes: Any,
    ) -> tuple[Tensor, ...]:
        """Add a node; its outputs that are wanted. Raises Skip, and adds nothing, if no peer computes it, or if it
        gives a number that is not within the bound."""
        if not domain and not self.has(op):
            raise Skip(f"no {op} in opset {self.opset}")
        wanted = [True] * outputs if isinstance(outputs, int) else list(outputs)
        names = [self._name("t") if w else "" for w in wanted]
        given = [t.name if t else "" for t in inputs]
        while given and not given[-1]:
            given.pop()
        attributes = {k: v for k, v in attributes.items() if v is not None}
        node = helper.make_node(op, given, names, name=next(n for n in names if n), domain=domain, **attributes)
        reads = {t.name: t for t in (*inputs, *captured) if t is not None}
        arrays = {n: t.array for n, t in reads.items()}
        try:
            results = ask(Question(node, self.opset, arrays, frozenset(n for n, t in reads.items() if t.const)))
        except (Refused, NoPeer) as error:
            SKIPPED[f"{type(error).__name__} {str(error)[:150]}"] += 1
            raise Skip(str(error)) from None
        if any(r.size > 4 * MAX_ELEMENTS for r in parts(results)):
            raise Skip("too large")
        if bound is not None and not all((np.abs(r) <= bound).all() for r in parts(results)):
            raise Skip("out of bounds")
        ADDED[op] += 1
        same = exact and all(t.exact for t in reads.values())
        tensors = []
        for name, result in zip([n for n in names if n], results, strict=True):
            tensors.append(Tensor(name, result, False, same))
        self.steps.append(Step(node, reads, tensors))
        self.tensors += tensors
        if hidden:
            self.hidden |= {t.name for t in tensors}
        return tuple(tensors)

    def attempt(self, step: Callable[[Builder], Any]) -> None:
        """Take a step; what it added stays if it gave up on the way."""
        try:
            step(self)
        except Skip as skip:
            SKIPPED[f"{step.__name__}: {skip}"[:120]] += 1

    def finish(self, family: str, *, movable: bool = False) -> Case:
        """The graph of all that was added."""
        read = {n for s in self.steps for n in s.reads}
        outputs = []
        for step in self.steps:
            for tensor in step.outputs:
                if tensor.name not in read or self.chance(10):
                    outputs.append(tensor)
        inputs = [t for t in self.fed if t.name in read]
        weights = [t for t in self.weights if t.name in read]
        style = self.choice(["static", "static", "symbolic", "none"])
        declared: dict[str, Sequence[int | str | None] | None] = {}
        for t in inputs:
            if style == "static":
                declared[t.name] = t.shape
            else:
                declared[t.name] = [
                    (f"{t.name}_{i}" if style == "symbolic" else None) if self.chance(60) else d
                    for i, d in enumerate(t.shape)
                ]
        return Case(
            opset=self.opset,
            steps=self.steps,
            inputs=inputs,
            weights=weights,
            outputs=outputs,
            declared=declared,
            listed=frozenset(t.name for t in weights) if self.chance(5) else frozenset(),
            variant=self.choice(["relaxed", "strict"]),
            planned=not self.chance(50),
            family=family,
            movable=movable and not self.chance(50),
            fixed=frozenset(self.hidden),
            nodes=[s.node for s in self.steps],
        )
