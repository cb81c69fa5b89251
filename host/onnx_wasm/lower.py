"""From a graph and concrete input shapes to records: every node's op is asked to describe its work.

What does not depend on shapes is kept between calls in a `LoweringCache`: weights, constants made of
weights, and which form of an op each node takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import defs

from . import ops, registry
from .context import Context, NeedsValueError, Value
from .dtypes import DType
from .errors import InvalidModelError, ShapeError, UnsupportedModelError
from .model import Graph, Initializer, Node
from .registry import OpDef

Array = NDArray[Any]
# Integer tensors up to this size take part in shape arithmetic on the host.
MAX_KNOWN = 4096
_OLDEST_OPSET = 7


@dataclass(eq=False)
class LoweringCache:
    """What lowering keeps for a session."""

    graph: Graph
    forms: list[OpDef]
    uses: Mapping[str, int]
    weights: dict[str, Value] = field(default_factory=dict)
    derived: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    needed: dict[tuple[str, ...], list[Node]] = field(default_factory=dict)


@dataclass(eq=False)
class Lowered:
    """The records of one graph at one set of input shapes."""

    context: Context
    inputs: dict[str, Value]
    outputs: dict[str, Value]


def load_ops() -> None:
    """Register every operator."""
    registry.load(ops)


def prepare(graph: Graph) -> LoweringCache:
    """Look up every node's op. Raises UnsupportedModelError that lists all that is missing."""
    load_ops()
    missing = dict.fromkeys(_missing(graph, graph.opsets, root=True))
    if missing:
        raise UnsupportedModelError(f"{graph.where}: not supported: {', '.join(missing)}")
    forms = [_form(node, graph.opsets) for node in graph.nodes]
    _check_order(graph)
    return LoweringCache(graph, [f for f in forms if f is not None], graph.uses())


def _form(node: Node, opsets: Mapping[str, int]) -> OpDef | None:
    return registry.find(node.domain, node.op_type, opsets.get(node.domain, 0))


def _missing(graph: Graph, opsets: Mapping[str, int], *, root: bool = False) -> Iterable[str]:
    newest = defs.onnx_opset_version()
    opset = opsets.get("", newest)
    if root and not _OLDEST_OPSET <= opset <= newest:
        yield f"opset {opset} of domain ai.onnx (supported: {_OLDEST_OPSET} to {newest})"
    for node in graph.nodes:
        domain = node.domain or "ai.onnx"
        if node.domain not in opsets:
            yield f"{domain}::{node.op_type} (the model imports no opset of {domain})"
        elif _form(node, opsets) is None:
            yield f"{domain}::{node.op_type} (opset {opsets[node.domain]})"
        for attribute in node.attributes.values():
            for inner in attribute if isinstance(attribute, tuple) else (attribute,):
                if isinstance(inner, Graph):
                    yield from _missing(inner, opsets)


def _check_order(graph: Graph) -> None:
    defined = {i.name for i in graph.inputs} | set(graph.initializers)
    for node in graph.nodes:
        for name in node.inputs:
            if name and name not in defined:
                raise InvalidModelError(f"{graph.where}: {node}: input {name!r} is not computed before it")
        for name in node.outputs:
            if name and name in defined:
                raise InvalidModelError(f"{graph.where}: {node}: output {name!r} has another producer")
            defined.add(name)
    for output in graph.outputs:
        if output.name not in defined:
            raise InvalidModelError(f"{graph.where}: output {output.name!r} is computed by no node")


def lower(
    cache: LoweringCache,
    feeds: Mapping[str, tuple[tuple[int, ...], DType]],
    fetches: Iterable[str],
    *,
    values: Mapping[str, Array] | None = None,
    evaluate: Callable[[Value], Array] | None = None,
    fuse: bool = True,
) -> Lowered:
    """Describe a run of the graph.

    ``feeds`` gives the shape and type of every fed input, ``values`` the contents of those that decide shapes.
    ``evaluate`` computes a constant that only kernels can compute. Without ``fuse``
    every node keeps a record of its own. Raises NeedsValueError when a shape depends on
    the contents of a value that is not in ``values``.
    """
    graph, fetches = cache.graph, tuple(fetches)
    cx = Context(cache.derived, evaluate, fuse=fuse)
    env: dict[str, Value] = {}
    inputs: dict[str, Value] = {}
    for name, (shape, dtype) in feeds.items():
        env[name] = inputs[name] = value = Value(shape, dtype, name=name)
        value.uses = cache.uses[name]
        value.known = None if values is None else values.get(name)
    for name, initializer in graph.initializers.items():
        if name not in env:
            env[name] = cache.weights.get(name) or cache.weights.setdefault(name, _weight(initializer))
            env[name].uses = cache.uses[name]
    for node in _needed(cache, fetches):
        _lower_node(cx, cache, node, env)
    return Lowered(cx, inputs, {name: env[name] for name in fetches})


