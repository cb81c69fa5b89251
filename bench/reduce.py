"""Reductions, softmax, normalisation and pooling against numpy and onnxruntime, one thread each.

    PYTHONPATH=host:tests python bench/reduce.py

Times are the least of several; the ratios say how many times longer the other takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime

from harness import Harness
from onnx_nodes import run_node, single_node

REPEATS = 15
SECONDS = 0.02


def least(function: Callable[[], Any]) -> float:
    """Seconds that one call takes at best."""
    function()
    start = time.perf_counter()
    function()
    calls = max(1, int(SECONDS / max(time.perf_counter() - start, 1e-7)))
    best = float("inf")
    for _ in range(REPEATS):
        start = time.perf_counter()
        for _ in range(calls):
            function()
        best = min(best, (time.perf_counter() - start) / calls)
    return best


class Recorder(Harness):
    """Keeps the address and units of the records it runs, to run them again."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: list[tuple[int, int]] = []
        run = self.run_record

        def record(address: int, begin: int, end: int) -> int:
            self.ran.append((address, end))
            return int(run(address, begin, end))

        self.again, self.run_record = run, record


def ours(harness: Recorder, op: str, inputs: list[np.ndarray], opset: int, attributes: dict[str, Any]) -> float:
    """Seconds that the kernels of one node take."""
    harness.ran.clear()
    run_node(harness, op, inputs, opset, weights=range(1, len(inputs)), **attributes)
    address, units = harness.ran[-1]
    run = harness.again
    return least(lambda: run(address, 0, units))


def native(op: str, inputs: list[np.ndarray], opset: int, attributes: dict[str, Any]) -> float:
    """Seconds that onnxruntime takes."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    model = single_node(op, inputs, opset, **attributes).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    feeds = {f"x{i}": x for i, x in enumerate(inputs)}
    return least(lambda: session.run(None, feeds))


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def layernorm(x: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> np.ndarray:
    d = x - x.mean(-1, keepdims=True)
    return d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5) * scale + bias


def maxpool(x: np.ndarray, k: int, s: int, pad: int) -> np.ndarray:
    x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)), constant_values=-np.inf)
    n = (x.shape[2] - k) // s + 1
    y = x[:, :, : s * n : s, : s * n : s]
    for i in range(k):
        for j in range(k):
            y = np.maximum(y, x[:, :, i : i + s * n : s, j : j + s * n : s][:, :, :n, :n])
    return y


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def main() -> None:
    harness = Recorder()
    channel = [abs(random(64)) for _ in range(4)]
    pool3 = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    pool2 = {"kernel_shape": [2, 2], "strides": [2, 2]}
    pool31 = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    pool5 = {"kernel_shape": [5, 5], "pads": [2, 2, 2, 2]}
    cases: list[tuple[str, list[np.ndarray], int, dict[str, Any], Callable[..., Any] | None]] = [
        ("Softmax", [random(12 * 64, 64)], 13, {}, lambda x: softmax(x, 1)),
        ("Softmax", [random(1, 50257)], 13, {}, lambda x: softmax(x, 1)),
        ("Softmax", [random(1, 16, 4, 2100)], 13, {"axis": 1}, lambda x: softmax(x, 1)),
        ("LogSoftmax", [random(12 * 64, 64)], 13, {}, None),
        ("LayerNormalization", [random(64, 384), random(384), random(384)], 17, {}, layernorm),
        ("BatchNormalization", [random(1, 64, 56, 56), *channel], 15, {}, None),
        ("InstanceNormalization", [random(1, 64, 56, 56), *channel[:2]], 13, {}, None),
        ("LRN", [random(1, 64, 28, 28)], 13, {"size": 5}, None),
        ("MaxPool", [random(1, 64, 112, 112)], 12, pool3, lambda x: maxpool(x, 3, 2, 1)),
        ("MaxPool", [random(1, 64, 112, 112)], 12, pool2, lambda x: maxpool(x, 2, 2, 0)),
        ("MaxPool", [random(1, 64, 28, 28)], 12, pool31, lambda x: maxpool(x, 3, 1, 1)),
        ("MaxPool", [random(1, 128, 20, 20)], 12, pool5, lambda x: maxpool(x, 5, 1, 2)),
        ("MaxPool", [random(1, 64, 112, 112).astype(np.int8)], 12, pool3, None),
        ("AveragePool", [random(1, 64, 112, 112)], 11, pool3, None),
        ("GlobalAveragePool", [random(1, 2048, 7, 7)], 11, {}, lambda x: x.mean((2, 3))),
        ("ReduceMean", [random(64, 384)], 13, {"axes": [1]}, lambda x: x.mean(1)),
        ("ReduceMean", [random(1, 64, 56 * 56)], 13, {"axes": [1]}, lambda x: x.mean(1)),
        ("ReduceMean", [random(8, 64, 28 * 28)], 13, {"axes": [0, 2]}, lambda x: x.mean((0, 2))),
        ("ReduceMax", [random(64, 3840)], 13, {"axes": [1]}, lambda x: x.max(1)),
        ("ReduceSum", [random(10000, 3)], 11, {"axes": [1]}, lambda x: x.sum(1)),
        ("ArgMax", [random(1, 50257)], 13, {"axis": 1}, lambda x: x.argmax(1)),
        ("ArgMax", [random(1, 21, 65 * 65)], 13, {"axis": 1}, lambda x: x.argmax(1)),
    ]
    print(f"{'':34}{'us':>10}{'numpy':>10}{'native':>10}")
    for op, inputs, opset, attributes, numpy_form in cases:
        mine = ours(harness, op, inputs, opset, attributes)
        theirs = native(op, inputs, opset, attributes)
        ratio = f"{least(lambda f=numpy_form, i=inputs: f(*i)) / mine:10.2f}" if numpy_form else f"{'':10}"
        print(f"{op:22}{list(inputs[0].shape)!s:18}{mine * 1e6:10.1f}{ratio}{theirs / mine:10.2f}")


if __name__ == "__main__":
    main()
