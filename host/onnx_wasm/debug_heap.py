"""The debug heap: faults that a heap takes silently, found and named.

Around each block lie guards that nothing may write; new memory is filled with one pattern and freed memory with
another; freed blocks wait in quarantine before their memory is used again. All patterns are NaN as float32, float64 and
float16, so that what is computed from such memory shows.

    | guard, 64 bytes | the block | guard, 64 to 127 bytes |

Sizes and places of blocks are then not those of a browser.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from .blocks import Block
from .errors import HeapCorruptionError, HeapPointerError, UseAfterDisposeError
from .words import counted

Bytes = NDArray[np.uint8]
GUARD = 64
DEFAULT_QUARANTINE = 16 << 20
# Of memory that was never written, of memory that was freed, and of guards.
FRESH, FREED, FENCE = 0xFFFCFCFC, 0xFFFDFDFD, 0xFFFBFBFB


def _pattern(word: int, nbytes: int) -> Bytes:
    """``nbytes`` of a pattern that begins at a multiple of 4."""
    return np.full(-(-nbytes // 4), word, np.uint32).view(np.uint8)[:nbytes]


_FENCES = _pattern(FENCE, 256)


@dataclass(slots=True)
class Guarded:
    """One block of the debug heap."""

    address: int
    nbytes: int
    tag: str
    owner: str
    node: str = ""
    made: str = ""
    freed: str = ""
    poisoned: str = ""
    """Where it was disposed of while views of it lived."""

    @property
    def size(self) -> int:
        """Bytes with both guards."""
        return padded(self.nbytes)

    def __str__(self) -> str:
        by = f" of {self.owner}" if self.owner else ""
        text = f"block of {counted(self.nbytes, 'byte')} at {self.address:#x} ({self.tag}{by})"
        if self.node:
            text += f", allocated for {self.node}"
        if self.made:
            text += f", made at {self.made}"
        return f"{text}, freed at {self.freed}" if self.freed else text


def padded(nbytes: int) -> int:
    """Bytes to ask for, for a block of ``nbytes`` with guards: a multiple of 64."""
    return -(-nbytes // GUARD) * GUARD + 2 * GUARD


class DebugHeap:
    """What the debug heap knows: blocks in use, and freed ones in quarantine.

    ``give`` returns memory to the allocator, ``chunk_size`` tells what it takes there; both get the address that the
    allocator answered.
    """

    def __init__(
        self, memory: Bytes, give: Callable[[int], object], chunk_size: Callable[[int], int], quarantine: int
    ) -> None:
        self._memory = memory
        self._give = give
        self._chunk_size = chunk_size
        self._limit = quarantine
        self.blocks: dict[int, Guarded] = {}
        self.quarantine: OrderedDict[int, Guarded] = OrderedDict()
        self.waiting = 0
        """Bytes in quarantine, guards and headers included."""
        self.faults: list[str] = []
        """What was found when blocks were freed, by whoever happened to do it; `check` raises it."""
        self._history: OrderedDict[int, Guarded] = OrderedDict()
        """What was last at an address, after quarantine; for messages only."""

    def guard(self, raw: int, nbytes: int, tag: str, owner: str, node: str, site: str) -> int:
        """Fence and fill what the allocator answered at ``raw``; the block's address."""
        block = Guarded(raw + GUARD, nbytes, tag, owner, node, site)
        self._memory[raw : raw + GUARD] = _FENCES[:GUARD]
        self._fill(block, FRESH)
        end = block.address + nbytes
        self._memory[end : raw + block.size] = self._fence_behind(block)
        self.blocks[block.address] = block
        self._history.pop(block.address, None)
        return block.address

    def release(self, address: int, site: str) -> None:
        """Put a block into quarantine, and note whether it was written past. Raises HeapPointerError for what is no
        block."""
        block = self.blocks.pop(address, None)
        if block is None:
            self.refuse(address, site)
        block.freed = site
        broken = self._broken(block)
        if broken:
            self.faults.append(broken)
        if block.poisoned:
            written = self._changed(block, "write after dispose, through an old view")
            self.faults += [f"{written}, disposed of at {block.poisoned}"] if written else []
        self._fill(block, FREED)
        self.quarantine[address] = block
        self.waiting += self._chunk_size(address - GUARD)
        while self.waiting > self._limit and self.quarantine:
            self._evict()

    def refuse(self, address: int, site: str) -> NoReturn:
        """The error for an address that is no block's. Raises HeapPointerError."""
        here = f", now again at {site}" if site else ""
        gone = self.quarantine.get(address) or self._history.get(address)
        if gone is not None:
            raise HeapPointerError(f"double free: {gone}{here}")
        for block in (*self.blocks.values(), *self.quarantine.values()):
            if block.address - GUARD <= address < block.address - GUARD + block.size:
                raise HeapPointerError(
                    f"free of a foreign pointer {address:#x}{here}: "
                    f"{counted(address - block.address, 'byte')} into the {block}"
                )
        raise HeapPointerError(f"free of a foreign pointer {address:#x}{here}: no block was ever there")

    def flush(self) -> None:
        """Give everything in quarantine back to the allocator."""
        while self.quarantine:
            self._evict()

    def poison(self, address: int, site: str) -> None:
        """Fill a block that was disposed of at ``site`` while views of it live."""
        block = self.blocks.get(address)
        if block is not None and not block.poisoned:
            block.poisoned = site
            self._fill(block, FREED)

    def check(self, outlived: Iterable[tuple[int, str, Sequence[str]]] = ()) -> None:
        """Look at every guard, and at what lies in quarantine; ``outlived`` are blocks that were disposed of while
        views of them live: address, where that was, where the views were made. Raises HeapCorruptionError that names
        the blocks."""
        wrong, self.faults = self.faults, []
        wrong += [m for m in [self._written_at_null()] if m]
        wrong += [m for m in map(self._broken, self.blocks.values()) if m]
        wrong += [m for m in map(self._written_after_free, self.quarantine.values()) if m]
        for address, place, views in outlived:
            block = self.blocks.get(address)
            # Where another thread is about to poison it, nothing can be said yet.
            poisoned = block is not None and block.poisoned
            text = self._changed(block, "write after dispose, through an old view") if block and poisoned else ""
            if text:
                made = f", views made at {', '.join(sorted(set(views)))}" if views else ""
                wrong.append(f"{text}, disposed of at {place}{made}")
        if wrong:
            self._mend()
        _raise(wrong)

    def report(self) -> None:
        """Raise HeapCorruptionError for what was found since somebody looked."""
        wrong, self.faults = self.faults, []
        _raise(wrong)

    def check_blocks(self, addresses: Iterable[int], during: str) -> None:
        """Look at the guards of some blocks. Raises HeapCorruptionError that names what was ``during`` it."""
        for address in addresses:
            block = self.blocks.get(address)
            message = self._broken(block) if block is not None else ""
            if message:
                self._mend()
                raise HeapCorruptionError(f"{during}: {message}")

    def _mend(self) -> None:
        """Write all guards and patterns anew: a fault is reported once."""
        self._memory[:GUARD] = 0
        for block in self.blocks.values():
            self._memory[block.address - GUARD : block.address] = _FENCES[:GUARD]
            end = block.address + block.nbytes
            self._memory[end : block.address - GUARD + block.size] = self._fence_behind(block)
        for block in self.quarantine.values():
            self._fill(block, FREED)

    def _fence_behind(self, block: Guarded) -> Bytes:
        shift = block.nbytes % 4
        return _FENCES[shift : shift + block.size - GUARD - block.nbytes]

    def _fill(self, block: Guarded, word: int) -> None:
        start, whole = block.address, block.nbytes // 4 * 4
        self._memory[start : start + whole].view(np.uint32)[...] = word
        rest = block.nbytes - whole
        self._memory[start + whole : start + block.nbytes] = _pattern(word, 4)[:rest]

    def _broken(self, block: Guarded) -> str:
        """What is wrong with the guards of a block, or nothing."""
        start, end = block.address - GUARD, block.address + block.nbytes
        before, behind = self._memory[start : block.address], self._memory[end : start + block.size]
        if before.tobytes() == _FENCES[:GUARD].tobytes() and behind.tobytes() == self._fence_behind(block).tobytes():
            return ""
        return self._first(block, before, _FENCES[:GUARD], start - block.address, "before its start") or self._first(
            block, behind, self._fence_behind(block), block.nbytes, "past its end"
        )

    @staticmethod
    def _first(block: Guarded, found: Bytes, wanted: Bytes, at: int, what: str) -> str:
        bad = np.flatnonzero(found != wanted)
        if not bad.size:
            return ""
        place = at + int(bad[-1] if at < 0 else bad[0])
        distance = -place if at < 0 else place - block.nbytes + 1
        return f"write {what}, {counted(distance, 'byte')} from it and {bad.size} in all: {block}"

    def _written_after_free(self, block: Guarded) -> str:
        return self._changed(block, "write after free")

    def _written_at_null(self) -> str:
        """Nothing ever writes there, but a page that takes the 0 of a failed ``_malloc`` for an address."""
        bad = np.flatnonzero(self._memory[:GUARD])
        return (
            f"write through a null pointer: {counted(bad.size, 'byte')} from address {int(bad[0])} on"
            if bad.size
            else ""
        )

    def _changed(self, block: Guarded, what: str) -> str:
        whole = block.nbytes // 4 * 4
        words = self._memory[block.address : block.address + whole].view(np.uint32)
        bad = np.flatnonzero(words != FREED)
        rest = self._memory[block.address + whole : block.address + block.nbytes]
        tail = rest.tobytes() != _pattern(FREED, 4)[: rest.size].tobytes()
        if not bad.size and not tail:
            return ""
        at = 4 * int(bad[0]) if bad.size else whole
        self._fill(block, FREED)
        return f"{what}, at offset {at}: {block}"

    def _evict(self) -> None:
        address, block = self.quarantine.popitem(last=False)
        self.waiting -= self._chunk_size(address - GUARD)
        message = self._written_after_free(block)
        self._history[address] = block
        while len(self._history) > 4096:
            self._history.popitem(last=False)
        self._give(address - GUARD)
        if message:
            self.faults.append(message)


