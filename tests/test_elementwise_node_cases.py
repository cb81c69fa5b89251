"""The onnx package's own cases of the elementwise operators."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from elementwise import registry
from harness import Harness
from onnx.backend.test.case.node import collect_testcases
from onnx_wasm import model

OPERATORS = """
Abs Neg Sqrt Reciprocal Floor Ceil Round Exp Log Tanh Sigmoid Erf Sign Not BitwiseNot IsNaN IsInf Sin Cos Tan Relu LeakyRelu
HardSigmoid HardSwish Elu Selu Celu Softplus Softsign ThresholdedRelu Clip Gelu Mish Swish PRelu Add Sub Mul Div Pow Mod Max
Min Sum Mean And Or Xor BitwiseAnd BitwiseOr BitwiseXor BitShift Equal Less Greater LessOrEqual GreaterOrEqual Where Cast
CastLike
""".split()
# Element types that no elementwise kernel has, in the cases' names.
MISSING_TYPES = ("FLOAT8", "UINT4", "INT4", "FLOAT4", "STRING", "UINT2", "INT2", "_string", "E8M0")


def cases() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = collect_testcases(None)
    return [
        c
        for c in found
        if len(c.model.graph.node) == 1
        and c.model.graph.node[0].op_type in OPERATORS
        and not any(t in c.name for t in MISSING_TYPES)
    ]


CASES = cases()


def test_every_operator_has_cases() -> None:
    count = Counter(c.model.graph.node[0].op_type for c in CASES)
    assert {o for o in OPERATORS if not count[o]} == set()


def array(data: Any) -> np.ndarray:
    return onnx.numpy_helper.to_array(data) if isinstance(data, onnx.TensorProto) else np.asarray(data)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_case(harness: Harness, case: Any) -> None:
    graph = model.load(case.model)
    (node,) = graph.nodes
    opset = graph.opsets[node.domain]
    found = registry.find(node.domain, node.op_type, opset)
    assert found is not None, f"{node.op_type} of opset {opset} is not registered"
    for inputs, outputs in case.data_sets:
        given = map(array, inputs)
        got = harness.op(
            found.function, [next(given) if name else None for name in node.inputs], opset=opset, **node.attributes
        )
        (want,) = map(array, outputs)
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        if want.dtype.kind in "iub":
            np.testing.assert_array_equal(got, want)
        else:
            np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=case.rtol, atol=case.atol)
