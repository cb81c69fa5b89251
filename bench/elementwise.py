"""GB/s (read and written) of elementwise kernels, beside numpy on the same arrays: one thread, best of several.

PYTHONPATH=host:tests python bench/elementwise.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from harness import Harness
from onnx_wasm import ops, registry
from onnx_wasm.context import Context, Record, Value
from onnx_wasm.dtypes import from_numpy
from onnx_wasm.model import Node

ROUNDS = 15


def best(function: Callable[[], Any]) -> float:
    """Seconds of the fastest round, each long enough for the clock."""
    function()
    repeats = 1
    times = []
    while len(times) < ROUNDS:
        start = time.perf_counter()
        for _ in range(repeats):
            function()
        seconds = time.perf_counter() - start
        if seconds < 1e-3:
            repeats *= 2
        else:
            times.append(seconds / repeats)
    return min(times)


def prepared(harness: Harness, name: str, inputs: list[np.ndarray]) -> Callable[[], Any]:
    """One call of the op's record, laid out once."""
    harness.reset()
    cx = Context()
    cx.node, cx.opset = Node(name, "bench", index=0), 21
    values = [Value(x.shape, from_numpy(x.dtype)) for x in inputs]
    addresses = {v: harness.put(x) for v, x in zip(values, inputs, strict=True)}
    found = registry.find("", name, 24)
    assert found is not None
    y = found.function(cx, *values)
    (record,) = cx.records
    addresses[y] = harness.alloc(y.nbytes)
    address = laid_out(harness, record, addresses)
    return lambda: harness.run_record(address, 0, record.units)


def laid_out(harness: Harness, record: Record, addresses: dict[Value, int]) -> int:
    """The address of the record in the heap."""
    args = {k: addresses[a] if isinstance(a, Value) else a for k, a in record.args.items()}
    top = harness.top
    harness.call(record.kernel, record.units, **args)
    return top


def main() -> None:
    """Print the table."""
    registry.load(ops)
    harness = Harness()
    rng = np.random.default_rng(0)

    def array(*shape: int) -> np.ndarray:
        return rng.uniform(-3, 3, shape).astype(np.float32)

    small, large = array(1, 64, 56, 56), array(1, 64, 224, 224)
    mask = small > 0
    cases: list[tuple[str, str, list[np.ndarray], Callable[..., Any]]] = []
    for label, x in (("0.8 MB", small), ("12.8 MB", large)):
        y = array(*x.shape)
        cases += [
            (f"add {label}", "Add", [x, y], np.add),
            (f"add scalar {label}", "Add", [x, array(1)], np.add),
            (f"add channels {label}", "Add", [x, array(64, 1, 1)], np.add),
            (f"relu {label}", "Relu", [x], lambda x, out: np.maximum(x, np.float32(0), out=out)),
        ]
    cases += [
        ("add 7x7 channels", "Add", [array(1, 512, 7, 7), array(512, 1, 1)], np.add),
        ("add rows [128,384]+[384]", "Add", [array(128, 384), array(384)], np.add),
        ("sub columns [128,384]-[128,1]", "Sub", [array(128, 384), array(128, 1)], np.subtract),
        ("mul columns [8192,8]*[8192,1]", "Mul", [array(8192, 8), array(8192, 1)], np.multiply),
        ("div", "Div", [small, array(*small.shape)], np.divide),
        ("less", "Less", [small, array(*small.shape)], np.less),
        ("add int64", "Add", [np.arange(65536), np.arange(65536)], np.add),
        ("where", "Where", [mask, small, array(1)], lambda c, x, y, out: np.where(c, x, y)),
        ("exp", "Exp", [small], np.exp),
        ("log", "Log", [np.abs(small)], np.log),
        ("tanh", "Tanh", [small], np.tanh),
        ("sigmoid", "Sigmoid", [small], lambda x, out: 1 / (1 + np.exp(-x))),
        ("erf", "Erf", [small], None),
        ("gelu", "Gelu", [small], None),
        ("pow", "Pow", [np.abs(small), array(1)], np.power),
        ("exp f64", "Exp", [small.astype(np.float64)], np.exp),
    ]
    print(f"{'':32}{'GB/s':>8}{'ns/elem':>9}{'numpy':>8}{'ratio':>7}")
    for label, name, inputs, function in cases:
        ours = best(prepared(harness, name, inputs))
        shape = np.broadcast_shapes(*(x.shape for x in inputs))
        out = np.empty(shape, np.bool_ if name == "Less" else inputs[-1].dtype)
        moved = sum(x.nbytes for x in inputs) + out.nbytes
        line = f"{label:32}{moved / ours / 1e9:8.1f}{ours / out.size * 1e9:9.2f}"
        if function is not None:
            theirs = best(lambda f=function, i=inputs, o=out: f(*i, out=o))
            line += f"{moved / theirs / 1e9:8.1f}{theirs / ours:7.2f}"
        print(line)


if __name__ == "__main__":
    main()
