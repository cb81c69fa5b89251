"""Recordings of the real allocator: every call of every file, address for address."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from onnx_wasm import trace
from onnx_wasm.trace import Difference, ModuleHeap, Trace
from shared_material import missing, shared_path

FILES = sorted(shared_path("traces").glob("*.npz"))
if not FILES:
    missing(f"no recordings in {shared_path('traces')}")


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_every_answer_is_the_recorded_one(path: Path) -> None:
    recording = trace.load(path)
    heap = ModuleHeap(recording)
    assert trace.replay(recording, heap) == trace.Replay(path.name, len(recording.op), 0, None)
    assert heap.check() == 0
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
    heap = ModuleHeap(small)
    replay = trace.replay(changed, heap)
    assert replay.differences == 1
    assert replay.first == Difference(call, "malloc", small.arg[call], expected=wrong, got=right)
    heap.close()


def test_it_can_stop_at_the_first_difference(small: Trace) -> None:
    changed = dataclasses.replace(small, memory=[m + 65536 for m in small.memory])
    heap = ModuleHeap(small)
    assert trace.replay(changed, heap, stop=True).calls == 1
    heap.close()


def test_another_start_is_refused(small: Trace) -> None:
    heap = ModuleHeap(small)
    heap.malloc(1 << 20)
    with pytest.raises(ValueError, match="begins with break"):
        trace.replay(small, heap)
    heap.close()
