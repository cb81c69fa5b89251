"""The heap as Python sees it: a runtime owns one linear memory and one instance of the module."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import threading
import warnings
import weakref
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import heap_layout as layout
from .allocator import DEFAULT_EVENTS, Allocator
from .blocks import Block, Lease, Tag, call_site, stacklevel
from .debug_heap import DEFAULT_QUARANTINE, CheckedView
from .engine import CANCEL, DETAIL, RUN, STATUS, Instance, Variant
from .env import MAXIMUM, env
from .errors import (
    CancelledError,
    DisposedError,
    HeapCorruptionError,
    HeapMemoryError,
    HeapPointerError,
    LeaseError,
    no_copy,
)
from .gate import Gate, gated
from .heap_events import HeapEvent
from .heap_policy import HeapPolicy, preset
from .heap_view import HeapView
from .memory_info import MemoryInfo
from .process import register
from .verdicts import TENSOR_TAGS, BlockInfo, LeakReport, Snapshot, leak_report
from .workers import MAX_THREADS, Workers

Array = NDArray[Any]


class Runtime:
    """A heap of one's own: one linear memory, one instance of the module.

    ``policy`` is the name of a preset (`heap_policy.PRESETS`) or a HeapPolicy; the seven parameters after it replace
    its fields, sizes in bytes: ``initial`` (16 MiB, or the limit if that is less) and ``maximum`` (4 GiB - 64 KiB) are
    ORT Web's by default; ``memory_maximum`` is the engine's own limit, past which ``memory.grow`` fails although the
    policy would allow it (a phone's browser). Growth is by ``geometric_step`` of the old size, at most
    ``geometric_cap`` over the need, or by ``linear_step`` where that is not -1. ``variant="strict"`` computes the same
    bits on every machine.

    ``threads`` threads, at most 64, share the work of a kernel that has enough of it: the one that calls `run`, and
    others, which the first run starts. The results are the same bytes whatever their number.

    With ``trace_allocations`` every block knows the Python line that made it. ``debug`` is the debug heap
    (`debug_heap`), with up to ``quarantine`` bytes of freed blocks; it traces allocations too. ``log_events`` keeps
    the latest 65,536 events, or as many as it says; ``record`` keeps every call, for `save_recording`. With any of
    these three, tensors that a run allocates one by one (``enable_mem_pattern=False``) are allocated by calls of
    their own.
    """

    def __init__(
        self,
        *,
        policy: str | HeapPolicy = "onnxruntime-web",
        initial: int | None = None,
        maximum: int | None = None,
        memory_maximum: int | None = None,
        heap_base: int | None = None,
        geometric_step: float | None = None,
        geometric_cap: int | None = None,
        linear_step: int | None = None,
        variant: Variant = "relaxed",
        threads: int = 1,
        trace_allocations: bool = False,
        debug: bool = False,
        quarantine: int = DEFAULT_QUARANTINE,
        log_events: bool | int = False,
        record: bool = False,
    ) -> None:
        named = preset(policy) if isinstance(policy, str) else policy
        given = {
            "initial": initial,
            "maximum": maximum,
            "memory_maximum": memory_maximum,
            "heap_base": heap_base,
            "geometric_step": geometric_step,
            "geometric_cap": geometric_cap,
            "linear_step": linear_step,
        }
        policy = named.with_(**{k: v for k, v in given.items() if v is not None})
        if initial is None and policy.initial is not None:
            # A smaller limit makes a smaller first size.
            policy = policy.with_(initial=min(policy.initial, policy.limit, policy.engine_limit))
        policy.validate()
        if variant not in ("relaxed", "strict"):
            raise ValueError(f"variant {variant!r} is neither 'relaxed' nor 'strict'")
        if not isinstance(threads, int) or not 1 <= threads <= MAX_THREADS:
            raise ValueError(f"threads {threads!r} must be a whole number from 1 to {MAX_THREADS}")
        self.threads = int(threads)
        """How many share the work of a run."""
        self.policy = policy
        """Limits and growth of this heap."""
        self.maximum = policy.limit
        self.trace_allocations = trace_allocations or debug
        self._closed = self._failing = False
        self._blocks: dict[int, Block] = {}
        self._pending: deque[Block] = deque()
        self._gate = Gate(self._pending, self._drain)
        # Views are made, and runs cancelled, without the gate: this keeps their memory from going meanwhile. Taken
        # inside the gate or without it; finalisers may take it again.
        self._ends = threading.RLock()
        self._sessions: weakref.WeakSet[Any] = weakref.WeakSet()
        self._arena: Block | None = None
        instance = self._instance = Instance(*policy.pages, variant)
        instance.bind("heap_init", "iidii", result=False)(
            policy.heap_base, policy.limit, policy.geometric_step, policy.geometric_cap, policy.linear_step
        )
        self._stats = instance.bind("heap_stats")
        self._check = instance.bind("heap_check")
        # Over the whole reservation; every access is bounded by the block or the fixed area it is for.
        reservation = (ctypes.c_uint8 * (1 << 32)).from_address(instance.address)
        self._bytes: NDArray[np.uint8] = np.ctypeslib.as_array(reservation)
        self._words: NDArray[np.uint32] = self._bytes.view(np.uint32)
        self._workers = Workers(instance, self._words, threads - 1) if threads > 1 else None
        self._run = instance.bind("run", "ii") if self._workers is None else self._workers.run
        self._run_record = instance.bind("run_record", "iii") if self._workers is None else self._workers.run_record
        self._allocator = Allocator(
            instance, self._bytes, quarantine=quarantine if debug else None, trace=self.trace_allocations
        )
        if record:
            start = {"top": None, "top_size": 0, "brk": policy.heap_base, "memory": instance.memory_size()}
            self._allocator.record(start, policy.to_dict())
        if log_events:
            self.start_events(DEFAULT_EVENTS if log_events is True else log_events)
        register(self)

    __reduce__ = no_copy

    @property
    def logs_events(self) -> bool:
        """Whether a log of events is kept."""
        return self._allocator.logs

    @property
    def watched(self) -> bool:
        """Whether a debug heap, a log or a recorder sees every single allocation."""
        return self._allocator.watched

    # Blocks

    @gated
    def allocate(self, nbytes: int, tag: Tag = "user", owner: str = "") -> Block:
        """A 64-aligned block. Raises HeapMemoryError with the request, the heap's state and the biggest holders."""
        return self._allocate(nbytes, tag, owner)

    def _allocate(self, nbytes: int, tag: Tag, owner: str) -> Block:
        # ORT allocates nothing for a tensor of no bytes.
        address = 0
        if nbytes:
            if self._closed:
                self._check_open()
            address = self._allocator.take(nbytes, tag, owner)
            if not address:
                raise self._out_of_memory(nbytes, f"{owner} ({tag})" if owner else tag)
        return self._adopt(address, nbytes, tag, owner)

    def _adopt(self, address: int, nbytes: int, tag: Tag, owner: str) -> Block:
        """Enter a block that the module has allocated into the ledger."""
        block = Block(self, address, nbytes, tag, owner, call_site() if self.trace_allocations else "")
        if address:
            self._blocks[address] = block
        return block

    def _release(self, block: Block) -> None:
        """Free a block that nothing holds, once; while views of it live, the last of them does it. The gate must be
        held."""
        with self._ends:
            if self._blocks.get(block.address) is block and not block._leases:
                del self._blocks[block.address]
                self._allocator.give(block.address, block.nbytes, block.tag, block.owner)

    def _free_at(self, address: int) -> None:
        """Free what the module has allocated, also where it was adopted and nobody took it. The gate must be held."""
        block = self._blocks.get(address)
        if block is not None:
            self._release(block)
        else:
            self._allocator.give(address)

    def _outlived(self, block: Block) -> None:
        """A tensor was disposed of while views of it live: the debug heap lets them read nothing useful."""
        with self._ends:
            if self._allocator.debug is not None and not self.closed:
                self._allocator.debug.poison(block.address)

    def _give_back(self, block: Block) -> None:
        """Free a block that nothing keeps, now or as soon as the module is free."""
        if block._holders or block._leases:
            return
        self._pending.append(block)
        self._gate.try_drain()

    def _drain(self) -> None:
        while self._pending:
            block = self._pending.popleft()
            if not block.holders and not self.closed:
                self._release(block)

    def _out_of_memory(self, nbytes: int, what: str, running: Mapping[str, int] | None = None) -> HeapMemoryError:
        """The error for a request that the heap could not serve; ``running`` are bytes that a run holds, by owner."""
        holders: Counter[str] = Counter(running or {})
        for block in self._blocks.values():
            holders[f"{block.tag} of {block.owner}" if block.owner else block.tag] += block.nbytes
        biggest = ", ".join(f"{name} {size:,}" for name, size in holders.most_common(3))
        return HeapMemoryError(
            f"the heap cannot hold {nbytes:,} bytes for {what}: {self._memory()}."
            f"{biggest and f' Biggest holders: {biggest}.'} {self._remedy(nbytes)}"
        )

    def _remedy(self, nbytes: int) -> str:
        """What would have been enough for a request of ``nbytes``."""
        enough = self._allocator.enough(nbytes)
        limit = min(self.policy.limit, self.policy.engine_limit)
        if enough <= limit:
            return (
                f"There was room below the limit of {limit:,}: the failure was asked for (fail_allocation, "
                f"fail_growth), or the engine refused to grow the memory"
            )
        dispose = "dispose of tensors and sessions that are done"
        if enough > MAXIMUM:
            return f"It would take a memory of {enough:,} bytes, and 32-bit addresses end at 4 GiB: {dispose}"
        return f"A maximum of {enough:,} bytes would have been enough; else {dispose}"

    def view(self, block: Block, shape: Sequence[int], dtype: np.dtype[Any], offset: int = 0) -> Array:
        """A zero-copy array over a block; it and all arrays derived from it hold a lease on the block."""
        size = math.prod(shape) * dtype.itemsize
        if offset < 0 or offset + size > block.nbytes:
            raise ValueError(f"a view of bytes [{offset}, {offset + size}) does not fit into {block!r}")
        if not size:
            return np.empty(shape, dtype)
        with self._ends:
            lease = Lease(block, call_site() if self.trace_allocations else "")
            self._check_open()
            if self._blocks.get(block.address) is not block:
                raise DisposedError(f"{block!r} has been given back to the heap")
        buffer = (ctypes.c_uint8 * size).from_address(self._instance.address + block.address + offset)
        buffer._lease = lease  # type: ignore[attr-defined]
        if self._allocator.debug is None:
            return np.ndarray(shape, dtype, buffer=buffer)  # type: ignore[arg-type]
        checked = CheckedView(shape, dtype, buffer=buffer)  # type: ignore[arg-type]
        checked._block = block
        return checked

    def find_block(self, array: Array) -> tuple[Block, int] | None:
        """The block that a C-contiguous, aligned array lies in, and the offset in it, if it lies in this heap."""
        if self.closed or not array.nbytes or not array.flags.c_contiguous or not array.flags.aligned:
            return None
        address = array.__array_interface__["data"][0] - self._instance.address
        if not 0 <= address < 1 << 32:
            return None
        base = array
        while isinstance(base, np.ndarray) and base.base is not None:
            base = base.base
        lease = getattr(base, "_lease", None) or getattr(getattr(base, "obj", None), "_lease", None)
        if lease is None or lease.block.runtime is not self:
            return None
        return lease.block, address - lease.block.address

    @gated
    def malloc(self, nbytes: int) -> int:
        """The address of a block as the page's own ``_malloc`` gives it: 8-aligned, not a tensor's.

        Raises HeapMemoryError where ``_malloc`` answers 0.
        """
        self._check_open()
        address = self._allocator.malloc(nbytes, "user", "malloc") if nbytes >= 0 else 0
        if not address:
            raise self._out_of_memory(nbytes, "malloc")
        self._adopt(address, nbytes, "user", "malloc")
        return address

    @gated
    def free(self, address: int) -> None:
        """Give back what `malloc` gave; 0 is ignored, as in C.

        Raises HeapPointerError for an address that is no block's or no longer (the page's ``_free`` would take it, and
        corrupt the heap), and for a block that a tensor or session owns.
        """
        self._check_open()
        block = self._blocks.get(address)
        if not address:
            return
        if block is None or block.owner != "malloc":
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

    # State

    @property
    def closed(self) -> bool:
        return self._closed or self._instance.closed

    @property
    def calls(self) -> int:
        """Calls into the module so far."""
        return self._instance.calls

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
            tensors += block.tag in TENSOR_TAGS
        return MemoryInfo(
            linear=self._instance.memory_size(),
            maximum=self.maximum,
            used=self._allocator.used(),
            free=self._allocator.word(layout.WALK_FREE),
            peak=self._allocator.word(layout.PEAK),
            largest_free=self._allocator.word(layout.WALK_LARGEST_FREE),
            blocks=self._allocator.blocks(),
            growths=self._allocator.growths(),
            growth_count=self._allocator.word(layout.GROWTHS),
            tensors=tensors,
            sessions=len(self._sessions),
            by_tag=dict(by_tag),
            quarantine=0 if self._allocator.debug is None else self._allocator.debug.waiting,
        )

    @gated
    def blocks(self) -> list[Block]:
        """The blocks in the ledger, by address."""
        return sorted(self._blocks.values(), key=lambda b: b.address)

    @gated
    def heap_view(self, type: str, *, shared: bool = True) -> HeapView:
        """A typed array over all of memory as a page has it (``HEAPF32``), which growth leaves behind; with ``shared``
        False as over unshared memory, which growth detaches."""
        self._check_open()
        return HeapView(self._bytes, self._linear, type, shared=shared)

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
        return Snapshot(self._memory(), tuple(map(BlockInfo.of, blocks)), tuple(sessions))

    @gated
    def leaks(self, since: Snapshot | None = None) -> LeakReport:
        """What lives that did not at a snapshot (or at all), by owner; false where nothing has leaked."""
        self._drain()
        return self._leaks(since)

    def _leaks(self, since: Snapshot | None) -> LeakReport:
        held = {b.serial for s in list(self._sessions) for b in s._blocks()}
        if self._arena is not None:
            held.add(self._arena.serial)
        return leak_report(self._snapshot(), since, held)

    @gated
    def start_events(self, limit: int | None = DEFAULT_EVENTS) -> None:
        """Keep the latest ``limit`` events of the heap from now on; None: all of them."""
        self._check_open()
        if limit is not None and limit < 1:
            raise ValueError(f"a log of {limit} events; at least 1")
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
        return [] if self.closed else self._allocator.events()

    @gated
    def save_recording(self, path: str | os.PathLike[str], **about: Any) -> int:
        """Write every call of the allocator so far in the format of recordings (docs/recordings.md), for
        `onnx-wasm heap replay` and `whatif`; how many there are. ``about`` goes into the file's ``meta``.

        Raises ValueError unless the runtime was made with ``record=True``.
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
        self._words[layout.PEAK // 4] = self._words[layout.USED // 4]

    @gated
    def fail_allocation(self, nth: int) -> int:
        """Let the nth allocation from now fail as if memory were full (1: the next; 0: none).

        Returns how many allocations were left of an earlier call: 0 where its failure has come.
        """
        return self._replace(layout.FAIL_AT, nth)

    def _replace(self, address: int, nth: int) -> int:
        self._check_open()
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

    def cancel(self) -> None:
        """Stop the run that another thread has under way; it raises CancelledError."""
        with self._ends:
            if not self.closed:
                self._words[CANCEL // 4] = 1

    def _check_open(self) -> None:
        if self.closed:
            raise DisposedError("the runtime is closed")

    @gated
    def close(self) -> None:
        """Give all of it back to the process; sessions and tensors of this runtime are dead afterwards.

        Raises LeaseError (a BufferError) while numpy views of the heap are alive.
        """
        with self._ends:
            if self._closed:
                return
            leased = [b for b in self._blocks.values() if b.leases]
            if leased:
                views = sorted({v for b in leased for v in b.views if v})
                raise LeaseError(
                    f"{sum(b.leases for b in leased)} numpy views of this heap are alive, "
                    f"of {', '.join(map(repr, leased[:3]))}{f', made at {chr(44).join(views[:5])}' if views else ''}; "
                    "drop or copy them first"
                )
            self._warn_of_leaks("when its runtime was closed")
            if self._workers is not None:
                self._workers.close()
            self._closed = True
            self._blocks.clear()
            self._pending.clear()
            self._arena = None
            del self._bytes, self._words, self._allocator
            self._stats = self._check = _closed
            self._run = self._run_record = _closed
            self._workers = None
            self._instance.close()

    def _warn_of_leaks(self, when: str) -> None:
        """A ResourceWarning where tensors or sessions are left. The gate must be held."""
        tensors = [b for b in self._blocks.values() if b.holders or b.owner == "malloc"]
        sessions = [s for s in list(self._sessions) if s._blocks()]
        if not (tensors or sessions) or self._failing:
            return
        names = [f"{s!r}{f' created at {s.site}' if s.site else ''}" for s in sessions] + [repr(b) for b in tensors]
        shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if names[8:] else "")
        warnings.warn(f"never disposed {when}: {shown}", ResourceWarning, stacklevel=stacklevel(), source=self)

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # What an error on its way keeps alive is nobody's fault.
        self._failing = kind is not None
        try:
            self.close()
        except LeaseError:
            # Views in the frames of an error that is on its way must not hide it; the runtime ends with the last one.
            if kind is None:
                raise

    def __repr__(self) -> str:
        if self.closed:
            return "<Runtime (closed)>"
        return (
            f"<Runtime {self._instance.memory_size():,} of at most {self.maximum:,} bytes, {len(self._blocks)} blocks"
            f"{f', {self.threads} threads' if self.threads > 1 else ''}>"
        )

    # What sessions share. The gate must be held.

    def _reserve_arena(self, nbytes: int, *, keep: bool = False) -> int:
        """Address of the arena, made large enough: runs are serial, so all plans use one. With ``keep`` its contents
        come along when it moves."""
        old = self._arena
        if old is None or old.nbytes < nbytes:
            if not keep:
                self._release_arena()
            self._arena = self._allocate(nbytes, "activations", "arena")
            if keep and old is not None:
                to, start = self._arena.address, old.address
                self._bytes[to : to + old.nbytes] = self._bytes[start : start + old.nbytes]
                self._release(old)
        assert self._arena is not None
        return self._arena.address

    def _release_arena(self) -> None:
        arena, self._arena = self._arena, None
        if arena is not None:
            self._release(arena)

    def _abandon(self, session: Any, blocks: Sequence[Block]) -> None:
        """Take back the blocks of a session that was dropped without dispose. Safe in a finaliser."""
        self._sessions.discard(session)
        arena = self._arena
        if arena is not None and not self._sessions:
            self._arena, blocks = None, [*blocks, arena]
        for block in blocks:
            self._give_back(block)

    def _execute(self, start: int, end: int) -> int:
        """Run the records in [start, end); the status, or TrapError. The gate must be held."""
        return self._run(start, end)

    def _stop_workers(self) -> None:
        """End all threads but the caller's; the next run starts them again. The gate must be held."""
        if self._workers is not None:
            self._workers.stop()

    def _after_run(self) -> None:
        """The debug heap is checked after each run."""
        if self._allocator.debug is not None:
            self._check_all()

    def _uncancel(self) -> None:
        """Forget a cancellation that came when nothing ran."""
        self._words[CANCEL // 4] = 0

    def _check_cancelled(self) -> None:
        if self._words[CANCEL // 4]:
            raise CancelledError("the run was cancelled while it was planned")

    def _begin_run(self, number: int) -> None:
        """Tell kernels the number of the run in its session."""
        self._words[RUN // 4] = number & 0xFFFFFFFF

    def _fault(self) -> tuple[int, int, int, int, int]:
        """Status, record address, offending value and its range, of the run that just failed."""
        status, record = self._words[STATUS // 4 : STATUS // 4 + 2].tolist()
        detail = self._bytes[DETAIL : DETAIL + 24].view(np.int64).tolist()
        return status, record, *detail


def _closed(*_: Any) -> int:
    raise DisposedError("the runtime is closed")


_default: Runtime | None = None
_default_lock = threading.Lock()


def default_runtime() -> Runtime:
    """The runtime of everything that names none; made with `env.wasm` when first needed, and again after it was
    closed."""
    global _default
    with _default_lock:
        if _default is None or _default.closed:
            settings = dict(vars(env.wasm))
            _default = Runtime(threads=settings.pop("num_threads"), **settings)
        return _default


@contextlib.contextmanager
def use_runtime(runtime: Runtime) -> Iterator[Runtime]:
    """Within it, ``runtime`` is the default runtime of every thread."""
    global _default
    with _default_lock:
        before, _default = _default, runtime
    try:
        yield runtime
    finally:
        with _default_lock:
            _default = before


def memory() -> MemoryInfo:
    """The state of the default runtime's heap."""
    return default_runtime().memory()
