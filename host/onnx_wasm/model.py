"""From a file or bytes to a Graph: nodes with plain attributes, weights with lazy contents."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from numpy.typing import NDArray

from . import dtypes
from .dtypes import DType
from .errors import InvalidModelError, OnnxWasmError
from .initializers import ExternalData, Initializer, SparseInitializer
from .order import in_order
from .proto import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorShapeProto,
    ValueInfoProto,
    attribute_value,
)
from .schemas import newest_opsets
from .words import counted

Array = NDArray[Any]
Dimension = int | str | None
"""A known size, a symbolic name, or unknown."""
INTERNAL = "onnx_wasm.internal"
"""The domain of operators that no model has, but that take the place of others."""


@dataclass(eq=False)
class Node:
    """One node; attributes are Python values (tensors as Initializer, graphs as Graph)."""

    op_type: str = ""
    name: str = ""
    domain: str = ""
    index: int = -1
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    """The elements of a tuple are all of one type."""
    proto: NodeProto | None = None
    opset: int = 0
    """The version of its domain that it is of, where that is not the graph's."""

    def subgraphs(self) -> Iterator[Graph]:
        """The graphs among its attributes."""
        for value in self.attributes.values():
            values = value if isinstance(value, tuple) else (value,)
            if values and isinstance(values[0], Graph):
                yield from values

    @cached_property
    def nests(self) -> bool:
        """Whether there are graphs among its attributes."""
        return any(True for _ in self.subgraphs())

    def __str__(self) -> str:
        domain = f"{self.domain}::" if self.domain else ""
        return f'{domain}{self.op_type} "{self.name}" (node {self.index})'


class ValueInfo(NamedTuple):
    """A graph input or output as the model declares it."""

    name: str
    dtype: DType | None
    """Of the tensor, or of a sequence's elements; None for maps, and where the model does not say."""
    shape: tuple[Dimension, ...] | None
    """None where the model does not say."""
    kind: str = "tensor"
    """"tensor", "sequence" or "map"."""
    optional: bool = False


@dataclass(eq=False)
class Graph:
    """A graph or subgraph, names resolved, unused nodes kept."""

    name: str
    nodes: list[Node]
    inputs: list[ValueInfo]
    """Inputs that must be fed: those that are not weights with a default."""
    overridable: dict[str, ValueInfo]
    """Weights that are also graph inputs, whose default a feed may replace."""
    parameters: list[ValueInfo]
    """All inputs, in the order declared."""
    outputs: list[ValueInfo]
    initializers: dict[str, Initializer]
    opsets: Mapping[str, int]
    where: str
    """The file, or "model bytes"."""
    functions: Mapping[tuple[str, str], FunctionProto] = field(default_factory=dict)
    """The model's own operators, by domain and name."""
    metadata: dict[str, str] = field(default_factory=dict)
    """The model's metadata_props; empty for subgraphs."""

    def uses(self) -> Counter[str]:
        """How many node inputs and graph outputs read each name, subgraphs included."""
        count: Counter[str] = Counter(o.name for o in self.outputs)
        for node in self.nodes:
            count.update(i for i in node.inputs if i)
            for graph in node.subgraphs():
                count.update(graph.uses())
        return count


