"""Microseconds of one `run` of a model with a single node, from Python: what a call costs before anything is computed.

    python bench/one_op.py [--rounds N] [--json OUT]

Fed and fetched in the ways there are; native onnxruntime's `run` with numpy arrays, where it is installed, takes turns.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

import onnx_wasm as ort

RUNS = 2000


def one_op() -> bytes:
    """y = Relu(x) of four floats."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "one", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    data: bytes = model.SerializeToString()
    return data


def calls(model: bytes) -> dict[str, Callable[[], object]]:
    """A run in each way."""
    session = ort.InferenceSession.create(model)
    array = np.float32([1, -2, 3, -4])
    tensor, given = ort.Tensor("float32", array, [4]), ort.Tensor("float32", np.zeros(4, np.float32), [4])
    ways: dict[str, Callable[[], object]] = {
        "array in, tensor out, disposed of": lambda: session.run({"x": array})["y"].dispose(),
        "array in, array out": lambda: session.run({"x": array})["y"].get_data(release_data=True),
        "tensor in, tensor out, disposed of": lambda: session.run({"x": tensor})["y"].dispose(),
        "tensor in, into a tensor": lambda: session.run({"x": tensor}, {"y": given}),
    }
    if importlib.util.find_spec("onnxruntime"):
        native = importlib.import_module("onnxruntime").InferenceSession(model, providers=["CPUExecutionProvider"])
        ways["native, array in, array out"] = lambda: native.run(None, {"x": array})
    return ways


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=20, metavar="N")
    parser.add_argument("--json", type=Path, metavar="OUT", help="the time of every round")
    options = parser.parse_args()
    ways = calls(one_op())
    rounds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.rounds + 1):
        for name, call in ways.items():
            start = time.perf_counter()
            for _ in range(RUNS):
                call()
            rounds[name].append((time.perf_counter() - start) / RUNS * 1e6)
    print(f"{'us a run':38}{'median':>8}{'least':>8}")
    for name, times in rounds.items():
        # The first is to warm up.
        print(f"{name:38}{statistics.median(times[1:]):8.2f}{min(times[1:]):8.2f}")
    if options.json:
        options.json.write_text(json.dumps(rounds, indent=1))


if __name__ == "__main__":
    main()