def _raise(faults: Sequence[str]) -> None:
    if faults:
        raise HeapCorruptionError("; ".join(faults[:5]) + (f"; and {len(faults) - 5} more" if faults[5:] else ""))


def refuse_stale(block: Block) -> None:
    """Raise UseAfterDisposeError where a block's tensor was disposed of while views of it live."""
    if block.dropped:
        made = f", made at {block.site}" if block.site else ""
        views = f"; the view was made at {', '.join(dict.fromkeys(block.views))}" if block.views else ""
        raise UseAfterDisposeError(
            f"use after dispose: a view of {counted(block.nbytes, 'byte')} at {block.address:#x} ({block.tag}, "
            f"{block.owner}{made}), disposed of at {block.dropped}{views}"
        )


class CheckedView(np.ndarray[Any, Any]):
    """A numpy view of the debug heap that raises UseAfterDisposeError once its tensor is disposed of.

    Indexing, ufuncs, numpy's functions and the array's own methods look first. What reaches the memory past them does
    not, and reads NaN: ``np.asarray`` and ``np.array`` of it, ``.flat``, the buffer protocol.
    """

    _block: Any

    def __array_finalize__(self, obj: Any) -> None:
        # A copy has memory of its own.
        self._block = None if self.flags.owndata else getattr(obj, "_block", None)

    def _look(self) -> None:
        if self._block is not None:
            refuse_stale(self._block)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        plain = [_plain(x) for x in inputs]
        out = kwargs.get("out")
        if out is not None:
            kwargs["out"] = tuple(_plain(x) for x in out)
        result = getattr(ufunc, method)(*plain, **kwargs)
        # ``view += 1`` stays the view.
        return out[0] if out is not None and len(out) == 1 else result

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()):
            for each in value if isinstance(value, (list, tuple)) else (value,):
                _plain(each)
        return super().__array_function__(func, types, args, kwargs)

    def __reduce__(self) -> Any:
        return np.array(_plain(self)).__reduce__()