def load(
    model: str | os.PathLike[str] | bytes | bytearray | memoryview, external: Mapping[str, bytes] | None = None
) -> Graph:
    """Read a model from a file or its bytes; ``external`` gives external data by location.

    Raises InvalidModelError, naming the file, for what is no model; OSError for no such file.
    """
    files = ExternalData(None, external or {})
    where = "model bytes"
    if isinstance(model, (bytes, bytearray, memoryview)):
        data = bytes(model)
    else:
        path = Path(model)
        files = ExternalData(path.parent, external or {})
        where = str(path)
        data = path.read_bytes()
    proto = ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise InvalidModelError(
            f"{where}: not an ONNX model, or truncated ({counted(len(data), 'byte')}): {error}"
        ) from None
    if not proto.HasField("graph") or not proto.opset_import:
        raise InvalidModelError(f"{where}: not an ONNX model: no {'graph' if proto.opset_import else 'opset_import'}")
    opsets: dict[str, int] = {}
    for imported in proto.opset_import:
        domain, version = _domain(imported.domain), imported.version
        if opsets.setdefault(domain, version) != version:
            raise InvalidModelError(
                f"{where}: opsets {opsets[domain]} and {version} of domain {domain or 'ai.onnx'} are imported"
            )
    # As in ONNX Runtime, whose own tools write models that import none of its operators and have some.
    for domain, newest in newest_opsets().items():
        opsets.setdefault(domain, newest)
    reader = _Reader(opsets, files, where, {(_domain(f.domain), f.name): f for f in proto.functions})
    graph = reader.graph(proto.graph)
    graph.metadata = {p.key: p.value for p in proto.metadata_props}
    return graph


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def function_graph(function: FunctionProto, attributes: Mapping[str, AttributeProto], caller: Graph) -> Graph:
    """A function's body as a graph, for a call with these attributes from ``caller``."""
    opsets = {_domain(o.domain): o.version for o in function.opset_import}
    bound = {a.name: a for a in function.attribute_proto}
    bound.update({n: a for n, a in attributes.items() if n in function.attribute or n in bound})
    reader = _Reader(opsets or caller.opsets, ExternalData(None, {}), caller.where, caller.functions, bound)
    inputs = [ValueInfo(name, None, None) for name in function.input]
    return Graph(
        name=function.name,
        nodes=in_order([reader.node(n, i) for i, n in enumerate(function.node)]),
        inputs=inputs,
        overridable={},
        parameters=inputs,
        outputs=[ValueInfo(name, None, None) for name in function.output],
        initializers={},
        opsets=reader.opsets,
        where=f"{caller.where}: function {function.name}",
        functions=caller.functions,
    )


