"""Snapshots, leak reports, the log of events, recordings, and what an out-of-memory error says."""

from __future__ import annotations

import asyncio
import gc
import random
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphs
import onnx_wasm as ort
from onnx_wasm import trace
from onnx_wasm.heap_events import HeapEvent
from onnx_wasm.heap_policy import PRESETS
from onnx_wasm.whatif import whatif

MIB = 1 << 20
BASE = 6_303_872
X = np.ones((2, 16), np.float32)
MODES = pytest.mark.parametrize("planned", [True, False], ids=["planned", "unplanned"])


@pytest.fixture
def runtime() -> Iterator[ort.Runtime]:
    runtime = ort.Runtime(trace_allocations=True)
    yield runtime
    gc.collect()
    assert runtime.memory().used == 0
    runtime.close()


def test_blocks_have_an_order_an_age_and_a_line(runtime: ort.Runtime) -> None:
    with ort.Tensor("float32", X, runtime=runtime), ort.Tensor("float32", X, runtime=runtime):
        first, second = runtime.blocks()
        assert first.serial < second.serial
        assert first.age >= second.age >= 0
        assert first.site == second.site
        assert first.site.startswith(f"{__file__}:")


def test_a_clean_heap(runtime: ort.Runtime) -> None:
    before = runtime.snapshot()
    ort.Tensor("float32", X, runtime=runtime).dispose()
    report = runtime.leaks(before)
    assert not report
    assert report.verdict == "clean"
    assert str(report).startswith("clean: nothing leaked, memory has not grown\nlinear memory 16,777,216 of at most")
    assert before.diff(runtime.snapshot()).used == 0


def test_retained_is_not_leaked(runtime: ort.Runtime) -> None:
    before = runtime.snapshot()
    ort.Tensor("uint8", np.zeros(20 * MIB, np.uint8), runtime=runtime).dispose()
    report = runtime.leaks(before)
    linear = runtime.memory().linear
    assert (report.verdict, report.grown, report.retained) == ("retained", linear - 16 * MIB, linear - BASE)
    assert not report
    assert str(report).startswith(
        f"retained, not leaked: linear memory grew by {linear - 16 * MIB:,} bytes for what has been given back; "
        f"it cannot shrink, {linear - BASE:,} bytes of it are free for what comes next"
    )


def test_leaked_tensors_and_sessions_have_names_and_lines(runtime: ort.Runtime) -> None:
    old = ort.InferenceSession.create(graphs.mlp(2), runtime=runtime)
    before = runtime.snapshot()
    new = ort.InferenceSession.create(graphs.mlp(2), runtime=runtime)
    outputs = [old.run({"x": X})["y"] for _ in range(3)]
    view = outputs[0].data
    report = runtime.leaks(before)
    assert report
    assert report.verdict == "leaked"
    assert [s.name for s in report.sessions] == [new._name]
    assert [(b.nbytes, b.tag, b.owner) for b in report.tensors] == [(64, "output", f"{old._name} y")] * 3
    # What the old session keeps for its next run has not leaked.
    assert {(b.tag, b.owner) for b in report.kept} >= {("input", f"{old._name} x"), ("activations", "arena")}
    text = str(report)
    assert text.startswith(f"leaked: 3 tensors (192 bytes) and 1 session ({report.sessions[0].nbytes:,} bytes) never")
    assert re.search(rf"bytes in \d+ blocks  {new._name}  created at {re.escape(__file__)}:\d+\n", text)
    assert re.search(rf"   128 bytes in 2 blocks  output      {old._name} y  made at {re.escape(__file__)}:\d+\n", text)
    assert re.search(
        rf" y  made at {re.escape(__file__)}:\d+  kept by 1 view made at {re.escape(__file__)}:\d+\n", text
    )
    assert report.to_dict()["verdict"] == "leaked"
    del view
    for tensor in outputs:
        tensor.dispose()
    new.dispose()
    assert not runtime.leaks(before)
    old.dispose()
    assert not runtime.leaks()


def test_without_lines_the_report_says_how_to_get_them() -> None:
    with ort.Runtime() as runtime, ort.Tensor("float32", X, runtime=runtime):
        assert "Runtime(trace_allocations=True) tells the Python lines" in str(runtime.leaks())


