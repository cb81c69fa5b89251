"""The module's allocator as the host calls it, and those who watch it: debug heap, event log, recorder."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import heap_layout as layout
from .blocks import Block, call_site
from .debug_heap import DebugHeap, padded
from .engine import PAGE, Instance
from .heap_events import EventKind, HeapEvent
from .heap_log import MALLOC, TENSOR, TENSOR_ALIGNMENT, EventLog, Recorder
from .memory_info import Growth

DEFAULT_EVENTS = 65536
# Of wasm/_chunk.wat.j2: bytes of a chunk in use that are not the block's, bytes kept behind top, and the unit in which
# the heap asks for more.
_OVERHEAD, _FOOT, _UNIT = 4, 40, 4096


class Allocator:
    """Blocks of one linear memory. Addresses are unsigned, 0 is a failure. The owner holds a lock around every call."""

    def __init__(self, instance: Instance, memory: NDArray[np.uint8], *, quarantine: int | None, trace: bool) -> None:
        self._aligned_new = instance.bind("aligned_new", "ii")
        self._malloc = instance.bind("malloc", "i")
        self._free = instance.bind("free", "i")
        self._usable_size = instance.bind("usable_size", "i")
        self._linear = instance.memory_size
        self._words: NDArray[np.uint32] = memory.view(np.uint32)
        self._trace = trace
        self._logged_growths = 0
        self._noncontiguous = False
        self._injected = ""
        """What a test has made the last allocation fail by."""
        self._events: EventLog | None = None
        self._recorder: Recorder | None = None
        self._debug_peak = 0
        self.debug: DebugHeap | None = None
        """Set where blocks have guards and freed ones wait."""
        if quarantine is not None:
            self.debug = DebugHeap(memory, self._free_chunk, self._chunk_size, quarantine)
        self.watched = self.debug is not None
        """Whether somebody wants to see every single allocation."""

    def word(self, address: int) -> int:
        """A word of the heap's state (`heap_layout`)."""
        return int(self._words[address // 4])

    def used(self) -> int:
        """Bytes of blocks in use, headers and padding included."""
        return self.word(layout.USED) - (0 if self.debug is None else self.debug.waiting)

    def blocks(self) -> int:
        """Number of blocks in use."""
        return self.word(layout.BLOCKS) - (0 if self.debug is None else len(self.debug.quarantine))

    def peak(self) -> int:
        """The most that `used` has been; the module's own count has blocks in quarantine in it."""
        return self.word(layout.PEAK) if self.debug is None else self._debug_peak

    def reset_peak(self) -> None:
        """Let `peak` begin anew, from what is in use now."""
        self._words[layout.PEAK // 4] = self._words[layout.USED // 4]
        self._debug_peak = self.used()

    def growths(self) -> tuple[Growth, ...]:
        """The last 256 growths, oldest first."""
        count, size = self.word(layout.GROWTHS), layout.GROWTH_BYTES // 4
        log = self._words[layout.GROWTH_LOG // 4 :][: layout.GROWTH_ENTRIES * size].reshape(-1, size)
        kept = range(max(0, count - layout.GROWTH_ENTRIES), count)
        return tuple(Growth(*log[i % layout.GROWTH_ENTRIES].tolist()) for i in kept)

    def enough(self, nbytes: int) -> int:
        """The size of linear memory at which the block, as ORT allocates a tensor, would have fitted, that has just
        failed."""
        size = nbytes if self.debug is None else padded(nbytes)
        rounded = -(-max(size, 1) // TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT
        # The chunk that memalign asks for, and what extend_top asks the system for (wasm/heap.wat.j2).
        chunk = _chunk(_chunk(rounded) + TENSOR_ALIGNMENT + 12)
        # A first failure makes all later asks larger, but was not larger itself.
        missing = chunk if self._noncontiguous else chunk - self.word(layout.TOP_SIZE)
        ask = -(-(max(missing, 0) + _FOOT + 8) // _UNIT) * _UNIT
        return -(-(self.word(layout.BRK) + ask) // PAGE) * PAGE

    def failed(self) -> None:
        """A failure has been told: `enough` is about later ones from now on."""
        self._noncontiguous = bool(self.word(layout.NONCONTIGUOUS))

    # Calls

    def take(self, nbytes: int, tag: str, owner: str, session: str = "", node: str = "", site: str = "") -> int:
        """A 64-aligned block as ORT allocates a tensor, or 0. ``site`` is where it was asked for, if known already."""
        if not self.watched:
            return self._aligned_new(TENSOR_ALIGNMENT, nbytes) if nbytes < 1 << 32 else 0
        return self._take_watched(TENSOR, nbytes, tag=tag, owner=owner, session=session, node=node, site=site)

    def malloc(self, nbytes: int, tag: str, owner: str) -> int:
        """A block as C's malloc gives it, or 0."""
        if not self.watched:
            return self._malloc(nbytes) if nbytes < 1 << 32 else 0
        return self._take_watched(MALLOC, nbytes, tag=tag, owner=owner, session="", node="", site="")

    def give(self, address: int, nbytes: int = 0, *, site: str = "", **about: str) -> int:
        """Give back a block; 1, or HeapPointerError of the debug heap, where it is none. The rest is for the log:
        ``site`` is where that was asked for, if not by the caller."""
        if not self.watched:
            return self._free(address)
        site = site or (call_site() if self._trace else "")
        if self.debug is None:
            failed = self._free_chunk(address)
        else:
            failed = 0
            self.debug.release(address, site)
        if not failed:
            self._log("free", address, nbytes, site=site, **about)
        return failed

    def give_watched(self, block: Block) -> int:
        """`give`, with what a block of the ledger says about itself."""
        about = {"tag": block.tag, "owner": block.owner, "session": block.session}
        return self.give(block.address, block.nbytes, site=block.dropped, **about)

    def _take_watched(self, op: int, nbytes: int, *, tag: str, owner: str, session: str, node: str, site: str) -> int:
        debug, site = self.debug, site or (call_site() if self._trace else "")
        size = nbytes if debug is None else padded(nbytes)
        address = self._ask(op, size)
        if self._recorder is not None:
            # aligned_new rounds up before it asks.
            arg = size if op == MALLOC else -(-max(size, 1) // TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT
            place = address, self._linear(), self.word(layout.BRK)
            self._recorder.allocated(op, min(arg, 0xFFFFFFFF), *place, injected=self._injected)
        if debug is not None and address:
            address = debug.guard(address, nbytes, tag, owner, node, site)
            self._debug_peak = max(self._debug_peak, self.used())
        about = {"tag": tag, "owner": owner, "session": session, "node": node, "site": site}
        self._log_growths(about)
        self._log("alloc" if address else "fail", address, nbytes, **about)
        return address

    def _ask(self, op: int, size: int) -> int:
        """What the allocator answers; where it has nothing, the debug heap gives up its quarantine."""
        failing, refused, before = (self.word(w) for w in (layout.FAIL_AT, layout.FAIL_GROWTH, layout.NONCONTIGUOUS))
        address = self._answer(op, size)
        # A failure that a test has asked for stays one.
        self._injected = ""
        if not address and failing == 1:
            self._injected = "allocation"
        elif not address and refused and not self.word(layout.FAIL_GROWTH):
            self._injected = "growth"
        elif not address and self.debug is not None and self.debug.waiting:
            # As if it had not been asked yet: a failure changes how the heap asks for more.
            self._words[layout.NONCONTIGUOUS // 4] = before
            self.debug.flush()
            address = self._answer(op, size)
        return address

    def _answer(self, op: int, size: int) -> int:
        if size >= 1 << 32:
            return 0
        return self._malloc(size) if op == MALLOC else self._aligned_new(TENSOR_ALIGNMENT, size)

    def _free_chunk(self, address: int) -> int:
        failed = self._free(address)
        if not failed and address and self._recorder is not None:
            self._recorder.freed(address, self._linear(), self.word(layout.BRK))
        return failed

    def _chunk_size(self, address: int) -> int:
        return self._usable_size(address) + _OVERHEAD

    def close(self) -> None:
        """Forget the memory; nothing is kept from now on."""
        del self._words
        self.debug = self._events = self._recorder = None
        self.watched = False

    # Watching

    def record(self, start: dict[str, int | None], policy: dict[str, Any]) -> None:
        """Keep every call from now on; the heap must be new."""
        self._recorder = Recorder(start, policy)
        self.watched = True

    @property
    def recorder(self) -> Recorder | None:
        return self._recorder

    def log(self, limit: int | None) -> None:
        """Keep the latest events from now on."""
        self._events = EventLog(limit)
        self._logged_growths = self.word(layout.GROWTHS)
        self.watched = True

    @property
    def logs(self) -> bool:
        """Whether events are kept."""
        return self._events is not None

    def stop_log(self) -> None:
        """Forget the events, and keep no more."""
        self._events = None
        self.watched = self.debug is not None or self._recorder is not None

    def events(self) -> list[HeapEvent]:
        """The events that are kept, oldest first."""
        return [] if self._events is None else list(self._events.events)

    def _log(self, kind: EventKind, address: int, nbytes: int, **about: str) -> None:
        if self._events is not None:
            self._events.add(kind, address, nbytes, self.used(), self._linear(), **about)

    def _log_growths(self, about: dict[str, str]) -> None:
        count = self.word(layout.GROWTHS)
        if self._events is not None and count > self._logged_growths:
            for growth in self.growths()[self._logged_growths - count :]:
                self._events.add("grow", 0, growth.after, self.used(), growth.after, **about)
            self._logged_growths = count


def _chunk(nbytes: int) -> int:
    return (nbytes + 11) // 8 * 8
