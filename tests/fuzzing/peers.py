"""What others answer for one node: native onnxruntime, or the onnx package's reference where native has no kernel."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np
import onnx
import onnx.shape_inference
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from .native import NativeCrash, native

Array = np.ndarray[Any, Any]
BF16 = np.dtype(ml_dtypes.bfloat16)
HALVES = (np.dtype(np.float16), BF16)


class Elements(list[Array]):
    """A sequence of tensors, and their type."""

    def __init__(self, arrays: Iterable[Array], dtype: np.dtype[Any] | None = None) -> None:
        super().__init__(np.asarray(a) for a in arrays)
        if dtype is None and not self:
            raise NoPeer("an empty sequence of any type")
        self.dtype = dtype or self[0].dtype


def parts(values: Iterable[Array | Elements]) -> list[Array]:
    """All tensors, those of sequences among them."""
    return [a for v in values for a in (v if isinstance(v, list) else [v])]


class Refused(Exception):
    """No peer computes the node."""


class NoPeer(Exception):
    """Peers have no kernel for the node, or a wrong one."""


@dataclass(frozen=True)
class Question:
    """One node with what it reads: `arrays` by name, `constants` those among them that are initializers."""

    node: onnx.NodeProto
    opset: int
    arrays: Mapping[str, Any]
    constants: frozenset[str]

    def __getattr__(self, name: str) -> Any:
        """Attributes of the node, None for those not given."""
        for attribute in self.node.attribute:
            if attribute.name == name:
                return helper.get_attribute_value(attribute)
        return None

    @property
    def op(self) -> str:
        return str(self.node.op_type)

    def input(self, index: int) -> Array | None:
        name = self.node.input[index] if index < len(self.node.input) else ""
        return self.arrays.get(name) if name else None

    @property
    def inputs(self) -> list[Array]:
        return [self.arrays[n] for n in self.node.input if n]

    @property
    def empty(self) -> bool:
        return any(0 in a.shape for a in parts(self.arrays.values()))

    def model(self, arrays: Mapping[str, Array] | None = None) -> bytes:
        arrays = self.arrays if arrays is None else arrays
        graph = helper.make_graph(
            [self.node],
            "one",
            [info(n, a, shaped=True) for n, a in arrays.items() if n not in self.constants],
            [helper.make_empty_tensor_value_info(n) for n in self.node.output if n],
            [numpy_helper.from_array(a, n) for n, a in arrays.items() if n in self.constants],
        )
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        data: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
        return data

    def feeds(self, arrays: Mapping[str, Array] | None = None) -> dict[str, Array]:
        arrays = self.arrays if arrays is None else arrays
        return {n: a for n, a in arrays.items() if n not in self.constants}


def info(name: str, value: Array | Elements, *, shaped: bool = False) -> onnx.ValueInfoProto:
    """The type of a tensor or a sequence."""
    if isinstance(value, Elements):
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        made: onnx.ValueInfoProto = helper.make_tensor_sequence_value_info(name, kind, None)
        return made
    return value_info(name, value.dtype, value.shape if shaped else None)


def value_info(name: str, dtype: np.dtype[Any], shape: Sequence[int | str | None] | None) -> onnx.ValueInfoProto:
    made: onnx.ValueInfoProto = helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), shape)
    return made


@dataclass(frozen=True)
class Deviation:
    """Where a peer, or both, is known to be wrong, to crash or to leave open what the specification defines."""

    peer: Literal["native", "reference", "both"]
    reason: str
    holds: Callable[[Question], bool]


class Optional(OpRun):
    """An optional is its value, of which the reference makes a list, which none of its other operators takes."""

    op_domain = ""

    def _run(self, x: Any = None, type: Any = None) -> tuple[Any]:
        return (x,)


def reference(data: bytes, feeds: Mapping[str, Any]) -> list[Any]:
    """All outputs by the onnx package's reference."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return list(ReferenceEvaluator(onnx.load_from_string(data), new_ops=[Optional]).run(None, dict(feeds)))


def wrong(*questions: Question) -> set[str]:
    """The peers that are known to be wrong about one of the nodes, or about one that runs inside it."""
    from .deviations import DEVIATIONS

    within = (inner for q in questions for inner in _inner(q))
    with np.errstate(all="ignore"):
        found = {d.peer for q in (*questions, *within) for d in DEVIATIONS if d.holds(q)}
    return {"native", "reference"} if "both" in found else found