def test_a_tensor_that_only_a_view_keeps(runtime: ort.Runtime) -> None:
    tensor = ort.Tensor("float32", X, runtime=runtime)
    view = tensor.data
    tensor.dispose()
    [left] = runtime.leaks().tensors
    assert left.disposed.startswith(f"{__file__}:")
    assert len(left.views) == 1
    del view
    assert not runtime.leaks()


def test_the_difference_of_snapshots(runtime: ort.Runtime) -> None:
    gone = ort.Tensor("float32", X, runtime=runtime)
    before = runtime.snapshot()
    gone.dispose()
    kept = ort.Tensor("uint8", np.zeros(20 * MIB, np.uint8), runtime=runtime)
    diff = before.diff(runtime.snapshot())
    assert [b.nbytes for b in diff.added] == [20 * MIB]
    assert [b.nbytes for b in diff.removed] == [128]
    assert diff.by_tag == {"user": 20 * MIB - 128}
    assert diff.linear == runtime.memory().linear - 16 * MIB
    assert diff.used == runtime.memory().used - before.memory.used
    assert str(diff).splitlines()[0] == (
        f"in use {diff.used:+,} bytes (user +20,971,392), linear memory {diff.linear:+,}"
    )
    kept.dispose()


def test_two_runtimes_do_not_see_each_other() -> None:
    with ort.Runtime(log_events=True) as one, ort.Runtime(debug=True, log_events=True) as two:
        before = two.snapshot()
        tensor = ort.Tensor("float32", X, runtime=one)
        two.fail_allocation(1)
        second = ort.Tensor("float32", X, runtime=one)
        assert two.fail_allocation(0) == 1
        assert two.snapshot().diff(before).added == ()
        assert not two.leaks()
        assert two.events == []
        assert one.leaks().tensors
        assert two.find_block(tensor.data) is None
        with pytest.raises(ort.HeapPointerError, match="no block was ever there"):
            two.free(tensor.address)
        tensor.dispose()
        second.dispose()
        assert [e.kind for e in one.events] == ["alloc", "alloc", "free", "free"]


# The log of events


def alive(events: list[HeapEvent]) -> dict[int, HeapEvent]:
    live: dict[int, HeapEvent] = {}
    for event in events:
        if event.kind == "alloc":
            assert event.address not in live
            live[event.address] = event
        elif event.kind == "free":
            assert live.pop(event.address).nbytes == event.nbytes
    return live


@MODES
@pytest.mark.parametrize("debug", [False, True], ids=["plain", "debug"])
def test_events_tell_everything_that_happened(planned: bool, debug: bool) -> None:
    with ort.Runtime(log_events=True, trace_allocations=True, debug=debug) as runtime:
        with ort.InferenceSession.create(graphs.mlp(2), runtime=runtime, enable_mem_pattern=planned) as session:
            output = session.run({"x": X})["y"]
            events = runtime.events
            live = alive(events)
            assert sorted((e.address, e.nbytes, e.tag) for e in live.values()) == sorted(
                (b.address, b.nbytes, b.tag) for b in runtime.blocks()
            )
            assert events[-1].used == runtime.memory().used
            assert [e.time for e in events] == sorted(e.time for e in events)
            assert all(e.site.startswith(f"{__file__}:") for e in events)
            nodes = {(e.node, e.tag, e.owner) for e in events if e.kind == "alloc" and e.node}
            assert ('Gemm "g1" (node 2)', "output", f"{session._name} y") in nodes
            assert (('Gemm "g0" (node 0)', "activations", f"{session._name} g0") in nodes) != planned
            output.dispose()
        assert alive(runtime.events) == {}
        assert runtime.stop_events()
        assert runtime.events == []
        ort.Tensor("float32", X, runtime=runtime).dispose()
        assert runtime.events == []


