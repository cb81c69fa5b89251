"""Speed of the ops that move data, next to numpy on one thread: GB/s read and written, and the ratio (above 1: faster).

PYTHONPATH=host:tests python bench/movement.py [word ...]     only cases whose name has one of the words
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from harness import Harness


class Bench(Harness):
    """A harness that remembers the records an op ran, to run them again."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []
        super().__init__()

    def put(self, array: np.ndarray) -> int:
        self.last = super().put(array)
        return self.last

    def call(self, kernel: str, units: int = 1, **args: Any) -> None:
        super().call(kernel, units, **args)
        self.calls.append((self.last, units))

    def seconds(self, function: Callable[..., Any], inputs: Sequence[Any], **options: Any) -> tuple[float, Any]:
        """The least time of the op's records together, and what it computes."""
        self.calls = []
        result = self.op(function, inputs, **options)
        return best(lambda: [self.run_record(a, 0, n) for a, n in self.calls]), result


def best(work: Callable[[], Any], budget: float = 0.15) -> float:
    """The least time of one call, over many short batches."""
    start = time.perf_counter()
    work()
    once = time.perf_counter() - start
    batch = max(1, int(1e-3 / max(once, 1e-9)))
    least, end = once, time.perf_counter() + budget
    while time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(batch):
            work()
        least = min(least, (time.perf_counter() - start) / batch)
    return least


def cases() -> list[tuple[str, Callable[..., Any], list[Any], dict[str, Any], Callable[[], np.ndarray]]]:
    """(name, op, inputs, options, the same in numpy)."""
    from onnx_wasm.ops.transpose import transpose

    rng = np.random.default_rng(0)

    def tensor(*shape: int, dtype: Any = np.float32) -> np.ndarray:
        return rng.integers(0, 100, shape).astype(dtype)

    result: list[Any] = []

    def add(name: str, op: Any, inputs: list[Any], numpy: Callable[[], np.ndarray], **options: Any) -> None:
        result.append((name, op, inputs, options, numpy))

    for shape, perm, dtype in [
        ((64, 197), (1, 0), np.float32),
        ((512, 768), (1, 0), np.float32),
        ((1024, 1024), (1, 0), np.float32),
        ((1, 64, 12, 32), (0, 2, 1, 3), np.float32),
        ((1, 64, 12, 32), (0, 2, 3, 1), np.float32),
        ((1, 128, 12, 64), (0, 2, 1, 3), np.float32),
        ((1, 12, 128, 64), (0, 1, 3, 2), np.float32),
        ((1, 64, 56, 56), (0, 2, 3, 1), np.float32),
        ((1, 56, 56, 64), (0, 3, 1, 2), np.float32),
        ((1, 224, 224, 3), (0, 3, 1, 2), np.float32),
        ((1, 3, 224, 224), (0, 2, 3, 1), np.float32),
        ((1, 224, 224, 3), (0, 3, 1, 2), np.uint8),
        ((1, 64, 56, 56), (0, 2, 3, 1), np.uint8),
        ((1, 64, 56, 56), (0, 2, 3, 1), np.float16),
        ((1, 64, 56, 56), (0, 2, 3, 1), np.float64),
        ((8, 2, 3, 64, 64), (0, 3, 1, 4, 2), np.float32),
    ]:
        x = tensor(*shape, dtype=dtype)
        add(
            f"transpose {list(shape)} {list(perm)} {x.dtype}",
            transpose,
            [x],
            lambda x=x, perm=perm: np.ascontiguousarray(x.transpose(perm)),
            perm=perm,
        )
    return result


def main(words: list[str]) -> None:
    bench = Bench()
    print(f"{'GB/s':>7} {'numpy':>7} {'ratio':>6}")
    for name, op, inputs, options, numpy in cases():
        if words and not any(w in name for w in words):
            continue
        seconds, result = bench.seconds(op, inputs, **options)
        expected = numpy()
        np.testing.assert_array_equal(result, expected)
        reference = best(numpy)
        nbytes = 2 * expected.nbytes
        print(f"{nbytes / seconds / 1e9:7.2f} {nbytes / reference / 1e9:7.2f} {reference / seconds:6.2f}  {name}")


if __name__ == "__main__":
    main(sys.argv[1:])
