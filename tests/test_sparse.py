"""Weights of which a model has only some elements and their places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import graphs
import onnx_wasm as ort


def sparse(dims: Sequence[int], values: np.ndarray[Any, Any], indices: Any) -> onnx.SparseTensorProto:
    return helper.make_sparse_tensor(
        numpy_helper.from_array(values, "c"), numpy_helper.from_array(np.array(indices, np.int64), "i"), dims
    )


def built(weight: onnx.SparseTensorProto, *, constant: bool) -> bytes:
    """y = x + the weight, which is a Constant's or an initializer."""
    kind = weight.values.data_type
    nodes = [helper.make_node("Constant", [], ["c"], sparse_value=weight)] if constant else []
    nodes.append(helper.make_node("Add", ["x", "c"], ["y"]))
    x = helper.make_tensor_value_info("x", kind, [1])
    graph = helper.make_graph(nodes, "g", [x], [helper.make_tensor_value_info("y", kind, None)])
    if not constant:
        graph.sparse_initializer.append(weight)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    data: bytes = made.SerializeToString()
    return data


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.int32])
@pytest.mark.parametrize(
    ("dims", "indices"),
    [([2, 3], [1, 5]), ([2, 3], [[0, 1], [1, 2]]), ([7], [6, 0]), ([2, 1, 4], [[0, 0, 3], [1, 0, 0]])],
)
def test_the_rest_is_zero(constant: bool, dtype: type, dims: list[int], indices: list[Any]) -> None:
    data = built(sparse(dims, np.array([3, -4], dtype), indices), constant=constant)
    x = np.array([10], dtype)
    expected = graphs.native(data, {"x": x})["y"]
    with ort.Runtime() as runtime, ort.InferenceSession.create(data, runtime=runtime) as session:
        y = session.run({"x": x})["y"]
        np.testing.assert_array_equal(y.get_data(True), expected)
        assert sorted(expected.reshape(-1).tolist())[-1] == 13


def test_without_an_element() -> None:
    data = built(sparse([2, 2], np.zeros(0, np.float32), []), constant=False)
    with ort.InferenceSession.create(data) as session:
        assert session.run({"x": np.float32([1])})["y"].get_data(True).tolist() == [[1, 1], [1, 1]]


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize(
    ("dims", "indices", "message"),
    [
        ([2, 3], [1, 6], r"'c' \(float32\[2, 3\]\): index 6 is out of bounds"),
        ([2, 3], [-1, 2], "index -1 is negative"),
        ([2, 3], [[0, 3], [1, 2]], "invalid entry in coordinates"),
        ([2, 3], [1, 2, 3], r"indices are int64\[3\], must be int64 of shape \[2\] or \[2, 2\]"),
        ([2, 3], [[1], [2]], r"indices are int64\[2, 1\]"),
        ([-2, 3], [1, 2], r"shape \[-2, 3\]"),
    ],
)
def test_places_that_are_not_there(constant: bool, dims: list[int], indices: list[Any], message: str) -> None:
    data = built(sparse(dims, np.float32([1, 2]), indices), constant=constant)
    with (
        pytest.raises(ort.InvalidModelError, match=message),
        ort.Runtime() as runtime,
        ort.InferenceSession.create(data, runtime=runtime) as session,
    ):
        session.run({"x": np.float32([1])})


def test_far_more_than_there_is_room_for() -> None:
    data = built(sparse([1 << 40], np.float32([1, 2]), [5, 7]), constant=False)
    with (
        pytest.raises(MemoryError, match=r"Add .* needs 4,398,046,511,104"),
        ort.InferenceSession.create(data) as session,
    ):
        session.run({"x": np.float32([1])})