def test_the_log_is_bounded_and_knows_growths_and_failures() -> None:
    with ort.Runtime(log_events=3, maximum=64 * MIB) as runtime:
        for _ in range(5):
            ort.Tensor("float32", X, runtime=runtime).dispose()
        assert [e.kind for e in runtime.events] == ["free", "alloc", "free"]
        runtime.start_events(None)
        with ort.Tensor("uint8", np.zeros(20 * MIB, np.uint8), runtime=runtime):
            grow, alloc = runtime.events
            assert (grow.kind, grow.nbytes, grow.linear) == ("grow", alloc.linear, alloc.linear)
            assert (alloc.kind, alloc.nbytes, alloc.linear) == ("alloc", 20 * MIB, runtime.memory().linear)
        with pytest.raises(MemoryError):
            ort.Tensor("uint8", np.zeros(80 * MIB, np.uint8), runtime=runtime)
        assert [e.kind for e in runtime.events] == ["grow", "alloc", "free", "fail"]
        assert runtime.events[-1].to_dict()["nbytes"] == 80 * MIB
        with pytest.raises(ValueError, match="a log of 0 events"):
            runtime.start_events(0)


@MODES
def test_watching_changes_no_address(planned: bool) -> None:
    """Who watches sees the heap as it is without: the same blocks at the same addresses, the same values."""
    seen = []
    for settings in ({}, {"log_events": True}, {"record": True}):
        with ort.Runtime(**settings) as runtime:
            with ort.InferenceSession.create(graphs.mlp(2), runtime=runtime, enable_mem_pattern=planned) as session:
                for _ in range(2):
                    output = session.run({"x": X})["y"]
                    seen.append(([(b.address, b.nbytes) for b in runtime.blocks()], output.data.tobytes()))
                    output.dispose()
            memory = runtime.memory()
            seen.append((memory.peak, memory.linear))
    assert seen[:3] == seen[3:6] == seen[6:]


# Recordings


@MODES
@pytest.mark.parametrize("debug", [False, True], ids=["plain", "debug"])
def test_a_recording_replays(tmp_path: Path, planned: bool, debug: bool) -> None:
    with ort.Runtime(record=True, debug=debug, quarantine=4096, policy="2GiB", geometric_step=0.1) as runtime:
        with ort.InferenceSession.create(graphs.mlp("n"), runtime=runtime, enable_mem_pattern=planned) as session:
            for n in (1, 300, 7):
                session.run({"x": np.ones((n, 16), np.float32)})["y"].dispose()
        runtime.free(runtime.malloc(77))
        with ort.Tensor("uint8", np.zeros(20 * MIB, np.uint8), runtime=runtime), pytest.raises(MemoryError):
            ort.Tensor("uint8", np.zeros(20 * MIB, np.uint8), runtime=runtime).runtime.malloc((1 << 32) - 1)
        gc.collect()
        count = runtime.save_recording(tmp_path / "a.npz", source="test")
        linear = runtime.memory().linear
    recording = trace.load(tmp_path / "a.npz")
    assert len(recording.op) == count
    assert recording.meta["source"] == "test"
    assert recording.meta["policy"]["geometric_step"] == 0.1
    assert recording.memory[-1] == linear
    assert 0 in recording.ptr  # the failed one
    heap = trace.ModuleHeap(recording)
    result = trace.replay(recording, heap)
    assert (result.calls, result.differences) == (count, 0), result.first
    heap.close()


def test_nothing_to_save_without_a_recording(tmp_path: Path) -> None:
    with ort.Runtime() as runtime, pytest.raises(ValueError, match="make the runtime with record=True"):
        runtime.save_recording(tmp_path / "a.npz")


# Failing on purpose


def test_growths_fail_one_at_a_time() -> None:
    with ort.Runtime() as runtime:
        runtime.fail_growth(2)
        with ort.Tensor("uint8", np.zeros(12 * MIB, np.uint8), runtime=runtime):  # grows once
            assert runtime.memory().growth_count == 1
            with pytest.raises(
                MemoryError, match=r"There was room below the limit .* \(fail_allocation, fail_growth\)"
            ):
                ort.Tensor("uint8", np.zeros(12 * MIB, np.uint8), runtime=runtime)
            assert runtime.memory().growth_count == 1
            assert runtime.fail_growth(0) == 0
            ort.Tensor("uint8", np.zeros(12 * MIB, np.uint8), runtime=runtime).dispose()
            assert runtime.memory().growth_count == 2
        runtime.fail_growth(5)
        assert runtime.fail_growth(0) == 5
        for bad in (-1, 1 << 32):
            with pytest.raises(ValueError, match=f"nth {bad} must lie in"):
                runtime.fail_growth(bad)
        runtime.heap_check()