class _Reader(NamedTuple):
    """Turns protos into graphs and nodes; ``bound`` are the attributes of the function being read."""

    opsets: Mapping[str, int]
    files: ExternalData
    where: str
    functions: Mapping[tuple[str, str], FunctionProto]
    bound: Mapping[str, AttributeProto] = MappingProxyType({})

    def graph(self, proto: GraphProto) -> Graph:
        sparse = [t.values for t in proto.sparse_initializer]
        weights = [*proto.initializer, *sparse]
        self._check_text("the graph", *(v.name for v in (*weights, *proto.input, *proto.output)))
        for what, names in (("initializer", weights), ("input", proto.input)):
            for name, count in Counter(n.name for n in names).items():
                if count > 1:
                    raise InvalidModelError(f"{self.where}: {what} {name!r} occurs {count} times")
        initializers = {t.name: Initializer(t, self.files, self.where) for t in proto.initializer}
        for t in proto.sparse_initializer:
            initializers[t.values.name] = SparseInitializer(t, self.files, self.where)
        inputs = [_value_info(i, self.where) for i in proto.input]
        return Graph(
            name=proto.name,
            nodes=in_order([self.node(n, i) for i, n in enumerate(proto.node)]),
            inputs=[i for i in inputs if i.name not in initializers],
            overridable={i.name: i for i in inputs if i.name in initializers},
            parameters=inputs,
            outputs=[_value_info(o, self.where) for o in proto.output],
            initializers=initializers,
            opsets=self.opsets,
            where=self.where,
            functions=self.functions,
        )

    def _check_text(self, what: str, *names: Any) -> None:
        """Protobuf gives text that is not UTF-8 as bytes."""
        for name in names:
            if not isinstance(name, str):
                raise InvalidModelError(f"{self.where}: {what} has the name {name!r}, which is not UTF-8")

    def node(self, proto: NodeProto, index: int) -> Node:
        self._check_text(f"node {index}", proto.op_type, proto.domain, proto.name, *proto.input, *proto.output)
        twice = [n for n, count in Counter(a.name for a in proto.attribute).items() if count > 1]
        if twice:
            raise InvalidModelError(f"{self.where}: {proto.op_type} {proto.name!r}: attributes {twice} occur twice")
        if any(a.ref_attr_name for a in proto.attribute):
            attributes = [b for a in proto.attribute if (b := self._bind(a)) is not None]
            copy = NodeProto()
            copy.CopyFrom(proto)
            del copy.attribute[:]
            copy.attribute.extend(attributes)
            proto = copy
        return Node(
            op_type=proto.op_type,
            name=proto.name,
            domain=_domain(proto.domain),
            index=index,
            inputs=tuple(proto.input),
            outputs=tuple(proto.output),
            attributes={a.name: self.attribute(a) for a in proto.attribute},
            proto=proto,
        )

    def _bind(self, proto: AttributeProto) -> AttributeProto | None:
        """An attribute that refers to one of the function's takes its value, or is left out."""
        if not proto.ref_attr_name:
            return proto
        given = self.bound.get(proto.ref_attr_name)
        if given is None:
            return None
        copy = AttributeProto()
        copy.CopyFrom(given)
        copy.name = proto.name
        return copy

    def attribute(self, proto: AttributeProto) -> Any:
        try:
            return self._attribute(proto)
        except ValueError as error:
            if isinstance(error, OnnxWasmError):
                raise
            raise InvalidModelError(f"{self.where}: attribute {proto.name!r} cannot be read: {error}") from None

    def _attribute(self, proto: AttributeProto) -> Any:
        kind = proto.type
        if kind == AttributeProto.TENSOR:
            return Initializer(proto.t, self.files, self.where)
        if kind == AttributeProto.SPARSE_TENSOR:
            return SparseInitializer(proto.sparse_tensor, self.files, self.where)
        if kind == AttributeProto.GRAPH:
            return self.graph(proto.g)
        if kind == AttributeProto.GRAPHS:
            return tuple(self.graph(g) for g in proto.graphs)
        if kind == AttributeProto.TENSORS:
            return tuple(Initializer(t, self.files, self.where) for t in proto.tensors)
        try:
            return self._plain(proto)
        except ValueError as error:
            raise InvalidModelError(f"{self.where}: attribute {proto.name!r} cannot be read: {error}") from None

    @staticmethod
    def _plain(proto: AttributeProto) -> Any:
        value = attribute_value(proto)
        if isinstance(value, bytes):
            return value.decode()
        if proto.type == AttributeProto.STRINGS:
            return tuple(map(bytes.decode, value))
        return value


def _value_info(proto: ValueInfoProto, where: str) -> ValueInfo:
    kind, optional = proto.type, False
    if kind.WhichOneof("value") == "optional_type":
        kind, optional = kind.optional_type.elem_type, True
    name = kind.WhichOneof("value")
    if name == "sequence_type":
        kind = kind.sequence_type.elem_type
        name = "sequence" if kind.WhichOneof("value") == "tensor_type" else "map"
    elif name != "map_type":
        name = "tensor"
    else:
        name = "map"
    if kind.WhichOneof("value") != "tensor_type":
        return ValueInfo(proto.name, None, None, name, optional)
    tensor = kind.tensor_type
    try:
        dtype = dtypes.from_onnx(tensor.elem_type) if tensor.elem_type else None
    except ValueError as error:
        raise InvalidModelError(f"{where}: {proto.name!r}: {error}") from None
    shape = tuple(_dimension(d) for d in tensor.shape.dim) if tensor.HasField("shape") else None
    return ValueInfo(proto.name, dtype, shape, name, optional)


def _dimension(proto: TensorShapeProto.Dimension) -> Dimension:
    kind = proto.WhichOneof("value")
    if kind == "dim_value":
        # Exporters write -1, and some 0, for a dimension they do not know.
        return proto.dim_value if proto.dim_value > 0 else None
    if kind == "dim_param":
        return proto.dim_param or None
    return None
