"""Worker threads: that they end, whatever ends the runtime, and that a trap in one of them is an exception."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import graphs
import onnx_wasm as ort
from graphs import FLOAT, model, node
from interrupting import interrupted_at, python
from onnx_wasm import tape
from onnx_wasm.program import Program

NAME = "onnx-wasm worker"
TRAPPED = 112
X = np.random.default_rng(3).normal(0, 1, 200_000).astype(np.float32)
NEG = model([node("Neg", ["x"], ["y"])], {"x": (FLOAT, ["n"])}, ["y"])


def workers() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith(NAME)]


def tasks() -> int:
    """Threads of this process, as the system counts them."""
    folder = Path("/proc/self/task")
    return len(list(folder.iterdir())) if folder.exists() else 0


@pytest.fixture(autouse=True)
def none_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tape, "SHARED_BYTES", 0)
    # The engine's own threads begin with the first module.
    for variant in ("relaxed", "strict"):
        ort.Runtime(variant=variant).close()
    before = tasks()
    yield
    assert not workers()
    # The system may take a moment to count down.
    for _ in range(500):
        if tasks() <= before:
            break
        time.sleep(0.01)
    assert tasks() <= before


def negate(session: ort.InferenceSession) -> None:
    assert session.run({"x": X})["y"].get_data(release_data=True).tobytes() == (-X).tobytes()


def test_close_ends_them() -> None:
    with ort.Runtime(threads=3) as runtime:
        assert not workers()
        with ort.InferenceSession.create(NEG, runtime=runtime) as session:
            negate(session)
            assert [t.name for t in workers()] == [f"{NAME} {i}" for i in (1, 2)]
            assert all(t.daemon for t in workers())
        assert len(workers()) == 2
    assert not workers()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("cycle", [False, True])
def test_collection_ends_them(cycle: bool) -> None:
    runtime = ort.Runtime(threads=3)
    session = ort.InferenceSession.create(NEG, runtime=runtime)
    negate(session)
    threads = workers()
    if cycle:
        session.kept = [runtime, session]  # type: ignore[attr-defined]
    del runtime, session
    gc.collect()
    for thread in threads:
        thread.join(20)
    assert not workers()


def test_a_thousand_runtimes() -> None:
    def resident() -> int:
        status = Path("/proc/self/statm")
        return int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if status.exists() else 0

    data = graphs.mlp(sizes=(16, 300, 8))
    x = np.ones((40, 16), np.float32)
    before = 0
    for i in range(1000):
        with ort.Runtime(threads=2) as runtime, ort.InferenceSession.create(data, runtime=runtime) as session:
            session.run({"x": x})["y"].dispose()
            assert len(workers()) == 1
        if i == 100:
            gc.collect()
            before = resident()
    gc.collect()
    assert resident() - before < 30 << 20


def test_a_thread_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refuse(self: threading.Thread) -> None:
        if self.name == f"{NAME} 2":
            raise RuntimeError("can't start new thread")
        start(self)

    with ort.Runtime(threads=4) as runtime, ort.InferenceSession.create(NEG, runtime=runtime) as session:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(ort.EngineError, match=r"worker thread 2 of 3 cannot be started: can't start"):
                session.run({"x": X})
            assert not workers()
        negate(session)
        assert len(workers()) == 3


def corrupt(session: ort.InferenceSession, runtime: ort.Runtime, part: float) -> tuple[int, int]:
    """Let the input begin so near the end of memory that only this part of it can be read; (word, what it was)."""
    program = session._last
    assert isinstance(program, Program)
    ((word, _),) = program.root.tape.inputs["x"]
    words = program._words(program.root)
    before = int(words[word])
    words[word] = runtime.memory().linear - int(X.nbytes * part) // 64 * 64
    return word, before


@pytest.mark.parametrize("count", [2, 3])
def test_a_trap_names_the_kernel(count: int) -> None:
    with ort.Runtime(threads=count) as runtime:
        with ort.InferenceSession.create(NEG, runtime=runtime) as session:
            negate(session)
            by_worker = 0
            # Who takes the range that traps is up to the system: all do, some time.
            for turn in range(2000):
                word, before = corrupt(session, runtime, turn % 20 / 20)
                with pytest.raises(
                    ort.KernelTrapError, match=r'Neg "y" \(node 0\) \(kernel neg_f32\) trapped: .*memory'
                ):
                    session.run({"x": X})
                by_worker += int(runtime._words[TRAPPED // 4]) > 0
                assert isinstance(session._last, Program)
                session._last._words(session._last.root)[word] = before
                negate(session)
                if by_worker >= 3:
                    break
            assert by_worker >= 3
        runtime.heap_check()
        assert runtime.memory().used == 0


def test_a_worker_that_has_gone_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnx_wasm.workers._Worker.work", lambda *_: None)
    with ort.Runtime(threads=2) as runtime, ort.InferenceSession.create(NEG, runtime=runtime) as session:
        negate(session)
        # As if it had been at work.
        runtime._words[192 // 4] = 1
        with pytest.raises(ort.KernelTrapError, match="a worker thread has ended"):
            session.run({"x": X})
        negate(session)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_interrupted_anywhere() -> None:
    runtime = ort.Runtime(threads=3)
    session = ort.InferenceSession.create(NEG, runtime=runtime)

    def run() -> None:
        runtime._stop_workers()
        negate(session)

    nth = 1
    while interrupted_at(nth, run, file="workers.py"):
        runtime.heap_check()
        nth += 1
        if nth % 10 == 0:
            negate(session)
            assert len(workers()) == 2
    assert nth > 50
    negate(session)
    session.dispose()
    nth = 1
    while interrupted_at(nth, runtime.close, file="workers.py"):
        nth += 1
    assert runtime.closed
    gc.collect()


def test_they_sleep_and_wake() -> None:
    with ort.Runtime(threads=2) as runtime, ort.InferenceSession.create(NEG, runtime=runtime) as session:
        for pause in (0.0, 0.001, 0.05, 1.2):
            threading.Event().wait(pause)
            negate(session)


START = """
session.dispose()
runtime = ort.Runtime(threads=3)
session = ort.InferenceSession.create(graphs.mlp(64, sizes=(256, 1024, 256)), runtime=runtime)
"""


def test_the_interpreter_may_end() -> None:
    python(f'{START}\nout = session.run({{"x": x}})["y"]; out.dispose(); session.dispose()')


def test_the_interpreter_may_end_while_threads_run() -> None:
    python(f"{START}\nthreading.Thread(target=loop, daemon=True).start()\ntime.sleep(0.2)")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("busy", [False, True])
def test_a_fork(busy: bool) -> None:
    python(
        f"""{START}
