from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from harness import Harness
from onnx_nodes import Case, node_cases, onnxruntime_node, run_node
from onnx_wasm.errors import ShapeError, UnsupportedModelError
from onnx_wasm.ops import reduce

OPS = list(reduce._KINDS)
FLOATS = [np.float32, np.float64]


def data(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "f":
        return rng.uniform(0.5, 1.5, shape).astype(dtype) * rng.choice([-1, 1], shape).astype(dtype)
    low = 0 if np.dtype(dtype).kind == "u" else -7
    return rng.integers(low, 8, shape).astype(dtype)


def expected(op: str, x: np.ndarray, axes: tuple[int, ...] | None, keepdims: bool) -> np.ndarray:
    wide = x.astype(np.float64) if x.dtype.kind == "f" else x.astype(object)
    how: dict[str, Any] = {"axis": axes, "keepdims": keepdims}
    with np.errstate(all="ignore"):
        result = {
            "ReduceSum": lambda: wide.sum(**how),
            "ReduceMean": lambda: wide.mean(**how),
            "ReduceMax": lambda: x.max(**how),
            "ReduceMin": lambda: x.min(**how),
            "ReduceProd": lambda: wide.prod(**how),
            "ReduceL1": lambda: abs(wide).sum(**how),
            "ReduceL2": lambda: np.sqrt((wide * wide).sum(**how)),
            "ReduceLogSum": lambda: np.log(wide.sum(**how)),
            "ReduceSumSquare": lambda: (wide * wide).sum(**how),
            "ReduceLogSumExp": lambda: np.log(np.exp(wide).sum(**how)),
        }[op]()
    return np.asarray(result).astype(x.dtype)


def check(harness: Harness, op: str, x: np.ndarray, axes: tuple[int, ...], keepdims: int = 1, split: int = 1) -> None:
    (y,) = run_node(harness, op, [x, np.array(axes, np.int64)], 18, keepdims=keepdims, split=split)
    e = expected(op, x, axes, bool(keepdims))
    assert y.shape == e.shape
    assert y.dtype == e.dtype
    tolerance = {"f4": 2e-6, "f8": 1e-14}.get(x.dtype.str[1:], 0)
    np.testing.assert_allclose(y, e, rtol=tolerance, atol=tolerance * 8)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("shape", [(5,), (3, 7), (2, 3, 9), (3, 2, 5, 4), (2, 1, 3, 2, 3)])
def test_every_set_of_axes(harness: Harness, op: str, shape: tuple[int, ...]) -> None:
    x = abs(data(shape, np.float32))
    for k in range(1, len(shape) + 1):
        for axes in itertools.combinations(range(len(shape)), k):
            check(harness, op, x, axes, keepdims=k % 2, split=3)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 15, 16, 17, 31, 33, 2049, 4103])
def test_tails(harness: Harness, op: str, dtype: type, n: int) -> None:
    x = data((2, n), dtype, n)
    if op in ("ReduceProd", "ReduceLogSum"):
        x = abs(x) if op == "ReduceLogSum" else np.sign(x) * abs(x) ** dtype(1 / n)
    check(harness, op, x, (1,))
    check(harness, op, x.T.copy(), (0,))
    check(harness, op, x, (0,))


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32, np.uint64])
@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceSumSquare"])
def test_integers(harness: Harness, op: str, dtype: type) -> None:
    x = data((3, 5, 19), dtype)
    if op == "ReduceProd":
        x = x % 3 - (1 if np.dtype(dtype).kind == "i" else 0)
        x = x.astype(dtype)[:, :, :9]
    for axes in [(0,), (1,), (2,), (0, 2), (0, 1, 2)]:
        with np.errstate(over="ignore"):
            check(harness, op, x, axes, split=2)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64])
@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
def test_the_whole_range_of_integers(harness: Harness, op: str, dtype: type) -> None:
    info = np.iinfo(dtype)
    x = np.random.default_rng(1).integers(info.min, info.max, (3, 37), dtype, endpoint=True)
    x[0, 5], x[1, 36] = info.min, info.max
    check(harness, op, x, (1,))
    check(harness, op, x, (0,))


def test_integer_overflow_wraps(harness: Harness) -> None:
    (y,) = run_node(harness, "ReduceSum", [np.full(3, 2**30, np.int32), None], 13, keepdims=0)
    assert y == np.int32(3 * 2**30 - 2**32)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("op", ["ReduceMean", "ReduceL2", "ReduceLogSum"])
