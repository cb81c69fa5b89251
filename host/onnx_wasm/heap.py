"""The heap as Python sees it: a runtime owns one linear memory and one instance of the module."""

from __future__ import annotations

import contextlib
import ctypes
import math
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .allocator import DEFAULT_EVENTS, Allocator
from .blocks import Block, Lease, Tag, call_site, stacklevel
from .debug_heap import DEFAULT_QUARANTINE, CheckedView, refuse_stale
from .engine import CANCEL, DETAIL, RUN, STATUS, Instance, Variant
from .env import env
from .errors import (
    CancelledError,
    DisposedError,
    HeapCorruptionError,
    LeaseError,
    check_names,
    no_copy,
)
from .gate import Gate, gated
from .heap_layout import ENGINE_LIMIT
from .heap_policy import HeapPolicy, parse_bytes, preset
from .laboratory import Laboratory
from .memory_info import MemoryInfo
from .process import register
from .verdicts import BlockInfo, SessionInfo
from .words import counted
from .workers import MAX_THREADS, Workers

Array = NDArray[Any]
_FORGOTTEN = 256


class Runtime(Laboratory):
    """A heap of one's own: one linear memory, one instance of the module.

    ``policy`` is the name of a preset (`heap_policy.PRESETS`) or a HeapPolicy; the seven parameters after it replace
    its fields, sizes in bytes or as "64MiB": ``initial`` (16 MiB, or the limit if that is less) and ``maximum`` (4 GiB
    - 64 KiB) are ORT Web's by default; ``memory_maximum`` is the engine's own limit, past which ``memory.grow`` fails
    although the policy would allow it (a phone's browser). Growth is by ``geometric_step`` of the old size, at most
    ``geometric_cap`` over the need, or by ``linear_step`` where that is not -1. ``variant="strict"`` computes the same
    bits on every machine. ``mem_pattern`` is what sessions do whose options leave ``enable_mem_pattern`` open.

    With ``trace_allocations`` every block knows the Python line that made it. ``debug`` is the debug heap
    (`debug_heap`), with up to ``quarantine`` bytes of freed blocks; it traces allocations too. ``log_events`` keeps
    the latest 65,536 events, or as many as it says; ``record`` keeps every call, for `save_recording`. With any of
    these three, tensors that a run allocates one by one (``enable_mem_pattern=False``) are allocated by calls of
    their own.
    """

    def __new__(cls, *_: Any, **settings: Any) -> Runtime:
        if cls.__init__ is Runtime.__init__:
            check_names("parameters of Runtime", settings, cls.__init__.__kwdefaults__ or ())
        return super().__new__(cls)

    def __init__(
        self,
        *,
        policy: str | HeapPolicy = "onnxruntime-web",
        initial: int | str | None = None,
        maximum: int | str | None = None,
        memory_maximum: int | str | None = None,
        heap_base: int | None = None,
        geometric_step: float | None = None,
        geometric_cap: int | None = None,
        linear_step: int | None = None,
        variant: Variant = "relaxed",
        threads: int = 1,
        mem_pattern: bool = True,
        trace_allocations: bool = False,
        debug: bool = False,
        quarantine: int | str = DEFAULT_QUARANTINE,
        log_events: bool | int = False,
        record: bool = False,
    ) -> None:
        given_policy = policy
        named = preset(policy) if isinstance(policy, str) else policy
        if not isinstance(named, HeapPolicy):
            raise TypeError(f"policy must be the name of a preset or a HeapPolicy, got {policy!r}")
        quarantine = parse_bytes(quarantine)
        given = {
            "initial": initial,
            "maximum": maximum,
            "memory_maximum": memory_maximum,
            "heap_base": heap_base,
            "geometric_step": geometric_step,
            "geometric_cap": geometric_cap,
            "linear_step": linear_step,
        }
        changes = {k: parse_bytes(v) if isinstance(v, str) else v for k, v in given.items() if v is not None}
        # numpy's small integers would wrap.
        changes = {k: int(v) if isinstance(v, np.integer) else v for k, v in changes.items()}
        policy = named.with_(**changes)
        least = min(policy.limit, policy.engine_limit)
        if named is not given_policy and initial is None and policy.initial is not None and policy.initial > least:
            # Of a preset: a smaller limit makes a smaller first size.
            policy = policy.with_(initial=None)
        policy.validate()
        if variant not in ("relaxed", "strict"):
            raise ValueError(f"variant {variant!r} is neither 'relaxed' nor 'strict'")
        if not isinstance(threads, int) or not 1 <= threads <= MAX_THREADS:
            raise ValueError(f"threads {threads!r} must be a whole number from 1 to {MAX_THREADS}")
        self.threads = int(threads)
        """How many share the work of a run."""
        self.mem_pattern = mem_pattern
        """Whether sessions plan their intermediate tensors in one arena, where their options do not say."""
        self.policy = policy
        """Limits and growth of this heap."""
        self.maximum = policy.limit
        self.trace_allocations = trace_allocations or debug
        self._closed = self._failing = self._told = False
        self._blocks: dict[int, Block] = {}
        self._pending: deque[Block] = deque()
        self._gate = Gate(self._pending, self._drain)
        # Views are made, and runs cancelled, without the gate: this keeps their memory from going meanwhile. Taken
        # inside the gate or without it; finalisers may take it again.
        self._ends = threading.RLock()
        self._sessions: weakref.WeakSet[Any] = weakref.WeakSet()
        self.left = ""
        """What was never disposed of when it was closed."""
        self._forgotten: deque[BlockInfo | SessionInfo] = deque(maxlen=_FORGOTTEN)
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
        self._words[ENGINE_LIMIT // 4] = policy.engine_limit % (1 << 32)
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

    # Blocks

    @gated
    def allocate(self, nbytes: int, tag: Tag = "user", owner: str = "") -> Block:
        """A 64-aligned block, the caller's until its `Block.free`. Raises HeapMemoryError with the request, the heap's
        state and the biggest holders."""
        return self._allocate(nbytes, tag, owner)

    def _allocate(self, nbytes: int, tag: Tag, owner: str, session: str = "") -> Block:
        # ORT allocates nothing for a tensor of no bytes.
        address, site = 0, call_site() if self.trace_allocations else ""
        if nbytes:
            if self._closed:
                self._check_open()
            address = self._allocator.take(nbytes, tag, owner, session, site=site)
            if not address:
                raise self._out_of_memory(nbytes, f"{owner} ({tag})" if owner else tag)
        return self._adopt(address, nbytes, tag, owner, session, site)

    def _adopt(self, address: int, nbytes: int, tag: Tag, owner: str, session: str = "", site: str = "") -> Block:
        """Enter a block that the module has allocated into the ledger."""
        block = Block(
            self, address, nbytes, tag, owner, site or (call_site() if self.trace_allocations else ""), session
        )
        if address:
            self._blocks[address] = block
        return block

    def _release(self, block: Block) -> None:
        """Free a block of the caller's, once; while views of it live, the last of them does it. The gate must be
        held."""
        block.owned = False
        with self._ends:
            address, allocator = block.address, self._allocator
            if self._blocks.get(address) is block and not block._leases:
                if allocator.give_watched(block) if allocator.watched else allocator.give(address):
                    # Its header was overwritten: it stays, and `heap_check` says so.
                    block.owned = True
                    return
                del self._blocks[address]

    def _knows(self, block: Block) -> bool:
        """Whether a block is in the ledger."""
        return self._blocks.get(block.address) is block

    def _free_at(self, address: int, nbytes: int = 0, **about: str) -> None:
        """Free what the module has allocated, also where it was adopted and nobody took it. The gate must be held."""
        block = self._blocks.get(address)
        if block is not None:
            self._release(block)
        else:
            self._allocator.give(address, nbytes, **about)

    def _outlived(self, block: Block) -> None:
        """A tensor was disposed of while views of it live: the debug heap lets them read nothing useful, as soon as no
        run can be reading it."""
        if self._allocator.debug is not None:
            self._pending.append(block)
            self._gate.try_drain()

    def _give_back(self, block: Block) -> None:
        """Free a block that nothing keeps, now or as soon as the module is free."""
        if block.owned or block._holders or block._leases:
            return
        self._pending.append(block)
        self._gate.try_drain()

    def _drain(self) -> None:
        while self._pending:
            block = self._pending.popleft()
            if self.closed or block.owned or block._holders:
                continue
            debug = self._allocator.debug
            if block._leases and debug is not None and self._knows(block):
                debug.poison(block.address, block.dropped)
            self._release(block)

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
        if self._allocator.debug is not None:
            refuse_stale(lease.block)
        return lease.block, address - lease.block.address

    # State

    @property
    def closed(self) -> bool:
        return self._closed or self._instance.closed

    @property
    def calls(self) -> int:
        """Calls into the module so far."""
        return self._instance.calls

    def cancel(self) -> None:
        """Stop the run that another thread has under way; it raises CancelledError."""
        with self._ends:
            if not self.closed:
                self._words[CANCEL // 4] = 1

    def _check_open(self) -> None:
        if self.closed:
            raise DisposedError("the runtime is closed")

    def close(self) -> None:
        """Give all of it back to the process; sessions and tensors of this runtime are dead afterwards.

        Raises LeaseError (a BufferError) while numpy views of the heap are alive. Once closed, a ResourceWarning names
        what was never disposed of, and a debug heap's HeapCorruptionError what it still found.
        """
        text, fault = self._close()
        self.left = text
        if text:
            warnings.warn(text, ResourceWarning, stacklevel=stacklevel(), source=self)
        if fault is not None:
            raise fault

    @gated
    def _close(self) -> tuple[str, HeapCorruptionError | None]:
        """Close; a warning and an error to be told when it is done."""
        text, fault = "", None
        with self._ends:
            if self._closed:
                return text, fault
            leased = [b for b in self._blocks.values() if b.leases]
            if leased:
                leases = sum(b.leases for b in leased)
                made = ", ".join(sorted({v for b in leased for v in b.views if v})[:5])
                raise LeaseError(
                    f"{counted(leases, 'numpy view')} of this heap {'is' if leases == 1 else 'are'} alive, "
                    f"of {', '.join(map(repr, leased[:3]))}{f', made at {made}' if made else ''}; "
                    f"drop or copy {'it' if leases == 1 else 'them'} first"
                )
            text = self._leak_warning("when its runtime was closed")
            try:
                self._after_run()
            except HeapCorruptionError as error:
                fault = error
            if self._workers is not None:
                self._workers.close()
            self._closed = True
            self._blocks.clear()
            self._pending.clear()
            self._arena = None
            self._allocator.close()
            del self._bytes, self._words
            self._stats = self._check = _closed
            self._run = self._run_record = _closed
            self._workers = None
            self._instance.close()
        return text, fault

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # What an error on its way keeps alive is nobody's fault.
        self._failing = kind is not None
        try:
            self.close()
        except (LeaseError, HeapCorruptionError):
            # What comes of an error that is on its way must not hide it; the runtime ends with the last view.
            if kind is None:
                raise

    def __repr__(self) -> str:
        if self.closed:
            return "<Runtime (closed)>"
        return (
            f"<Runtime {self._instance.memory_size():,} of at most {self.maximum:,} bytes, "
            f"{counted(len(self._blocks), 'block')}"
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
            block.free()

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
            _default = env._made = Runtime(threads=settings.pop("num_threads"), **settings)
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
