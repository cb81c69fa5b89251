"""What one can ask of a heap: its state, its verdicts, a log and a recording of what happens, failures on purpose.

The part of `Runtime` that looks on; `heap` has the part that allocates.
"""

from __future__ import annotations

import operator
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import heap_layout as layout
from .allocator import DEFAULT_EVENTS, Allocator
from .blocks import Block, Tag, call_site
from .engine import Instance
from .env import MAXIMUM
from .errors import HeapCorruptionError, HeapMemoryError, HeapPointerError
from .gate import Gate, gated
from .heap_events import HeapEvent
from .heap_policy import HeapPolicy
from .heap_view import HeapView
from .memory_info import MemoryInfo
from .verdicts import BlockInfo, LeakReport, SessionInfo, Snapshot, leak_report, table
from .words import counted, noun

_WHOLE = "what the whole job needs: `onnx-wasm heap map MODEL`, or `onnx-wasm heap whatif` of a recording"


class Laboratory(ABC):
    """A runtime's heap, looked at."""

    policy: HeapPolicy
    trace_allocations: bool
    _allocator: Allocator
    _arena: Block | None
    _blocks: dict[int, Block]
    _bytes: NDArray[np.uint8]
    _check: Callable[[], int]
    _ends: threading.RLock
    _failing: bool
    _forgotten: deque[BlockInfo | SessionInfo]
    _gate: Gate
    _instance: Instance
    _sessions: Any
    _stats: Callable[[], int]
    _words: NDArray[np.uint32]

    @property
    @abstractmethod
    def closed(self) -> bool: ...

    @abstractmethod
    def _adopt(self, address: int, nbytes: int, tag: Tag, owner: str, session: str = "") -> Block: ...

    @abstractmethod
    def _check_open(self) -> None: ...

    @abstractmethod
    def _drain(self) -> None: ...

    @abstractmethod
    def _release(self, block: Block) -> None: ...

    # As a page allocates

    @gated
    def malloc(self, nbytes: int) -> int:
        """The address of a block as the page's own ``_malloc`` gives it: 8-aligned, not a tensor's.

        Raises HeapMemoryError where ``_malloc`` answers 0, ValueError for a negative size.
        """
        self._check_open()
        nbytes = operator.index(nbytes)
        if nbytes < 0:
            raise ValueError(f"a block of {nbytes} bytes: sizes are 0 and more")
        address = self._allocator.malloc(nbytes, "user", "malloc")
        if not address:
            raise self._out_of_memory(nbytes, "malloc")
        self._adopt(address, nbytes, "user", "malloc").pointer = True
        return address

    @gated
    def free(self, address: int) -> None:
        """Give back what `malloc` gave; 0 is ignored, as in C.

        Raises HeapPointerError for an address that is no block's or no longer (the page's ``_free`` would take it, and
        corrupt the heap), and for a block that a tensor or session owns; in a debug heap HeapCorruptionError for one
        that was written past, which is given back all the same.
        """
        self._check_open()
        block = self._blocks.get(address)
        if not address:
            return
        if block is None or not block.pointer:
            site = call_site() if self.trace_allocations else ""
            if block is not None:
                raise HeapPointerError(f"free of {address:#x}: {block!r} is not malloc's; dispose of its owner")
            if self._allocator.debug is not None:
                self._allocator.debug.refuse(address, site)
            raise HeapPointerError(
                f"free of {address:#x}: no block begins there. It was freed before, or never allocated; "
                "Runtime(debug=True) tells which, and where"
            )
        self._release(block)
        self._report_faults()

    def _report_faults(self) -> None:
        """Raise HeapCorruptionError for what a debug heap has found while blocks were freed."""
        if self._allocator.debug is not None:
            self._allocator.debug.report()

    # State

    @gated
    def memory(self) -> MemoryInfo:
        """The heap's state now, by a walk through it."""
        self._drain()
        return self._memory()

    def _memory(self) -> MemoryInfo:
        self._check_open()
        self._stats()
        by_tag: Counter[str] = Counter()
        tensors = 0
        for block in list(self._blocks.values()):
            by_tag[block.tag] += block.nbytes
            tensors += bool(block._holders)
        return MemoryInfo(
            linear=self._instance.memory_size(),
            maximum=min(self.policy.limit, self.policy.engine_limit),
            used=self._allocator.used(),
            free=self._allocator.word(layout.WALK_FREE),
            peak=self._allocator.peak(),
            largest_free=self._allocator.word(layout.WALK_LARGEST_FREE),
            blocks=self._allocator.blocks(),
            growths=self._allocator.growths(),
            growth_count=self._allocator.word(layout.GROWTHS),
            tensors=tensors,
            sessions=len(self._sessions),
            by_tag=dict(by_tag),
            quarantine=0 if self._allocator.debug is None else self._allocator.debug.waiting,
        )

    @property
    def linear(self) -> int:
        """Bytes of linear memory now; 0 once closed."""
        return 0 if self.closed else self._instance.memory_size()

    @property
    def allocations(self) -> int:
        """How many allocations were asked for so far, those that failed among them, modulo 2^32; 0 once closed."""
        if self.closed:
            return 0
        return (self._allocator.word(layout.ALLOCATIONS) + self._allocator.word(layout.FAILURES)) & 0xFFFFFFFF

    @gated
    def blocks(self) -> list[Block]:
        """The blocks in the ledger, by address."""
        return sorted(self._blocks.values(), key=lambda b: b.address)

    @gated
    def heap_view(self, dtype: str | np.dtype[Any] | type[Any], *, shared: bool = True) -> HeapView:
        """A typed array over all of memory as a page has it, which growth leaves behind; with ``shared`` False as over
        unshared memory, which growth detaches. ``dtype`` is ONNX's name, numpy's type, or the page's ("HEAPF32")."""
        self._check_open()
        return HeapView(self._bytes, self._linear, self._ends, dtype, shared=shared)

    def _linear(self) -> int:
        self._check_open()
        return self._instance.memory_size()

    @gated
    def heap_check(self) -> None:
        """Walk the heap and check every invariant; in a debug heap all guards, and what is in quarantine, too.

        Raises HeapCorruptionError with the bad chunk's address, or what was written where.
        """
        self._check_open()
        self._check_all()

    def _check_all(self) -> None:
        code = self._check()
        if code:
            where = self._allocator.word(layout.BAD_CHUNK)
            raise HeapCorruptionError(f"chunk at {where:#x}: {layout.CHECK_CODES[code]}")
        if self._allocator.debug is not None:
            outlived = [(b.address, b.dropped, b.views) for b in self._blocks.values() if b.dropped]
            self._allocator.debug.check(outlived)

    # Watching

    @gated
    def snapshot(self) -> Snapshot:
        """What lives now: for `leaks`, and for `Snapshot.diff`."""
        self._drain()
        return self._snapshot()

    def _snapshot(self) -> Snapshot:
        blocks = sorted(self._blocks.values(), key=lambda b: b.address)
        sessions = sorted((s.info() for s in list(self._sessions)), key=lambda i: i.number)
        found = tuple(map(BlockInfo.of, blocks))
        return Snapshot(self._memory(), found, tuple(sessions), id(self), self.policy.heap_base)

    @gated
    def leaks(self, since: Snapshot | None = None) -> LeakReport:
        """What lives that did not at a snapshot (or at all), by owner; false where nothing has leaked.

        Raises ValueError for a snapshot of another runtime.
        """
        if since is not None and not isinstance(since, Snapshot):
            raise TypeError(f"since must be a Snapshot, got {type(since).__name__}")
        self._drain()
        return self._leaks(since)

    def _leaks(self, since: Snapshot | None) -> LeakReport:
        held = {b.serial for s in list(self._sessions) for b in s._blocks()}
        if self._arena is not None:
            held.add(self._arena.serial)
        return leak_report(self._snapshot(), since, held)

    @property
    def forgotten(self) -> tuple[BlockInfo | SessionInfo, ...]:
        """Tensors and sessions that nobody disposed of before Python collected them, the latest 256, oldest first.

        Their memory has been given back, or will be when the views of it are gone. In a page nothing collects what lies
        in WebAssembly memory.
        """
        return tuple(self._forgotten)

    @gated
    def start_events(self, limit: int | None = DEFAULT_EVENTS) -> None:
        """Keep the latest ``limit`` events of the heap from now on; None: all of them."""
        self._check_open()
        if limit is not None and not 1 <= operator.index(limit) <= sys.maxsize:
            raise ValueError(f"a log of {limit} events; at least 1, at most {sys.maxsize}")
        self._allocator.log(limit)

    @gated
    def stop_events(self) -> list[HeapEvent]:
        """The events that were kept; no more are."""
        self._check_open()
        events = self._allocator.events()
        self._allocator.stop_log()
        return events

    @property
    def events(self) -> list[HeapEvent]:
        """The events that are kept, oldest first."""
        return self._allocator.events()

    @property
    def logs_events(self) -> bool:
        """Whether a log of events is kept."""
        return self._allocator.logs

    @property
    def watched(self) -> bool:
        """Whether a debug heap, a log or a recorder sees every single allocation."""
        return self._allocator.watched

    @gated
    def save_recording(self, path: str | os.PathLike[str], /, **about: Any) -> int:
        """Write every call of the allocator so far in the format of recordings (docs/recordings.md), for
        `onnx-wasm heap replay` and `whatif`; how many there are. ``about`` goes into the file's ``meta``.

        Raises ValueError unless the runtime was made with ``record=True``, OSError where the file cannot be written.
        """
        self._check_open()
        recorder = self._allocator.recorder
        if recorder is None:
            raise ValueError("nothing was recorded: make the runtime with record=True")
        recorder.save(Path(path), about)
        return len(recorder)

    @gated
    def reset_peak(self) -> None:
        """Let `MemoryInfo.peak` begin anew, from the bytes in use now."""
        self._drain()
        self._check_open()
        self._allocator.reset_peak()

    @gated
    def fail_allocation(self, nth: int) -> int:
        """Let the nth allocation from now fail as if memory were full (1: the next; 0: none).

        Returns how many allocations were left of an earlier call: 0 where its failure has come.
        """
        return self._replace(layout.FAIL_AT, nth)

    def _replace(self, address: int, nth: int) -> int:
        self._check_open()
        nth = operator.index(nth)
        if not 0 <= nth < 0xFFFFFFFF:
            raise ValueError(f"nth {nth} must lie in [0, {0xFFFFFFFF})")
        before = self._allocator.word(address)
        self._words[address // 4] = nth
        return before

    @gated
    def fail_growth(self, nth: int) -> int:
        """Let the nth growth of the memory from now be refused, as by an engine that has no more (1: the next; 0:
        none); the allocation that asked for it fails. Returns what was left, as `fail_allocation` does."""
        return self._replace(layout.FAIL_GROWTH, nth)

    # Out of memory, and what is left

    def _out_of_memory(self, nbytes: int, what: str, running: Mapping[str, int] | None = None) -> HeapMemoryError:
        """The error for a request that the heap could not serve; ``running`` are bytes that a run holds, by owner."""
        holders: Counter[str] = Counter(running or {})
        for block in self._blocks.values():
            holders[f"{block.tag} of {block.owner}" if block.owner else block.tag] += block.nbytes
        biggest = ", ".join(f"{name} {size:,}" for name, size in holders.most_common(3))
        remedy = self._remedy(nbytes)
        self._allocator.failed()
        error = HeapMemoryError(
            f"the heap cannot hold {counted(nbytes, 'byte')} for {what}: {self._memory()}."
            f"{biggest and f' Biggest holders: {biggest}.'} {remedy}"
        )
        lines = [f"  {size:12,} {noun(size, 'byte'):5} of a run: {name}" for name, size in (running or {}).items()]
        error.held = "\n".join([*lines, *table(map(BlockInfo.of, self._blocks.values()))])
        return error

    def _remedy(self, nbytes: int) -> str:
        """What would have been enough for a request of ``nbytes``."""
        policy = self.policy
        enough = self._allocator.enough(nbytes)
        # The engine is asked for some more than is needed, at the least for this.
        asked = policy.smallest_growth(self._instance.memory_size(), enough)
        needs = {"maximum": enough, "memory_maximum": asked}
        limits = {"maximum": policy.limit, "memory_maximum": policy.engine_limit}
        if policy.memory_maximum is None:
            del limits["memory_maximum"]
        binding = [name for name, limit in limits.items() if limit < needs[name]]
        if not binding:
            return (
                f"There was room below the limit of {min(limits.values()):,}: the failure was asked for "
                f"(fail_allocation, fail_growth), or the engine refused to grow the memory"
            )
        dispose = "dispose of tensors and sessions that are done"
        if enough > MAXIMUM:
            return f"It would take a memory of {enough:,} bytes, and 32-bit addresses end at 4 GiB: {dispose}"
        wanted = " and ".join(f"a {name} of {needs[name]:,} bytes" for name in binding)
        return f"For this request, {wanted} would have been enough ({_WHOLE}); else {dispose}"

    def _leak_warning(self, when: str) -> str:
        """What a ResourceWarning says of tensors and sessions that are left, or nothing. The gate must be held."""
        report = self._leaks(None)
        if not report or self._failing:
            return ""
        names = [f"session {s.name}{f', created at {s.site}' if s.site else ''}" for s in report.sessions]
        serials = {b.serial for b in report.tensors}
        names += [repr(b) for b in self._blocks.values() if b.serial in serials]
        shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if names[8:] else "")
        return f"never disposed {when}: {shown}"
