"""Operators that are functions: the model's own, and those whose definition in ONNX is a body of other operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

from .context import Item, TensorSequence, Value
from .errors import UnsupportedModelError
from .model import Graph, Node, function_graph
from .proto import FunctionProto, OperatorSetIdProto, TypeProto
from .schemas import defs, newest_opset

OLDEST_OPSET = 1


def check_opset(graph: Graph) -> Iterator[str]:
    """What is wrong with the opset of ai.onnx that a model imports."""
    newest = newest_opset()
    opset = graph.opsets.get("", newest)
    if not OLDEST_OPSET <= opset <= newest:
        yield f"opset {opset} of domain ai.onnx (supported: {OLDEST_OPSET} to {newest})"


def has_body(node: Node, opsets: Mapping[str, int]) -> bool:
    """Whether ONNX defines the node's operator by a body."""
    schema = _schema(node, opsets)
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def defined_by_bodies() -> set[tuple[str, str]]:
    """Domain and name of the operators that ONNX defines by a body."""
    schemas: Any = defs().get_all_schemas()
    return {(s.domain, s.name) for s in schemas if s.has_function or s.has_context_dependent_function}


def body_of(
    node: Node, graph: Graph, args: Sequence[Item | None], bodies: MutableMapping[tuple[Any, ...], Graph]
) -> Graph:
    """The body to lower in a node's place. One of ONNX's own may depend on the types and shapes of the inputs.
    ``bodies`` keeps what was made, and equal ones are one graph, so that its constants are made once."""
    shapes = tuple((a.dtype.onnx, a.shape) if isinstance(a, Value) else None for a in args)
    found = bodies.get((node, shapes))
    if found is None:
        found = bodies[node, shapes] = _body(node, graph, args, bodies)
    return found


def _body(
    node: Node, graph: Graph, args: Sequence[Item | None], bodies: MutableMapping[tuple[Any, ...], Graph]
) -> Graph:
    assert node.proto is not None
    attributes = {a.name: a for a in node.proto.attribute}
    own = graph.functions.get((node.domain, node.op_type))
    if own is not None:
        return function_graph(own, attributes, graph)
    schema = _schema(node, graph.opsets)
    assert schema is not None
    opset = graph.opsets[node.domain]
    if schema.has_function:
        data = schema.get_function_with_opset_version(_newest(schema.function_opset_versions, opset))
    else:
        types = [_type(a).SerializeToString() for a in args]
        versions = schema.context_dependent_function_opset_versions
        data = schema.get_context_dependent_function_with_opset_version(
            _newest(versions, opset), node.proto.SerializeToString(), types
        )
    if not data:
        raise UnsupportedModelError(f"{node}: ONNX defines no body for these inputs")
    if (node, data) in bodies:
        return bodies[node, data]
    function = FunctionProto.FromString(data)
    # A body made for the inputs may name only the opset of its own operator.
    named = {o.domain for o in function.opset_import}
    for domain, version in graph.opsets.items():
        if domain not in named:
            function.opset_import.append(OperatorSetIdProto(domain=domain, version=version))
    for attribute in schema.attributes.values():
        if attribute.name not in attributes and attribute.default_value.name:
            attributes[attribute.name] = attribute.default_value
    made = bodies[node, data] = function_graph(function, attributes, graph)
    return made


def _newest(versions: Sequence[int], opset: int) -> int:
    return max((v for v in versions if v <= opset), default=min(versions, default=opset))


def _schema(node: Node, opsets: Mapping[str, int]) -> Any:
    known = defs()
    try:
        return known.get_schema(node.op_type, opsets.get(node.domain, 0), node.domain)
    except (known.SchemaError, TypeError):
        # A TypeError is a version beyond what a C int holds.
        return None


def _type(item: Item | None) -> TypeProto:
    found = TypeProto()
    if isinstance(item, Value):
        found.tensor_type.elem_type = item.dtype.onnx
        found.tensor_type.shape.SetInParent()
        for length in item.shape:
            found.tensor_type.shape.dim.add().dim_value = length
    elif isinstance(item, TensorSequence):
        dtype = item.elements[0].dtype if item.elements else item.dtype
        found.sequence_type.elem_type.tensor_type.elem_type = dtype.onnx if dtype else 0
    return found
