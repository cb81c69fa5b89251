"""Recordings of an allocator's answers, and their replay against another.

A recording is an ``.npz`` of parallel arrays, one entry a call: ``op`` (0 malloc, 1 free, 2 memalign(64),
4+k memalign(2**k)), ``arg`` (the size; for free the number of the allocation, failed ones count), ``ptr`` (the
address returned or freed), ``memory`` and possibly ``brk`` (bytes after the call), and ``meta`` (JSON).
"""

from __future__ import annotations

import ctypes
import json
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from . import heap_layout
from .engine import PAGE, Instance
from .errors import InvalidTraceError
from .heap_log import FREE, MALLOC, TENSOR, TENSOR_ALIGNMENT
from .heap_policy import HeapPolicy

ALIGNED = 4
# These two requests bring an empty heap to the state in which the other recordings begin.
START_REQUESTS = (8, 5972)


class HeapCalls(Protocol):
    """What a replay needs of a heap. Addresses and sizes are unsigned; 0 is a failed allocation."""

    def malloc(self, size: int, /) -> int: ...
    def memalign(self, alignment: int, size: int, /) -> int: ...
    def free(self, pointer: int, /) -> object: ...
    def memory_size(self) -> int: ...
    def brk(self) -> int: ...


@dataclass(frozen=True)
class Start:
    """The heap in which a recording begins; ``top`` is None where nothing has been allocated."""

    top: int | None
    top_size: int
    brk: int
    memory: int


@dataclass(frozen=True)
class Trace:
    """One recording."""

    name: str
    op: list[int]
    arg: list[int]
    ptr: list[int]
    memory: list[int]
    brk: list[int] | None
    start: Start
    engine_limit: int | None
    meta: dict[str, Any]


@dataclass(frozen=True)
class Difference:
    """The call whose answer was not the recorded one: (address, memory, break) of both."""

    call: int
    op: str
    arg: int
    expected: tuple[int, int, int | None]
    got: tuple[int, int, int | None]


@dataclass(frozen=True)
class Replay:
    """What came of a replay. ``calls`` is how many were made."""

    name: str
    calls: int
    differences: int
    first: Difference | None


