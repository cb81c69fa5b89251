"""From the plan of a segment to the bytes of a tape.

A tape is one block of the heap: the records in order, then the values that the host knows. Addresses that change
after encoding are found again by their words: the arena's when it moves, an input's in every run, and those of
blocks that `tape_malloc` records take from the heap while the tape runs. A later segment's tape asks those records
where their blocks are (`tape_bind`).
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .context import Record, Value
from .errors import HeapMemoryError, ShapeError, UnsupportedModelError
from .plan import FOREVER, Buffer, Place, SegmentPlan

# Looking up a member of an enumeration takes ten times as long.
_ARENA, _WEIGHT, _INPUT, _KNOWN = Place.ARENA, Place.WEIGHT, Place.INPUT, Place.KNOWN
HEADER = struct.Struct("<HHI")
MAX_WORDS = 0xFFFF
MAX_WORD = 0xFFFFFFFF
_CODES = {"ptr": "I", "i32": "I", "words": "I", "scratch": "II", "f32": "f", "i64": "q", "f64": "d"}
# Set in the kernel id of a record whose units threads should share.
_SHARED = 0x8000
# Sharing pays from a few microseconds of work on. The fastest kernels read and write so many bytes in 2 us, functions
# such as exp in 15; those with working memory do much more with each byte, and take as long for a quarter.
SHARED_BYTES = 128 << 10
# Of a tape_malloc record: the word with its block. Of both kinds of record that patch: words before the list.
_RESULT_WORD = 3
_MALLOC_WORDS, _BIND_WORDS = 6, 5
_KNOWN_ALIGNMENT = 16
Words = NDArray[np.uint32]


@dataclass(eq=False)
class Allocation:
    """A `tape_malloc` record: word ``at + 3`` of the tape holds its block."""

    buffer: Buffer
    at: int
    patches: list[tuple[int, int]] = field(default_factory=list)
    """(word of the tape, bytes to add) that get the block's address."""
    address: int = 0
    """Of the record, once its tape has a place in the heap."""

    @property
    def block_word(self) -> int:
        """Index, in all of memory, of the word with the block's address."""
        return self.address // 4 + _RESULT_WORD

    @property
    def result(self) -> int:
        """Index of the word with the block's address."""
        return self.at + _RESULT_WORD


@dataclass(eq=False)
class Tape:
    """An encoded tape, and where its changeable words are (indices from the tape's start)."""

    words: Words
    end: int
    """Words of records; known values lie behind."""
    arena: tuple[Words, Words]
    """Word indices, and offsets in the arena."""
    inputs: dict[str, list[tuple[int, int]]]
    """Name of a fed tensor -> (word, bytes to add)."""
    weights: list[tuple[int, Value, int]]
    """(word, root, bytes to add)."""
    allocations: list[Allocation]
    starts: list[int]
    """First word of every record, for finding the one that failed."""
    records: list[Record | None]
    """The record at each start; None for the run loop's own."""
    chains: set[int]
    """Those of the starts at which records are done together, which have starts of their own as well."""
    results: Words
    """The words that hold the blocks of its `tape_malloc` records."""


class Signature(NamedTuple):
    """A kernel, and how its record is written."""

    kernel: int
    fixed: struct.Struct
    """All arguments but the lists of words, which follow."""
    names: Set[str]
    order: tuple[str, ...]
    """The names of the arguments as ``fixed`` has them; working memory takes two numbers."""
    take: Callable[[Mapping[str, Any]], Sequence[Any]]
    """The arguments in that order."""
    tensors: tuple[tuple[int, int], ...]
    """(index in that order, word from the record's start) of those that are addresses."""
    scratch: tuple[tuple[int, int], ...]
    """The same of working memory."""
    lists: tuple[int, ...]
    """Indices in that order of lists of words."""
    numbers: tuple[tuple[int, str], ...]
    """(index in that order, type) of integers."""


