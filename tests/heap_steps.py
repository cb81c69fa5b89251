"""Random steps of everything that holds memory, in one heap after the other; each must end as it began.

    python tests/heap_steps.py [--steps 1000000] [--seed 0]

A step makes, runs or disposes of a session, makes a tensor, looks at one, keeps or drops a view, allocates as a page's
``_malloc`` does, or lets an allocation fail. Heaps take turns: debug off and on, intermediates planned and
allocated one by one, small and large limits. Values are compared where they are read.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import graphs
import onnx_wasm as ort
from graphs import FLOAT, model, node

WIDTH = 16
STEPS_OF_A_HEAP = 2500
MODELS = {
    "mlp": graphs.mlp(sizes=(WIDTH, 32, 8)),
    # A branch, so that a run has more than one segment, and an output that is an input of another.
    "branch": model(
        [
            node("ReduceSum", ["x"], ["sum"], keepdims=0),
            node("Greater", ["sum", "zero"], ["positive"]),
            node("Where", ["positive", "x", "zero"], ["y"]),
            node("NonZero", ["y"], ["places"]),
            node("Transpose", ["y"], ["t"]),
        ],
        {"x": (FLOAT, ["n", WIDTH])},
        ["y", "places", "t"],
        {"zero": np.float32(0)},
    ),
}
Array = np.ndarray[Any, Any]


def expected(name: str, x: Array, reference: Callable[[Array], Array]) -> dict[str, Array]:
    """What a model gives."""
    if name == "mlp":
        return {"y": reference(x)}
    y = np.where(x.astype(np.float64).sum() > 0, x, np.float32(0))
    return {"y": y, "places": np.array(np.nonzero(y)), "t": y.T}


@dataclass
class Heap:
    """One heap and what lives in it."""

    runtime: ort.Runtime
    planned: bool
    chance: random.Random
    reference: Callable[[Array], Array]
    sessions: list[tuple[str, ort.InferenceSession]] = field(default_factory=list)
    tensors: list[tuple[ort.Tensor, Array]] = field(default_factory=list)
    views: list[tuple[Array, Array]] = field(default_factory=list)
    pointers: list[int] = field(default_factory=list)
    failures: int = 0

    def step(self) -> None:
        """One random step; a MemoryError is an answer."""
        chance = self.chance.random()
        try:
            if chance < 0.45 and self.sessions:
                self.run()
            elif chance < 0.50 or not self.sessions:
                self.create()
            elif chance < 0.62:
                self.make()
            elif chance < 0.72 and self.tensors:
                self.look()
            elif chance < 0.80 and self.views:
                self.drop_view()
            elif chance < 0.90 and self.tensors:
                self.dispose()
            elif chance < 0.93:
                self.pointers.append(self.runtime.malloc(self.chance.randrange(1, 5000)))
            elif chance < 0.96 and self.pointers:
                self.runtime.free(self.pointers.pop(self.chance.randrange(len(self.pointers))))
            elif chance < 0.98:
                self.runtime.fail_allocation(self.chance.randrange(1, 6))
            elif len(self.sessions) > 1 or chance > 0.997:
                self.sessions.pop(self.chance.randrange(len(self.sessions)))[1].dispose()
        except MemoryError:
            self.failures += 1
        while len(self.tensors) > 24:
            self.dispose()
        while len(self.views) > 24:
            self.drop_view()
        while len(self.pointers) > 24:
            self.runtime.free(self.pointers.pop())

    def create(self) -> None:
        if len(self.sessions) >= 2:
            return
        name = self.chance.choice(list(MODELS))
        session = ort.InferenceSession.create(
            MODELS[name], runtime=self.runtime, enable_mem_pattern=self.planned, max_plans=3
        )
        self.sessions.append((name, session))

    def run(self) -> None:
        name, session = self.chance.choice(self.sessions)
        held = [t for t in self.tensors if t[0].type == "float32" and t[0].dims[1:] == (WIDTH,)]
        if held and self.chance.random() < 0.5:
            fed, x = self.chance.choice(held)
            outputs = session.run({"x": fed})
        else:
            x = self.random()
            outputs = session.run({"x": x})
        wanted = expected(name, x, self.reference)
        for key, tensor in outputs.items():
            np.testing.assert_allclose(np.asarray(tensor.data), wanted[key], rtol=1e-4, atol=1e-5)
            if self.chance.random() < 0.3:
                self.tensors.append((tensor, np.array(tensor.data)))
            else:
                tensor.dispose()

    def make(self) -> None:
        x = self.random()
        self.tensors.append((ort.Tensor("float32", x, runtime=self.runtime), x))

    def look(self) -> None:
        tensor, contents = self.chance.choice(self.tensors)
        view = tensor.data
        np.testing.assert_array_equal(np.asarray(view), contents)
        self.views.append((view, contents))

    def drop_view(self) -> None:
        view, contents = self.views.pop(self.chance.randrange(len(self.views)))
        try:
            copy = view.copy()
        except ort.UseAfterDisposeError:
            # Of a debug heap, whose tensor was disposed of.
            assert not np.array_equal(np.asarray(view), contents)
        else:
            np.testing.assert_array_equal(copy, contents)

    def dispose(self) -> None:
        tensor, contents = self.tensors.pop(self.chance.randrange(len(self.tensors)))
        np.testing.assert_array_equal(np.asarray(tensor.data), contents)
        tensor.dispose()

    def random(self) -> Array:
        rows = self.chance.choice([0, 1, 1, 2, 3, 7, 40])
        return np.random.default_rng(self.chance.randrange(1 << 30)).normal(0, 1, (rows, WIDTH)).astype(np.float32)

    def end(self) -> None:
        """Dispose of everything, in any order; nothing may be left."""
        self.runtime.fail_allocation(0)
        self.chance.shuffle(self.sessions)
        for _, session in self.sessions:
            session.dispose()
        self.sessions.clear()
        while self.tensors:
            self.dispose()
        while self.pointers:
            self.runtime.free(self.pointers.pop())
        while self.views:
            self.drop_view()
        gc.collect()
        self.runtime.heap_check()
        memory = self.runtime.memory()
        assert (memory.used, memory.blocks, self.runtime.blocks()) == (0, 0, []), str(self.runtime.snapshot())
        assert not self.runtime.leaks()
        self.runtime.close()


def steps(count: int, seed: int, progress: Callable[[int, int], None] = lambda done, failures: None) -> int:
    """Make so many steps; how many met a failed allocation. AssertionError where something is wrong."""
    chance = random.Random(seed)
    done = failures = number = 0
    with ort.Runtime() as runtime, ort.InferenceSession.create(MODELS["mlp"], runtime=runtime) as session:

        def reference(x: Array) -> Array:
            array: Array = session.run({"x": x})["y"].get_data(release_data=True)
            return array

        while done < count:
            maximum = chance.choice([(6 << 20) + (1 << 18), 7 << 20, 64 << 20])
            heap = Heap(
                ort.Runtime(
                    initial=(6 << 20) + (1 << 18),
                    maximum=maximum,
                    debug=number % 4 == 3,
                    quarantine=chance.choice([0, 1 << 14, 16 << 20]),
                ),
                number % 2 == 0 if number % 4 < 2 else chance.random() < 0.5,
                chance,
                reference,
            )
            for i in range(min(STEPS_OF_A_HEAP, count - done)):
                heap.step()
                if i % 500 == 0:
                    heap.runtime.heap_check()
            done += min(STEPS_OF_A_HEAP, count - done)
            heap.end()
            failures += heap.failures
            number += 1
            progress(done, failures)
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    began = time.perf_counter()

    def progress(done: int, failures: int) -> None:
        if sys.stderr.isatty() or done % 50_000 == 0:
            spent = time.perf_counter() - began
            print(f"{done:,} steps, {failures:,} failed allocations, {spent:.0f} s", file=sys.stderr, flush=True)

    failures = steps(args.steps, args.seed, progress)
    print(
        f"{args.steps:,} steps, {failures:,} failed allocations, nothing left, no check failed: "
        f"{time.perf_counter() - began:.0f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
