"""The onnx package's own node cases of the ops that move data: in one range of units and in several, and folded."""

from __future__ import annotations

import numpy as np
import pytest

from harness import Harness
from onnx_nodes import Case, node_cases
from onnx_wasm import registry

OPS = (
    *("Identity", "Dropout", "Constant", "ConstantOfShape", "Shape", "Size", "Reshape", "Flatten", "Squeeze"),
    *("Unsqueeze", "Expand", "Tile", "Transpose", "Concat", "Split", "Slice", "Gather", "GatherElements", "GatherND"),
    *("Scatter", "ScatterElements", "ScatterND", "Pad", "DepthToSpace", "SpaceToDepth", "Range", "OneHot", "Trilu"),
    *("CumSum", "CumProd", "CenterCropPad", "EyeLike", "Compress", "TensorScatter", "ReverseSequence"),
)
# Sequences and optionals are no tensors; dropping at random is training.
SKIPPED = {
    *("test_identity_sequence", "test_identity_opt", "test_training_dropout", "test_training_dropout_default"),
    *("test_training_dropout_mask", "test_training_dropout_default_mask"),
}
CASES = [c for c in node_cases(*OPS) if c.name not in SKIPPED]


def form_of(case: Case) -> registry.OpDef:
    form = registry.find("", case.model.graph.node[0].op_type, case.model.opset_import[0].version)
    assert form is not None
    return form


def test_every_op_has_cases() -> None:
    assert {c.model.graph.node[0].op_type for c in CASES} == set(OPS)


@pytest.mark.parametrize("split", [1, 3])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_node(harness: Harness, case: Case, split: int) -> None:
    results = case.run(harness, split)
    assert len(results) >= len(case.outputs)
    for result, expected in zip(results, case.outputs, strict=False):
        assert result.dtype == expected.dtype
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(
    "case",
    [c for c in CASES if form_of(c).fold and c.name.startswith("test_range_int") == c.name.startswith("test_range")],
    ids=lambda c: c.name,
)
def test_fold(case: Case) -> None:
    node, inputs = case.node
    fold = form_of(case).fold
    assert fold is not None
    np.testing.assert_array_equal(fold(*inputs, **node.attributes), case.outputs[0])
