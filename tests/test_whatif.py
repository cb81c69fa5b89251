"""Recordings under other limits: small ones made here, and those of the real allocator."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from onnx_wasm import trace
from onnx_wasm.errors import InvalidTraceError
from onnx_wasm.heap_policy import MIB, PRESETS, HeapPolicy
from onnx_wasm.trace import FREE, MALLOC, TENSOR, Start, Trace
from onnx_wasm.whatif import AS_RECORDED, WhatIf, as_recorded, whatif
from shared_material import shared_path

BASE = 6_303_872
NEW = Start(top=None, top_size=0, brk=BASE, memory=16 * MIB)
USED = Start(top=6_309_864, top_size=2032, brk=6_311_936, memory=16 * MIB)


def made(calls: list[tuple[int, int]], start: Start = NEW, failed: int = -1, **meta: Any) -> Trace:
    """A recording without its answers, which a replay under another policy does not look at."""
    answers = [0 if call == failed else 8 for call in range(len(calls))]
    ops, args = map(list, zip(*calls, strict=True))
    return Trace("made", ops, args, answers, [16 * MIB] * len(calls), None, start, None, meta)


def one(recording: Trace, **changes: Any) -> WhatIf:
    (row,) = whatif(recording, {"mine": HeapPolicy(**changes)})
    return row


TENSORS = [(TENSOR, 8 * MIB)] * 3
# A tensor's block: the size and 4 bytes of header, rounded up to 8.
BLOCK = 8 * MIB + 8


def test_growth_under_some_policies() -> None:
    rows = whatif(
        made([(MALLOC, MIB)] * 20),
        {
            "default": HeapPolicy(),
            "exact": HeapPolicy(geometric_step=0.0),
            "linear": HeapPolicy(linear_step=32 * MIB),
            "at once": HeapPolicy(initial=64 * MIB),
        },
    )
    assert [(r.name, r.calls, r.growths, r.linear // 65536, r.failure) for r in rows] == [
        ("default", 20, 3, 444, None),
        ("exact", 20, 11, 417, None),
        ("linear", 20, 1, 768, None),
        ("at once", 20, 0, 1024, None),
    ]
    assert {r.peak for r in rows} == {20 * (MIB + 8)}
    assert rows[0].slack == 444 * 65536 - 20 * (MIB + 8)


def test_a_free_goes_to_what_this_heap_returned() -> None:
    calls = [(TENSOR, 8 * MIB), (MALLOC, 100), (FREE, 0), (TENSOR, 8 * MIB - 256), (FREE, 1), (FREE, 2)]
    row = one(made(calls), maximum=16 * MIB)
    assert (row.calls, row.failure, row.growths) == (6, None, 0)
    assert row.peak == BLOCK + 104


@pytest.mark.parametrize(
    ("changes", "limit", "limit_bytes"),
    [
        ({"maximum": 24 * MIB}, "maximum", 24 * MIB),
        ({"memory_maximum": 24 * MIB}, "engine", 24 * MIB),
        ({"maximum": 24 * MIB, "memory_maximum": 32 * MIB}, "maximum", 24 * MIB),
    ],
)
def test_the_call_that_fails_ends_the_row(changes: dict[str, int], limit: str, limit_bytes: int) -> None:
    row = one(made([*TENSORS, (FREE, 0)]), **changes)
    failure = row.failure
    assert failure is not None
    assert (row.calls, failure.call, failure.op, failure.size) == (2, 2, "memalign(64)", 8 * MIB)
    assert (failure.used, row.peak) == (2 * BLOCK, 2 * BLOCK)
    assert (failure.limit, failure.limit_bytes, failure.recorded) == (limit, limit_bytes, False)
    assert failure.linear == row.linear <= limit_bytes


def test_a_call_that_failed_in_the_recording_is_said_to_have() -> None:
    row = one(made(TENSORS, failed=2), maximum=24 * MIB)
    assert row.failure is not None
    assert row.failure.recorded


def test_more_memory_lets_a_recorded_failure_succeed() -> None:
    assert one(made(TENSORS, failed=2)).failure is None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"maximum": 4 * MIB}, "maximum 4194304 must be at least heap_base"),
        ({"initial": 32 * MIB, "maximum": 16 * MIB}, "at most maximum 16777216"),
        (
            {"heap_base": 97 * 65536 - 4096, "maximum": 97 * 65536},
            "it cannot hold what was in use when the recording began",
        ),
    ],
)
def test_a_policy_that_cannot_hold_the_start(changes: dict[str, int], why: str) -> None:
    row = one(made(TENSORS, USED), **changes)
    assert why in row.refused
    assert (row.calls, row.peak, row.linear, row.growths, row.failure) == (0, 0, 0, 0, None)


def test_a_start_in_use_counts_as_in_use() -> None:
    new, used = (one(made([(MALLOC, 100)], start)).peak for start in (NEW, USED))
    assert used - new == 16 + 5976


def test_a_start_that_no_new_heap_has() -> None:
    with pytest.raises(InvalidTraceError, match="begins with break 6311944"):
        one(made(TENSORS, dataclasses.replace(USED, brk=USED.brk + 8)))


def test_the_heap_may_begin_elsewhere() -> None:
    assert one(made(TENSORS, USED), heap_base=8192).linear < one(made(TENSORS, USED)).linear


def test_a_recording_may_bring_its_policy() -> None:
    recording = made(TENSORS, policy={"maximum": 24 * MIB, "geometric_step": 0.0})
    assert as_recorded(recording) == {AS_RECORDED: HeapPolicy(initial=16 * MIB, maximum=24 * MIB, geometric_step=0.0)}
    (row,) = whatif(recording, as_recorded(recording))
    assert row.failure is not None
    assert row.failure.call == 2
    limited = dataclasses.replace(recording, engine_limit=20 * MIB + 5)
    assert as_recorded(limited)[AS_RECORDED].engine_limit == 20 * MIB


@pytest.mark.parametrize("policy", [{"limit": 3}, {"maximum": 1}, {"maximum": "much"}, ["maximum"], {"maximum": 3e7}])
def test_a_policy_that_is_none_is_an_error_of_the_recording(policy: Any) -> None:
    with pytest.raises(InvalidTraceError, match=r"made: no heap is as its meta\.start and policy say"):
        as_recorded(made(TENSORS, policy=policy))


@pytest.mark.parametrize(
    ("memory", "limit"), [(0, None), ("16 MiB", None), (1 << 33, None), (16 * MIB, 8 * MIB), (16 * MIB, "8 MiB")]
)
def test_a_start_that_no_heap_can_have(memory: Any, limit: Any) -> None:
    recording = made(TENSORS, dataclasses.replace(NEW, memory=memory))
    with pytest.raises(InvalidTraceError, match="no heap is as its"):
        as_recorded(dataclasses.replace(recording, engine_limit=limit))


def test_a_row_as_json() -> None:
    found = one(made(TENSORS), maximum=24 * MIB).to_dict()
    assert found["policy"]["maximum"] == 24 * MIB
    assert found["failure"]["limit"] == "maximum"
    assert found["slack"] == found["linear"] - found["peak"]


def recorded(name: str) -> Trace:
    return trace.load(shared_path("traces", f"{name}.npz"))


@pytest.mark.parametrize("name", ["session-11", "tensor-11", "large-11"])
def test_as_recorded_every_recording_ends_as_it_did(name: str) -> None:
    recording = recorded(name)
    own, named = whatif(recording, {**as_recorded(recording), "web": PRESETS["onnxruntime-web"].policy})
    assert (own.calls, own.failure, own.linear) == (len(recording.op), None, recording.memory[-1])
    growths = sum(a != b for a, b in zip([16 * MIB, *recording.memory], recording.memory, strict=False))
    assert own.growths == growths
    assert dataclasses.replace(named, name=own.name, policy=own.policy) == own


@pytest.mark.parametrize("name", ["oom-11", "growfail-11", "corner-11"])
def test_as_recorded_the_first_failure_is_the_recorded_one(name: str) -> None:
    recording = recorded(name)
    first = next(
        c for c, (op, ptr) in enumerate(zip(recording.op, recording.ptr, strict=True)) if op != FREE and not ptr
    )
    (row,) = whatif(recording, as_recorded(recording))
    assert row.failure is not None
    assert (row.failure.call, row.failure.recorded) == (first, True)
    assert row.failure.limit == ("engine" if name == "growfail-11" else "maximum")


def test_a_phones_limits_on_a_real_recording() -> None:
    recording = recorded("large-11")
    rows = whatif(recording, {name: PRESETS[name].policy for name in ("1GiB", "ios-like", "ios-like-512MiB", "exact")})
    assert [(r.failure.call, r.failure.limit) if r.failure else None for r in rows] == [
        (953, "maximum"),
        (793, "engine"),
        (87, "engine"),
        None,
    ]
    assert [r.growths for r in rows] == [12, 12, 8, 26]
