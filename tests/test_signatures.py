"""Nodes whose inputs have types that ONNX does not allow are refused, as native onnxruntime refuses them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphs
import onnx_wasm as ort
from graphs import FLOAT, model, node
from test_microsoft_transformer import build, run


@pytest.mark.parametrize(
    ("op", "given", "opset", "message"),
    [
        (
            "Unsqueeze",
            [np.int64(2), np.array([0], np.float32)],
            13,
            "input axes is float32; in opset 13 it may be int64",
        ),
        ("Add", [np.float32(1), np.float64(2)], 21, "inputs A and B must have one type, got float32 and float64"),
        ("Concat", [np.zeros(1, np.int32), np.zeros(1, np.int64)], 21, "inputs inputs and inputs must have one type"),
        ("Not", [np.float32(1)], 21, "input X is float32; in opset 21 it may be bool"),
        ("Relu", [np.int32(1)], 13, "input X is int32; in opset 13 it may be bfloat16, float16, float32, float64"),
    ],
)
def test_a_type_that_the_operator_does_not_take(op: str, given: list[np.ndarray], opset: int, message: str) -> None:
    weights = {f"w{i}": np.asarray(a) for i, a in enumerate(given)}
    attributes = {"axis": 0} if op == "Concat" else {}
    data = model([node(op, list(weights), ["y"], **attributes)], {}, ["y"], weights, opset=opset)
    with pytest.raises(Exception, match=r"invalid|bound to different types"):
        graphs.native(data, {})
    with ort.Runtime() as runtime:
        with pytest.raises(ort.InvalidModelError, match=f'{op} "y".*{message}'):
            ort.InferenceSession.create(data, runtime=runtime)
        assert runtime.memory().used == 0


def test_inputs_without_a_common_type_stay_allowed() -> None:
    nodes = [node("Where", ["c", "x", "x"], ["a"]), node("Gather", ["a", "i"], ["y"])]
    weights = {"c": np.array([True, False]), "i": np.array([1], np.int64)}
    data = model(nodes, {"x": (FLOAT, [2])}, ["y"], weights)
    with ort.Runtime() as runtime, ort.InferenceSession.create(data, runtime=runtime) as session:
        y = session.run({"x": np.array([3, 4], np.float32)})["y"].get_data(release_data=True)
    assert y.tolist() == [4]


def test_made_up_sizes_too_large_for_memory_do_not_prevent_a_session() -> None:
    """Every dimension is free, and the sizes tried for the weights would take 224 ** 4 elements."""
    nodes = [node("Add", ["x", "x"], ["a"]), node("Reshape", ["a", "s"], ["y"])]
    data = model(nodes, {"x": (FLOAT, ["a", "b", "c", "d"])}, ["y"], {"s": np.array([2], np.int64)})
    with ort.Runtime() as runtime, ort.InferenceSession.create(data, runtime=runtime) as session:
        y = session.run({"x": np.ones((1, 1, 1, 2), np.float32)})["y"].get_data(release_data=True)
    assert y.tolist() == [2, 2]


@pytest.mark.parametrize(("op", "left_out"), [("QLinearSigmoid", (2,)), ("QLinearAdd", (2, 5))])
def test_an_input_before_required_ones_may_be_left_out(op: str, left_out: tuple[int, ...]) -> None:
    """A zero point is then 0. onnxruntime refuses such nodes, or aborts."""
    x, scale, zero = np.arange(8, dtype=np.uint8), np.array(0.1, np.float32), np.zeros((), np.uint8)
    inputs: list[Any] = [x, scale, zero, scale] if op == "QLinearSigmoid" else [x, scale, zero, x, scale, zero, scale]
    whole = run(*build(op, inputs, 1))["y0"]
    given = [None if i in left_out else x for i, x in enumerate(inputs)]
    np.testing.assert_array_equal(run(*build(op, given, 1))["y0"], whole)
