"""Who listens to a heap: a bounded log of events, and a recording of every call for a replay."""

from __future__ import annotations

import json
import time
from array import array
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from .heap_events import EventKind, HeapEvent

# The operations of recordings (docs/recordings.md).
MALLOC, FREE, TENSOR = 0, 1, 2


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
        self._columns = {name: array("L") for name in ("op", "arg", "ptr", "memory", "brk")}
        self._numbers: dict[int, int] = {}
        self._allocations = 0

    def allocated(self, op: int, size: int, address: int, memory: int, brk: int) -> None:
        """An allocation of ``size`` bytes, answered with ``address``, or with 0."""
        if address:
            self._numbers[address] = self._allocations
        self._allocations += 1
        self._add(op, size, address, memory, brk)

    def freed(self, address: int, memory: int, brk: int) -> None:
        """The block at ``address`` was given back."""
        self._add(FREE, self._numbers.pop(address), address, memory, brk)

    def _add(self, *row: int) -> None:
        for column, value in zip(self._columns.values(), row, strict=True):
            column.append(value)

    def __len__(self) -> int:
        return len(self._columns["op"])

    def save(self, path: Path, about: dict[str, Any]) -> None:
        """Write an ``.npz``; OSError where it cannot be written."""
        kinds = {"op": np.uint8}
        columns = {n: np.array(c, kinds.get(n, np.uint32)) for n, c in self._columns.items()}
        meta = {**about, "start": self._start, "policy": self._policy}
        np.savez_compressed(path, allow_pickle=False, meta=json.dumps(meta), **columns)