class ModuleHeap:
    """A heap of the module as the recorded one was when its recording began, apart from `START_REQUESTS`.

    Limits and growth are those of the recording (`recorded_policy`), or of ``policy``, which must be valid.
    """

    def __init__(self, trace: Trace, policy: HeapPolicy | None = None) -> None:
        policy = recorded_policy(trace) if policy is None else policy
        instance = self._instance = Instance(*policy.pages)
        instance.bind("heap_init", "iidii", result=False)(
            policy.heap_base, policy.limit, policy.geometric_step, policy.geometric_cap, policy.linear_step
        )
        self.malloc = instance.bind("malloc", "i")
        self.memalign = instance.bind("memalign", "ii")
        self.free = instance.bind("free", "i")
        self.check = instance.bind("heap_check")
        """0 where every invariant holds, else a code of `heap_layout.CHECK_CODES`."""
        self.memory_size = instance.memory_size
        self._state = (ctypes.c_uint32 * (heap_layout.STATE_END // 4)).from_address(instance.address)

    def word(self, address: int) -> int:
        """A word of the heap's state, by its address in `heap_layout`."""
        return self._state[address // 4]

    def brk(self) -> int:
        """The end of what the heap has asked for; before the first call, where it will begin."""
        return self.word(heap_layout.BRK)

    def inject(self, what: str) -> None:
        """Let the next call fail: the "allocation" itself, or the "growth" that it asks for."""
        self._state[(heap_layout.FAIL_AT if what == "allocation" else heap_layout.FAIL_GROWTH) // 4] = 1

    def close(self) -> None:
        """Give the memory back."""
        del self._state
        self._instance.close()


def recorded_policy(trace: Trace) -> HeapPolicy:
    """Limits and growth of the recorded heap: ``meta["policy"]`` (fields of `HeapPolicy`), else onnxruntime-web's.

    Its first size is that of the recording's start, and ``engine_limit`` is the engine's limit. Raises
    InvalidTraceError where that is no policy that a heap can have.
    """
    try:
        policy = HeapPolicy(**{**trace.meta.get("policy", {}), "initial": trace.start.memory})
        if trace.engine_limit is not None:
            policy = policy.with_(memory_maximum=trace.engine_limit // PAGE * PAGE)
        policy.validate()
    except (TypeError, ValueError) as error:
        raise InvalidTraceError(f"{trace.name}: no heap is as its meta.start and policy say: {error}") from None
    return policy


def load(path: str | Path) -> Trace:
    """Read a recording. Raises InvalidTraceError for what is none; OSError for no such file."""
    path = Path(path)
    path.stat()
    if not zipfile.is_zipfile(path):
        raise InvalidTraceError(f"{path}: not a recording of an allocator, which is an .npz file")
    try:
        with np.load(path) as arrays:
            meta = json.loads(str(arrays["meta"]))
            columns = {k: _column(k, arrays[k]) for k in ("op", "arg", "ptr", "memory")}
            brk = _column("brk", arrays["brk"]) if "brk" in arrays else None
        start = Start(**{k: meta["start"][k] for k in ("top", "top_size", "brk", "memory")})
    except (
        *(KeyError, ValueError, TypeError, AttributeError, EOFError, NotImplementedError, RecursionError, RuntimeError),
        *(zipfile.BadZipFile, zlib.error, MemoryError),
    ) as error:
        reason = f"missing {error}" if isinstance(error, KeyError) else error
        raise InvalidTraceError(f"{path}: not a recording of an allocator: {reason}") from None
    if not _is_injected(meta.get("injected", {})):
        raise InvalidTraceError(f"{path}: meta.injected must map 'allocation' and 'growth' to numbers of calls")
    trace = Trace(path.name, **columns, brk=brk, start=start, engine_limit=meta.get("engine_limit"), meta=meta)
    _check(trace, path)
    return trace


def _column(name: str, array: Any) -> list[int]:
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"{name} is {array.dtype}{list(array.shape)}, must be one dimension of integers")
    values: list[int] = array.tolist()
    return values


def _is_injected(found: Any) -> bool:
    if not isinstance(found, dict) or not found.keys() <= {"allocation", "growth"}:
        return False
    return all(isinstance(calls, list) and all(type(c) is int for c in calls) for calls in found.values())


def _check(trace: Trace, path: Path) -> None:
    lengths = {len(c) for c in (trace.op, trace.arg, trace.ptr, trace.memory, trace.brk or trace.op)}
    if len(lengths) != 1:
        raise InvalidTraceError(f"{path}: its columns have different lengths {sorted(lengths)}")
    allocations = 0
    if trace.arg and not 0 <= min(trace.arg) <= max(trace.arg) < 1 << 32:
        raise InvalidTraceError(f"{path}: sizes must lie in [0, 4 GiB)")
    for call, (op, arg) in enumerate(zip(trace.op, trace.arg, strict=True)):
        if op not in (MALLOC, FREE, TENSOR) and not ALIGNED <= op < ALIGNED + 32:
            raise InvalidTraceError(f"{path}: call {call} has the unknown operation {op}")
        if op == FREE and not 0 <= arg < allocations:
            raise InvalidTraceError(f"{path}: call {call} frees allocation {arg} of {allocations} made before it")
        allocations += op != FREE


def begin(trace: Trace, heap: HeapCalls) -> bool:
    """Bring a new heap to the state in which the recording begins; False where the heap cannot hold that."""
    return trace.start.top is None or all(heap.malloc(size) for size in START_REQUESTS)


def replay(trace: Trace, heap: HeapCalls, *, stop: bool = False) -> Replay:
    """Make the calls of a recording in an empty heap, and compare every answer.

    With ``stop`` the first difference ends it. Differing addresses are kept: a later free
    frees what this heap returned. Raises InvalidTraceError for a heap that is not as the recorded one was at its start.
    """
    begin(trace, heap)
    if (heap.brk(), heap.memory_size()) != (trace.start.brk, trace.start.memory):
        raise InvalidTraceError(
            f"{trace.name} begins with break {trace.start.brk} and {trace.start.memory} bytes of memory, "
            f"this heap has {heap.brk()} and {heap.memory_size()}"
        )
    breaks: list[int] | list[None] = trace.brk or [None] * len(trace.op)
    blocks: list[int] = []
    differences = calls = 0
    first: Difference | None = None
    injected = injections(trace)
    for op, arg, ptr, memory, brk in zip(trace.op, trace.arg, trace.ptr, trace.memory, breaks, strict=True):
        if calls in injected and isinstance(heap, ModuleHeap):
            heap.inject(injected[calls])
        if op == FREE:
            address = blocks[arg]
            heap.free(address)
        else:
            if op == MALLOC:
                address = heap.malloc(arg)
            else:
                address = heap.memalign(TENSOR_ALIGNMENT if op == TENSOR else 1 << (op - ALIGNED), arg)
            blocks.append(address)
        got = (address, heap.memory_size(), None if brk is None else heap.brk())
        if got != (ptr, memory, brk):
            differences += 1
            first = first or Difference(calls, operation(op), arg, (ptr, memory, brk), got)
        calls += 1
        if first and stop:
            break
    return Replay(trace.name, calls, differences, first)


def injections(trace: Trace) -> dict[int, str]:
    """The calls that a test has made fail, and by what: "allocation" or "growth" (``meta["injected"]``)."""
    found = trace.meta.get("injected", {})
    return {int(call): what for what, calls in found.items() for call in calls}


def operation(op: int) -> str:
    """What a recording's number of an operation stands for."""
    if op < ALIGNED:
        return ("malloc", "free", f"memalign({TENSOR_ALIGNMENT})")[op]
    return f"memalign({1 << (op - ALIGNED)})"