def test_integer_results_are_truncated(harness: Harness, op: str, dtype: type) -> None:
    x = np.array([[3, 4, 9], [-5, 3, 1]], dtype)
    if op == "ReduceLogSum":
        x = abs(x)
    (y,) = run_node(harness, op, [x], 13, axes=[1], keepdims=0)
    (z,) = run_node(harness, op, [x.T.copy()], 13, axes=[0], keepdims=0)
    e = {"ReduceMean": [5, 0], "ReduceL2": [10, 5], "ReduceLogSum": [2, 2]}[op]
    assert y.tolist() == e
    assert z.tolist() == e


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    ("op", "dtype", "value", "expected"),
    [
        ("ReduceMean", np.int32, 2**31 - 2, 2**31 - 2),
        ("ReduceMean", np.int32, -(2**31), -(2**31)),
        ("ReduceMean", np.uint32, 2**32 - 2, 2**32 - 2),
        ("ReduceL2", np.int32, 100_003, 173_210),
        ("ReduceL2", np.int64, 10**12, 1_732_050_807_568),
        ("ReduceLogSum", np.int32, 2**30, 21),
        ("ReduceLogSum", np.int64, 2**62, 44),
    ],
)
def test_integer_results_fit_where_sums_do_not(
    harness: Harness, op: str, dtype: type, value: int, expected: int, axis: int
) -> None:
    x = np.full((3, 5) if axis == 0 else (5, 3), value, dtype)
    (y,) = run_node(harness, op, [x], 13, axes=[axis], keepdims=0)
    assert y.dtype == dtype
    assert y.tolist() == [expected] * 5


def test_bool_max_and_min(harness: Harness) -> None:
    x = np.array([[True, False, True], [False, False, False]])
    assert run_node(harness, "ReduceMax", [x, np.array([1])], 20, keepdims=0)[0].tolist() == [True, False]
    assert run_node(harness, "ReduceMin", [x, np.array([0])], 20, keepdims=0)[0].tolist() == [False, False, False]


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin", "ReduceSum", "ReduceLogSumExp"])
def test_nan_and_inf(harness: Harness, op: str, axis: int) -> None:
    x = data((6, 6), np.float32)
    x[1, 2], x[3, 3], x[4, 4] = np.nan, np.inf, -np.inf
    (y,) = run_node(harness, op, [x, np.array([axis])], 18, keepdims=0)
    np.testing.assert_allclose(y, expected(op, x, (axis,), False), rtol=1e-6)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("scale", [1000.0, -1000.0])
def test_logsumexp_of_large_arguments(harness: Harness, dtype: type, scale: float) -> None:
    x = data((3, 9), dtype) + dtype(scale)
    m = x.astype(np.float64).max()
    for axis in (0, 1):
        (y,) = run_node(harness, "ReduceLogSumExp", [x, np.array([axis])], 18, keepdims=0)
        np.testing.assert_allclose(y, m + np.log(np.exp(x.astype(np.float64) - m).sum(axis)), rtol=1e-7)


@pytest.mark.parametrize("dtype", FLOATS)
def test_logsumexp_of_minus_infinity(harness: Harness, dtype: type) -> None:
    (y,) = run_node(harness, "ReduceLogSumExp", [np.full((2, 3), -np.inf, dtype), np.array([1])], 18)
    assert (y == -np.inf).all()


@pytest.mark.parametrize(
    ("op", "identity"),
    [
        ("ReduceSum", 0),
        ("ReduceProd", 1),
        ("ReduceMax", -np.inf),
        ("ReduceMin", np.inf),
        ("ReduceL1", 0),
        ("ReduceL2", 0),
        ("ReduceSumSquare", 0),
        ("ReduceLogSum", -np.inf),
        ("ReduceLogSumExp", -np.inf),
        ("ReduceMean", np.nan),
    ],
)
def test_over_no_elements(harness: Harness, op: str, identity: float) -> None:
    (y,) = run_node(harness, op, [np.zeros((2, 0, 4), np.float32), np.array([1])], 20)
    np.testing.assert_array_equal(y, np.full((2, 1, 4), identity, np.float32))
    (y,) = run_node(harness, op, [np.zeros((2, 0, 4), np.float32), np.array([2])], 20)
    assert y.shape == (2, 0, 1)


