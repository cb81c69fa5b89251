"""The onnx package's own cases of the elementwise operators."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from harness import Harness
from onnx_nodes import Case, node_cases

OPERATORS = [
    *("Abs", "Neg", "Sqrt", "Reciprocal", "Floor", "Ceil", "Round", "Exp", "Log", "Tanh", "Sigmoid", "Erf", "Sign"),
    *("Not", "BitwiseNot", "IsNaN", "IsInf", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan"),
    *("Sinh", "Cosh", "Asinh", "Acosh", "Atanh", "Shrink"),
    *("Relu", "LeakyRelu", "HardSigmoid", "HardSwish", "Elu", "Selu", "Celu", "Softplus", "Softsign"),
    *("ThresholdedRelu", "Clip", "Gelu", "Mish", "Swish", "PRelu"),
    *("Add", "Sub", "Mul", "Div", "Pow", "Mod", "Max", "Min", "Sum", "Mean"),
    *("And", "Or", "Xor", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitShift"),
    *("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Where", "Cast", "CastLike"),
]
# Element types that no elementwise kernel has, in the cases' names.
MISSING_TYPES = ("FLOAT8", "UINT4", "INT4", "FLOAT4", "STRING", "UINT2", "INT2", "_string", "E8M0")
CASES = [c for c in node_cases(*OPERATORS) if not any(t in c.name for t in MISSING_TYPES)]


def test_every_operator_has_cases() -> None:
    count = Counter(c.node[0].op_type for c in CASES)
    assert {o for o in OPERATORS if not count[o]} == set()


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_case(harness: Harness, case: Case) -> None:
    (got,) = case.run(harness, split=2)
    (want,) = case.outputs
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    if want.dtype.kind in "iub":
        np.testing.assert_array_equal(got, want)
    else:
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=case.rtol, atol=case.atol)
