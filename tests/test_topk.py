from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

import graphs
import onnx_wasm as ort
from harness import Harness
from onnx_nodes import Case, node_cases, run_node
from onnx_wasm.errors import ShapeError
from onnx_wasm.ops import topk as ops

INTEGERS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]
TYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, *INTEGERS]


def data(shape: tuple[int, ...], dtype: Any, distinct: int = 9) -> np.ndarray:
    x = np.random.default_rng(len(shape)).integers(0, distinct, shape)
    return (x - (0 if np.dtype(dtype).kind == "u" else distinct // 2)).astype(dtype)


def best(x: np.ndarray, k: int, axis: int, largest: int) -> tuple[np.ndarray, np.ndarray]:
    wide = x.astype(np.float64)
    index = np.argsort(-wide if largest else wide, axis, kind="stable")
    index = np.take(index, np.arange(k), axis)
    return np.take_along_axis(x, index, axis), index


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("shape", "axis"), [((9,), 0), ((3, 20, 5), 1), ((2, 33), -1), ((4, 3), 0)])
@pytest.mark.parametrize("largest", [0, 1])
def test_best(harness: Harness, dtype: Any, shape: tuple[int, ...], axis: int, largest: int) -> None:
    x = data(shape, dtype)
    for k in (0, 1, 2, shape[axis]):
        y, index = harness.op(ops.topk, [x, np.array([k])], host=[1], axis=axis, largest=largest, split=3)
        expected, at = best(x, k, axis, largest)
        assert y.dtype == x.dtype
        assert (index == at).all()
        assert (y == expected).all()


@pytest.mark.parametrize("largest", [0, 1])
def test_nan_is_the_largest(strict_harness: Harness, largest: int) -> None:
    x = np.array([3, np.nan, -np.inf, np.inf, 1, 2, np.nan, 0, -1, 5], np.float32)
    y, index = strict_harness.op(ops.topk, [x, np.array([4])], host=[1], largest=largest)
    expected = [1, 6, 3, 9] if largest else [2, 8, 7, 4]
    assert index.tolist() == expected
    np.testing.assert_array_equal(y, x[expected])


def test_many(harness: Harness) -> None:
    x = np.random.default_rng(0).normal(size=(3, 5001)).astype(np.float32)
    y, index = harness.op(ops.topk, [x, np.array([300])], host=[1])
    expected, at = best(x, 300, 1, 1)
    assert (y == expected).all()
    assert (index == at).all()


def test_fold_agrees(harness: Harness) -> None:
    x = data((4, 11), np.int64)
    for largest in (0, 1):
        for got, folded in zip(
            harness.op(ops.topk, [x, np.array([5])], host=[1], largest=largest),
            ops.fold_topk(x, np.array([5]), largest=largest),
            strict=True,
        ):
            assert (got == folded).all()


def test_older_forms(harness: Harness) -> None:
    x = data((3, 8), np.float32, 100)
    expected = best(x, 3, 0, 1)
    for got in (run_node(harness, "TopK", [x], 9, ("y", "i"), k=3, axis=0),
                run_node(harness, "TopK", [x, np.array([3])], 10, ("y", "i"), axis=0)):  # fmt: skip
        assert (got[0] == expected[0]).all()
        assert (got[1] == expected[1]).all()


def test_bad_k(harness: Harness) -> None:
    with pytest.raises(ShapeError, match=r"k is 9, must be in \[0, 8\]"):
        harness.op(ops.topk, [data((3, 8), np.float32), np.array([9])], host=[1])


@pytest.mark.parametrize("dtype", [*TYPES, np.bool_])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((7,), None), ((3, 40), None), ((30, 2), 0), ((2, 30, 2), 1), ((3, 50), -1), ((1,), 0), ((), None)],
)
def test_unique(harness: Harness, dtype: Any, shape: tuple[int, ...], axis: int | None) -> None:
    x = abs(data(shape, np.int64, 4)).astype(dtype)
    wide = x.astype(np.int64)
    y, first, inverse, counts = np.unique(wide, True, True, True, axis=axis)
    got = harness.op(ops.unique, [x], axis=axis)
    for g, e in zip(got, (y.astype(dtype), first, inverse.reshape(-1), counts), strict=True):
        assert g.dtype == e.dtype
        assert g.shape == e.shape
        assert (g == e).all()
    by_place = harness.op(ops.unique, [x], axis=axis, sorted=0)
    assert (np.diff(by_place[1]) > 0).all()
    assert sorted(by_place[1]) == sorted(first)
    assert (np.take(wide.reshape(-1) if axis is None else wide, by_place[1], axis or 0) == by_place[0]).all()
    assert (by_place[1][by_place[2]] == first[inverse.reshape(-1)]).all()
    assert (by_place[3][by_place[2]] == counts[inverse.reshape(-1)]).all()