def test_max_over_no_integers_is_the_least(harness: Harness) -> None:
    (y,) = run_node(harness, "ReduceMax", [np.zeros((2, 0), np.int32), np.array([1])], 20)
    assert (y == -(2**31)).all()


def test_mean_over_no_integers_fails(harness: Harness) -> None:
    with pytest.raises(ShapeError, match="mean over no elements"):
        run_node(harness, "ReduceMean", [np.zeros((2, 0), np.int32), np.array([1])], 20)


@pytest.mark.parametrize("op", OPS)
def test_no_axes(harness: Harness, op: str) -> None:
    x = abs(data((2, 3), np.float32))
    for axes in (None, np.array([], np.int64)):
        (y,) = run_node(harness, op, [x, axes], 18, keepdims=0)
        np.testing.assert_allclose(y, expected(op, x, None, False), rtol=1e-6)
        (y,) = run_node(harness, op, [x, axes], 18, noop_with_empty_axes=1)
        assert y.shape == x.shape
        np.testing.assert_allclose(y, expected(op, x, (), False), rtol=1e-6)


@pytest.mark.parametrize("op", OPS)
def test_rank_0(harness: Harness, op: str) -> None:
    x = np.array(1.5, np.float32)
    (y,) = run_node(harness, op, [x], 13 if op != "ReduceSum" else 11)
    np.testing.assert_allclose(y, expected(op, x, None, False), rtol=1e-6)
    assert y.shape == ()


def test_long_sums_are_accurate(harness: Harness) -> None:
    x = np.random.default_rng(0).uniform(0, 1, (1 << 20)).astype(np.float32)
    (y,) = run_node(harness, "ReduceSum", [x], 11, keepdims=0)
    np.testing.assert_allclose(y, x.sum(dtype=np.float64), rtol=2e-7)
    (y,) = run_node(harness, "ReduceSum", [x.reshape(-1, 8)], 11, axes=[0], keepdims=0)
    np.testing.assert_allclose(y, x.reshape(-1, 8).sum(0, dtype=np.float64), rtol=5e-6)


def test_rank_8(harness: Harness) -> None:
    x = data((2, 3, 2, 3, 2, 2, 3, 2), np.float32)
    check(harness, "ReduceSum", x, (0, 2, 4, 6), split=3)
    check(harness, "ReduceSum", x, (1, 3, 5, 7), split=3)


