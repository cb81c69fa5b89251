"""Where every value of a tape lives, and for how long.

Values that share memory form a *buffer*: aliases, and an output that takes over its input's memory in place.
Graph outputs are buffers of the heap; the others share one arena. Offsets in the arena are found greedily, largest
buffer first, in the smallest fitting gap (Pisarchyk & Lee 2020, "Efficient Memory Management for Deep Neural Net
Inference", greedy by size); where that is above the lower bound by more than a twentieth, other orders are tried.
"""

from __future__ import annotations

import bisect
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum

from .context import Record, Value
from .lower import Lowered

ALIGNMENT = 64
_SLACK = 1.05
_CLIMB_STEPS = 200


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


@dataclass(eq=False)
class Buffer:
    """Memory that is used from record ``first`` to record ``last``, both included."""

    nbytes: int
    first: int
    last: int
    place: Place
    values: list[Value] = field(default_factory=list)
    offset: int = -1
    """Bytes from the start of the arena."""

    @property
    def size(self) -> int:
        return align(self.nbytes)


@dataclass(eq=False)
class MemoryPlan:
    """Every root value's buffer, and what the arena comes to."""

    buffers: dict[Value, Buffer]
    records: list[Record]
    outputs: dict[str, Value]
    """The value of each fetch; its root's buffer is an output, a weight, or known."""
    arena_bytes: int
    lower_bound: int
    """The most bytes of arena buffers alive at one record: no plan can use less."""

    def of(self, place: Place) -> list[Buffer]:
        """The distinct buffers of one kind, by first use."""
        found = {id(b): b for b in self.buffers.values() if b.place is place}
        return sorted(found.values(), key=lambda b: b.first)


def plan_memory(lowered: Lowered) -> MemoryPlan:
    """Lifetimes, in-place merges and arena offsets for what one lowering describes."""
    records = list(lowered.context.records)
    outputs = _separate_outputs(lowered, records)
    buffers = _lifetimes(records, lowered, outputs)
    _merge_in_place(records, buffers)
    arena = [b for b in {id(b): b for b in buffers.values()}.values() if b.place is Place.ARENA]
    bound = lower_bound(arena)
    return MemoryPlan(buffers, records, outputs, place(arena, bound), bound)


def _separate_outputs(lowered: Lowered, records: list[Record]) -> dict[str, Value]:
    """Give every fetch memory of its own: a copy for one that aliases an input, a weight or another fetch."""
    inputs = {v.root for v in lowered.inputs.values()}
    taken: set[Value] = set()
    outputs = {}
    for name, value in lowered.outputs.items():
        root = value.root
        own = root.known is None and not root.const and root not in inputs and root not in taken
        if not own or value.offset or root.nbytes != value.nbytes:
            copy = Value(value.shape, value.dtype, name=name)
            if value.nbytes:
                args = {"x": value, "y": copy, "n": value.nbytes}
                records.append(Record("copy_bytes", 1, args, lowered.context.node, position=len(records)))
            value, root = copy, copy
        taken.add(root)
        outputs[name] = value
    return outputs


def _lifetimes(records: list[Record], lowered: Lowered, outputs: dict[str, Value]) -> dict[Value, Buffer]:
    fed = {v.root for v in lowered.inputs.values()}
    fetched = {v.root for v in outputs.values()}
    buffers: dict[Value, Buffer] = {}

    def place_of(root: Value) -> Place:
        if root in fed:
            return Place.INPUT
        if root in fetched:
            return Place.OUTPUT
        if root.const:
            return Place.WEIGHT
        return Place.ARENA if root.known is None else Place.KNOWN

    for position, record in enumerate(records):
        for value in record.values():
            root = value.root
            buffer = buffers.get(root)
            if buffer is None:
                buffers[root] = Buffer(root.nbytes, position, position, place_of(root), [root])
            else:
                buffer.last = position
    for root in fetched:
        # An output that no record writes is empty.
        buffer = buffers.setdefault(root, Buffer(root.nbytes, len(records), len(records), Place.OUTPUT, [root]))
        buffer.last = len(records)
    return buffers


def _merge_in_place(records: list[Record], buffers: dict[Value, Buffer]) -> None:
    for position, record in enumerate(records):
        for made in record.values():
            if not made.reuse or made.root is not made or buffers[made].first != position:
                continue
            for given in made.reuse:
                if _can_take_over(record, made, given, buffers, position):
                    old, new = buffers[given.root], buffers[made]
                    new.first = old.first
                    new.values += old.values
                    for value in old.values:
                        buffers[value] = new
                    break


def _can_take_over(record: Record, made: Value, given: Value, buffers: dict[Value, Buffer], position: int) -> bool:
    root = given.root
    old, new = buffers.get(root), buffers[made]
    return (
        old is not None
        and old is not new
        and old.place is Place.ARENA
        and old.last == position
        and given.offset == 0
        and given.nbytes == root.nbytes == made.nbytes == old.nbytes
        # Another view of the same memory among the arguments would be overwritten before it is read.
        and all(v.offset == 0 and v.shape == given.shape for v in record.values() if buffers.get(v.root) is old)
    )


def lower_bound(buffers: Iterable[Buffer]) -> int:
    """The most bytes alive at one record."""
    change: dict[int, int] = {}
    for b in buffers:
        change[b.first] = change.get(b.first, 0) + b.size
        change[b.last + 1] = change.get(b.last + 1, 0) - b.size
    alive = most = 0
    for position in sorted(change):
        alive += change[position]
        most = max(most, alive)
    return most


def place(buffers: list[Buffer], bound: int) -> int:
    """Set every buffer's offset; return the arena's size."""
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
        size = _place_in_order(order)
        if best is None or size < best[0]:
            best, best_order = (size, [b.offset for b in buffers]), order
        if best[0] <= bound * _SLACK:
            break
    assert best is not None
    if best[0] > bound * _SLACK and len(buffers) > 1:
        best = _climb(buffers, best_order, best, bound)
    for buffer, offset in zip(buffers, best[1], strict=True):
        buffer.offset = offset
    return best[0]


def _climb(
    buffers: list[Buffer], order: list[Buffer], best: tuple[int, list[int]], bound: int
) -> tuple[int, list[int]]:
    """Swap pairs of an order while that makes the arena smaller; the seed is fixed, so plans are reproducible."""
    chance = random.Random(0)
    for _ in range(_CLIMB_STEPS):
        i, j = chance.randrange(len(order)), chance.randrange(len(order))
        order[i], order[j] = order[j], order[i]
        size = _place_in_order(order)
        if size <= best[0]:
            best = (size, [b.offset for b in buffers])
            if size <= bound:
                break
        else:
            order[i], order[j] = order[j], order[i]
    return best


def _place_in_order(order: Iterable[Buffer]) -> int:
    placed: list[Buffer] = []
    total = 0
    for buffer in order:
        end = 0
        best_gap, best_offset = -1, -1
        for other in placed:
            if other.first > buffer.last or other.last < buffer.first:
                continue
            gap = other.offset - end
            if gap >= buffer.size and (best_gap < 0 or gap < best_gap):
                best_gap, best_offset = gap, end
            end = max(end, other.offset + other.size)
        buffer.offset = end if best_gap < 0 else best_offset
        total = max(total, buffer.offset + buffer.size)
        bisect.insort(placed, buffer, key=lambda b: b.offset)
    return total
