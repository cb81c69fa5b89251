"""Who listens to a heap: a bounded log of events, and a recording of every call for a replay."""

from __future__ import annotations

import json
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from .heap_events import EventKind, HeapEvent

# The operations of recordings (docs/recordings.md).
MALLOC, FREE, TENSOR = 0, 1, 2
TENSOR_ALIGNMENT = 64


class EventLog:
    """The latest events of a heap, at most ``limit`` of them (all, where it is None)."""

    def __init__(self, limit: int | None) -> None:
        self.events: deque[HeapEvent] = deque(maxlen=limit)
        self._began = time.perf_counter()

    def add(self, kind: EventKind, address: int, nbytes: int, used: int, linear: int, **about: str) -> None:
        """Enter what has just happened."""
        self.events.append(HeapEvent(kind, time.perf_counter() - self._began, address, nbytes, used, linear, **about))


class Recorder:
    """Every call of the allocator since the heap was new, in the format of recordings."""

    def __init__(self, start: dict[str, int | None], policy: dict[str, Any]) -> None:
        self._start = start
        self._policy = policy
        # One append a call, which no interrupt can tear.
        self._rows: list[tuple[int, int, int, int, int]] = []
        self._numbers: dict[int, int] = {}
        self._allocations = 0
        self._injected: dict[str, list[int]] = {}

    def allocated(self, op: int, size: int, address: int, memory: int, brk: int, *, injected: str = "") -> None:
        """An allocation of ``size`` bytes, answered with ``address``, or with 0; ``injected`` is "allocation" or
        "growth" where a test has made it fail."""
        if address:
            self._numbers[address] = self._allocations
        if injected:
            self._injected.setdefault(injected, []).append(len(self._rows))
        self._allocations += 1
        self._rows.append((op, size, address, memory, brk))

    def freed(self, address: int, memory: int, brk: int) -> None:
        """The block at ``address`` was given back."""
        self._rows.append((FREE, self._numbers.pop(address), address, memory, brk))

    def __len__(self) -> int:
        return len(self._rows)

    def save(self, path: Path, about: dict[str, Any]) -> None:
        """Write an ``.npz``; OSError where it cannot be written."""
        names = ("op", "arg", "ptr", "memory", "brk")
        columns = dict(zip(names, np.array(self._rows, np.uint32).reshape(-1, len(names)).T, strict=True))
        columns["op"] = columns["op"].astype(np.uint8)
        meta = {**about, "start": self._start, "policy": self._policy}
        if self._injected:
            meta["injected"] = self._injected
        with path.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, meta=json.dumps(meta, default=str), **columns)
