"""Nodes that are not listed in the order in which they can run."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from onnx import helper

import graphs
import onnx_wasm as ort
from graphs import FLOAT, model, node


@pytest.fixture(scope="module")
def runtime() -> Iterator[ort.Runtime]:
    runtime = ort.Runtime()
    yield runtime
    assert runtime.memory().used == 0
    runtime.close()


def check(runtime: ort.Runtime, data: bytes) -> None:
    for x in np.float32([[1, -2, 3]]), np.float32([[-1, 2], [-5, 3]]):
        expected = graphs.native(data, {"x": x})["y"]
        with ort.InferenceSession.create(data, runtime=runtime) as session:
            np.testing.assert_allclose(session.run({"x": x})["y"].data, expected, rtol=1e-6)


def test_a_conversion_that_was_put_behind_its_reader(runtime: ort.Runtime) -> None:
    nodes = [
        node("Relu", ["half"], ["r"]),
        node("Cast", ["s"], ["y"], to=FLOAT),
        node("Add", ["r", "half"], ["s"]),
        node("Cast", ["x"], ["half"], to=onnx.TensorProto.FLOAT16),
    ]
    check(runtime, model(nodes, {"x": (FLOAT, [None, None])}, ["y"]))


def test_a_branch_reads_what_is_listed_behind_it(runtime: ort.Runtime) -> None:
    def branch(op: str) -> onnx.GraphProto:
        outputs = [helper.make_tensor_value_info("b", FLOAT, None)]
        return helper.make_graph([node("Exp", ["late"], ["c"]), node(op, ["c"], ["b"])], op, [], outputs)

    nodes = [
        node("If", ["positive"], ["y"], then_branch=branch("Neg"), else_branch=branch("Sqrt")),
        node("Greater", ["sum", "zero"], ["positive"]),
        node("ReduceSum", ["x"], ["sum"], keepdims=0),
        node("Abs", ["x"], ["late"]),
    ]
    check(runtime, model(nodes, {"x": (FLOAT, [None, None])}, ["y"], {"zero": np.float32(0)}))


def test_errors_name_a_node_by_its_place_in_the_file(runtime: ort.Runtime) -> None:
    nodes = [node("Transpose", ["a"], ["y"], perm=[0, 5]), node("Relu", ["x"], ["a"])]
    with pytest.raises(ort.ShapeError, match=r'Transpose "y" \(node 0\)'):
        ort.InferenceSession.create(model(nodes, {"x": (FLOAT, [2, 3])}, ["y"]), runtime=runtime)