# Out of memory


def test_what_would_have_been_enough_is_enough_and_no_less_is() -> None:
    chance = random.Random(3)
    for _ in range(40):
        sizes = [chance.randrange(1, 3 * MIB) for _ in range(chance.randrange(6))]
        large, gone = chance.randrange(MIB, 60 * MIB), chance.randrange(2)

        def attempt(maximum: int, sizes: list[int] = sizes, large: int = large, gone: int = gone) -> str:
            runtime = ort.Runtime(maximum=maximum)
            blocks: list[Any] = []
            try:
                for size in sizes:
                    blocks.append(runtime.allocate(size, "user", "small"))
                for block in blocks[:gone]:
                    block.free()
                runtime.allocate(large, "user", "large")
            except MemoryError as error:
                return str(error)
            finally:
                runtime.close()
            return ""

        text = attempt(7 * MIB + 3 * MIB * len(sizes))
        found = re.search(r"a maximum of ([\d,]+) bytes would have been enough", text)
        if not text:
            continue
        assert found, text
        enough = int(found[1].replace(",", ""))
        assert attempt(enough) == ""
        text = attempt(enough - 65536)
        assert "bytes would have been enough (what the whole job needs: `onnx-wasm heap map MODEL`, or `onn" in text


def test_what_no_memory_can_hold() -> None:
    with ort.Runtime() as runtime, pytest.raises(MemoryError, match="32-bit addresses end at 4 GiB: dispose of"):
        runtime.allocate((1 << 32) - (1 << 20))


def test_intermediates_count_among_the_holders() -> None:
    """Of a run that allocates one by one and runs out in the middle."""
    data = graphs.mlp("n", sizes=(16, 64, 64, 8))
    with ort.Runtime(maximum=10 * MIB) as runtime:
        with ort.InferenceSession.create(data, runtime=runtime, enable_mem_pattern=False) as session:
            with pytest.raises(MemoryError, match=rf"Biggest holders: activations of {session._name} [\d,]+") as caught:
                session.run({"x": np.ones((10_000, 16), np.float32)})
            assert "for tensor" in str(caught.value) or "for an intermediate tensor" in str(caught.value)
            assert "Gemm" in str(caught.value)
            session.run({"x": X})["y"].dispose()
        assert runtime.memory().used == 0


# Who keeps what


@pytest.mark.parametrize("planned", [True, False], ids=["planned", "unplanned"])
def test_a_view_of_any_block_frees_nothing_when_it_goes(planned: bool) -> None:
    with ort.Runtime() as runtime:
        pointer = runtime.malloc(1000)
        block = runtime.allocate(1000)
        with ort.InferenceSession.create(graphs.mlp(2), runtime=runtime, enable_mem_pattern=planned) as session:
            output = session.run({"x": X})["y"]
            expected = output.data.copy()
            before = [(b.address, b.nbytes) for b in runtime.blocks()]
            assert {b.tag for b in runtime.blocks()} >= {"weights", "tape", "input", "output", "user"}
            for each in runtime.blocks():
                view = runtime.view(each, (each.nbytes,), np.dtype(np.uint8))
                del view
            gc.collect()
            assert [(b.address, b.nbytes) for b in runtime.blocks()] == before
            assert runtime.memory().blocks == len(before)
            output.dispose()
            np.testing.assert_array_equal(session.run({"x": X})["y"].get_data(release_data=True), expected)
        view = runtime.view(block, (1000,), np.dtype(np.uint8))
        block.free()
        assert len(runtime.blocks()) == 2
        del view
        runtime.free(pointer)
        assert runtime.memory().used == 0
        runtime.heap_check()


