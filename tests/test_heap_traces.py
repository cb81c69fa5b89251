"""Recordings of the real allocator: every call of every file, address for address."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from onnx_wasm import trace
from onnx_wasm.trace import Difference, Trace
from wasm_harness import WasmHeap, at_trace_start

SHARED = Path(os.environ.get("ONNX_WASM_SHARED", Path(__file__).resolve().parents[2] / "shared"))
FILES = sorted((SHARED / "traces").glob("*.npz"))
if not FILES:
    pytest.skip(f"no recordings in {SHARED / 'traces'} (set ONNX_WASM_SHARED)", allow_module_level=True)


def heap_for(recording: Trace) -> WasmHeap:
    return WasmHeap(engine_limit=recording.engine_limit or 1 << 32)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_every_answer_is_the_recorded_one(path: Path) -> None:
    recording = trace.load(path)
    heap = heap_for(recording)
    assert trace.replay(recording, heap) == trace.Replay(path.name, len(recording.op), 0, None)
    assert heap.heap_check() == 0
    heap.close()


@pytest.fixture
def small() -> Iterator[Trace]:
    recording = trace.load(next(p for p in FILES if p.stem.startswith("small")))
    head = {k: getattr(recording, k)[:2000] for k in ("op", "arg", "ptr", "memory")}
    return dataclasses.replace(recording, **head)


@pytest.mark.parametrize("column", ["ptr", "memory"])
def test_a_changed_answer_is_reported_as_exactly_that_call(small: Trace, column: str) -> None:
    call = small.op.index(trace.MALLOC, 1000)
    answers = list(getattr(small, column))
    answers[call] += 8
    changed = dataclasses.replace(small, **{column: answers})
    right = (small.ptr[call], small.memory[call], None)
    wrong = (changed.ptr[call], changed.memory[call], None)
    heap = heap_for(small)
    replay = trace.replay(changed, heap)
    assert replay.differences == 1
    assert replay.first == Difference(call, "malloc", small.arg[call], expected=wrong, got=right)
    heap.close()


def test_it_can_stop_at_the_first_difference(small: Trace) -> None:
    changed = dataclasses.replace(small, memory=[m + 65536 for m in small.memory])
    heap = heap_for(small)
    assert trace.replay(changed, heap, stop=True).calls == 1
    heap.close()


def test_another_start_is_refused(small: Trace) -> None:
    heap = at_trace_start()
    with pytest.raises(ValueError, match="begins with break 6311936"):
        trace.replay(small, heap)
    heap.close()
