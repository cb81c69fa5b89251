from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import onnx_wasm as ort
from graphs import FLOAT, model, node
from harness import Harness
from onnx_nodes import Case, node_cases, onnxruntime_node, run_node
from onnx_wasm.errors import ShapeError, UnsupportedModelError

OPS = ["Softmax", "LogSoftmax"]
DTYPES = [np.float32, np.float64]


def data(shape: tuple[int, ...], dtype: type = np.float32, scale: float = 3.0) -> np.ndarray:
    return (np.random.default_rng(0).standard_normal(shape) * scale).astype(dtype)


def expected(op: str, x: np.ndarray, axis: int) -> np.ndarray:
    with np.errstate(all="ignore"):
        # The difference is rounded to the type of x in any implementation.
        wide = (x - np.fmax.reduce(x, axis, keepdims=True)).astype(np.float64)
        total = np.exp(wide).sum(axis, keepdims=True)
        return np.exp(wide) / total if op == "Softmax" else wide - np.log(total)


def check(y: np.ndarray, e: np.ndarray, rows: int = 1) -> None:
    # Across rows the sum is a plain running one.
    epsilon = np.finfo(y.dtype).eps
    smallest = 1e-37 if (e >= 0).all() else 8 * epsilon
    np.testing.assert_allclose(y, e, rtol=(16 + rows / 128) * epsilon, atol=smallest)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 64, 2049, 5003])
def test_sizes(harness: Harness, op: str, dtype: type, n: int) -> None:
    x = data((5, n), dtype)
    (y,) = run_node(harness, op, [x], split=2)
    assert y.dtype == x.dtype
    check(y, expected(op, x, 1))
    (y,) = run_node(harness, op, [x.T.copy()], axis=0, split=2)
    check(y, expected(op, x, 1).T, rows=n)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 3, 17), (2, 3, 4, 5), (1, 2, 1, 3, 70)])
def test_every_axis(harness: Harness, op: str, dtype: type, shape: tuple[int, ...]) -> None:
    x = data(shape, dtype)
    for axis in range(-len(shape), len(shape)):
        check(run_node(harness, op, [x], axis=axis, split=3)[0], expected(op, x, axis))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("opset", [7, 11])
@pytest.mark.parametrize("axis", [None, 0, 1, 2, -1])
def test_flattening_before_opset_13(harness: Harness, op: str, opset: int, axis: int | None) -> None:
    if opset < 11 and axis == -1:
        pytest.skip("opset 7 has no negative axes")
    attributes = {} if axis is None else {"axis": axis}
    x = data((3, 4, 5))
    (e,) = onnxruntime_node(op, [x], opset, **attributes)
    np.testing.assert_allclose(run_node(harness, op, [x], opset, **attributes)[0], e, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", DTYPES)
def test_extreme_arguments(harness: Harness, op: str, axis: int, dtype: type) -> None:
    x = data((20, 20), dtype, 40.0)
    x[3] += dtype(1e30)
    x[4] = -np.inf
    x[5, 3:9] = -np.inf
    x[:, 7] = dtype(-1e30)
    x[6, 2] = np.inf
    x[7, 1] = np.nan
    x[8, 0] = np.finfo(dtype).max
    (y,) = run_node(harness, op, [x], axis=axis)
    check(y, expected(op, x, axis))


def test_probabilities_under_the_normal_range_are_zero(harness: Harness) -> None:
    (y,) = run_node(harness, "Softmax", [np.array([[0, -87.0, -88.0, -104, -1e9, -np.inf]], np.float32)])
    assert y[0, 1] > 0
    assert (y[0, 2:] == 0).all()


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_splitting_gives_the_same_bytes(harness: Harness, op: str, axis: int) -> None:
    x = data((50, 61, 70))
    whole, parts = (run_node(harness, op, [x], axis=axis, split=s)[0].tobytes() for s in (1, 7))
    assert whole == parts


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("axis", [1, 2])
def test_in_place(harness: Harness, op: str, axis: int) -> None:
    x = data((3, 5, 23))
    harness.reset()
    address = harness.put(x)
    if axis == 2:
        harness.call(f"{op.lower()}_f32_last", 3, x=address, y=address, n=23, rows=15, per=5)
    else:
        harness.call(f"{op.lower()}_f32_mid", 3, x=address, y=address, n=5, inner=23, block=23)
    check(harness.get(address, x.shape, x.dtype), expected(op, x, axis))
    harness.check_guards()


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("axis", [0, 1])
def test_strict(strict_harness: Harness, op: str, axis: int) -> None:
    x = data((9, 13))
    check(run_node(strict_harness, op, [x], axis=axis)[0], expected(op, x, axis))


def test_every_binade_of_the_exponential(harness: Harness) -> None:
    x = np.concatenate([-np.logspace(-20, 2, 4001), np.linspace(-89, 0, 4001)]).astype(np.float32)
    rows = np.stack([np.zeros_like(x), x], 1)
    (y,) = run_node(harness, "Softmax", [rows])
    check(y, expected("Softmax", rows, 1))


@pytest.mark.parametrize("op", OPS)
def test_no_elements(harness: Harness, op: str) -> None:
    for shape in [(0, 3), (3, 0), (2, 0, 4)]:
        assert run_node(harness, op, [np.zeros(shape, np.float32)], axis=1)[0].shape == shape


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("op", OPS)
def test_16_bit_floats_are_computed_as_f32(harness: Harness, op: str, dtype: type) -> None:
    x = data((3, 17)).astype(dtype)
    (y,) = run_node(harness, op, [x])
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, run_node(harness, op, [x.astype(np.float32)])[0].astype(dtype))


def test_errors(harness: Harness) -> None:
    with pytest.raises(ShapeError, match=r"axis 2 out of range \[-2, 2\)"):
        run_node(harness, "Softmax", [np.zeros((2, 3), np.float32)], axis=2)
    with pytest.raises(UnsupportedModelError, match="int32"):
        run_node(harness, "Softmax", [np.zeros((2, 3), np.int32)])


CASES = node_cases(*OPS)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_onnx_case(harness: Harness, case: Case) -> None:
    (y,) = case.run(harness)
    np.testing.assert_allclose(y, case.outputs[0], rtol=1e-6, atol=1e-7)


def test_onnx_cases_are_there() -> None:
    assert len(CASES) >= 14


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("opset", [7, 11, 13])
@pytest.mark.parametrize("axis", [2, -3])
def test_an_axis_out_of_range(op: str, opset: int, axis: int) -> None:
    broken = model([node(op, ["x"], ["y"], axis=axis)], {"x": (FLOAT, [2, 3])}, ["y"], opset=opset)
    with ort.Runtime() as runtime, pytest.raises(ort.ShapeError, match=rf"axis {axis} out of range \[-2, 2\)"):
        ort.InferenceSession.create(broken, runtime=runtime)
