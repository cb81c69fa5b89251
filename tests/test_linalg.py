from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from harness import Harness
from onnx_nodes import Case, node_cases
from onnx_wasm.errors import ShapeError
from onnx_wasm.ops.linalg import det, inverse

TYPES = [(np.float32, 2e-6), (np.float64, 1e-12), (np.float16, 1e-3), (ml_dtypes.bfloat16, 1e-2)]


def matrices(*shape: int, dtype: Any = np.float64) -> np.ndarray:
    return (np.random.default_rng(sum(shape)).normal(size=shape) + 2 * np.eye(shape[-1])).astype(dtype)


@pytest.mark.parametrize(("dtype", "tolerance"), TYPES)
@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (5, 5), (3, 4, 4), (2, 3, 7, 7)])
def test_well_conditioned(harness: Harness, dtype: Any, tolerance: float, shape: tuple[int, ...]) -> None:
    x = matrices(*shape, dtype=dtype)
    wide = x.astype(np.float64)
    got = harness.op(det, [x], split=2)
    assert got.dtype == x.dtype
    np.testing.assert_allclose(got.astype(np.float64), np.linalg.det(wide), rtol=tolerance, atol=tolerance)
    got = harness.op(inverse, [x], split=2)
    np.testing.assert_allclose(got.astype(np.float64), np.linalg.inv(wide), rtol=tolerance, atol=tolerance * 4)


def test_pivoting_and_signs(strict_harness: Harness) -> None:
    x = np.array([[0, 1, 0], [0, 0, 1], [1, 0, 0]], np.float32)
    assert strict_harness.op(det, [x]) == 1
    assert strict_harness.op(det, [x[[1, 0, 2]]]) == -1
    assert (strict_harness.op(inverse, [x]) == x.T).all()
    tiny = np.array([[1e-30, 1], [1, 1]])
    np.testing.assert_allclose(strict_harness.op(inverse, [tiny]), [[-1, 1], [1, 0]], atol=1e-15)


def test_singular_and_nan(harness: Harness) -> None:
    x = np.array([[1, 2], [2, 4]], np.float32)
    assert harness.op(det, [x]) == 0
    assert np.isinf(harness.op(inverse, [x])).all()
    assert np.isnan(harness.op(det, [np.array([[np.nan, 1], [1, 1]], np.float32)]))


def test_empty(harness: Harness) -> None:
    assert harness.op(det, [np.zeros((2, 0, 0), np.float32)]).tolist() == [1, 1]
    assert harness.op(det, [np.zeros((0, 3, 3), np.float32)]).shape == (0,)
    assert harness.op(inverse, [np.zeros((2, 0, 0), np.float32)]).shape == (2, 0, 0)


@pytest.mark.parametrize("shape", [(3,), (2, 3)])
def test_not_square(harness: Harness, shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match="last axes of the same extent"):
        harness.op(det, [np.zeros(shape, np.float32)])


@pytest.mark.parametrize("case", node_cases("Det"), ids=lambda c: c.name)
def test_onnx_cases(harness: Harness, case: Case) -> None:
    np.testing.assert_allclose(case.run(harness)[0], case.outputs[0], rtol=case.rtol, atol=case.atol)
