"""What lives in a heap, who owns it, and whether it leaked: snapshots, their differences, leak reports.

*Leaked* are tensors that nobody has disposed of and sessions that nobody has released. *Kept* is what sessions hold for
their next run (tapes, staging of inputs, the arena). *Retained* is linear memory that holds nothing any more:
WebAssembly memory never shrinks, so it stays the page's until the module goes, but the next allocations use it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from .blocks import Block
from .memory_info import MemoryInfo
from .words import counted, noun

Verdict = Literal["clean", "retained", "leaked"]
TENSOR_TAGS = ("output", "user")
_ROWS = 12


@dataclass(frozen=True)
class BlockInfo:
    """A block as it was when somebody looked; sizes in bytes, ``age`` in seconds."""

    serial: int
    """Blocks are numbered in the order in which they were made."""
    address: int
    nbytes: int
    tag: str
    owner: str
    age: float
    site: str
    """The Python line that made it, where the runtime traces allocations."""
    disposed: str
    """The Python line that disposed of it while views of it lived."""
    views: tuple[str, ...]
    """Where the views that keep it were made, "" where the runtime does not trace allocations."""

    @classmethod
    def of(cls, block: Block) -> BlockInfo:
        """What a block is now."""
        return cls(
            block.serial,
            block.address,
            block.nbytes,
            block.tag,
            block.owner,
            block.age,
            block.site,
            block.dropped,
            tuple(block.views),
        )


@dataclass(frozen=True)
class SessionInfo:
    """A session that has not been disposed of."""

    number: int
    """Sessions are numbered in the order in which they were made."""
    name: str
    nbytes: int
    """Of the blocks that it holds."""
    blocks: int
    site: str
    """The Python line that made it, where the runtime traces allocations."""


@dataclass(frozen=True)
class Snapshot:
    """A heap at one moment."""

    memory: MemoryInfo
    blocks: tuple[BlockInfo, ...]
    sessions: tuple[SessionInfo, ...]
    runtime: int
    """Tells whose heap it is."""
    heap_base: int
    """Where the heap begins, in bytes."""

    def to_dict(self) -> dict[str, Any]:
        """Memory, blocks and sessions, as JSON can hold them."""
        return {
            "memory": self.memory.to_dict(),
            "blocks": [vars(b) for b in self.blocks],
            "sessions": [vars(s) for s in self.sessions],
        }

    def diff(self, later: Snapshot) -> HeapDiff:
        """What has changed until a later snapshot. Raises ValueError for one of another runtime."""
        if not isinstance(later, Snapshot):
            raise TypeError(f"a snapshot is compared with a Snapshot, not with {type(later).__name__}")
        if self.runtime != later.runtime:
            raise ValueError("the two snapshots are of different runtimes")
        before = {b.serial for b in self.blocks}
        after = {b.serial for b in later.blocks}
        return HeapDiff(
            self,
            later,
            tuple(b for b in later.blocks if b.serial not in before),
            tuple(b for b in self.blocks if b.serial not in after),
        )

    def __str__(self) -> str:
        return "\n".join([str(self.memory), *table(self.blocks)])


@dataclass(frozen=True)
class HeapDiff:
    """What lies between two snapshots."""

    before: Snapshot
    after: Snapshot
    added: tuple[BlockInfo, ...]
    """Blocks that live in the later one only."""
    removed: tuple[BlockInfo, ...]
    """Blocks that lived in the earlier one only."""

    @property
    def used(self) -> int:
        """By how many bytes the blocks in use have grown."""
        return self.after.memory.used - self.before.memory.used

    @property
    def linear(self) -> int:
        """By how many bytes linear memory has grown."""
        return self.after.memory.linear - self.before.memory.linear

    @property
    def by_tag(self) -> dict[str, int]:
        """By how many bytes the blocks of each tag have grown."""
        change = Counter(self.after.memory.by_tag)
        change.subtract(self.before.memory.by_tag)
        return {tag: n for tag, n in sorted(change.items()) if n}

    def to_dict(self) -> dict[str, Any]:
        """Changes and blocks, as JSON can hold them."""
        return {
            "used": self.used,
            "linear": self.linear,
            "by_tag": self.by_tag,
            "added": [vars(b) for b in self.added],
            "removed": [vars(b) for b in self.removed],
        }

    def __str__(self) -> str:
        tags = ", ".join(f"{tag} {n:+,}" for tag, n in self.by_tag.items())
        lines = [f"in use {self.used:+,} bytes{f' ({tags})' if tags else ''}, linear memory {self.linear:+,}"]
        for name, blocks in (("added", self.added), ("removed", self.removed)):
            if blocks:
                lines += [
                    f"{name}: {counted(len(blocks), 'block')}, {counted(sum(b.nbytes for b in blocks), 'byte')}",
                    *table(blocks),
                ]
        return "\n".join(lines)


@dataclass(frozen=True)
class LeakReport:
    """What lives in a heap that did not at a snapshot, or at all; false where nothing has leaked."""

    memory: MemoryInfo
    tensors: tuple[BlockInfo, ...]
    """Blocks of tensors, and of `malloc`, that nobody has disposed of."""
    sessions: tuple[SessionInfo, ...]
    """Sessions that nobody has disposed of."""
    kept: tuple[BlockInfo, ...]
    """What other sessions hold for their next run; it goes back when they are disposed of."""
    grown: int
    """Bytes by which linear memory has grown."""
    retained: int
    """Bytes of linear memory, from the heap's beginning on, that hold nothing."""

    @property
    def verdict(self) -> Verdict:
        """``leaked`` where tensors or sessions are left, else ``retained`` where memory has grown for what is gone."""
        if self.tensors or self.sessions:
            return "leaked"
        return "retained" if self.grown else "clean"

    def __bool__(self) -> bool:
        return self.verdict == "leaked"

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON can hold it."""
        return {
            "verdict": self.verdict,
            "tensors": [vars(b) for b in self.tensors],
            "sessions": [vars(s) for s in self.sessions],
            "kept": [vars(b) for b in self.kept],
            "grown": self.grown,
            "retained": self.retained,
            "memory": self.memory.to_dict(),
        }

    def __str__(self) -> str:
        lines = [self._headline()]
        if self.sessions:
            lines.append("sessions never disposed:")
            lines += map(_session_row, self.sessions)
        if self.tensors:
            lines += ["tensors never disposed, or kept by views:", *table(self.tensors)]
        if self.kept:
            lines += ["kept by sessions for their next run:", *table(self.kept)]
        sites = [b.site for b in self.tensors] + [s.site for s in self.sessions]
        if sites and not any(sites):
            lines.append("Runtime(trace_allocations=True) tells the Python lines that made them.")
        lines.append(str(self.memory))
        return "\n".join(lines)

    def _headline(self) -> str:
        if self.verdict == "leaked":
            return f"leaked: {_summary(self.tensors, self.sessions)} never disposed"
        if self.verdict == "retained":
            return (
                f"retained, not leaked: linear memory grew by {self.grown:,} bytes for what has been given back; it "
                f"cannot shrink, {self.retained:,} bytes of it are free for what comes next"
            )
        if self.kept:
            more = sum(b.nbytes for b in self.kept)
            kept = counted(more, "byte")
            return f"not leaked: sessions keep {kept} more for their next run; linear memory has not grown"
        return "clean: nothing leaked, memory has not grown"


def forgotten_lines(things: Iterable[BlockInfo | SessionInfo]) -> list[str]:
    """Lines that say what Python has collected before anybody disposed of it; none where that is nothing."""
    things = list(things)
    # Views that were on their way out at the time say nothing.
    tensors = [replace(t, views=()) for t in things if isinstance(t, BlockInfo)]
    sessions = [t for t in things if isinstance(t, SessionInfo)]
    if not things:
        return []
    return [
        f"forgotten: {_summary(tensors, sessions)} dropped without dispose, which only Python collects:",
        *map(_session_row, sessions),
        *table(tensors),
    ]


def _summary(tensors: Sequence[BlockInfo], sessions: Sequence[SessionInfo]) -> str:
    kinds: list[tuple[Sequence[BlockInfo | SessionInfo], str]] = [(tensors, "tensor"), (sessions, "session")]
    parts = [
        f"{counted(len(group), name)} ({counted(sum(x.nbytes for x in group), 'byte')})"
        for group, name in kinds
        if group
    ]
    return " and ".join(parts)


def _session_row(session: SessionInfo) -> str:
    made = f"  created at {session.site}" if session.site else ""
    return f"  {_bytes(session.nbytes)} in {counted(session.blocks, 'block')}  {session.name}{made}"


def _bytes(nbytes: int) -> str:
    """A number of bytes as a column of a table."""
    return f"{nbytes:12,} {noun(nbytes, 'byte'):5}"


def leak_report(now: Snapshot, since: Snapshot | None, held: set[int]) -> LeakReport:
    """Compare; ``held`` are the numbers of blocks that belong to sessions, or to the runtime itself. A session that
    holds nothing has not leaked. Raises ValueError for snapshots of different runtimes."""
    if since is not None and since.runtime != now.runtime:
        raise ValueError("the snapshot is one of another runtime")
    old = set() if since is None else {b.serial for b in since.blocks}
    known = set() if since is None else {s.number for s in since.sessions}
    added = [b for b in now.blocks if b.serial not in old]
    return LeakReport(
        now.memory,
        tuple(b for b in added if b.serial not in held),
        tuple(s for s in now.sessions if s.number not in known and s.blocks),
        tuple(b for b in added if b.serial in held),
        0 if since is None else now.memory.linear - since.memory.linear,
        now.memory.linear - now.heap_base - now.memory.used - now.memory.quarantine,
    )


def table(blocks: Iterable[BlockInfo]) -> list[str]:
    """Lines of bytes, what for, whose and where made; equal ones together, the largest first."""
    groups: dict[tuple[str, ...], list[BlockInfo]] = {}
    for block in blocks:
        groups.setdefault((block.tag, block.owner, block.site, block.disposed, *sorted(set(block.views))), []).append(
            block
        )
    ordered = sorted(groups.values(), key=lambda g: -sum(b.nbytes for b in g))
    lines = [_row(group) for group in ordered[:_ROWS]]
    if ordered[_ROWS:]:
        rest = [b for group in ordered[_ROWS:] for b in group]
        lines.append(f"  {_bytes(sum(b.nbytes for b in rest))} in {counted(len(rest), 'other block')}")
    return lines


def _row(group: Sequence[BlockInfo]) -> str:
    first = group[0]
    text = f"  {_bytes(sum(b.nbytes for b in group))}"
    text += f" in {len(group)} blocks" if len(group) > 1 else f" at {first.address:#x}"
    text += f"  {first.tag:11} {first.owner}"
    if first.site:
        text += f"  made at {first.site}"
    if first.disposed:
        text += f"  disposed at {first.disposed}"
    if first.views:
        places = ", ".join(sorted({v for v in first.views if v}))
        text += f"  kept by {counted(len(first.views), 'view')}{f' made at {places}' if places else ''}"
    return text.rstrip()