def _inner(question: Question) -> list[Question]:
    """What the node's subgraphs compute."""
    names = set(made([question.node])) - set(question.node.output)
    if not names:
        return []
    node, arrays = question.node, dict(question.arrays)
    if question.op == "Loop" and question.input(1) is None:
        # The reference runs no iteration without a condition.
        node = onnx.NodeProto.FromString(node.SerializeToString())
        arrays["going"] = np.asarray(True)
        node.input[1] = "going"
    whole = Question(node, question.opset, arrays, frozenset())
    return [q for q in watch(whole.model(), arrays, question.opset) if names.issuperset(n for n in q.node.output if n)]


def watch(data: bytes, feeds: Mapping[str, Any], opset: int) -> list[Question]:
    """Every node that runs, iteration by iteration, with what it reads by the reference, until that fails."""
    asked: list[Question] = []

    def run(self: OpRun, *args: Any, **more: Any) -> Any:
        node = self.onnx_node
        arrays = {
            n: Elements(a, None if a else np.dtype(np.float32)) if isinstance(a, list) else np.asarray(a)
            for n, a in zip(node.input, args, strict=False)
            if n and a is not None
        }
        asked.append(Question(node, opset, arrays, frozenset()))
        return original(self, *args, **more)

    original = OpRun.run
    try:
        OpRun.run = run
        reference(data, feeds)
    except Exception:
        pass
    finally:
        OpRun.run = original
    return asked


def made(nodes: Iterable[onnx.NodeProto]) -> list[str]:
    """All that nodes compute, and those in their subgraphs."""
    found = []
    for node in nodes:
        found += [n for n in node.output if n]
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                found += made(attribute.g.node)
    return found


def ask(question: Question) -> list[Any]:
    """The outputs of the node that are wanted. Raises Refused if peers say that it is no valid node, NoPeer if nobody
    can be asked."""
    mistaken = wrong(question)
    if "native" not in mistaken:
        try:
            return [_value(question, o) for o in _native(question)]
        except NoPeer:
            pass
    if "reference" in mistaken:
        raise NoPeer(question.op)
    try:
        outputs = [_value(question, o) for o in reference(question.model(), question.feeds())]
    except Exception as error:
        raise NoPeer(f"{question.op}: {error}") from None
    return outputs


def _value(question: Question, answer: Any) -> Array | Elements:
    if not isinstance(answer, list):
        return np.asarray(answer)
    # An empty sequence is of the type of what it was made from.
    empty = question.inputs[0].dtype if question.inputs else np.dtype(np.float32)
    return Elements(answer, None if answer else empty)


def _native(question: Question) -> list[Any]:
    plain = all(a.dtype != BF16 for a in question.arrays.values()) and question.to != onnx.TensorProto.BFLOAT16
    try:
        if plain:
            return native(question.model(), question.feeds())
    except NativeCrash:
        raise NoPeer(f"{question.op}: native crashed") from None
    except Exception as error:
        if "NOT_IMPLEMENTED" not in str(error):
            raise Refused(f"{question.op}: {error}") from None
    halves = [a.dtype for a in question.arrays.values() if a.dtype in HALVES]
    sequences = any(isinstance(a, list) for a in question.arrays.values())
    kept = ("Cast", "If", "Loop", "Scan", "Quant", "Dequant", "Is", "Sequence", "SplitTo")
    if not halves or sequences or question.op.startswith(kept) or question.dtype:
        raise NoPeer(question.op)
    # 16-bit floats: computed in float32 and rounded once.
    wide = {n: a.astype(np.float32) if a.dtype in HALVES else a for n, a in question.arrays.items()}
    try:
        outputs = native(question.model(wide), question.feeds(wide))
    except NativeCrash:
        raise NoPeer(f"{question.op}: native crashed") from None
    except Exception as error:
        if "NOT_IMPLEMENTED" in str(error):
            raise NoPeer(question.op) from None
        raise Refused(f"{question.op}: {error}") from None
    types = _output_types(question)
    with np.errstate(all="ignore"):
        return [o.astype(t) if o.dtype == np.float32 else o for o, t in zip(outputs, types, strict=True)]


def _output_types(question: Question) -> list[np.dtype[Any]]:
    inferred = onnx.shape_inference.infer_shapes(onnx.load_from_string(question.model()))
    found = [v.type.tensor_type.elem_type for v in inferred.graph.output]
    if not all(found):
        raise NoPeer(question.op)
    return [np.dtype(helper.tensor_dtype_to_np_dtype(t)) for t in found]
