"""Constants in the heap: packed piece by piece, with little beside them on the way."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import graphs
import onnx_wasm as ort

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(0, 0.1, shape).astype(np.float32)


def matrix(k: int = 301, n: int = 1003) -> bytes:
    """y = x w, with pieces of w that are no whole panels."""
    return graphs.model(
        [graphs.node("MatMul", ["x", "w"], ["y"])], {"x": (graphs.FLOAT, (3, k))}, ["y"], {"w": normal(k, n)}
    )


def transposed() -> bytes:
    nodes = [graphs.node("Gemm", ["x", "w"], ["y"], transB=1)]
    return graphs.model(nodes, {"x": (graphs.FLOAT, (3, 301))}, ["y"], {"w": normal(1003, 301)})


def attribute() -> bytes:
    """The weight is the attribute of a node."""
    value = onnx.numpy_helper.from_array(normal(301, 1003))
    nodes = [graphs.node("Constant", [], ["w"], value=value), graphs.node("MatMul", ["x", "w"], ["y"])]
    return graphs.model(nodes, {"x": (graphs.FLOAT, (3, 301))}, ["y"])


def filled() -> bytes:
    """The weight is one number."""
    value = onnx.numpy_helper.from_array(np.array([0.25], np.float32))
    nodes = [
        graphs.node("ConstantOfShape", ["shape"], ["w"], value=value),
        graphs.node("MatMul", ["x", "w"], ["y"]),
    ]
    return graphs.model(nodes, {"x": (graphs.FLOAT, (3, 301))}, ["y"], {"shape": np.array([301, 1003], np.int64)})


def scaled(groups: int = 1) -> bytes:
    """Depthwise or not, with the scale of a normalisation in its weights."""
    c = 96
    shape = (c, c // groups, 5, 7)
    weights = {"w": normal(*shape), **{n: normal(c) for n in ("scale", "shift", "mean")}, "var": normal(c) ** 2 + 1}
    nodes = [
        graphs.node("Conv", ["x", "w"], ["c"], group=groups),
        graphs.node("BatchNormalization", ["c", "scale", "shift", "mean", "var"], ["y"]),
    ]
    return graphs.model(nodes, {"x": (graphs.FLOAT, (1, c, 9, 9))}, ["y"], weights)


def lstm(hidden: int = 96, size: int = 70) -> bytes:
    """Weights of 8 bits, which are widened and packed."""
    n = 4 * hidden
    weights = {
        "w": RNG.integers(-128, 128, (2, size, n)).astype(np.int8),
        "r": RNG.integers(-128, 128, (2, hidden, n)).astype(np.int8),
        "ws": np.array([0.001, 0.002], np.float32),
        "wz": np.array([3, -5], np.int8),
        "rs": np.array([0.002, 0.001], np.float32),
        "rz": np.array([0, 7], np.int8),
    }
    inputs = ["x", "w", "r", "", "", "", "", "", "ws", "wz", "rs", "rz"]
    attributes = {"hidden_size": hidden, "direction": "bidirectional", "domain": "com.microsoft"}
    nodes = [graphs.node("DynamicQuantizeLSTM", inputs, ["y"], **attributes)]
    x = {"x": (graphs.FLOAT, (4, 1, size))}
    return graphs.model(nodes, x, ["y"], weights, domains={"com.microsoft": 1})


MODELS = {
    "rows": matrix(),
    "five rows": matrix(5, 30_001),
    "columns": transposed(),
    "an attribute": attribute(),
    "one number": filled(),
    "scaled": scaled(),
    "scaled, by groups": scaled(3),
    "of 8 bits": lstm(),
}


@pytest.mark.parametrize("name", MODELS)
def test_what_is_packed_piece_by_piece_is_right_and_needs_little_room(name: str) -> None:
    data = MODELS[name]
    shape = [d.dim_value for d in onnx.load_from_string(data).graph.input[0].type.tensor_type.shape.dim]
    x = RNG.normal(0, 1, shape).astype(np.float32)
    expected = graphs.native(data, {"x": x})["y"]
    with ort.Runtime() as runtime, ort.InferenceSession.create(data, runtime=runtime) as session:
        made = runtime.memory().peak
        found = session.run({"x": x})["y"].get_data(release_data=True)
        plan = session.plan_info
    # A state of the LSTM on the border between two of its 255 steps may go either way.
    np.testing.assert_allclose(
        found, expected.reshape(found.shape), rtol=1e-4, atol=0.02 if name == "of 8 bits" else 1e-4
    )
    assert plan is not None
    assert plan.weight_bytes > 100_000
    # A piece, which may be one row of few, and one of the weights as the model has it, of 8 bits.
    room = 1.3 if name in ("five rows", "of 8 bits") else 1.1
    assert made <= room * plan.weight_bytes


def test_large_weights_are_placed_first() -> None:
    """What they need on the way is gone before the others come."""
    data = graphs.mlp(2, sizes=(64, 64, 256, 512, 128))
    with ort.Runtime(log_events=True) as runtime, ort.InferenceSession.create(data, runtime=runtime):
        sizes = [e.nbytes for e in runtime.events if e.kind == "alloc" and e.tag == "weights" and e.nbytes % 4096 == 0]
    assert sizes[0] == 256 * 512 * 4
