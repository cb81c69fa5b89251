"""Where every value of a tape lives, and for how long.

Values that share memory form a *buffer*: aliases, and an output that takes over its input's memory in place.
Graph outputs are buffers of the heap; the others share one arena. Offsets in the arena are found greedily, largest
buffer first, in the smallest fitting gap (Pisarchyk & Lee 2020, "Efficient Memory Management for Deep Neural Net
Inference", greedy by size); where that is above the lower bound by more than a twentieth, other orders are tried.
"""

from __future__ import annotations

import bisect
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from .context import HostView, Record, TensorSequence, Value
from .dtypes import STRING
from .items import settle, values_of
from .lower import Lowering

ALIGNMENT = 64
FOREVER = 1 << 62
"""The last use of a buffer that outlives its segment."""
CHAINED_UNITS = 4
"""Of records with fewer units, all that they write stays in the cache."""
CHAINED_RECORDS = 64
"""A run is cancelled between chains; and a record's length has a limit."""
_SLACK = 1.05
_CLIMB_STEPS = 200
# A step compares all pairs of buffers; so many pairs are a few milliseconds.
_CLIMB_PAIRS = 600_000


def align(nbytes: int) -> int:
    """Bytes rounded up to the alignment of tensors."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class Place(Enum):
    """What kind of memory a buffer is in."""

    INPUT = "input"
    OUTPUT = "output"
    ARENA = "arena"
    WEIGHT = "weight"
    KNOWN = "known"


class Buffer:
    """Memory that is used from record ``first`` to record ``last``, both included."""

    __slots__ = ("first", "last", "nbytes", "offset", "place", "size", "values")

    def __init__(self, nbytes: int, first: int, last: int, place: Place, values: Sequence[Value] = ()) -> None:
        self.nbytes = nbytes
        self.first = first
        self.last = last
        self.place = place
        self.values = list(values)
        self.offset = -1
        """Bytes from the start of the arena."""
        self.size = align(nbytes)
        """Bytes that it takes there."""


_WEIGHT = Buffer(0, 0, FOREVER, Place.WEIGHT)
"""Of all constants: the session has them in the heap for as long as it lives."""


@dataclass(eq=False)
class SegmentPlan:
    """The records of one segment, and where the values they refer to are."""

    records: list[Record]
    values: list[list[Value]]
    """Those among the arguments of each record."""
    start: int
    """Position of the first record; lifetimes are positions."""
    end: int
    buffers: dict[Value, Buffer]
    """By root; those that earlier segments made, too."""
    made: list[Buffer]
    """Arena and output buffers that begin here, by first use."""
    chains: list[tuple[int, int]]
    """(first, last) position of records that are done together, unit by unit: what one has written is still in the
    cache when the next reads it."""
    freed: list[Buffer]
    """Arena buffers of earlier segments that nothing needs any more when this one ends."""
    arena_bytes: int
    lower_bound: int
    """The most bytes of arena buffers alive at one record: no plan can use less."""


class Planner:
    """Plans the segments of one lowering, one after the other.

    A value that may still be needed when a segment ends keeps its place until a later segment is the last to use it.
    """

    def __init__(self, lowering: Lowering, *, chained: bool = True) -> None:
        self._lowering = lowering
        self._chained = chained
        self._inputs = {v.root for item in lowering.inputs.values() for v in values_of(item)}
        self._buffers: dict[Value, Buffer] = {}
        self._position = 0
        self._pinned: list[Buffer] = []

    def segment(self, asked: Value | None) -> SegmentPlan:
        """Plan the records since the last segment, up to a question or, without one, to the end."""
        start, lowering = self._position, self._lowering
        if asked is None:
            outputs, needed = self._separate_outputs(), set[Value]()
        else:
            outputs, needed = set[Value](), lowering.alive() | {asked.root}
        described = lowering.context.records[start:]
        end = self._position = start + len(described)
        known = set(self._buffers)
        records, values = _needed(described, outputs | needed)
        for each in values:
            for value in each:
                # Nothing can be fused into what runs, and these links would keep all nodes' tensors alive.
                settle(value)
        self._lifetimes(values, start, outputs)
        for root in needed:
            if root in self._buffers:
                self._buffers[root].last = FOREVER
        for root in outputs:
            self._buffers[root].last = FOREVER
        fresh = {r: b for r, b in self._buffers.items() if r not in known}
        _merge_in_place(values, start, self._buffers, fresh)
        made = {id(self._buffers[r]): self._buffers[r] for r in fresh}
        new = sorted((b for b in made.values() if b.place in (Place.ARENA, Place.OUTPUT)), key=lambda b: b.first)
        pinned = [b for b in self._pinned if b.last >= start]
        moving = [b for b in new if b.place is Place.ARENA]
        alive = alive_at([*pinned, *moving], start, end)
        bound = max(alive, default=0)
        chains = [
            (first, last)
            for first, last in (_chains(records, values, start) if self._chained else ())
            if _hold(first, last, values[first - start : last - start + 1], self._buffers, alive[first - start], bound)
        ]
        arena = place(moving, bound, pinned)
        freed = [b for b in self._pinned if b.last < end]
        self._pinned = [b for b in [*self._pinned, *moving] if b.last == FOREVER]
        return SegmentPlan(records, values, start, end, dict(self._buffers), new, chains, freed, arena, bound)

    def _separate_outputs(self) -> set[Value]:
        """Give every fetch memory of its own: a copy for one that aliases an input, a weight, another fetch or a value
        of an earlier segment. Returns the roots of all fetches."""
        lowering = self._lowering
        taken: set[Value] = set()
        for name, item in lowering.outputs.items():
            if isinstance(item, TensorSequence):
                elements = tuple(self._own(v, name, taken) for v in item.elements)
                lowering.outputs[name] = TensorSequence(elements, item.dtype)
            elif isinstance(item, HostView):
                lowering.outputs[name] = HostView(tuple(self._own(v, name, taken) for v in item.sources), item.convert)
            elif isinstance(item, Value) and item.dtype is not STRING:
                lowering.outputs[name] = self._own(item, name, taken)
        return taken

    def _own(self, value: Value, name: str, taken: set[Value]) -> Value:
        root, records = value.root, self._lowering.context.records
        own = root.known is None and not root.const and root not in self._inputs
        if not own or root in taken or root in self._buffers or value.offset or root.nbytes != value.nbytes:
            copy = Value(value.shape, value.dtype, name=name)
            if value.nbytes:
                args = {"x": value, "y": copy, "n": value.nbytes}
                record = Record("copy_bytes", 1, args, self._lowering.context.node)
                record.position = len(records)
                records.append(record)
            value = root = copy
        taken.add(root)
        return value

    def _lifetimes(self, records: Sequence[Sequence[Value]], start: int, outputs: set[Value]) -> None:
        """Create and extend buffers by what the records refer to."""
        buffers = self._buffers
        for buffer in self._pinned:
            buffer.last = start - 1
        for position, values in enumerate(records, start):
            for value in values:
                root = value.root
                found = buffers.get(root)
                if found is None:
                    if root.const:
                        buffers[root] = _WEIGHT
                    else:
                        buffers[root] = Buffer(root.nbytes, position, position, self._place_of(root, outputs), [root])
                elif found.last < position:
                    found.last = position
        for root in outputs:
            # One that no record writes is empty.
            if root not in buffers:
                buffers[root] = Buffer(root.nbytes, start + len(records), FOREVER, Place.OUTPUT, [root])

    def _place_of(self, root: Value, outputs: set[Value]) -> Place:
        if root in self._inputs:
            return Place.INPUT
        if root in outputs:
            return Place.OUTPUT
        return Place.ARENA if root.known is None else Place.KNOWN


def _needed(records: Sequence[Record], roots: set[Value]) -> tuple[list[Record], list[list[Value]]]:
    """The records without those whose results nothing reads, and the values of each; ``roots`` are read later."""
    kept: list[Record] = []
    values: list[list[Value]] = []
    for record in reversed(records):
        mentioned, maker = record.values(), record.maker
        if maker:
            writes = [v.root for v in ([record.args["y"]] if record.flat else mentioned) if v.root.maker == maker]
            if writes and roots.isdisjoint(writes):
                continue
        roots.update([v.root for v in mentioned])
        kept.append(record)
        values.append(mentioned)
    return kept[::-1], values[::-1]


def _merge_in_place(
    records: Sequence[Sequence[Value]], start: int, buffers: dict[Value, Buffer], fresh: dict[Value, Buffer]
) -> None:
    """Let outputs take over the memory of inputs that their record is the last to read; only within the segment."""
    for position, values in enumerate(records, start):
        for made in values:
            if not made.reuse or made not in fresh or buffers[made].first != position:
                continue
            for given in made.reuse:
                if given.root in fresh and _can_take_over(values, made, given, buffers, position):
                    old, new = buffers[given.root], buffers[made]
                    new.first = old.first
                    new.values += old.values
                    for value in old.values:
                        buffers[value] = new
                    break


def _can_take_over(
    values: Sequence[Value], made: Value, given: Value, buffers: dict[Value, Buffer], position: int
) -> bool:
    root = given.root
    old, new = buffers.get(root), buffers[made]
    return (
        old is not None
        and old is not new
        and old.place is Place.ARENA
        and old.last == position
        and given.offset == 0
        and given.nbytes == root.nbytes == made.nbytes == old.nbytes
        # Another output of the record may have taken it over already.
        and not any(v.root is not root and buffers.get(v.root) is old for v in values)
        # Another view of the same memory among the arguments would be overwritten before it is read.
        and all(v.offset == 0 and v.shape == given.shape for v in values if buffers.get(v.root) is old)
    )


def alive_at(buffers: Iterable[Buffer], start: int, end: int) -> list[int]:
    """The bytes alive at each record from ``start`` to ``end``."""
    change = [0] * (end - start + 1)
    for b in buffers:
        first, after = max(b.first, start), min(b.last + 1, end)
        if first < after:
            change[first - start] += b.size
            change[after - start] -= b.size
    return list(itertools.accumulate(change))[:-1]


def _chains(records: Sequence[Record], values: Sequence[Sequence[Value]], start: int) -> Iterator[tuple[int, int]]:
    """Runs of records that can be done unit by unit, each of which reads what another has read or written."""
    first, begun = 0, _Chain(0)
    for at, (record, mentioned) in enumerate(zip(records, values, strict=True)):
        joins = record.flat and record.units >= CHAINED_UNITS
        if first < at < first + CHAINED_RECORDS and joins and begun.takes(record, mentioned):
            begun.add(record, mentioned)
            continue
        if at > first + 1:
            yield start + first, start + at - 1
        first, begun = (at, _Chain(record.args["y"].size)) if joins else (at + 1, _Chain(0))
        if joins:
            begun.add(record, mentioned)
    if len(records) > first + 1:
        yield start + first, start + len(records) - 1


class _Chain:
    """The records of a chain so far, whose outputs have so many elements."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.written: set[Value] = set()
        self.touched: set[Value] = set()
        self.scattered: set[Value] = set()
        """Roots that are read at other places than a unit's own."""

    def add(self, record: Record, values: Sequence[Value]) -> None:
        self.written.add(record.args["y"].root)
        self.touched.update(v.root for v in values)
        self.scattered.update(v.root for v in values if not self._is_whole(v))

    def takes(self, record: Record, values: Sequence[Value]) -> bool:
        """Whether a record can follow: what it does in a unit must not depend on, or spoil, other units."""
        y = record.args["y"]
        return (
            y.size == self.size
            and any(v.root in self.touched and v is not y for v in values)
            and all(self._is_whole(v) for v in values if v.root in self.written)
            and not any(given.root in self.scattered for given in y.reuse)
        )

    def _is_whole(self, value: Value) -> bool:
        return value.size == self.size == value.root.size and value.offset == 0