def test_a_block_of_a_disposed_session_lives_as_long_as_a_view_of_it() -> None:
    with ort.Runtime() as runtime:
        session = ort.InferenceSession.create(graphs.mlp(2), runtime=runtime)
        weights = next(b for b in runtime.blocks() if b.tag == "weights")
        view = runtime.view(weights, (weights.nbytes,), np.dtype(np.uint8))
        contents = view.copy()
        session.dispose()
        assert runtime.blocks() == [weights]
        np.testing.assert_array_equal(view, contents)
        del view
        assert runtime.memory().used == 0


def test_a_header_that_was_overwritten_is_told_and_nothing_forgotten() -> None:
    with ort.Runtime() as runtime:
        pointer = runtime.malloc(100)
        after = runtime.malloc(100)
        words = runtime.heap_view("uint32")
        header = words[pointer // 4 - 1]
        words[pointer // 4 - 1] = 0
        runtime.free(pointer)
        assert [b.address for b in runtime.blocks()] == [pointer, after]
        with pytest.raises(ort.HeapCorruptionError, match="chunk at"):
            runtime.heap_check()
        words[pointer // 4 - 1] = header
        runtime.free(pointer)
        runtime.free(after)
        assert runtime.memory().used == 0


def test_a_tensor_and_its_reshape_are_one_block_that_may_be_forgotten() -> None:
    with ort.Runtime() as runtime:
        tensor = ort.Tensor("float32", X, runtime=runtime)
        other = tensor.reshape([16, 2])
        with pytest.warns(ResourceWarning):
            del tensor
        assert runtime.forgotten == ()
        other.dispose()
        assert runtime.forgotten == ()
        tensor = ort.Tensor("float32", X, runtime=runtime)
        other = tensor.reshape([16, 2])
        with pytest.warns(ResourceWarning):
            del tensor, other
        assert len(runtime.forgotten) == 1


def test_snapshots_are_of_one_runtime() -> None:
    with ort.Runtime() as one, ort.Runtime() as two:
        with pytest.raises(ValueError, match="of different runtimes"):
            one.snapshot().diff(two.snapshot())
        with pytest.raises(ValueError, match="of another runtime"):
            one.leaks(two.snapshot())
        assert one.snapshot().to_dict()["blocks"] == []
        with ort.Tensor("float32", X, runtime=one):
            assert one.snapshot().to_dict()["blocks"][0]["nbytes"] == 128


def test_a_session_that_holds_nothing_has_not_leaked(recwarn: pytest.WarningsRecorder) -> None:
    with ort.Runtime() as runtime:
        session = ort.InferenceSession.create(graphs.mlp(2), runtime=runtime, enable_lazy_initialization=True)
        assert not runtime.leaks()
    assert not [w for w in recwarn if w.category is ResourceWarning]
    del session


def test_what_can_be_asked_of_a_closed_runtime() -> None:
    runtime = ort.Runtime(log_events=True)
    view = runtime.heap_view("HEAPF32")
    runtime.close()
    assert (runtime.events, runtime.logs_events, runtime.watched, runtime.linear, runtime.allocations) == (
        [],
        False,
        False,
        0,
        0,
    )
    assert repr(view) == "<HeapView float32 of a closed runtime>"
    with pytest.raises(ort.DisposedError):
        view[0]


@pytest.mark.parametrize("count", [1, 2])
def test_a_warning_that_is_an_error_comes_once_the_runtime_is_closed(count: int) -> None:
    runtime = ort.Runtime()
    tensors = [ort.Tensor("float32", X, runtime=runtime) for _ in range(count)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ResourceWarning, match="never disposed when its runtime was closed"):
            runtime.close()
        assert runtime.closed
        runtime.close()
    assert tensors[0].location == "none"


def test_the_limit_that_binds_is_named() -> None:
    with ort.Runtime(policy="ios-like-512MiB") as runtime:
        with pytest.raises(
            MemoryError, match=r"For this request, a memory_maximum of ([\d,]+) bytes would have been enough"
        ) as caught:
            runtime.allocate(600 * MIB)
        assert runtime.memory().maximum == 512 * MIB
    enough = int(re.findall(r"memory_maximum of ([\d,]+)", str(caught.value))[0].replace(",", ""))
    with ort.Runtime(memory_maximum=enough) as runtime:
        runtime.allocate(600 * MIB).free()
    both = ort.Runtime(maximum=64 * MIB, memory_maximum=32 * MIB)
    with pytest.raises(MemoryError, match=r"a maximum of [\d,]+ bytes and a memory_maximum of [\d,]+ bytes"):
        both.allocate(100 * MIB)
    both.close()


def test_quarantine_is_given_up_before_memory_runs_out() -> None:
    for quarantine in (0, 256 * MIB):
        with ort.Runtime(debug=True, quarantine=quarantine, maximum=64 * MIB) as runtime:
            for _ in range(4):
                runtime.allocate(5 * MIB).free()
            runtime.allocate(45 * MIB).free()


@pytest.mark.parametrize("kind", ["allocation", "growth"])
def test_failures_that_were_asked_for_replay(tmp_path: Path, kind: str) -> None:
    with ort.Runtime(record=True) as runtime:
        first = runtime.allocate(4 * MIB)
        getattr(runtime, f"fail_{kind}")(1)
        with pytest.raises(MemoryError):
            runtime.allocate(12 * MIB)
        runtime.allocate(12 * MIB).free()
        first.free()
        runtime.save_recording(tmp_path / "odd name", path=tmp_path)
    recording = trace.load(tmp_path / "odd name")
    assert recording.meta["injected"] == {kind: [1]}
    heap = trace.ModuleHeap(recording)
    assert trace.replay(recording, heap).differences == 0
    heap.close()
    [row] = whatif(recording, {"2GiB": PRESETS["2GiB"].policy})
    assert row.failure is None


def test_where_async_calls_were_made() -> None:
    async def work() -> None:
        session = await ort.InferenceSession.create_async(graphs.mlp(2), runtime=runtime)
        output = (await session.run_async({"x": X}))["y"]
        assert session.site.startswith(f"{__file__}:")
        assert {b.site.rpartition(":")[0] for b in runtime.blocks()} == {__file__}
        output.dispose()
        session.dispose()

    with ort.Runtime(trace_allocations=True) as runtime:
        asyncio.run(work())


def test_packages_with_longer_names_are_not_this_one() -> None:
    source = "import onnx_wasm as ort\ndef make(runtime):\n    return runtime.allocate(10)\n"
    place = str(Path(ort.__file__).parent) + "_app/pages.py"
    names: dict[str, Any] = {}
    exec(compile(source, place, "exec"), names)
    with ort.Runtime(trace_allocations=True) as runtime:
        block = names["make"](runtime)
        assert block.site == f"{place}:3"
        block.free()


def test_a_forking_thread_waits_for_no_lock_while_it_holds_one() -> None:
    """A thread in one runtime that looks at a tensor of another must not be waited for by what it waits for."""
    script = """
import os, threading, time
import numpy as np, onnx_wasm as ort
one, two = ort.Runtime(), ort.Runtime()
tensor = ort.Tensor("float32", np.ones(4, np.float32), runtime=one)
stop = threading.Event()
def work():
    while not stop.is_set():
        with two._gate.lock:
            tensor.data
            time.sleep(0.001)
thread = threading.Thread(target=work)
thread.start()
for _ in range(20):
    if not os.fork():
        tensor.data
        two.memory()
        os._exit(0)
    assert os.wait()[1] == 0
stop.set()
thread.join()
print("done")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "done\n", done.stderr


def test_a_memory_maximum_that_would_have_been_enough_is() -> None:
    """An engine is asked for more than is needed, and again for less; the least of these must fit."""

    def attempt(limit: int) -> str:
        runtime = ort.Runtime(initial=40 * MIB, memory_maximum=limit)
        blocks: list[Any] = []
        try:
            blocks.append(runtime.allocate(30 * MIB))
            blocks.append(runtime.allocate(5 * MIB))
        except MemoryError as error:
            return str(error)
        finally:
            for block in blocks:
                block.free()
            runtime.close()
        return ""

    [enough] = re.findall(r"a memory_maximum of ([\d,]+) bytes", attempt(41 * MIB))
    assert attempt(int(enough.replace(",", ""))) == ""
    assert "memory_maximum" in attempt(int(enough.replace(",", "")) - 65536)


def test_limits_are_whole_pages_and_may_be_texts() -> None:
    with ort.Runtime(maximum=6_400_000) as runtime:
        assert runtime.memory().linear <= runtime.memory().maximum <= 6_400_000
    with ort.Runtime(maximum="64MiB", initial="8 MiB") as runtime:
        assert (runtime.maximum, runtime.linear) == (64 * MIB, 8 * MIB)
    with pytest.raises(ValueError, match="'64 mbs' is no size"):
        ort.Runtime(maximum="64 mbs")


def test_a_runtime_may_have_its_sessions_allocate_one_by_one() -> None:
    for mem_pattern in (True, False):
        with ort.Runtime(mem_pattern=mem_pattern) as runtime:
            for option in (None, True, False):
                with ort.InferenceSession.create(graphs.mlp(2), runtime=runtime, enable_mem_pattern=option) as session:
                    session.run({"x": X})["y"].dispose()
                    arena = any(b.tag == "activations" for b in runtime.blocks())
                    assert arena == (mem_pattern if option is None else option)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"policy": None}, TypeError, "policy must be the name of a preset or a HeapPolicy, got None"),
        ({"policy": PRESETS["2GiB"]}, TypeError, "policy must be the name of a preset or a HeapPolicy"),
        ({"debug": True, "quarantine": None}, ValueError, "None is no size"),
        ({"debug": True, "quarantine": -1}, ValueError, "-1 is no size"),
        ({"debug": True, "quarantine": 1.5}, ValueError, r"1\.5 is no size"),
        ({"log_events": 2**70}, ValueError, "a log of 1180591620717411303424 events"),
    ],
)
def test_settings_that_make_no_heap(settings: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ort.Runtime(**settings)


def test_small_integers_of_numpy_are_numbers() -> None:
    with ort.Runtime(debug=True, quarantine="1MiB", geometric_cap=np.uint8(200)) as runtime:
        assert runtime.policy.geometric_cap == 200
        for size in (np.uint8(200), np.int16(32767)):
            runtime.free(runtime.malloc(size))
        with pytest.raises(TypeError):
            runtime.fail_allocation(2.9)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="since must be a Snapshot, got str"):
            runtime.leaks("x")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="with a Snapshot, not with NoneType"):
            runtime.snapshot().diff(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "meta",
    [{"injected": None}, {"injected": 5}, {"injected": []}, {"injected": {"a": [1]}}, {"injected": {"growth": ["x"]}}],
)
def test_recordings_with_impossible_injections(tmp_path: Path, meta: dict[str, Any]) -> None:
    with ort.Runtime(record=True) as runtime:
        runtime.allocate(100).free()
        runtime.save_recording(tmp_path / "a.npz", **meta)
    with pytest.raises(ort.InvalidTraceError, match=r"meta\.injected must map"):
        trace.load(tmp_path / "a.npz")


@pytest.mark.parametrize(
    "column", [np.zeros((2, 1), np.uint32), np.zeros(2, np.float64), np.array("x"), np.array([b"a", b"b"])]
)
def test_recordings_with_impossible_columns(tmp_path: Path, column: np.ndarray[Any, Any]) -> None:
    with ort.Runtime(record=True) as runtime:
        runtime.allocate(100).free()
        runtime.save_recording(tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as arrays:
        columns = dict(arrays)
    np.savez(tmp_path / "b.npz", **{**columns, "arg": column})
    with pytest.raises(ort.InvalidTraceError, match="must be one dimension of integers"):
        trace.load(tmp_path / "b.npz")


def test_recordings_that_were_damaged_are_none(tmp_path: Path) -> None:
    with ort.Runtime(record=True) as runtime:
        runtime.allocate(100).free()
        runtime.save_recording(tmp_path / "a.npz")
    good = (tmp_path / "a.npz").read_bytes()
    chance = random.Random(0)
    refused = 0
    for _ in range(300):
        bad = bytearray(good)
        bad[chance.randrange(len(bad))] ^= 1 << chance.randrange(8)
        (tmp_path / "b.npz").write_bytes(bad[: chance.choice([len(bad), chance.randrange(len(bad))])])
        try:
            trace.load(tmp_path / "b.npz")
        except ort.InvalidTraceError:
            refused += 1
    assert refused > 200