def test_unique_of_nothing_and_of_nan(harness: Harness) -> None:
    y, *rest = harness.op(ops.unique, [np.zeros((0,), np.float32)])
    assert y.shape == (0,)
    assert all(r.shape == (0,) for r in rest)
    x = np.array([np.nan, 1, np.nan, -0.0, 0.0], np.float32)
    y, _first, inverse, _counts = harness.op(ops.unique, [x])
    np.testing.assert_array_equal(y, [0, 1, np.nan])
    assert inverse.tolist() == [2, 1, 2, 0, 0]


@pytest.mark.parametrize("dtype", [*TYPES, np.bool_])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 4), (2, 1, 3, 2, 2), (0, 3)])
def test_nonzero(harness: Harness, dtype: Any, shape: tuple[int, ...]) -> None:
    x = data(shape, np.int64, 3).astype(dtype)
    expected = np.array(np.nonzero(np.atleast_1d(x)))[: x.ndim]
    got = harness.op(ops.nonzero, [x])
    assert got.shape == expected.shape
    assert (got == expected).all()


def test_negative_zero_is_zero(harness: Harness) -> None:
    assert harness.op(ops.nonzero, [np.array([-0.0, 1, np.nan, 0], np.float16)]).tolist() == [[1, 2]]


@pytest.mark.parametrize("case", node_cases("TopK", "NonZero", "Unique"), ids=lambda c: c.name)
def test_onnx_cases(harness: Harness, case: Case) -> None:
    got = case.run(harness)
    for g, expected in zip(got, case.outputs, strict=False):
        assert g.dtype == expected.dtype
        np.testing.assert_array_equal(g, expected)


def test_in_a_session() -> None:
    """What the host must know in the middle of a run: shapes that change with the data, and what follows them."""
    nodes = [
        graphs.node("Relu", ["x"], ["r"]),
        graphs.node("NonZero", ["r"], ["at"]),
        graphs.node("Transpose", ["at"], ["places"]),
        graphs.node("GatherND", ["x", "places"], ["positive"]),
        graphs.node("Unique", ["positive"], ["distinct", "first", "inverse", "counts"]),
        graphs.node("Gather", ["distinct", "inverse"], ["again"]),
        graphs.node("Shape", ["distinct"], ["k"]),
        graphs.node("TopK", ["distinct", "k"], ["best", "index"]),
    ]
    outputs = ["places", "positive", "distinct", "first", "counts", "again", "best", "index"]
    proto = onnx.ModelProto.FromString(graphs.model(nodes, {"x": (graphs.FLOAT, ["n", 5])}, outputs))
    for output in proto.graph.output:
        output.ClearField("type")
    model = proto.SerializeToString()
    rng = np.random.default_rng(0)
    with ort.InferenceSession.create(model) as session:
        for n in (3, 6, 3, 1):
            x = rng.integers(-2, 4, (n, 5)).astype(np.float32)
            got = {k: t.get_data(release_data=True) for k, t in session.run({"x": x}).items()}
            for name, expected in graphs.native(model, {"x": x}, outputs).items():
                assert got[name].dtype == expected.dtype
                assert (got[name] == expected).all(), name
        got = {k: t.get_data(release_data=True) for k, t in session.run({"x": np.full((2, 5), -1, np.float32)}).items()}
        assert all(a.size == 0 for a in got.values())


def test_strings_in_a_session() -> None:
    nodes = [graphs.node("Unique", ["s"], ["y", "first", "inverse", "counts"], sorted=0)]
    model = graphs.model(nodes, {"s": (8, ["n"])}, ["y", "first", "inverse", "counts"])
    with ort.InferenceSession.create(model) as session:
        got = session.run({"s": np.array(["b", "a", "b", "c", "a"], object)})
        results = {k: np.array(t.get_data(release_data=True)).tolist() for k, t in got.items()}
    assert results == {"y": ["b", "a", "c"], "first": [0, 1, 3], "inverse": [0, 1, 0, 2, 1], "counts": [2, 2, 1]}