def _plain(value: Any) -> Any:
    if not isinstance(value, CheckedView):
        return value
    value._look()
    return value.view(np.ndarray)


def _checked(name: str) -> Any:
    method = getattr(np.ndarray, name)

    def call(self: CheckedView, *args: Any, **kwargs: Any) -> Any:
        self._look()
        return method(self, *args, **kwargs)

    call.__name__ = name
    call.__doc__ = method.__doc__
    return call


for _name in (
    *("__getitem__", "__setitem__", "__iter__", "__contains__", "__bool__", "__int__", "__float__", "__index__"),
    *("__repr__", "__str__", "__format__", "__copy__", "__deepcopy__"),
    *(
        "all",
        "any",
        "argmax",
        "argmin",
        "argpartition",
        "argsort",
        "astype",
        "byteswap",
        "choose",
        "clip",
        "compress",
        "copy",
    ),
    *("conj", "conjugate", "resize"),
    *("cumprod", "cumsum", "diagonal", "dot", "dump", "dumps", "fill", "flatten", "getfield", "item", "max", "mean"),
    *("min", "nonzero", "partition", "prod", "put", "ravel", "repeat", "round", "searchsorted", "setfield", "sort"),
    *("std", "sum", "take", "tobytes", "tofile", "tolist", "trace", "var"),
):
    setattr(CheckedView, _name, _checked(_name))
