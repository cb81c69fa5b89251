"""Break a finished graph in one place."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx

from .builder import DTYPES, Builder, Case, Tensor

RAGGED = [-100, -7, -3, -2, -1, 0, 1, 2, 3, 5, 9, 100, 2**40]
"""Among them none that native could take for the size of gigabytes that exist."""
# Flags, and what has no wrong value that peers agree on.
UNSPOILT = {
    "to",
    "dtype",
    "storage_order",
    "p",
    "fmod",
    "keepdims",
    "exclusive",
    "reverse",
    "upper",
    "count_include_pad",
    "ceil_mode",
    "transA",
    "transB",
    "select_last_index",
    "allowzero",
    "noop_with_empty_axes",
    "largest",
    "sorted",
    "linear_before_reset",
    "input_forget",
    "layout",
    "detect_negative",
    "detect_positive",
    "exclude_outside",
}


def spoil(g: Builder, case: Case) -> None:
    """Change an attribute, the shape, type or contents of an input, or take an input away."""
    case.nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in case.nodes]
    case.listed = frozenset()
    kinds = [_attribute, _attribute, _input, _input, _contents, _missing]
    for kind in (g.choice(kinds), *kinds):
        what = kind(g, case)
        if what:
            case.spoiled = what
            return


def _attribute(g: Builder, case: Case) -> str:
    found = [
        (node, attribute)
        for node in case.nodes
        for attribute in node.attribute
        if attribute.type in (onnx.AttributeProto.INT, onnx.AttributeProto.INTS, onnx.AttributeProto.STRING)
        and attribute.name not in UNSPOILT
    ]
    if not found:
        return ""
    node, attribute = g.choice(found)
    if attribute.type == onnx.AttributeProto.STRING:
        attribute.s = b"nonsense"
    elif attribute.type == onnx.AttributeProto.INT:
        attribute.i = g.choice(RAGGED)
    elif attribute.ints and g.chance(70):
        attribute.ints[g.int(0, len(attribute.ints) - 1)] = g.choice(_values(attribute))
    elif g.chance(50):
        attribute.ints.append(g.choice(_values(attribute)))
    elif len(attribute.ints) > 1:
        # An empty list is taken for one that is not given.
        del attribute.ints[-1]
    return f"{attribute.name} of {node.name}"


def _values(attribute: onnx.AttributeProto) -> list[int]:
    # Native looks at every element of a window, and does not come back from one of 2^40.
    return RAGGED[:-1] if attribute.name == "kernel_shape" else RAGGED


def _replace(case: Case, old: Tensor, array: np.ndarray) -> None:
    new = dataclasses.replace(old, array=array)
    case.inputs = [new if t is old else t for t in case.inputs]
    case.weights = [new if t is old else t for t in case.weights]
    case.declared = {**case.declared, old.name: array.shape}


def _input(g: Builder, case: Case) -> str:
    """Another shape or type."""
    if not case.inputs and not case.weights:
        return ""
    old = g.choice([*case.inputs, *case.weights])
    if g.chance(25):
        _replace(case, old, np.zeros(old.shape, DTYPES[g.choice(["float32", "int64", "int32", "float64", "bool"])]))
        return f"type of {old.name}"
    dims = list(old.shape)
    kind = g.int(0, 2)
    if dims and kind == 0:
        dims[g.int(0, len(dims) - 1)] = g.choice([0, 1, 2, 3, 5])
    elif dims and kind == 1:
        del dims[g.int(0, len(dims) - 1)]
    else:
        dims.insert(g.int(0, len(dims)), g.choice([1, 2, 3]))
    if dims == [0] and old.dtype == "int64" and any(n.op_type == "Squeeze" for n in case.nodes):
        # Native takes an empty list of axes for one that is not given, the reference does not.
        dims = [3]
    _replace(case, old, np.resize(old.array, dims))
    return f"shape of {old.name}"


def _contents(g: Builder, case: Case) -> str:
    """Indices, axes and shapes out of range."""
    fitting = [t for t in (*case.inputs, *case.weights) if t.dtype in ("int64", "int32") and t.array.size]
    if not fitting:
        return ""
    old = g.choice(fitting)
    array = old.array.copy()
    # Loops must end, and 32 bits hold no size that is surely too large.
    few = case.family == "control" or old.dtype == "int32"
    array.reshape(-1)[g.int(0, array.size - 1)] = g.choice([v for v in RAGGED if v < 10] if few else RAGGED)
    _replace(case, old, array)
    return f"contents of {old.name}"


def _missing(g: Builder, case: Case) -> str:
    # A loop without its count may never end.
    found = [n for n in case.nodes if len(n.input) > 1 and n.op_type != "Loop"]
    if not found:
        return ""
    node = g.choice(found)
    if g.chance(50):
        del node.input[-1]
    else:
        node.input[g.int(0, len(node.input) - 1)] = ""
    return f"an input of {node.name}"