def _hold(
    first: int, last: int, values: Sequence[Sequence[Value]], buffers: Mapping[Value, Buffer], alive: int, bound: int
) -> bool:
    """Keep all that a chain mentions for as long as it takes, unless more than ``bound`` bytes would then be alive;
    ``alive`` are at its first record."""
    mentioned = {
        id(b): b for each in values for v in each if (b := buffers[v.root]).place in (Place.ARENA, Place.OUTPUT)
    }
    later = sum(b.size for b in mentioned.values() if b.first > first and b.place is Place.ARENA)
    if alive + later > bound:
        return False
    for buffer in mentioned.values():
        buffer.first, buffer.last = min(buffer.first, first), max(buffer.last, last)
    return True


def place(buffers: list[Buffer], bound: int, pinned: Sequence[Buffer] = ()) -> int:
    """Set every buffer's offset, around the pinned ones; return the arena's size."""
    orders: list[Callable[[Buffer], tuple[int, ...]]] = [
        lambda b: (-b.size, b.first),
        lambda b: (-b.size * (b.last - b.first + 1), b.first),
        lambda b: (-(b.last - b.first), -b.size),
        lambda b: (b.first, -b.size),
    ]
    best: tuple[int, list[int]] | None = None
    best_order: list[Buffer] = []
    for key in orders:
        order = sorted(buffers, key=key)
        size = _place_in_order(order, pinned)
        if best is None or size < best[0]:
            best, best_order = (size, [b.offset for b in buffers]), order
        if best[0] <= bound * _SLACK:
            break
    assert best is not None
    if best[0] > bound * _SLACK and len(buffers) > 1:
        best = _climb(buffers, best_order, best, bound, pinned)
    for buffer, offset in zip(buffers, best[1], strict=True):
        buffer.offset = offset
    return best[0]


