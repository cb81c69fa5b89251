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
    from onnx_wasm.ops.concat import concat
    from onnx_wasm.ops.expand import expand, tile
    from onnx_wasm.ops.gather import gather, gather_elements
    from onnx_wasm.ops.pad import pad
    from onnx_wasm.ops.slice import slice_
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

    for shape, axis in [((1, 64, 56, 56), 1), ((1, 56, 56, 64), 3), ((8, 64, 28, 28), 1), ((4096, 1), 1)]:
        x = [tensor(*shape), tensor(*shape)]
        add(f"concat 2 x {list(shape)} {axis}", concat, x, lambda x=x, axis=axis: np.concatenate(x, axis), axis=axis)
    for rows, width, count in [(30522, 384, 64), (30522, 384, 2048), (1000, 16, 4096), (4096, 1, 4096)]:
        x, i = tensor(rows, width), rng.integers(0, rows, count)
        add(f"gather {count} rows of {width}", gather, [x, i], lambda x=x, i=i: np.take(x, i, 0))
    x, i = tensor(64, 1000), rng.integers(0, 1000, 500)
    add("gather 500 columns of [64, 1000]", gather, [x, i], lambda x=x, i=i: np.take(x, i, 1), axis=1)
    i2 = rng.integers(0, 1000, (64, 500))
    add("gather_elements", gather_elements, [x, i2], lambda x=x, i=i2: np.take_along_axis(x, i, 1), axis=1)
    for shape, before, mode in [
        ((1, 64, 56, 56), (0, 0, 1, 1), "constant"),
        ((1, 56, 56, 64), (0, 1, 1, 0), "constant"),
        ((1, 64, 56, 56), (0, 0, 3, 3), "reflect"),
    ]:
        x, amounts = tensor(*shape), np.array(before * 2)
        pairs = [(b, b) for b in before]
        add(
            f"pad {list(shape)} {list(before)} {mode}",
            pad,
            [x, amounts],
            lambda x=x, pairs=pairs, mode=mode: np.pad(x, pairs, mode),
            mode=mode,
            host=(1,),
        )
    for shape, starts, ends, axes, steps in [
        ((1, 3, 640, 640), (0, 1), (640, 640), (2, 3), (2, 2)),
        ((1, 64, 56, 56), (0,), (32,), (3,), (1,)),
        ((64, 1000), (-1,), (-2000,), (1,), (-1,)),
    ]:
        x = tensor(*shape)
        bounds = [np.array(v) for v in (starts, ends, axes, steps)]
        index = [slice(None)] * x.ndim
        for a, s, e, t in zip(axes, starts, ends, steps, strict=True):
            index[a] = slice(s, None if e < 0 else e, t)
        add(
            f"slice {list(shape)} {list(starts)}:{list(ends)}:{list(steps)} of {list(axes)}",
            slice_,
            [x, *bounds],
            lambda x=x, index=tuple(index): np.ascontiguousarray(x[index]),
            host=(1, 2, 3, 4),
        )
    for shape, target in [
        ((1, 64, 1, 1), (1, 64, 56, 56)),
        ((64, 56, 1), (64, 56, 64)),
        ((1, 1, 1, 128), (1, 12, 128, 128)),
    ]:
        x, t = tensor(*shape), np.array(target)
        add(
            f"expand {list(shape)} {list(target)}",
            expand,
            [x, t],
            lambda x=x, target=target: np.ascontiguousarray(np.broadcast_to(x, target)),
            host=(1,),
        )
    x = tensor(64, 56)
    add("tile [64, 56] [8, 8]", tile, [x, np.array([8, 8])], lambda x=x: np.tile(x, (8, 8)), host=(1,))
    return result


def main(words: list[str]) -> int:
    chosen = [case for case in cases() if not words or any(w in case[0] for w in words)]
    if not chosen:
        print(f"no case has one of {', '.join(words)} in its name; without words all are timed", file=sys.stderr)
        return 1
    bench = Bench()
    print(f"{'GB/s':>7} {'numpy':>7} {'ratio':>6}")
    for name, op, inputs, options, numpy in chosen:
        seconds, result = bench.seconds(op, inputs, **options)
        expected = numpy()
        np.testing.assert_array_equal(result, expected)
        reference = best(numpy)
        nbytes = 2 * expected.nbytes
        print(f"{nbytes / seconds / 1e9:7.2f} {nbytes / reference / 1e9:7.2f} {reference / seconds:6.2f}  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
