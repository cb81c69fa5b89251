"""Recurrent layers against native onnxruntime, one thread each: python bench/recurrent.py

Run it with PYTHONPATH=host. Both take turns, records of this package run one after the other without a session, and the
least processor time of many runs counts, native's less the time of a session that does nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from harness import Harness
from onnx_nodes import run_node

# (op, steps, batch, input size, hidden size, directions)
LAYERS = [
    ("LSTM", 1, 1, 128, 128, 1),
    ("LSTM", 32, 1, 128, 128, 1),
    ("LSTM", 20, 1, 512, 512, 2),
    ("LSTM", 64, 1, 200, 100, 2),
    ("LSTM", 32, 8, 128, 128, 1),
    ("LSTM", 32, 32, 256, 256, 1),
    ("GRU", 1, 1, 192, 96, 2),
    ("GRU", 50, 1, 192, 96, 2),
    ("GRU", 32, 8, 128, 128, 1),
    ("RNN", 32, 1, 128, 128, 1),
]
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def native(op: str, x: np.ndarray, weights: list[np.ndarray], **attributes: Any) -> Callable[[], Any]:
    """What runs the layer in onnxruntime."""
    outputs = ["y", "y_h", "y_c"][: 3 if op == "LSTM" else 2]
    nodes = [helper.make_node(op, ["x", "w0", "w1", "w2"], outputs, **attributes)] if op else []
    nodes = nodes or [helper.make_node("Identity", ["x"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [onnx.ValueInfoProto(name=n) for n in (outputs if op else ["y"])],
        [numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(weights)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"x": x})


def ours(
    h: Harness, op: str, x: np.ndarray, weights: list[np.ndarray], **attributes: Any
) -> tuple[tuple[np.ndarray, ...], Callable[[], None]]:
    """The layer's outputs, and what runs its last two records again: the input's product and the walk."""
    runs: list[tuple[int, int, int]] = []
    run_record = h.run_record

    def note(address: int, begin: int, end: int) -> int:
        runs.append((address, begin, end))
        return int(run_record(address, begin, end))

    h.run_record = note
    outputs = ("y", "y_h", "y_c")[: 3 if op == "LSTM" else 2]
    made = run_node(h, op, [x, *weights], 14, outputs, weights=(1, 2, 3), **attributes)
    h.run_record = run_record

    def again() -> None:
        for run in runs[-2:]:
            run_record(*run)

    return made, again


def least(calls: list[Callable[[], Any]], budget: float = 1.5) -> list[float]:
    """The least seconds of processor time of each, taking turns."""
    best = [1e9] * len(calls)
    stop = time.perf_counter() + budget
    while time.perf_counter() < stop:
        for i, call in enumerate(calls):
            for _ in range(3):
                start = time.thread_time()
                call()
                best[i] = min(best[i], time.thread_time() - start)
    return best


def main() -> None:
    h = Harness()
    rng = np.random.default_rng(0)
    for op, steps, batch, size, hidden, directions in LAYERS:
        n = GATES[op] * hidden
        x = rng.standard_normal((steps, batch, size), np.float32)
        weights = [
            rng.standard_normal(shape, np.float32) * np.float32(hidden**-0.5)
            for shape in ((directions, n, size), (directions, n, hidden), (directions, 2 * n))
        ]
        attributes: dict[str, Any] = {"hidden_size": hidden}
        if directions == 2:
            attributes["direction"] = "bidirectional"
        if op == "GRU":
            attributes["linear_before_reset"] = 1
        outputs, again = ours(h, op, x, weights, **attributes)
        reference = native(op, x, weights, **attributes)
        error = max(float(np.abs(a - b).max()) for a, b in zip(outputs, reference(), strict=True))
        mine, theirs, nothing = least([again, reference, native("", x, [])])
        theirs -= nothing
        print(
            f"{op:5} steps {steps:3} batch {batch:3} {size:4} -> {hidden:4} x{directions} {mine * 1e6:9.1f} us"
            f"   native {theirs * 1e6:9.1f} us   ratio {mine / theirs:5.2f}   error {error:.1e}",
            flush=True,
        )


if __name__ == "__main__":
    main()