def _climb(
    buffers: list[Buffer], order: list[Buffer], best: tuple[int, list[int]], bound: int, pinned: Sequence[Buffer]
) -> tuple[int, list[int]]:
    """Swap pairs of an order while that makes the arena smaller; the seed is fixed, so plans are reproducible."""
    chance = random.Random(0)
    for _ in range(min(_CLIMB_STEPS, _CLIMB_PAIRS // len(order) ** 2)):
        i, j = chance.randrange(len(order)), chance.randrange(len(order))
        order[i], order[j] = order[j], order[i]
        size = _place_in_order(order, pinned)
        if size <= best[0]:
            best = (size, [b.offset for b in buffers])
            if size <= bound:
                break
        else:
            order[i], order[j] = order[j], order[i]
    return best


def _place_in_order(order: Iterable[Buffer], pinned: Sequence[Buffer]) -> int:
    # (begin, end, first, last) of the buffers placed so far; attributes of buffers would take most of the time.
    placed = sorted((b.offset, b.offset + b.size, b.first, b.last) for b in pinned)
    total = max((b.offset + b.size for b in pinned), default=0)
    for buffer in order:
        size, start, stop = buffer.size, buffer.first, buffer.last
        free = 0
        best_gap, best_offset = -1, -1
        for begin, end, first, last in placed:
            if first > stop or last < start:
                continue
            gap = begin - free
            if gap >= size and (best_gap < 0 or gap < best_gap):
                best_gap, best_offset = gap, free
            if end > free:
                free = end
        offset = buffer.offset = free if best_gap < 0 else best_offset
        total = max(total, offset + size)
        bisect.insort(placed, (offset, offset + size, start, stop))
    return total
