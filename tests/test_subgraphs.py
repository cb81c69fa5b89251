"""Graphs inside a node: functions, loops and branches. What a value is inside is what it is outside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphs
import onnx_wasm as ort
from graphs import node

Array = np.ndarray[Any, Any]
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
OPSETS = [helper.make_opsetid("", 21), helper.make_opsetid("my", 1)]
X = np.array([[1, -2, 3, -4], [-5, 6, -7, 8]], np.float32)
W = np.array([[0, 1, 0, 0], [0, 0, -2, 0], [1, 0, 0, 1], [0, 0, 3, 0]], np.float32)


@pytest.fixture
def runtime() -> Iterator[ort.Runtime]:
    with ort.Runtime() as runtime:
        yield runtime
        assert runtime.memory().used == 0


def info(name: str, dtype: int = FLOAT, shape: list[int] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def call(name: str, inputs: list[str], outputs: list[str]) -> onnx.NodeProto:
    return helper.make_node(name, inputs, outputs, name=outputs[0], domain="my")


def function(name: str, inputs: list[str], outputs: list[str], nodes: list[onnx.NodeProto]) -> onnx.FunctionProto:
    return helper.make_function("my", name, inputs, outputs, nodes, OPSETS)


def model(nodes: list[onnx.NodeProto], functions: list[onnx.FunctionProto] = (), **weights: Array) -> bytes:
    """A model of "x" and "y" in which weights have the names they are given by."""
    graph = helper.make_graph(
        nodes,
        "test",
        [info("x", shape=[2, 4])],
        [info("y")],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    made = helper.make_model(graph, opset_imports=OPSETS, functions=list(functions), ir_version=10)
    return made.SerializeToString()


def run(data: bytes, runtime: ort.Runtime) -> Array:
    with ort.InferenceSession.create(data, runtime=runtime) as session:
        return session.run({"x": X})["y"].get_data(release_data=True)


NEGATIVE_PART = function("NegativePart", ["a"], ["b"], [node("Relu", ["a"], ["r"]), node("Sub", ["a", "r"], ["b"])])


def test_a_function_reads_its_input_as_the_caller_computed_it(runtime: ort.Runtime) -> None:
    data = model([node("MatMul", ["x", "w"], ["m"]), call("NegativePart", ["m"], ["y"])], [NEGATIVE_PART], w=W)
    np.testing.assert_array_equal(run(data, runtime), np.minimum(X @ W, 0))
    np.testing.assert_array_equal(run(data, runtime), graphs.native(data, {"x": X})["y"])


def test_functions_call_each_other(runtime: ort.Runtime) -> None:
    twice = function("Twice", ["a"], ["b"], [call("NegativePart", ["a"], ["n"]), node("Add", ["n", "n"], ["b"])])
    data = model([call("Twice", ["x"], ["m"]), call("Twice", ["m"], ["y"])], [NEGATIVE_PART, twice])
    np.testing.assert_array_equal(run(data, runtime), 4 * np.minimum(X, 0))


def test_a_function_that_only_one_node_reads_still_fuses(runtime: ort.Runtime) -> None:
    relu = function("Positive", ["a"], ["b"], [node("Relu", ["a"], ["b"])])
    data = model([node("MatMul", ["x", "w"], ["m"]), call("Positive", ["m"], ["y"])], [relu], w=W)
    with ort.InferenceSession.create(data, runtime=runtime) as session:
        assert session.plan_info.records == 1
    np.testing.assert_array_equal(run(data, runtime), np.maximum(X @ W, 0))


def test_what_a_function_lacks_is_named_at_creation(runtime: ort.Runtime) -> None:
    bad = function("Bad", ["a"], ["b"], [node("Frobnicate", ["a"], ["b"])])
    outer = function("Outer", ["a"], ["b"], [call("Bad", ["a"], ["c"]), node("Twist", ["c"], ["b"])])
    with pytest.raises(NotImplementedError, match=r"Frobnicate \(opset 21\), ai.onnx::Twist \(opset 21\)"):
        run(model([call("Outer", ["x"], ["y"])], [bad, outer]), runtime)


def test_functions_that_do_not_hang_together(runtime: ort.Runtime) -> None:
    endless = function("Endless", ["a"], ["b"], [call("Other", ["a"], ["b"])])
    other = function("Other", ["a"], ["b"], [call("Endless", ["a"], ["b"])])
    with pytest.raises(ort.InvalidModelError, match="function my::Endless calls itself"):
        run(model([call("Endless", ["x"], ["y"])], [endless, other]), runtime)
    blind = function("Blind", ["a"], ["b"], [node("Relu", ["x"], ["b"])])
    with pytest.raises(ort.InvalidModelError, match=r"function Blind: Relu \"b\" .*: input 'x' is not computed"):
        run(model([call("Blind", ["x"], ["y"])], [blind]), runtime)


def test_an_iteration_reads_its_state_as_the_last_one_left_it(runtime: ort.Runtime) -> None:
    body = helper.make_graph(
        [
            node("Relu", ["s"], ["r"]),
            node("Sub", ["s", "r"], ["negative"]),
            node("MatMul", ["negative", "w"], ["next"]),
            node("Identity", ["go"], ["going"]),
        ],
        "body",
        [info("i", INT64, []), info("go", BOOL, []), info("s")],
        [info("going", BOOL, []), info("next")],
    )
    data = model([node("Loop", ["n", "", "x"], ["y"], body=body)], n=np.array(3), w=W)
    expected = X
    for _ in range(3):
        expected = np.minimum(expected, 0) @ W
    assert np.any(expected)
    np.testing.assert_array_equal(run(data, runtime), expected)


@pytest.mark.parametrize("shape", ["", "[1]"])
@pytest.mark.parametrize("trips", [0, 3])
def test_the_number_of_an_iteration_has_the_rank_that_the_body_declares(shape: str, trips: int) -> None:
    proto = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 13]>
g (float[6] x, int64 n) => (y, shapes) {{
    yes = Constant <value = bool {{1}}> ()
    y, shapes = Loop (n, yes) <body = b (int64{shape} i, bool c) => (bool go, part, shape) {{
        go = Identity (c)
        flat = Constant <value_ints = [-1]> ()
        at = Reshape (i, flat)
        part = Gather (x, at)
        shape = Shape (i)
    }}>
}}""")
    data = proto.SerializeToString()
    feeds = {"x": np.arange(6, dtype=np.float32), "n": np.array(trips)}
    expected = graphs.native(data, feeds)
    with ort.InferenceSession.create(data) as session:
        for name, tensor in session.run(feeds).items():
            assert tensor.dims == expected[name].shape
            np.testing.assert_array_equal(tensor.get_data(True), expected[name])