def _weight(initializer: Initializer) -> Value:
    value = Value(initializer.shape, initializer.dtype, name=initializer.name, const=True)
    value.source = initializer
    if _is_shape_arithmetic([value]) and initializer.dtype.bits >= 8:
        value.known = initializer.array()
    return value


def _needed(cache: LoweringCache, fetches: tuple[str, ...]) -> list[Node]:
    found = cache.needed.get(fetches)
    if found is None:
        wanted, found = set(fetches), []
        for node in reversed(cache.graph.nodes):
            if not wanted.isdisjoint(node.outputs):
                found.append(node)
                wanted.update(_reads(node))
        found.reverse()
        cache.needed[fetches] = found
    return found


def _reads(node: Node) -> set[str]:
    names = {i for i in node.inputs if i}
    for attribute in node.attributes.values():
        for inner in attribute if isinstance(attribute, tuple) else (attribute,):
            if isinstance(inner, Graph):
                for n in inner.nodes:
                    names |= _reads(n)
                names.update(o.name for o in inner.outputs)
    return names


def _lower_node(cx: Context, cache: LoweringCache, node: Node, env: dict[str, Value]) -> None:
    form = cache.forms[node.index]
    cx.node, cx.opset = node, cache.graph.opsets[node.domain]
    args = [env[i] if i else None for i in node.inputs]
    _check_call(cx, form, args)
    given = [a for a in args if a is not None]
    const = all(a.const for a in given)
    if form.fold is not None and all(a.known is not None for a in given) and _is_shape_arithmetic(given):
        folded = form.fold(*[a if a is None else a.known for a in args], **node.attributes)
        if folded is not NotImplemented:
            results = folded if isinstance(folded, tuple) else (folded,)
            values = [cx.known(np.asarray(r)) for r in results]
            for value in values:
                value.const = const
            _bind(cx, cache, node, env, values)
            return

    def call() -> list[Value | None]:
        bound = [cx.read(a) if a is not None and _is_host(form, i) else a for i, a in enumerate(args)]
        try:
            made = form.function(cx, *bound, **node.attributes)
        except (NeedsValueError, ShapeError, UnsupportedModelError, InvalidModelError):
            raise
        except (ValueError, TypeError, IndexError, KeyError) as error:
            cx.fail(f"{error} (inputs {', '.join(map(repr, given))}; attributes {node.attributes})")
        return list(made) if isinstance(made, tuple) else [made]

    values_: list[Value | None] = cx.derived(f"node {node.index}", given, call) if const else call()
    if const:
        for made in values_:
            if made is not None:
                made.const = True
    _bind(cx, cache, node, env, values_)


def _is_host(form: OpDef, index: int) -> bool:
    return index < len(form.inputs) and form.inputs[index] in form.host


def _is_shape_arithmetic(values: list[Value]) -> bool:
    return all((v.dtype.is_integer or v.dtype.short == "bool") and v.size <= MAX_KNOWN for v in values)


def _check_call(cx: Context, form: OpDef, args: list[Value | None]) -> None:
    attributes = cx.node.attributes
    if not form.attributes.issuperset(attributes):
        unknown = sorted(set(attributes) - form.attributes)
        cx.fail(f"unknown attributes {unknown}; {form.name}-{form.since} has {sorted(form.attributes)}")
    if not form.required_attributes.issubset(attributes):
        cx.fail(f"missing attributes {sorted(form.required_attributes - set(attributes))}")
    if len(args) > len(form.inputs) and not form.variadic:
        cx.fail(f"{len(args)} inputs; {form.name}-{form.since} takes at most {len(form.inputs)}")
    present = sum(a is not None for a in args[: form.required])
    if present < form.required:
        cx.fail(f"{present} of the {form.required} required inputs given ({', '.join(form.inputs[: form.required])})")


def _bind(cx: Context, cache: LoweringCache, node: Node, env: dict[str, Value], values: list[Any]) -> None:
    wanted = [o for o in node.outputs if o]
    if len(node.outputs) > len(values) or any(o and v is None for o, v in zip(node.outputs, values, strict=False)):
        cx.fail(
            f"{len(wanted)} outputs asked for, {sum(v is not None for v in values)} are supported",
            UnsupportedModelError,
        )
    for name, value in zip(node.outputs, values, strict=False):
        if not name or value is None:
            continue
        if not value.name or value.const:
            value.name = value.name or name
        value.uses = cache.uses[name]
        value.ready = len(cx.records)
        env[name] = value