def signature(kernel: int, kinds: Mapping[str, str]) -> Signature:
    """Of a kernel's id, and its arguments' types by name."""
    word, codes = HEADER.size // 4, ""
    order: list[str] = []
    tensors, scratch, lists, numbers = [], [], [], []
    for name, kind in kinds.items():
        if kind == "ptr":
            tensors.append((len(order), word))
        elif kind == "scratch":
            scratch.append((len(order), word))
        elif kind == "words":
            lists.append(len(order))
        elif kind in ("i32", "i64"):
            numbers.append((len(order), kind))
        code = _CODES[kind]
        order += [name] * len(code)
        word += struct.calcsize("<" + code) // 4
        codes += code
    # Of one name, `itemgetter` answers no sequence.
    take = itemgetter(*order) if len(order) > 1 else lambda args: [args[n] for n in order]
    places = tuple(tensors), tuple(scratch), tuple(lists), tuple(numbers)
    return Signature(kernel, struct.Struct("<" + codes), kinds.keys(), tuple(order), take, *places)


def encode(
    plan: SegmentPlan,
    signatures: Callable[[str], Signature | None],
    earlier: Mapping[Buffer, Allocation],
    *,
    planned: bool,
    shared: bool = False,
) -> tuple[Tape, Callable[[int], None]]:
    """Encode a segment's records; with ``planned`` False the arena's buffers come from the heap while it runs.
    ``earlier`` are the allocations of the segments before it; ``shared``: there are threads to share work between.

    Returns the tape, and a function to call once with the address that the tape will have.
    """
    encoder = _Encoder(plan, signatures, earlier, planned, shared)
    encoder.encode()
    return encoder.finish()


def encode_record(
    record: Record, signature: Signature, address: Callable[[Value], int], *, shared: bool = False
) -> bytes:
    """One record whose addresses are all known."""
    kernel = signature.kernel
    body = _arguments(record, signature, lambda value, _: address(value))
    if shared and _is_worth_sharing(record):
        kernel |= _SHARED
    return HEADER.pack(kernel, _length(record, body), record.units) + body


def _is_worth_sharing(record: Record) -> bool:
    """Whether threads gain time with a record, as far as its arguments tell."""
    if record.units < 2:
        return False
    values = record.values()
    tensors = [v for v in values if v.stride is None]
    enough = SHARED_BYTES if len(tensors) == len(values) else SHARED_BYTES // 4
    return sum(v.nbytes for v in tensors) >= enough


def _length(record: Record | None, body: bytes) -> int:
    """Words of a record."""
    length = (HEADER.size + len(body)) // 4
    if length > MAX_WORDS:
        what = "the run loop" if record is None else record.node
        raise UnsupportedModelError(f"{what}: a record of {length} words; the limit is {MAX_WORDS}")
    return length


def _i32(record: Record, name: str, value: int) -> int:
    """A number as an unsigned word."""
    if not -(1 << 31) <= value < 1 << 32:
        raise ShapeError(f"{record.node}: {name} is {value}, beyond 32 bits") from None
    return value & 0xFFFFFFFF


def _arguments(record: Record, signature: Signature, address: Callable[[Value, int], int]) -> bytes:
    """A record without its header; ``address`` answers for a value and the word that it is for."""
    args = record.args
    if not 0 <= record.units <= MAX_WORD:
        raise ShapeError(f"{record.node}: {record.units} units of work; the limit is {MAX_WORD:,}")
    if args.keys() != signature.names:
        raise AssertionError(f"{record.kernel} takes {list(signature.names)}, {record.node} gives {list(args)}")
    fixed = list(signature.take(args))
    tail = b""
    for at, word in signature.tensors:
        value = fixed[at]
        if value is None:
            fixed[at] = 0
        elif isinstance(value, Value):
            if value.stride is not None:
                raise _whose_memory(record, signature.order[at])
            fixed[at] = address(value, word)
    for at, word in signature.scratch:
        value = fixed[at]
        if value is None:
            fixed[at] = fixed[at + 1] = 0
        elif isinstance(value, Value):
            if value.stride is None:
                raise _whose_memory(record, signature.order[at])
            fixed[at], fixed[at + 1] = address(value, word), value.stride
    for at in signature.lists:
        words = _words(record, signature.order[at], fixed[at])
        fixed[at] = HEADER.size + signature.fixed.size + len(tail)
        tail += words
    try:
        return signature.fixed.pack(*fixed) + tail
    except struct.error:
        # A negative number, or one that is beyond its range.
        for at, kind in signature.numbers:
            name, number = signature.order[at], fixed[at]
            if kind == "i32":
                fixed[at] = _i32(record, name, number)
            elif not -(1 << 63) <= number < 1 << 63:
                raise ShapeError(f"{record.node}: {name} is {number}, beyond 64 bits") from None
        return signature.fixed.pack(*fixed) + tail


