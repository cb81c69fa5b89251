from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto

import onnx_wasm as ort
from graphs import model, node
from harness import Harness
from onnx_nodes import node_cases, onnxruntime_node
from onnx_wasm.errors import OnnxWasmError
from onnx_wasm.ops.qlinear import matmul_integer, qlinear_matmul

RNG = np.random.default_rng(0)
TYPES = [(np.uint8, np.int8), (np.uint8, np.uint8), (np.int8, np.int8), (np.int8, np.uint8)]


def integers(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max + 1, shape).astype(dtype)


def exact(a: np.ndarray, b: np.ndarray, a_zero: Any = 0, b_zero: Any = 0) -> np.ndarray:
    return np.matmul(a.astype(np.int32) - a_zero, b.astype(np.int32) - b_zero)


@pytest.mark.parametrize("op", ["MatMulInteger", "QLinearMatMul"])
def test_onnx_cases(harness: Harness, op: str) -> None:
    cases = node_cases(op)
    assert cases
    for case in cases:
        (y,) = case.run(harness)
        assert y.dtype == case.outputs[0].dtype
        np.testing.assert_array_equal(y, case.outputs[0])


SHAPES = [
    ((1, 1), (1, 1)),
    ((5, 7), (7, 9)),
    ((1, 300), (300, 70)),
    ((2, 259), (259, 33)),
    ((130, 600), (600, 270)),
    ((129, 31), (31, 1)),
    ((7,), (7, 3)),
    ((4, 7), (7,)),
    ((7,), (7,)),
    ((3, 4, 5), (5, 6)),
    ((3, 4, 5), (3, 5, 6)),
    ((4, 5), (9, 5, 6)),
    ((2, 1, 4, 5), (3, 5, 6)),
    ((2, 12, 17, 16), (2, 12, 16, 17)),
    ((3, 0), (0, 4)),
    ((0, 3), (3, 4)),
]


@pytest.mark.parametrize("weights", [(), (1, 2, 3)], ids=["computed", "constant"])
@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize(("a_shape", "b_shape"), SHAPES)
def test_matmul_integer(
    harness: Harness, a_shape: tuple[int, ...], b_shape: tuple[int, ...], types: tuple[Any, Any], weights: Any
) -> None:
    a, b = integers(a_shape, types[0]), integers(b_shape, types[1])
    a_zero, b_zero = integers((), types[0]), integers((), types[1])
    y = harness.op(matmul_integer, [a, b, a_zero, b_zero], weights=weights)
    assert y.dtype == np.int32
    np.testing.assert_array_equal(y, exact(a, b, a_zero, b_zero))
    split = harness.op(matmul_integer, [a, b, a_zero, b_zero], weights=weights, split=3)
    np.testing.assert_array_equal(split, y)
    np.testing.assert_array_equal(harness.op(matmul_integer, [a, b], weights=weights[:1]), exact(a, b))


@pytest.mark.parametrize("types", TYPES)
def test_extremes_do_not_saturate(harness: Harness, types: tuple[Any, Any]) -> None:
    for low_a in (False, True):
        for low_b in (False, True):
            ends = [np.iinfo(t).min if low else np.iinfo(t).max for t, low in zip(types, (low_a, low_b), strict=True)]
            zeros = [np.iinfo(t).max if low else np.iinfo(t).min for t, low in zip(types, (low_a, low_b), strict=True)]
            a, b = np.full((5, 1000), ends[0], types[0]), np.full((1000, 9), ends[1], types[1])
            y = harness.op(matmul_integer, [a, b, np.array(zeros[0], types[0]), np.array(zeros[1], types[1])])
            np.testing.assert_array_equal(y, exact(a, b, zeros[0], zeros[1]))


@pytest.mark.parametrize("k", range(1, 18))
@pytest.mark.parametrize("n", [1, 4, 7, 8, 17])
def test_tails(harness: Harness, n: int, k: int) -> None:
    for m in (1, 2, 5):
        a, b = integers((m, k), np.uint8), integers((k, n), np.uint8)
        zeros = [integers((m,) if m > 1 else (), np.uint8), integers((n,), np.uint8)]
        expected = exact(a, b, zeros[0].reshape(-1, 1), zeros[1])
        np.testing.assert_array_equal(harness.op(matmul_integer, [a, b, *zeros]), expected)


def test_zero_points_of_rows_and_columns_in_a_batch(harness: Harness) -> None:
    a, b = integers((2, 3, 5, 7), np.uint8), integers((2, 3, 7, 11), np.int8)
    a_zero, b_zero = integers((2, 3, 5, 1), np.uint8), integers((2, 3, 1, 11), np.int8)
    y = harness.op(matmul_integer, [a, b, a_zero, b_zero], split=2)
    np.testing.assert_array_equal(y, exact(a, b, a_zero, b_zero))
    y = harness.op(matmul_integer, [a, b[0, 0], a_zero, b_zero[0, 0, 0]], weights=(1, 3))
    np.testing.assert_array_equal(y, exact(a, b[0, 0], a_zero, b_zero[0, 0, 0]))
    y = harness.op(matmul_integer, [a[0, 0], b, a_zero[0, 0, :, 0], b_zero])
    np.testing.assert_array_equal(y, exact(a[0, 0], b, a_zero[0, 0], b_zero))


