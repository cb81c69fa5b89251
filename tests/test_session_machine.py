"""Sessions, tensors and views in any order: values stay right, and the ledger says what is alive."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

import onnx_wasm as ort
from graphs import FLOAT, model, node

WIDTH = 6
WEIGHTS = {
    "w": np.random.default_rng(0).normal(0, 1, (WIDTH, WIDTH)).astype(np.float32),
    "b": np.arange(WIDTH, dtype=np.float32),
}
DATA = model(
    [
        node("MatMul", ["x", "w"], ["m"]),
        node("Add", ["m", "b"], ["a"]),
        node("Relu", ["a"], ["r"]),
        node("Transpose", ["r"], ["t"]),
        node("Add", ["a", "r"], ["s"]),
    ],
    {"x": (FLOAT, ["n", WIDTH])},
    ["r", "t", "s"],
    WEIGHTS,
)


def expected(x: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
    a = (x.astype(np.float64) @ WEIGHTS["w"]) + WEIGHTS["b"]
    r = np.maximum(a, 0)
    return {"r": r, "t": r.T, "s": a + r}


class Machine(RuleBasedStateMachine):
    """One runtime with a small maximum, so that some requests fail."""

    tensors = Bundle("tensors")
    views = Bundle("views")
    sessions = Bundle("sessions")

    @initialize(limit=st.sampled_from([7, 8, 64]))
    def start(self, limit: int) -> None:
        self.runtime = ort.Runtime(initial=(6 << 20) + (1 << 19), maximum=limit << 20)
        # Bundles hold numbers, so that nothing but this table keeps a view alive.
        self.things: dict[int, Any] = {}
        self.count = 0

    def put(self, thing: Any) -> int:
        self.count += 1
        self.things[self.count] = thing
        return self.count

    def adopt(self, tensor: ort.Tensor, contents: np.ndarray[Any, Any]) -> int:
        assert tensor.dims == contents.shape
        np.testing.assert_allclose(tensor.data, contents, rtol=1e-4, atol=1e-4)
        return self.put((tensor, tensor.data.copy()))

    @rule(target=tensors, rows=st.integers(0, 20), seed=st.integers(0, 99))
    def make_tensor(self, rows: int, seed: int) -> int:
        x = np.random.default_rng(seed).normal(0, 1, (rows, WIDTH)).astype(np.float32)
        return self.adopt(ort.Tensor("float32", x, runtime=self.runtime), x)

    @rule(size=st.integers(1 << 20, 80 << 20))
    def ask_for_much(self, size: int) -> None:
        try:
            self.runtime.allocate(size, "user", "much").free()
        except MemoryError:
            assert self.runtime.memory().linear + size + 8192 > self.runtime.maximum

    @rule(target=views, tensor=tensors)
    def look(self, tensor: int) -> int:
        return self.put((self.things[tensor][0].data, self.things[tensor][1]))

    @rule(view=consumes(views))
    def stop_looking(self, view: int) -> None:
        np.testing.assert_array_equal(*self.things.pop(view))

    @rule(tensor=consumes(tensors))
    def dispose_tensor(self, tensor: int) -> None:
        thing, contents = self.things.pop(tensor)
        np.testing.assert_array_equal(thing.data, contents)
        thing.dispose()
        assert thing.location == "none"

    @rule(target=sessions, planned=st.booleans(), lazy=st.booleans())
    def make_session(self, planned: bool, lazy: bool) -> int:
        return self.put(
            ort.InferenceSession.create(
                DATA, runtime=self.runtime, enable_mem_pattern=planned, enable_lazy_initialization=lazy, max_plans=2
            )
        )

    @rule(session=consumes(sessions))
    def dispose_session(self, session: int) -> None:
        self.things.pop(session).dispose()

    @rule(target=tensors, session=sessions, tensor=tensors, name=st.sampled_from(["r", "t", "s"]), copy=st.booleans())
    def run(self, session: int, tensor: int, name: str, copy: bool) -> int:
        fed, contents = self.things[tensor]
        if fed.dims[1:] != (WIDTH,):
            return self.make_tensor(1, 0)
        out = self.things[session].run({"x": contents if copy else fed}, [name])
        assert list(out) == [name]
        return self.adopt(out[name], expected(contents)[name])

    @rule(session=sessions, tensor=tensors)
    def run_badly(self, session: int, tensor: int) -> None:
        with pytest.raises(ValueError, match="has rank 2"):
            self.things[session].run({"x": self.things[tensor][1].reshape(-1)})

    @rule(session=sessions, nth=st.integers(1, 4))
    def run_out_of_memory(self, session: int, nth: int) -> None:
        self.runtime.fail_allocation(nth)
        x = np.ones((3, WIDTH), np.float32)
        try:
            out = self.things[session].run({"x": x})
        except MemoryError:
            pass
        else:
            for name, tensor in out.items():
                np.testing.assert_allclose(tensor.get_data(True), expected(x)[name], rtol=1e-4)
        finally:
            self.runtime.fail_allocation(0)

    @invariant()
    def the_heap_is_sound(self) -> None:
        if hasattr(self, "runtime"):
            self.runtime.heap_check()
            memory = self.runtime.memory()
            assert memory.used >= sum(memory.by_tag.values())
            assert memory.blocks == len(self.runtime.blocks())
            held = [t for t in self.things.values() if isinstance(t, tuple) and isinstance(t[0], ort.Tensor)]
            assert memory.tensors >= sum(t[0].nbytes > 0 for t in held)

    def teardown(self) -> None:
        if not hasattr(self, "runtime"):
            return
        for thing in self.things.values():
            if isinstance(thing, ort.InferenceSession):
                thing.dispose()
            elif isinstance(thing[0], ort.Tensor):
                thing[0].dispose()
        self.things.clear()
        thing = None
        gc.collect()
        assert self.runtime.memory().used == 0, self.runtime.blocks()
        self.runtime.close()


Machine.TestCase.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
TestSessions = Machine.TestCase
