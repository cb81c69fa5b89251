"""Which element types ONNX lets the inputs of a node have.

Kernels here take more types than ONNX lists, narrow integers for one, and that stays allowed: an input is refused if
ONNX allows no type of its kind, and if two that must agree do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from . import dtypes, schemas
from .context import Context, Item, TensorSequence, Value
from .errors import InvalidModelError
from .model import Graph, ValueInfo
from .proto import TensorProto
from .registry import OpDef

_TEXT = {d.onnx: f"tensor({TensorProto.DataType.Name(d.onnx).lower()})" for d in dtypes.ALL}
# Before, operators took shapes and counts as tensors of their own type.
_FIRST_OPSET = 7
_NAMES = {text: str(dtypes.from_onnx(number)) for number, text in _TEXT.items()}


def _kind(dtype: dtypes.DType) -> str:
    if dtype.is_integer:
        return "integer"
    return "float" if dtype.is_float else dtype.name.rstrip("0123456789")


_KINDS = {text: _kind(dtypes.from_onnx(number)) for number, text in _TEXT.items()}


@cache
def _kinds(types: frozenset[str]) -> frozenset[str]:
    return frozenset(_KINDS.get(t, t) for t in types)


def misfit(op_type: str, opset: int, args: Sequence[Item | None]) -> str | None:
    """What is wrong with the element types that a node of ai.onnx is given, or None."""
    known = schemas.inputs_of(op_type, opset) if opset >= _FIRST_OPSET else None
    if known is None or not known.parameters:
        return None
    inputs, repeats = known
    bound: dict[str, tuple[str, str]] = {}
    for i, arg in enumerate(args):
        if not isinstance(arg, Value) or (i >= len(inputs) and not repeats):
            continue
        parameter = inputs[min(i, len(inputs) - 1)]
        text = _TEXT[arg.dtype.onnx]
        if text not in parameter.types and _KINDS[text] not in _kinds(parameter.types):
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
    present = sum(i < len(args) and args[i] is not None for i in form.required)
    if present < len(form.required):
        names = ", ".join(form.inputs[i] for i in form.required)
        cx.fail(f"{present} of the {len(form.required)} required inputs given ({names})")


def check_declared(cx: Context, graph: Graph, kind: str, declared: Sequence[ValueInfo], items: Sequence[Item]) -> None:
    """Fail unless inputs or outputs of a graph inside the node in hand are of the types that the graph declares."""
    for info, item in zip(declared, items, strict=True):
        dtype = item.dtype if isinstance(item, Value | TensorSequence) else None
        if dtype is not None and info.dtype is not None and dtype is not info.dtype:
            cx.fail(
                f"{kind} {info.name!r} of {graph.name!r} is declared {info.dtype}, but is {dtype}", InvalidModelError
            )
