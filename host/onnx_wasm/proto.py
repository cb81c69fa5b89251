"""ONNX's protobuf messages, without the rest of the onnx package.

All of it takes longer to import than a session takes to be made, and a session needs only the messages. Their
classes belong to protobuf's pool: those of a later ``import onnx`` are the same ones.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

_MESSAGES = "onnx.onnx_ml_pb2"


def folders() -> list[str]:
    """Where the onnx package lies."""
    spec = importlib.util.find_spec("onnx")
    return list(spec.submodule_search_locations or ()) if spec else []


def _messages() -> ModuleType:
    found = sys.modules.get(_MESSAGES)
    if found is not None or "onnx" in sys.modules:
        return found or importlib.import_module(_MESSAGES)
    spec = importlib.machinery.PathFinder.find_spec(_MESSAGES, folders())
    if spec is None or spec.loader is None:
        return importlib.import_module("onnx")
    # Not entered in sys.modules: there it would be found before its package is, and never become its attribute.
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if TYPE_CHECKING:
    from onnx import (
        AttributeProto,
        FunctionProto,
        GraphProto,
        ModelProto,
        NodeProto,
        OperatorSetIdProto,
        SparseTensorProto,
        TensorProto,
        TensorShapeProto,
        TypeProto,
        ValueInfoProto,
    )
else:
    _module = _messages()
    AttributeProto, FunctionProto, GraphProto = _module.AttributeProto, _module.FunctionProto, _module.GraphProto
    ModelProto, NodeProto, TensorProto = _module.ModelProto, _module.NodeProto, _module.TensorProto
    TensorShapeProto, TypeProto, ValueInfoProto = _module.TensorShapeProto, _module.TypeProto, _module.ValueInfoProto
    OperatorSetIdProto, SparseTensorProto = _module.OperatorSetIdProto, _module.SparseTensorProto

__all__ = [
    "AttributeProto",
    "FunctionProto",
    "GraphProto",
    "ModelProto",
    "NodeProto",
    "OperatorSetIdProto",
    "SparseTensorProto",
    "TensorProto",
    "TensorShapeProto",
    "TypeProto",
    "ValueInfoProto",
    "attribute_value",
    "folders",
]

_ATTRIBUTES = {
    AttributeProto.FLOAT: "f",
    AttributeProto.INT: "i",
    AttributeProto.STRING: "s",
    AttributeProto.TENSOR: "t",
    AttributeProto.SPARSE_TENSOR: "sparse_tensor",
    AttributeProto.GRAPH: "g",
    AttributeProto.TYPE_PROTO: "tp",
    AttributeProto.FLOATS: "floats",
    AttributeProto.INTS: "ints",
    AttributeProto.STRINGS: "strings",
    AttributeProto.TENSORS: "tensors",
    AttributeProto.SPARSE_TENSORS: "sparse_tensors",
    AttributeProto.GRAPHS: "graphs",
    AttributeProto.TYPE_PROTOS: "type_protos",
}


def attribute_value(attribute: AttributeProto) -> Any:
    """The field of an attribute that its type names, as a tuple where it repeats; None without a type.

    Raises ValueError for a type that is not known.
    """
    if attribute.type == AttributeProto.UNDEFINED:
        return None
    name = _ATTRIBUTES.get(attribute.type)
    if name is None:
        raise ValueError(f"unknown attribute type {attribute.type}")
    value = getattr(attribute, name)
    return tuple(value) if name.endswith("s") and len(name) > 1 else value
