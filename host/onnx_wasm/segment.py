"""What the programs of a session share, and the segments that they are made of."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from . import engine, tape
from .blocks import Block
from .context import Array, Record, Value
from .heap import Runtime
from .plan import Buffer, SegmentPlan
from .prepare import LoweringCache
from .tape import Allocation, Tape
from .weights import Weights


@dataclass(frozen=True)
class ProfileEvent:
    """One record of a profiled run."""

    node: str
    """Its name, or its place in the graph where it has none."""
    op_type: str
    kernel: str
    milliseconds: float
    run: int
    """The number of the run, from 0, since profiling was started."""


@dataclass(eq=False)
class Core:
    """What the programs of a session share."""

    runtime: Runtime
    cache: LoweringCache
    weights: Weights
    name: str
    planned: bool
    fuse: bool
    events: list[ProfileEvent] | None = None
    profiled: int = 0
    """How many runs have begun since profiling was started."""
    runs: int = 0
    staging: dict[str, Block] = field(default_factory=dict)
    """Where arrays are copied to, by tensor name; as large as the largest so far. Runs are serial, so all programs
    use the same."""

    def enter(self, record: Record, milliseconds: float) -> None:
        """Enter a record that a profiled run has done."""
        node = record.node
        name = node.name or f"node {node.index}"
        assert self.events is not None
        self.events.append(ProfileEvent(name, node.op_type, record.kernel, milliseconds, self.profiled - 1))

    def release_staging(self) -> None:
        """Give the staging back. The gate must be held."""
        for block in self.staging.values():
            self.runtime._release(block)
        self.staging.clear()


class NeedsInputError(Exception):
    """A plan depends on the contents of an input, which must join the key of programs."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclass(eq=False)
class Segment:
    """A tape in the heap, and what comes after it."""

    parent: Segment | None
    plan: SegmentPlan
    tape: Tape
    block: Block
    asked: Value | None
    answer: Array | None = None
    """What the parent's question was answered with."""
    allocations: dict[Buffer, Allocation] = field(default_factory=dict)
    """Those of this segment and all before it."""
    children: OrderedDict[Any, Segment] = field(default_factory=OrderedDict)
    bound: dict[str, int] = field(default_factory=dict)
    arena_address: int = -1

    def after(self, answer: Array) -> Segment | None:
        """The segment that an answer to this one's question leads to, if there is one; it was then the latest."""
        key = answer_key(answer)
        child = self.children.get(key)
        if child is not None:
            self.children.move_to_end(key)
        return child

    def path(self) -> list[Segment]:
        """From the first segment to this one."""
        found = [self]
        while found[-1].parent is not None:
            found.append(found[-1].parent)
        return found[::-1]

    def tree(self) -> list[Segment]:
        """This segment and all after it."""
        found = [self]
        for segment in found:
            found.extend(segment.children.values())
        return found


def answer_key(answer: Array) -> tuple[Any, ...]:
    """What tells the segments apart that may follow a question."""
    return answer.shape, answer.tobytes() if answer.dtype != object else tuple(answer.reshape(-1).tolist())


@cache
def own_kernel(kernel: str) -> int:
    """The id of one of the run loop's own kernels."""
    return engine.manifest().kernels[kernel].id


@cache
def kernel_signature(kernel: str) -> tape.Signature | None:
    """How a kernel's records are written, or None for one that the module does not have."""
    found = engine.manifest().kernels.get(kernel)
    return None if found is None else tape.signature(found.id, found.args)
