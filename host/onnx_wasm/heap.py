"""The heap as Python sees it: a runtime owns one linear memory and one instance of the module."""

from __future__ import annotations

import ctypes
import math
import os
import sys
import threading
import weakref
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import heap_layout as layout
from .blocks import Block, Lease, Tag
from .engine import CANCEL, DETAIL, PAGE, RUN, STATUS, Instance, Variant
from .env import MAXIMUM, ORT_WEB_HEAP_BASE, env
from .errors import (
    CancelledError,
    DisposedError,
    HeapCorruptionError,
    HeapMemoryError,
    LeaseError,
    no_copy,
)
from .gate import Gate, gated
from .heap_view import HeapView
from .memory_info import Growth, MemoryInfo

Array = NDArray[Any]

TENSOR_ALIGNMENT = 64
_PACKAGE = str(Path(__file__).parent)


class Runtime:
    """A heap of one's own: one linear memory, one instance of the module.

    Sizes are in bytes. ``initial`` (16 MiB, or the limit if that is less) and ``maximum`` (4 GiB) are ORT Web's by
    default. ``memory_maximum`` is the engine's own
    limit, past which ``memory.grow`` fails although the policy would allow it (a phone's browser); it is ``maximum``
    unless given. Growth is by ``geometric_step`` of the old size, at most ``geometric_cap`` over the need, or by
    ``linear_step`` where that is not -1. ``variant="strict"`` computes the same bits on every machine.
    With ``trace_allocations`` every block knows the Python line that made it.
    """

    def __init__(
        self,
        *,
        initial: int | None = None,
        maximum: int = MAXIMUM,
        memory_maximum: int | None = None,
        heap_base: int = ORT_WEB_HEAP_BASE,
        geometric_step: float = 0.20,
        geometric_cap: int = 96 << 20,
        linear_step: int = -1,
        variant: Variant = "relaxed",
        trace_allocations: bool = False,
    ) -> None:
        if maximum > 1 << 32:
            raise ValueError(f"maximum {maximum} is more than the 4 GiB that 32-bit addresses reach")
        maximum = min(maximum, MAXIMUM)
        if initial is None:
            initial = min(16 << 20, maximum, maximum if memory_maximum is None else memory_maximum)
        limit = maximum if memory_maximum is None else memory_maximum
        _check_limits(initial, maximum, limit, heap_base, geometric_step, geometric_cap, linear_step, variant)
        self.maximum = maximum
        self.trace_allocations = trace_allocations
        self._closed = False
        self._blocks: dict[int, Block] = {}
        self._pending: deque[Block] = deque()
        self._gate = Gate(self._pending, self._drain)
        # Views are made, and runs cancelled, without the gate: this keeps their memory from going meanwhile. Taken
        # inside the gate or without it; finalisers may take it again.
        self._ends = threading.RLock()
        self._sessions: weakref.WeakSet[Any] = weakref.WeakSet()
        self._arena: Block | None = None
        instance = self._instance = Instance(-(-initial // PAGE), -(-limit // PAGE), variant)
        instance.bind("heap_init", "iidii", result=False)(
            heap_base, maximum, geometric_step, geometric_cap, linear_step
        )
        self._aligned_new = instance.bind("aligned_new", "ii")
        self._malloc = instance.bind("malloc", "i")
        self._free = instance.bind("free", "i")
        self._stats = instance.bind("heap_stats")
        self._check = instance.bind("heap_check")
        self._run = instance.bind("run", "ii")
        self._run_record = instance.bind("run_record", "iii")
        # Over the whole reservation; every access is bounded by the block or the fixed area it is for.
        reservation = (ctypes.c_uint8 * (1 << 32)).from_address(instance.address)
        self._bytes: NDArray[np.uint8] = np.ctypeslib.as_array(reservation)
        self._words: NDArray[np.uint32] = self._bytes.view(np.uint32)
        _runtimes.add(self)

    __reduce__ = no_copy

    # Blocks

    @gated
    def allocate(self, nbytes: int, tag: Tag = "user", owner: str = "") -> Block:
        """A 64-aligned block. Raises HeapMemoryError with the request, the heap's state and the biggest holders."""
        return self._allocate(nbytes, tag, owner)

    def _allocate(self, nbytes: int, tag: Tag, owner: str) -> Block:
        # ORT allocates nothing for a tensor of no bytes.
        address = 0
        if nbytes:
            self._check_open()
            address = self._aligned_new(TENSOR_ALIGNMENT, nbytes) if nbytes < 1 << 32 else 0
            if not address:
                raise self._out_of_memory(nbytes, f"{owner} ({tag})" if owner else tag)
        return self._adopt(address, nbytes, tag, owner)

    def _adopt(self, address: int, nbytes: int, tag: Tag, owner: str) -> Block:
        """Enter a block that the module has allocated into the ledger."""
        block = Block(self, address, nbytes, tag, owner, _call_site() if self.trace_allocations else "")
        if address:
            self._blocks[address] = block
        return block

    def _release(self, block: Block) -> None:
        """Free a block that nothing holds, once; while views of it live, the last of them does it. The gate must be
        held."""
        with self._ends:
            if self._blocks.get(block.address) is block and not block.leases:
                del self._blocks[block.address]
                self._free(block.address)

    def _free_at(self, address: int) -> None:
        """Free what the module has allocated, also where it was adopted and nobody took it. The gate must be held."""
        block = self._blocks.get(address)
        if block is not None:
            self._release(block)
        else:
            self._free(address)

    def _give_back(self, block: Block) -> None:
        """Free a block that nothing keeps, now or as soon as the module is free."""
        if block.holders or block.leases:
            return
        self._pending.append(block)
        self._gate.try_drain()

    def _drain(self) -> None:
        while self._pending:
            block = self._pending.popleft()
            if not block.holders and not self.closed:
                self._release(block)

    def _out_of_memory(self, nbytes: int, what: str) -> HeapMemoryError:
        info = self._memory()
        holders: Counter[str] = Counter()
        for block in self._blocks.values():
            holders[f"{block.tag} of {block.owner}" if block.owner else block.tag] += block.nbytes
        biggest = ", ".join(f"{name} {size:,}" for name, size in holders.most_common(3))
        return HeapMemoryError(
            f"the heap cannot hold {nbytes:,} bytes for {what}: {info}.{biggest and f' Biggest holders: {biggest}.'} "
            f"Dispose of tensors and sessions that are done, or give the runtime a larger maximum"
        )

    def view(self, block: Block, shape: Sequence[int], dtype: np.dtype[Any], offset: int = 0) -> Array:
        """A zero-copy array over a block; it and all arrays derived from it hold a lease on the block."""
        size = math.prod(shape) * dtype.itemsize
        if offset < 0 or offset + size > block.nbytes:
            raise ValueError(f"a view of bytes [{offset}, {offset + size}) does not fit into {block!r}")
        if not size:
            return np.empty(shape, dtype)
        with self._ends:
            lease = Lease(block)
            self._check_open()
            if self._blocks.get(block.address) is not block:
                raise DisposedError(f"{block!r} has been given back to the heap")
        buffer = (ctypes.c_uint8 * size).from_address(self._instance.address + block.address + offset)
        buffer._lease = lease  # type: ignore[attr-defined]
        return np.ndarray(shape, dtype, buffer=buffer)  # type: ignore[arg-type]

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
            tensors += block.tag in ("output", "user")
        return MemoryInfo(
            linear=self._instance.memory_size(),
            maximum=self.maximum,
            used=self._word(layout.USED),
            free=self._word(layout.WALK_FREE),
            peak=self._word(layout.PEAK),
            largest_free=self._word(layout.WALK_LARGEST_FREE),
            blocks=self._word(layout.BLOCKS),
            growths=self._growths(),
            growth_count=self._word(layout.GROWTHS),
            tensors=tensors,
            sessions=len(self._sessions),
            by_tag=dict(by_tag),
        )

    def _word(self, address: int) -> int:
        return int(self._words[address // 4])

    def _growths(self) -> tuple[Growth, ...]:
        count, size = self._word(layout.GROWTHS), layout.GROWTH_BYTES // 4
        log = self._words[layout.GROWTH_LOG // 4 :][: layout.GROWTH_ENTRIES * size].reshape(-1, size)
        kept = range(max(0, count - layout.GROWTH_ENTRIES), count)
        return tuple(Growth(*log[i % layout.GROWTH_ENTRIES].tolist()) for i in kept)

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
        """Walk the heap and check every invariant. Raises HeapCorruptionError with the bad chunk's address."""
        self._check_open()
        code = self._check()
        if code:
            where = self._word(layout.BAD_CHUNK)
            raise HeapCorruptionError(f"chunk at {where:#x}: {layout.CHECK_CODES[code]}")

    @gated
    def reset_peak(self) -> None:
        """Let `MemoryInfo.peak` begin anew, from the bytes in use now."""
        self._drain()
        self._check_open()
        self._words[layout.PEAK // 4] = self._words[layout.USED // 4]

    @gated
    def fail_allocation(self, nth: int) -> None:
        """Let the nth allocation from now fail as if memory were full (1: the next; 0: none)."""
        self._check_open()
        if not 0 <= nth < 1 << 32:
            raise ValueError(f"nth {nth} must lie in [0, {1 << 32})")
        self._words[layout.FAIL_AT // 4] = nth

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
                raise LeaseError(
                    f"{sum(len(b.leases) for b in leased)} numpy views of this heap are alive, "
                    f"of {', '.join(map(repr, leased[:3]))}; drop or copy them first"
                )
            self._closed = True
            self._blocks.clear()
            self._pending.clear()
            self._arena = None
            del self._bytes, self._words
            self._aligned_new = self._malloc = self._free = self._stats = self._check = _closed
            self._run = self._run_record = _closed
            self._instance.close()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
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
            f"<Runtime {self._instance.memory_size():,} of at most {self.maximum:,} bytes, {len(self._blocks)} blocks>"
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


def _check_limits(
    initial: int, maximum: int, limit: int, base: int, step: float, cap: int, linear: int, variant: str
) -> None:
    if variant not in ("relaxed", "strict"):
        raise ValueError(f"variant {variant!r} is neither 'relaxed' nor 'strict'")
    if base % 8 or base < layout.STATE_END:
        raise ValueError(f"heap_base {base} must be a multiple of 8 and at least {layout.STATE_END}")
    if not base + 4096 <= initial <= maximum:
        raise ValueError(
            f"initial {initial} must be at least heap_base + 4096 = {base + 4096} and at most maximum {maximum}"
        )
    if not initial <= limit <= 1 << 32:
        raise ValueError(f"memory_maximum {limit} must be at least initial {initial} and at most {1 << 32}")
    if not 0 <= step <= 100 or not 0 <= cap <= MAXIMUM or (linear != -1 and not 0 <= linear <= MAXIMUM):
        raise ValueError(
            f"growth parameters out of range: geometric_step {step}, geometric_cap {cap}, linear_step {linear}"
        )


def _call_site() -> str:
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


_runtimes: weakref.WeakSet[Runtime] = weakref.WeakSet()
_forking: list[Any] = []


def _before_fork() -> None:
    """Wait until no thread is in a call: a child gets heaps that are consistent, and locks that it can take."""
    for runtime in list(_runtimes):
        for lock in (runtime._gate.lock, runtime._ends):
            lock.acquire()
            _forking.append(lock)


def _after_fork() -> None:
    while _forking:
        _forking.pop().release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)

_default: Runtime | None = None
_default_lock = threading.Lock()


def default_runtime() -> Runtime:
    """The runtime of everything that names none; made with `env.wasm` when first needed, and again after it was
    closed."""
    global _default
    with _default_lock:
        if _default is None or _default.closed:
            _default = Runtime(**vars(env.wasm))
        return _default


def memory() -> MemoryInfo:
    """The state of the default runtime's heap."""
    return default_runtime().memory()