import warnings
warnings.simplefilter("ignore")
expected = session.run({{"x": x}})["y"].get_data(True)
if {busy}:
    threading.Thread(target=loop, daemon=True).start()
for _ in range(3):
    child = os.fork()
    if not child:
        signal.alarm(20)
        same = all(np.array_equal(session.run({{"x": x}})["y"].get_data(True), expected) for _ in range(5))
        count = sum(t.name.startswith("{NAME}") for t in threading.enumerate())
        runtime.close() if not {busy} else None
        os._exit(0 if same and count == 2 else 1)
    assert os.waitpid(child, 0)[1] == 0
    if not {busy}:
        assert np.array_equal(session.run({{"x": x}})["y"].get_data(True), expected)
if not {busy}:
    session.dispose()
"""
    )


def test_threads_with_too_small_a_stack() -> None:
    before = threading.stack_size(256 << 10)
    try:
        with ort.Runtime(threads=2) as runtime, ort.InferenceSession.create(NEG, runtime=runtime) as session:
            with pytest.raises(ort.EngineError, match=r"1,048,576 bytes of stack; .* set to 262,144"):
                session.run({"x": X})
            threading.stack_size(before)
            negate(session)
    finally:
        threading.stack_size(before)


ACTIVE = 192 // 4
CHAIN = model([node("Neg", ["x"], ["z"]), node("Abs", ["z"], ["y"])], {"x": (FLOAT, ["n"])}, ["y"])


@contextlib.contextmanager
def held_up(runtime: ort.Runtime) -> Iterator[None]:
    """As if a worker were at its range for longer than a join waits."""

    def release() -> None:
        # Nobody else changes it meanwhile: all others are done.
        runtime._words[ACTIVE] -= 1

    runtime._words[ACTIVE] += 1
    timer = threading.Timer(1.3, release)
    timer.start()
    yield
    timer.join()


def test_a_join_that_takes_long() -> None:
    weight = np.random.default_rng(1).normal(0, 1, (300, 500)).astype(np.float32)
    product = model([node("MatMul", ["x", "w"], ["y"])], {"x": (FLOAT, [1, 300])}, ["y"], {"w": weight})
    with ort.Runtime(threads=2) as runtime:
        with ort.InferenceSession.create(CHAIN, runtime=runtime) as session:
            session.run({"x": X})["y"].dispose()
            with held_up(runtime):
                assert session.run({"x": X})["y"].get_data(release_data=True).tobytes() == abs(X).tobytes()
        with held_up(runtime), ort.InferenceSession.create(product, runtime=runtime) as session:
            got = session.run({"x": X[:300].reshape(1, 300)})["y"].get_data(release_data=True)
        np.testing.assert_allclose(got, X[:300].reshape(1, 300) @ weight, atol=1e-3)


def test_an_interrupt_waits_for_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    with ort.Runtime(threads=2) as runtime, ort.InferenceSession.create(CHAIN, runtime=runtime) as session:
        session.run({"x": X})["y"].dispose()
        workers = runtime._workers
        assert workers is not None
        join, calls = workers._join, 0

        def interrupted() -> int:
            nonlocal calls
            calls += 1
            if calls < 3:
                raise KeyboardInterrupt
            return join()

        monkeypatch.setattr(workers, "_join", interrupted)
        with held_up(runtime):
            with pytest.raises(KeyboardInterrupt):
                session.run({"x": X})
            # Before the timer has ended.
            assert calls >= 3
            assert runtime._words[ACTIVE] == 0
        session.run({"x": X})["y"].dispose()
        runtime.heap_check()
