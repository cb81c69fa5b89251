"""Interrupts, other threads, forks and the interpreter's end: nothing hangs, crashes or is freed twice."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import graphs
import onnx_wasm as ort
from graphs import BOOL, FLOAT, INT64, model, node
from interrupting import interrupted_at, python

X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(2, 16)


@pytest.fixture
def runtime() -> Iterator[ort.Runtime]:
    with ort.Runtime() as runtime:
        yield runtime
        gc.collect()
        assert runtime.memory().used == 0
        runtime.heap_check()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("planned", [True, False])
def test_a_run_may_be_interrupted_anywhere(planned: bool) -> None:
    nodes = [node("NonZero", ["x"], ["z"]), node("Cast", ["z"], ["f"], to=FLOAT), node("Neg", ["f"], ["y"])]
    data = model([*nodes, node("Neg", ["x"], ["n"])], {"x": (FLOAT, ["m"])}, ["y", "n"])
    x = np.array([0, 2, 0, 3], np.float32)
    with (
        ort.Runtime() as runtime,
        ort.InferenceSession.create(data, runtime=runtime, enable_mem_pattern=planned) as session,
    ):
        given = ort.Tensor("float32", np.zeros(4, np.float32), runtime=runtime)

        def run() -> None:
            out = session.run({"x": x}, {"y": None, "n": given})
            assert out["y"].get_data(release_data=True).tolist() == [[-1, -3]]

        nth = 1
        while interrupted_at(nth, run):
            runtime.heap_check()
            nth += 1
            if nth % 5 == 0:
                run()
                assert given.data.tolist() == [0, -2, 0, -3]
        assert nth > 50
        gc.collect()
        used = runtime.memory().used
        for _ in range(3):
            run()
        assert runtime.memory().used == used
        # A few that an interrupt met between the heap and the ledger.
        assert runtime.memory().blocks < 25
        given.dispose()


@pytest.mark.parametrize("kind", ["Tensor", "InferenceSession", "Runtime"])
@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
def test_what_stands_for_memory_is_not_copied(runtime: ort.Runtime, kind: str, how: Callable[[Any], Any]) -> None:
    with (
        ort.Tensor("float32", X, runtime=runtime) as tensor,
        ort.InferenceSession.create(graphs.mlp(), runtime=runtime) as session,
    ):
        thing = {"Tensor": tensor, "InferenceSession": session, "Runtime": runtime}[kind]
        with pytest.raises(TypeError, match=f"{kind} objects cannot be copied or pickled"):
            how(thing)


def test_a_run_inside_of_a_run_is_refused(runtime: ort.Runtime) -> None:
    class Feeds(dict[str, Any]):
        def get(self, name: str, default: Any = None) -> Any:
            return session.run({"x": X})["y"]

    with ort.InferenceSession.create(graphs.mlp(), runtime=runtime) as session:
        with pytest.raises(ort.EngineError, match="already in a call on this thread"):
            session.run(Feeds(x=X))
        session.run({"x": X})["y"].dispose()


def endless_loop() -> bytes:
    tensor = onnx.helper.make_tensor_value_info
    body = onnx.helper.make_graph(
        [node("Identity", ["c"], ["going"]), node("Add", ["a", "a"], ["b"])],
        "body",
        [tensor("i", INT64, []), tensor("c", BOOL, []), tensor("a", FLOAT, [1])],
        [tensor("going", BOOL, []), tensor("b", FLOAT, [1])],
    )
    inputs = {"n": (INT64, []), "c": (BOOL, []), "x": (FLOAT, [1])}
    return model([node("Loop", ["n", "c", "x"], ["y"], body=body)], inputs, ["y"])


def test_a_loop_that_is_being_unrolled_can_be_cancelled(runtime: ort.Runtime) -> None:
    feeds = {"n": np.array(1 << 60), "c": np.array(True), "x": np.ones(1, np.float32)}
    with ort.InferenceSession.create(endless_loop(), runtime=runtime) as session:
        timer = threading.Timer(0.3, runtime.cancel)
        timer.start()
        with pytest.raises(ort.CancelledError, match="cancelled while it was planned"):
            session.run(feeds)
        timer.join()
        assert session.run({**feeds, "n": np.array(3)})["y"].get_data(release_data=True).tolist() == [8]


def test_a_loop_of_too_many_records_is_refused(runtime: ort.Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnx_wasm.lower.MAX_RECORDS", 100)
    feeds = {"n": np.array(1 << 60), "c": np.array(True), "x": np.ones(1, np.float32)}
    with (
        ort.InferenceSession.create(endless_loop(), runtime=runtime) as session,
        pytest.raises(NotImplementedError, match=r'Loop "y" \(node 0\): more than 100 records'),
    ):
        session.run(feeds)


def test_many_segments_one_after_the_other(runtime: ort.Runtime) -> None:
    tensor = onnx.helper.make_tensor_value_info
    body = onnx.helper.make_graph(
        [node("Sub", ["a", "one"], ["b"]), node("Greater", ["b", "zero"], ["going"])],
        "body",
        [tensor("i", INT64, []), tensor("c", BOOL, []), tensor("a", FLOAT, [])],
        [tensor("going", BOOL, []), tensor("b", FLOAT, [])],
        [numpy_helper.from_array(np.float32(v), n) for v, n in ((1, "one"), (0, "zero"))],
    )
    inputs = {"c": (BOOL, []), "x": (FLOAT, [])}
    data = model([node("Loop", ["", "c", "x"], ["y"], body=body)], inputs, ["y"])
    count = sys.getrecursionlimit() + 100
    with ort.InferenceSession.create(data, runtime=runtime) as session:
        feeds = {"c": np.array(True), "x": np.array(count, np.float32)}
        for _ in range(2):
            assert session.run(feeds)["y"].get_data(release_data=True) == 0
        assert session.plan_info is not None
        assert session.plan_info.segments > count


def test_threads_that_run_dispose_and_close(runtime: ort.Runtime) -> None:
    data = graphs.mlp()
    expected = graphs.native(data, {"x": X})["y"]
    sessions = [ort.InferenceSession.create(data, runtime=runtime, max_plans=2) for _ in range(2)]
    other = ort.Runtime()
    wrong: list[object] = []

    def work(number: int) -> None:
        for i in range(60):
            at = (number + i) % 2
            try:
                if i % 20 == 19:
                    sessions[at].dispose()
                    sessions[at] = ort.InferenceSession.create(data, runtime=runtime, max_plans=2)
                elif i % 7 == number:
                    runtime.cancel()
                elif i % 11 == number:
                    runtime.heap_check()
                elif i == 33:
                    other.close()
                else:
                    with ort.Tensor("float32", X, runtime=other if i % 3 == 0 else runtime) as tensor:
                        out = sessions[at].run({"x": tensor if i % 2 else X[:1]})["y"]
                    got = out.get_data(release_data=True)
                    if not np.allclose(got, expected[: len(got)], atol=1e-5):
                        wrong.append(got)
            except (ort.DisposedError, ort.CancelledError, ort.LeaseError):
                pass
            except BaseException as error:
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    for session in sessions:
        session.dispose()
    gc.collect()
    other.close()


def test_the_interpreter_may_end_while_threads_run() -> None:
    python(
        """
for _ in range(2):
    threading.Thread(target=loop, daemon=True).start()
time.sleep(0.2)
"""
    )


def test_the_interpreter_may_end_with_everything_alive() -> None:
    python(
        """
import builtins
out = session.run({"x": x})["y"]
cycle = [session, out, out.data]
cycle.append(cycle)
builtins.kept = (out.data, session, ort.Runtime())
"""
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_fork_while_a_thread_runs() -> None:
    python(
        """
import warnings
warnings.simplefilter("ignore")
threading.Thread(target=loop, daemon=True).start()
expected = session.run({"x": x})["y"].get_data(True)
for _ in range(3):
    child = os.fork()
    if not child:
        signal.alarm(20)
        same = np.array_equal(session.run({"x": x})["y"].get_data(True), expected)
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0
"""
    )