def _whose_memory(record: Record, name: str) -> AssertionError:
    return AssertionError(f"{record.node}: {record.kernel} and its op differ over whose memory {name} is")


def _words(record: Record, name: str, values: Sequence[int]) -> bytes:
    code = f"<{len(values)}I"
    try:
        return struct.pack(code, *values)
    except struct.error:
        return struct.pack(code, *[_i32(record, name, v) for v in values])


class _Encoder:
    def __init__(
        self,
        plan: SegmentPlan,
        signatures: Callable[[str], Signature | None],
        earlier: Mapping[Buffer, Allocation],
        planned: bool,
        shared: bool,
    ) -> None:
        self.plan, self.planned, self.earlier, self.shared = plan, planned, earlier, shared
        self.signature = signatures
        self.chunks: list[bytes] = []
        self.at = 0
        self.starts: list[int] = []
        self.records: list[Record | None] = []
        self.chains: set[int] = set()
        self.arena: list[tuple[int, int]] = []
        self.inputs: dict[str, list[tuple[int, int]]] = {}
        self.weights: list[tuple[int, Value, int]] = []
        self.known: list[tuple[int, Value, int]] = []
        self.allocations: dict[Buffer, Allocation] = {}
        self.bound: dict[Buffer, Allocation] = {}
        """Stand-ins, with patches of this tape, for the allocations of earlier ones."""
        self.frees: list[tuple[int, Allocation]] = []

    def encode(self) -> None:
        plan = self.plan
        by_first: dict[int, list[Buffer]] = {}
        by_last: dict[int, list[Buffer]] = {}
        for buffer in plan.made:
            if buffer.nbytes and (buffer.place is Place.OUTPUT or not self.planned):
                by_first.setdefault(buffer.first, []).append(buffer)
                if buffer.last < FOREVER:
                    by_last.setdefault(buffer.last, []).append(buffer)
        # A record that patches words is as long as its list of them, so they are counted first.
        patching = {*(b for made in by_first.values() for b in made), *self.earlier}
        patches: Counter[Buffer] = Counter()
        for values in plan.values if patching else ():
            for value in values:
                buffer = plan.buffers[value.root]
                if buffer in patching:
                    patches[buffer] += 1
        for buffer in plan.freed:
            if buffer in self.earlier:
                by_last.setdefault(max(buffer.last, plan.start - 1), []).append(buffer)
        for buffer in patches:
            if buffer in self.earlier:
                self._bind(buffer, patches[buffer])
        for buffer in by_last.get(plan.start - 1, ()):
            self._free(self.earlier[buffer])
        chains = dict(plan.chains)
        last = -1
        for position, record in enumerate(plan.records, plan.start):
            for buffer in by_first.get(position, ()):
                self._malloc(buffer, patches[buffer])
            if position in chains:
                last = chains[position]
                self._chain(plan.records[position - plan.start : last - plan.start + 1])
            elif position > last:
                self._record(record)
            for buffer in by_last.get(position, ()):
                self._free(self.allocations.get(buffer) or self.earlier[buffer])

    def _malloc(self, buffer: Buffer, patches: int) -> None:
        if buffer.nbytes > MAX_WORD:
            raise HeapMemoryError(f"{buffer.values[0]!r} needs {buffer.nbytes:,} bytes; memory ends at 4 GiB")
        self.allocations[buffer] = Allocation(buffer, self.at)
        fixed = struct.pack("<IIII", buffer.nbytes, 0, patches, HEADER.size + 16)
        self._append(None, self._own("tape_malloc"), 1, fixed + bytes(8 * patches))

    def _bind(self, buffer: Buffer, patches: int) -> None:
        self.bound[buffer] = Allocation(buffer, self.at)
        fixed = struct.pack("<III", self.earlier[buffer].address, patches, HEADER.size + 12)
        self._append(None, self._own("tape_bind"), 1, fixed + bytes(8 * patches))

    def _free(self, allocation: Allocation) -> None:
        self.frees.append((self.at + 2, allocation))
        self._append(None, self._own("tape_free"), 1, bytes(4))

    def _own(self, kernel: str) -> int:
        signature = self.signature(kernel)
        assert signature is not None, kernel
        return signature.kernel

    def _chain(self, records: Sequence[Record]) -> None:
        """Records within one that does them together."""
        at, chunk, kernel = self.at, len(self.chunks), self._own("tape_chain")
        self.chains.add(at)
        self._append(None, kernel, records[0].units, b"")
        shared, self.shared = self.shared, False
        for record in records:
            self._record(record)
        self.shared = shared
        values = {v.root: v for r in records for v in r.values()}
        if shared and sum(v.nbytes for v in values.values()) >= SHARED_BYTES:
            kernel |= _SHARED
        self.chunks[chunk] = HEADER.pack(kernel, self.at - at, records[0].units)

    def _record(self, record: Record) -> None:
        signature = self.signature(record.kernel)
        if signature is None:
            raise no_kernel(record)
        kernel = signature.kernel
        body = _arguments(record, signature, self._refer)
        if self.shared and _is_worth_sharing(record):
            kernel |= _SHARED
        self._append(record, kernel, record.units, body)

    def _refer(self, value: Value, place: int) -> int:
        """Enter that a word of the record in hand is the address of a value; 0 stands there until it is known."""
        word, root = self.at + place, value.root
        buffer = self.plan.buffers[root]
        kind = buffer.place
        if kind is _ARENA and self.planned and buffer.nbytes:
            self.arena.append((word, buffer.offset + value.offset))
        elif kind is _WEIGHT:
            self.weights.append((word, root, value.offset))
        elif kind is _INPUT:
            self.inputs.setdefault(root.name, []).append((word, value.offset))
        elif kind is _KNOWN:
            self.known.append((word, root, value.offset))
        elif buffer.nbytes:
            (self.allocations.get(buffer) or self.bound[buffer]).patches.append((word, value.offset))
        return 0

    def _append(self, record: Record | None, kernel: int, units: int, body: bytes) -> None:
        length = _length(record, body)
        self.starts.append(self.at)
        self.records.append(record)
        self.chunks.append(HEADER.pack(kernel, length, units) + body)
        self.at += length

    def finish(self) -> tuple[Tape, Callable[[int], None]]:
        end = self.at
        pool: dict[Value, int] = {}
        for _, root, _ in self.known:
            if root not in pool:
                assert root.known is not None
                data = np.ascontiguousarray(root.known).tobytes()
                gap = -self.at * 4 % _KNOWN_ALIGNMENT
                padded = bytes(gap) + data + bytes(-len(data) % 4)
                pool[root] = self.at * 4 + gap
                self.chunks.append(padded)
                self.at += len(padded) // 4
        words = np.frombuffer(b"".join(self.chunks), np.uint32).copy()
        arena = np.array(self.arena, np.uint32).reshape(-1, 2)
        tape = Tape(
            words=words,
            end=end,
            arena=(arena[:, 0].copy(), arena[:, 1].copy()),
            inputs=self.inputs,
            weights=self.weights,
            allocations=list(self.allocations.values()),
            starts=self.starts,
            records=self.records,
            chains=self.chains,
            results=np.array([a.result for a in self.allocations.values()], np.uint32),
        )

        def relocate(address: int) -> None:
            for word, root, offset in self.known:
                words[word] = address + pool[root] + offset
            for allocation in self.allocations.values():
                allocation.address = address + 4 * allocation.at
                self._patch(words, address, allocation, _MALLOC_WORDS)
            for allocation in self.bound.values():
                self._patch(words, address, allocation, _BIND_WORDS)
            for word, allocation in self.frees:
                words[word] = allocation.address

        return tape, relocate

    @staticmethod
    def _patch(words: Words, address: int, allocation: Allocation, fixed: int) -> None:
        flat = [w for word, offset in allocation.patches for w in (address + 4 * word, offset)]
        words[allocation.at + fixed : allocation.at + fixed + len(flat)] = flat


def no_kernel(record: Record) -> UnsupportedModelError:
    """The error for a record whose kernel the module does not have."""
    types = ", ".join(sorted({v.dtype.name for v in record.values()}))
    return UnsupportedModelError(
        f"{record.node}: not implemented for these types ({types}): no kernel {record.kernel} "
        "(after a change to the kernels: run ./build.sh, or its name is misspelt)"
    )


def find_record(tape: Tape, word: int) -> int:
    """Index of the record that starts at a word of the tape, or -1."""
    at = int(np.searchsorted(tape.starts, word, side="right")) - 1
    return at if at >= 0 and tape.starts[at] == word else -1
