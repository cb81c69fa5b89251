"""The onnx package's own node cases of the ops that move data: in one range of units and in several, and folded."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

import numpy as np
import pytest
from onnx.backend.test.case import node as onnx_cases

import onnx_wasm.ops
from harness import Harness
from onnx_wasm import model, registry
from onnx_wasm.context import Context

OPS = (
    *("Identity", "Dropout", "Constant", "ConstantOfShape", "Shape", "Size", "Reshape", "Flatten", "Squeeze"),
    *("Unsqueeze", "Expand", "Tile", "Transpose", "Concat", "Split", "Slice", "Gather", "GatherElements", "GatherND"),
    *("Scatter", "ScatterElements", "ScatterND", "Pad", "DepthToSpace", "SpaceToDepth", "Range", "OneHot", "Trilu"),
    *("CumSum", "EyeLike", "Compress", "ReverseSequence"),
)
# Sequences and optionals are no tensors; dropping at random is training; ranges of half floats are not implemented.
SKIPPED = {
    *("test_identity_sequence", "test_identity_opt", "test_training_dropout", "test_training_dropout_default"),
    *("test_training_dropout_mask", "test_training_dropout_default_mask"),
    *("test_range_float16_type_positive_delta", "test_range_bfloat16_type_positive_delta"),
}

FILES = {"Range": "rangeop"}

registry.load(onnx_wasm.ops)


@dataclass
class Case:
    node: model.Node
    form: registry.OpDef
    opset: int
    inputs: list[np.ndarray | None]
    outputs: list[np.ndarray]


def _cases() -> dict[str, Case]:
    for name in OPS:
        importlib.import_module(f"{onnx_cases.__name__}.{FILES.get(name, name.lower())}")
    cases = {}
    for case in onnx_cases._NodeTestCases:
        if case.model.graph.node[0].op_type not in OPS or len(case.model.graph.node) > 1 or case.name in SKIPPED:
            continue
        graph = model.load(case.model)
        node, opset = graph.nodes[0], graph.opsets[""]
        form = registry.find("", node.op_type, opset)
        assert form is not None, node.op_type
        inputs, outputs = case.data_sets[0]
        given = dict(zip([i.name for i in graph.inputs], inputs, strict=True))
        cases[case.name] = Case(node, form, opset, [given.get(n) for n in node.inputs], outputs)
    return cases


CASES = _cases()


def test_every_op_has_cases() -> None:
    assert {c.node.op_type for c in CASES.values()} == set(OPS)


@pytest.mark.parametrize("split", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_node(harness: Harness, name: str, split: int) -> None:
    case = CASES[name]

    def described(cx: Context, *args: object, **attributes: object) -> object:
        cx.node = case.node
        return case.form.function(cx, *args, **attributes)

    host = [i for i, parameter in enumerate(case.form.inputs) if parameter in case.form.host]
    results = harness.op(described, case.inputs, host=host, opset=case.opset, split=split, **case.node.attributes)
    results = results if isinstance(results, tuple) else (results,)
    assert len([r for r in results if r is not None]) >= len(case.outputs)
    for result, expected in zip(results, case.outputs, strict=False):
        expected = np.asarray(expected)
        assert result.dtype == expected.dtype
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c.form.fold and "range_float" not in n])
def test_fold(name: str) -> None:
    case = CASES[name]
    assert case.form.fold is not None
    result = case.form.fold(*case.inputs, **case.node.attributes)
    np.testing.assert_array_equal(result, case.outputs[0])
