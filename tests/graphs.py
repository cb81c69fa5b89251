"""Small models for tests."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Arrays = Mapping[str, np.ndarray[Any, Any]]
Shape = Sequence[int | str | None]


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, Shape | None]],
    outputs: Sequence[str],
    weights: Arrays | None = None,
    *,
    opset: int = 21,
    ir_version: int = 10,
    domains: Mapping[str, int] | None = None,
) -> bytes:
    """A model's bytes; ``inputs`` gives element type and shape, outputs are untyped."""
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
        [numpy_helper.from_array(a, n) for n, a in (weights or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, v) for d, v in (domains or {}).items())]
    proto: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)
    data: bytes = proto.SerializeToString()
    return data


def node(op_type: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> onnx.NodeProto:
    """A node named like its first output."""
    made: onnx.NodeProto = helper.make_node(op_type, inputs, outputs, name=outputs[0], **attributes)
    return made


FLOAT, INT64, INT32 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32
BOOL, STRING = TensorProto.BOOL, TensorProto.STRING


def mlp(batch: int | str = "batch", *, seed: int = 0, sizes: Sequence[int] = (16, 32, 8)) -> bytes:
    """Gemm-Relu layers and a Softmax, input "x", output "y"."""
    chance = np.random.default_rng(seed)
    nodes, weights, last = [], {}, "x"
    for i, (n, m) in enumerate(itertools.pairwise(sizes)):
        weights[f"w{i}"] = chance.normal(0, 1 / np.sqrt(n), (n, m)).astype(np.float32)
        weights[f"b{i}"] = chance.normal(0, 0.1, m).astype(np.float32)
        nodes.append(node("Gemm", [last, f"w{i}", f"b{i}"], [f"g{i}"]))
        nodes.append(node("Relu", [f"g{i}"], [f"r{i}"]))
        last = f"r{i}"
    nodes.append(node("Softmax", [last], ["y"], axis=-1))
    return model(nodes, {"x": (FLOAT, [batch, sizes[0]])}, ["y"], weights)


def convnet() -> bytes:
    """Conv-BatchNormalization-Relu, a residual block, pooling and a classifier; static shapes, "x" to "y"."""
    chance = np.random.default_rng(1)

    def normal(*shape: int) -> np.ndarray[Any, Any]:
        return chance.normal(0, 0.3, shape).astype(np.float32)

    weights = {
        "w1": normal(8, 3, 3, 3),
        "scale": chance.uniform(0.5, 1.5, 8).astype(np.float32),
        "bias": normal(8),
        "mean": normal(8),
        "var": chance.uniform(0.5, 1.5, 8).astype(np.float32),
        "w2": normal(8, 8, 3, 3),
        "b2": normal(8),
        "w3": normal(5, 8),
        "shape": np.array([0, -1], np.int64),
    }
    nodes = [
        node("Conv", ["x", "w1"], ["c1"], pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["c1", "scale", "bias", "mean", "var"], ["n1"]),
        node("Relu", ["n1"], ["r1"]),
        node("Conv", ["r1", "w2", "b2"], ["c2"], pads=[1, 1, 1, 1]),
        node("Add", ["c2", "r1"], ["s"]),
        node("Relu", ["s"], ["r2"]),
        node("MaxPool", ["r2"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("GlobalAveragePool", ["p"], ["g"]),
        node("Reshape", ["g", "shape"], ["f"]),
        node("Gemm", ["f", "w3"], ["y"], transB=1),
    ]
    return model(nodes, {"x": (FLOAT, [1, 3, 12, 12])}, ["y"], weights)


def native(data: bytes, feeds: Arrays, fetches: Sequence[str] | None = None) -> dict[str, np.ndarray[Any, Any]]:
    """What native onnxruntime answers."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names = list(fetches) if fetches else [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))
