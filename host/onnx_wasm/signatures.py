"""Which element types ONNX lets the inputs of a node have.

Kernels here take more types than ONNX lists, narrow integers for one, and that stays allowed: an input is refused if
ONNX allows no type of its kind, and if two that must agree do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import onnx
from onnx import defs

from . import dtypes
from .context import Context, Item, TensorSequence, Value
from .errors import InvalidModelError
from .model import Graph, ValueInfo
from .registry import OpDef

_TEXT = {d.onnx: f"tensor({onnx.TensorProto.DataType.Name(d.onnx).lower()})" for d in dtypes.ALL}
# Before, operators took shapes and counts as tensors of their own type.
_FIRST_OPSET = 7
_NAMES = {text: str(dtypes.from_onnx(number)) for number, text in _TEXT.items()}


def _kind(dtype: dtypes.DType) -> str:
    if dtype.is_integer:
        return "integer"
    return "float" if dtype.is_float else dtype.name.rstrip("0123456789")


_KINDS = {text: _kind(dtypes.from_onnx(number)) for number, text in _TEXT.items()}


class _Input(NamedTuple):
    name: str
    types: frozenset[str]
    kinds: frozenset[str]
    variable: str
    """Inputs that share it have one type; "" if this one need not agree with any."""


@cache
def _inputs(op_type: str, opset: int) -> tuple[tuple[_Input, ...], bool] | None:
    """The inputs of an operator of ai.onnx, and whether the last one repeats."""
    try:
        schema = defs.get_schema(op_type, opset, "")
    except defs.SchemaError:
        return None
    variables = {t.type_param_str for t in schema.type_constraints}
    variadic = defs.OpSchema.FormalParameterOption.Variadic
    found = []
    for parameter in schema.inputs:
        types = frozenset(t.removeprefix("optional(").replace("))", ")") for t in parameter.types)
        alike = parameter.type_str in variables and (parameter.is_homogeneous or parameter.option != variadic)
        kinds = frozenset(_KINDS.get(t, t) for t in types)
        found.append(_Input(parameter.name, types, kinds, parameter.type_str if alike else ""))
    return tuple(found), bool(found) and schema.inputs[-1].option == variadic


def misfit(op_type: str, opset: int, args: Sequence[Item | None]) -> str | None:
    """What is wrong with the element types that a node of ai.onnx is given, or None."""
    known = _inputs(op_type, opset) if opset >= _FIRST_OPSET else None
    if known is None or not known[0]:
        return None
    inputs, repeats = known
    bound: dict[str, tuple[str, str]] = {}
    for i, arg in enumerate(args):
        if not isinstance(arg, Value) or (i >= len(inputs) and not repeats):
            continue
        parameter = inputs[min(i, len(inputs) - 1)]
        text = _TEXT[arg.dtype.onnx]
        if text not in parameter.types and _KINDS[text] not in parameter.kinds:
            allowed = ", ".join(sorted(_NAMES.get(t, t) for t in parameter.types))
            return f"input {parameter.name} is {arg.dtype}; in opset {opset} it may be {allowed}"
        if parameter.variable:
            first = bound.setdefault(parameter.variable, (text, parameter.name))
            if first[0] != text:
                return (
                    f"inputs {first[1]} and {parameter.name} must have one type, got {_NAMES[first[0]]} and {arg.dtype}"
                )
    return None


def check_call(cx: Context, form: OpDef, args: Sequence[Item | None]) -> None:
    """Fail unless the node in hand has the attributes and as many inputs as its operator's form takes."""
    attributes = cx.node.attributes
    if not form.attributes.issuperset(attributes):
        unknown = sorted(set(attributes) - form.attributes)
        cx.fail(f"unknown attributes {unknown}; {form.name}-{form.since} has {sorted(form.attributes)}")
    if not form.required_attributes.issubset(attributes):
        cx.fail(f"missing attributes {sorted(form.required_attributes - set(attributes))}")
    if len(args) > len(form.inputs) and not form.variadic:
        cx.fail(f"{len(args)} inputs; {form.name}-{form.since} takes at most {len(form.inputs)}")
    if form.variadic and None in args[len(form.inputs) :]:
        cx.fail(f"input {args.index(None, len(form.inputs))} is not given")
    present = sum(a is not None for a in args[: form.required])
    if present < form.required:
        cx.fail(f"{present} of the {form.required} required inputs given ({', '.join(form.inputs[: form.required])})")


def check_declared(cx: Context, graph: Graph, kind: str, declared: Sequence[ValueInfo], items: Sequence[Item]) -> None:
    """Fail unless inputs or outputs of a graph inside the node in hand are of the types that the graph declares."""
    for info, item in zip(declared, items, strict=True):
        dtype = item.dtype if isinstance(item, Value | TensorSequence) else None
        if dtype is not None and info.dtype is not None and dtype is not info.dtype:
            cx.fail(
                f"{kind} {info.name!r} of {graph.name!r} is declared {info.dtype}, but is {dtype}", InvalidModelError
            )