def qlinear_inputs(a: np.ndarray, b: np.ndarray, dtype: Any, per_column: bool, scale: Any = np.float32) -> list[Any]:
    columns = (b.shape[-1],) if per_column else ()
    k = a.shape[-1]
    return [
        a,
        np.array(0.02, scale),
        integers((), a.dtype),
        b,
        np.asarray(RNG.uniform(0.005, 0.02, columns)).astype(scale),
        integers(columns, b.dtype),
        np.array(0.03 * max(k, 1) ** 0.5, scale),
        integers((), dtype),
    ]


def requantized(inputs: list[Any]) -> np.ndarray:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = inputs
    f = np.float32
    total = exact(a, b, a_zero, b_zero).astype(f) * (a_scale.astype(f) * b_scale.astype(f) / y_scale.astype(f))
    info = np.iinfo(y_zero.dtype)
    return np.clip(np.rint(total) + y_zero, info.min, info.max).astype(y_zero.dtype)


@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize(("types", "dtype"), [(TYPES[0], np.uint8), (TYPES[1], np.uint8), (TYPES[2], np.int8)])
@pytest.mark.parametrize(("a_shape", "b_shape"), [((5, 7), (7, 9)), ((1, 64), (64, 33)), ((3, 70, 65), (65, 40))])
def test_qlinear_matmul(
    harness: Harness, a_shape: Any, b_shape: Any, types: tuple[Any, Any], dtype: Any, per_column: bool
) -> None:
    inputs = qlinear_inputs(integers(a_shape, types[0]), integers(b_shape, types[1]), dtype, per_column)
    y = harness.op(qlinear_matmul, inputs, split=2)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, onnxruntime_node("QLinearMatMul", inputs, 21)[0])
    constant = harness.op(qlinear_matmul, inputs, weights=range(1, 8))
    np.testing.assert_array_equal(constant, y)


@pytest.mark.parametrize("scale", [np.float16, ml_dtypes.bfloat16])
def test_half_scales(harness: Harness, scale: Any) -> None:
    inputs = qlinear_inputs(integers((2, 4, 30), np.int8), integers((2, 30, 9), np.int8), np.int8, False, scale)
    np.testing.assert_array_equal(harness.op(qlinear_matmul, inputs), requantized(inputs))


def test_scales_of_rows_and_columns_in_a_batch(harness: Harness) -> None:
    inputs = qlinear_inputs(integers((2, 5, 30), np.uint8), integers((2, 30, 9), np.int8), np.int8, False)
    inputs[1] = RNG.uniform(0.01, 0.03, (2, 5, 1)).astype(np.float32)
    inputs[4] = RNG.uniform(0.01, 0.03, (2, 1, 9)).astype(np.float32)
    difference = harness.op(qlinear_matmul, inputs).astype(int) - requantized(inputs)
    # The scale of a row is multiplied last, so that a quotient near one half may round the other way.
    assert np.abs(difference).max() <= 1
    assert (difference == 0).mean() > 0.95


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_small_floats(harness: Harness, dtype: Any) -> None:
    a, b = (RNG.normal(0, 1, s).astype(dtype) for s in ((3, 5), (5, 4)))
    zero, scale = np.zeros((), dtype), np.array(0.5, np.float32)
    y = harness.op(qlinear_matmul, [a, scale, zero, b, scale, zero, scale, zero])
    expected = ((a.astype(np.float32) @ b.astype(np.float32)) * np.float32(0.5)).astype(dtype)
    assert y.dtype == dtype
    np.testing.assert_allclose(y.astype(np.float32), expected.astype(np.float32), rtol=0.15)


def test_strict_variant(strict_harness: Harness) -> None:
    inputs = qlinear_inputs(integers((5, 70), np.uint8), integers((70, 19), np.int8), np.uint8, True)
    np.testing.assert_array_equal(
        strict_harness.op(qlinear_matmul, inputs), onnxruntime_node("QLinearMatMul", inputs, 21)[0]
    )


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((2, 3), (4, 5), (), ()), "do not fit"),
        (((2, 3), (3, 5), (3,), ()), "zero point of A"),
        (((2, 3), (3, 5), (), (2,)), "zero point of B"),
        (((2, 2, 3), (4, 3, 5), (), ()), "do not broadcast"),
        (((2, 1, 3), (3, 5), (2,), ()), "zero point of A"),
        (((1, 3), (2, 3, 1), (), (2,)), "zero point of B"),
    ],
)
def test_bad_calls(harness: Harness, shapes: tuple[Any, ...], message: str) -> None:
    with pytest.raises(OnnxWasmError, match=message):
        harness.op(matmul_integer, [integers(s, np.int8) for s in shapes])


@pytest.mark.parametrize(
    ("zeros", "message"),
    [
        ({"az": (1, 2)}, "zero point of A.* for each of 2 rows"),
        ({"az": (3,)}, "zero point of A.* for each of 2 rows"),
        ({"bz": (3, 1)}, "zero point of B.* for each of 3 columns"),
        ({"bz": (2,)}, "zero point of B.* for each of 3 columns"),
    ],
)
def test_zero_points_lie_along_rows_and_columns(zeros: dict[str, tuple[int, ...]], message: str) -> None:
    weights = {n: np.zeros(zeros.get(n, (1,)), np.uint8) for n in ("az", "bz")}
    data = model(
        [node("MatMulInteger", ["a", "b", "az", "bz"], ["y"])],
        {"a": (TensorProto.UINT8, [2, 4]), "b": (TensorProto.UINT8, [4, 3])},
        ["y"],
        weights,
    )
    with ort.Runtime() as runtime, pytest.raises(ort.ShapeError, match=message):
        ort.InferenceSession.create(data, runtime=runtime)