@pytest.mark.parametrize("shape", [(64, 50, 20), (3, 4, 5000), (5000, 3, 4), (1, 300, 301)])
@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 2)])
def test_splitting_gives_the_same_bytes(harness: Harness, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    x = data(shape, np.float32)
    for op in ("ReduceSum", "ReduceLogSumExp"):
        whole, parts = (run_node(harness, op, [x, np.array(axes)], 18, split=s)[0].tobytes() for s in (1, 5))
        assert whole == parts


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceLogSumExp", "ReduceL2"])
def test_strict(strict_harness: Harness, op: str) -> None:
    check(strict_harness, op, data((3, 5, 7), np.float32), (1,))
    check(strict_harness, op, data((3, 5, 7), np.float32), (2,))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("op", [*OPS, "ArgMax"])
def test_16_bit_floats_are_computed_as_f32(harness: Harness, op: str, dtype: type) -> None:
    x = abs(data((3, 17), np.float32)).astype(dtype)
    attributes = {"axis": 1} if op == "ArgMax" else {"axes": [1]}
    opset = 11
    (y,) = run_node(harness, op, [x], opset, **attributes)
    (e,) = run_node(harness, op, [x.astype(np.float32)], opset, **attributes)
    assert y.dtype == (np.int64 if op == "ArgMax" else dtype)
    np.testing.assert_array_equal(y, e.astype(y.dtype))


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32, np.uint64])
@pytest.mark.parametrize("axis", [0, 1])
def test_log_sum_of_integers(harness: Harness, dtype: type, axis: int) -> None:
    x = np.array([[0, 0, 100, 0], [0, 900, 0, 0], [0, 0, 0, 20]], dtype)
    (y,) = run_node(harness, "ReduceLogSum", [x], 13, axes=[axis], keepdims=0)
    lowest = np.iinfo(dtype).min
    assert y.dtype == dtype
    assert y.tolist() == ([lowest, 6, 4, 2] if axis == 0 else [4, 6, 2])


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64])
def test_means_of_large_integers(harness: Harness, dtype: type) -> None:
    x = np.array([[np.iinfo(dtype).max, 0, 0], [7, 0, 0], [2**31 - 1, 0, 0]], dtype)
    (y,) = run_node(harness, "ReduceMean", [x], 13, axes=[1], keepdims=0)
    assert y.tolist() == [int(row[0]) // 3 for row in x.tolist()]


def test_errors(harness: Harness) -> None:
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(ShapeError, match=r"ReduceSum .*axis 2 out of range \[-2, 2\)"):
        run_node(harness, "ReduceSum", [x, np.array([2])], 13)
    with pytest.raises(ShapeError, match="twice"):
        run_node(harness, "ReduceSum", [x, np.array([1, -1])], 13)
    with pytest.raises(UnsupportedModelError, match="int16"):
        run_node(harness, "ReduceSum", [x.astype(np.int16), None], 13)
    with pytest.raises(ShapeError, match="no elements to choose from"):
        run_node(harness, "ArgMax", [np.zeros((2, 0), np.float32)], axis=1)


@pytest.mark.parametrize("since", [1, 13, 18])
def test_folds(since: int) -> None:
    from onnx_wasm import registry

    definition = registry.find("", "ReduceProd", since)
    assert definition is not None
    assert definition.fold is not None
    x = np.array([[2, 3], [4, 5]])
    y = definition.fold(x, axes=[1]) if since < 18 else definition.fold(x, np.array([1]))
    assert y.tolist() == [[6], [20]]
    assert y.dtype == np.int64
    assert definition.fold(x, keepdims=0).tolist() == 120


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.uint32, np.int64, np.uint64, np.int8, np.uint8])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 15, 16, 17, 18, 33])
def test_argmax(harness: Harness, op: str, dtype: type, n: int) -> None:
    x = data((3, n, 2), dtype, n)
    x = np.round(x * 2).astype(dtype)
    find = np.argmax if op == "ArgMax" else np.argmin
    for axis in range(3):
        (y,) = run_node(harness, op, [x], axis=axis, split=2)
        np.testing.assert_array_equal(y, find(x, axis, keepdims=True))
        (y,) = run_node(harness, op, [x], axis=axis - 3, keepdims=0, select_last_index=1)
        np.testing.assert_array_equal(y, x.shape[axis] - 1 - find(np.flip(x, axis), axis))
    (y,) = run_node(harness, op, [np.moveaxis(x, 1, 2).copy()], axis=2, keepdims=0, select_last_index=1)
    np.testing.assert_array_equal(y, n - 1 - find(np.flip(np.moveaxis(x, 1, 2), 2), 2))
    (y,) = run_node(harness, op, [np.moveaxis(x, 1, 2).copy()], axis=2, keepdims=0)
    np.testing.assert_array_equal(y, find(np.moveaxis(x, 1, 2), 2))


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", FLOATS)
def test_argmax_finds_the_first_nan(harness: Harness, op: str, axis: int, dtype: type) -> None:
    x = data((9, 9), dtype)
    x[3, 4] = x[5, 4] = x[3, 6] = np.nan
    (y,) = run_node(harness, op, [x], axis=axis, keepdims=0)
    np.testing.assert_array_equal(y, (np.argmax if op == "ArgMax" else np.argmin)(x, axis))


@pytest.mark.parametrize("opset", [11, 13])
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("dtype", FLOATS)
def test_hardmax(harness: Harness, opset: int, axis: int, dtype: type) -> None:
    x = np.round(data((3, 4, 5), dtype) * 2)
    (y,) = run_node(harness, "Hardmax", [x], opset, axis=axis, split=2)
    (e,) = onnxruntime_node("Hardmax", [x.astype(np.float32)], opset, axis=axis)
    np.testing.assert_array_equal(y, e)


CASES = node_cases(*OPS, "ArgMax", "ArgMin", "Hardmax")


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_onnx_case(harness: Harness, case: Case) -> None:
    (y,) = case.run(harness)
    assert y.dtype == case.outputs[0].dtype
    np.testing.assert_allclose(y, case.outputs[0], rtol=max(case.rtol, 1e-6), atol=case.atol)


def test_onnx_cases_are_there() -> None:
    assert len(CASES) > 80
