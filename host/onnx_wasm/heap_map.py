"""What lay where in a heap at some moment, from its events: as lists, and as a map of letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from .heap_events import HeapEvent
from .picture import human

Block = TypeVar("Block")
LETTERS = {"weights": "W", "activations": "A", "input": "I", "output": "O", "tape": "T", "user": "U"}
"""By tag, in the order of legends; a tag that is not here is shown as `OTHER`."""
OTHER = "?"
_ANSI = {"W": 33, "A": 214, "I": 36, "O": 166, "T": 175, "U": 117, OTHER: 245}
_ROWS = 6
_GRANULE = 4096


@dataclass(frozen=True, slots=True)
class LiveBlock:
    """A block in use: address and size as asked for, in bytes."""

    address: int
    nbytes: int
    tag: str
    owner: str

    @property
    def end(self) -> int:
        """The address behind it."""
        return self.address + self.nbytes


def live_at(events: Sequence[HeapEvent], index: int) -> list[LiveBlock]:
    """The blocks in use after ``events[index]``, by address; those from before the first event are not known.

    Raises IndexError for an index that is none of an event's.
    """
    live: dict[int, LiveBlock] = {}
    follow(live, _until(events, index), lambda e: LiveBlock(e.address, e.nbytes, e.tag, e.owner))
    return sorted(live.values(), key=lambda b: b.address)


def follow(live: dict[int, Block], events: Iterable[HeapEvent], block: Callable[[HeapEvent], Block]) -> None:
    """Bring blocks by address up to date with events; ``block`` makes one of an allocation."""
    for event in events:
        if event.kind == "alloc":
            live[event.address] = block(event)
        elif event.kind == "free":
            live.pop(event.address, None)


def peak_index(events: Sequence[HeapEvent]) -> int:
    """The first event after which most bytes were in use. Raises ValueError where there are no events."""
    return max(range(len(events)), key=lambda i: events[i].used)


def reached(events: Sequence[HeapEvent], index: int, base: int) -> int:
    """About where the heap's break was after ``events[index]``, in bytes.

    Events do not tell it. It never falls, and is raised in steps of 4,096 bytes; the answer is the end of the highest
    block until then, rounded up to such a step, and at least ``base``.
    """
    ends = (e.address + e.nbytes for e in _until(events, index) if e.kind == "alloc")
    return -(-max(ends, default=base) // _GRANULE) * _GRANULE


def by_tag(blocks: Iterable[LiveBlock]) -> dict[str, tuple[int, int]]:
    """Bytes and number of blocks by tag, in the order of `LETTERS`, other tags behind."""
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for block in blocks:
        sizes[block.tag] += block.nbytes
        counts[block.tag] += 1
    order = [*(t for t in LETTERS if t in counts), *sorted(t for t in counts if t not in LETTERS)]
    return {tag: (sizes[tag], counts[tag]) for tag in order}


def text_map(
    blocks: Sequence[LiveBlock],
    *,
    base: int,
    brk: int,
    linear: int,
    width: int = 96,
    rows: int = _ROWS,
    color: bool = False,
) -> str:
    """A map of [base, linear), and a legend; addresses in bytes.

    Each of ``width * rows`` characters is an equal number of bytes: the letter of the tag that holds most of them
    (a capital where blocks take half of them or more, else a small letter), ``.`` where the heap is free, ``-`` beyond
    the break; of lines that are all beyond it only the first is shown. Lines begin with their address in MiB. With
    ``color``, letters are coloured as terminals do.
    """
    if width < 1 or rows < 1 or linear <= base:
        raise ValueError(f"no map of [{base}, {linear}) in {rows} rows of {width}")
    span, cells = linear - base, min(width * rows, linear - base)
    held = _held(blocks, base, span, cells)
    lines = []
    for first in range(0, cells, width):
        start = _start(first, base, span, cells)
        letters = "".join(
            _letter(held[i], _start(i + 1, base, span, cells) - _start(i, base, span, cells))
            or (".-"[_start(i, base, span, cells) >= brk])
            for i in range(first, min(first + width, cells))
        )
        lines.append(f"{start / 2**20:8.1f}  {_coloured(letters) if color else letters}")
        if start >= brk and not letters.strip("-"):
            break
    lines.append(
        f"{linear / 2**20:8.1f}  MiB, the end; 1 character = {human(span / cells)}; capitals: at least half of it; "
        ". free; - never used"
    )
    return "\n".join([*lines, *_legend(blocks, base, brk, linear, color)])


def _until(events: Sequence[HeapEvent], index: int) -> Iterable[HeapEvent]:
    if not 0 <= index < len(events):
        raise IndexError(f"event {index} of {len(events)}")
    return islice(events, index + 1)


def _start(cell: int, base: int, span: int, cells: int) -> int:
    return base + -(-cell * span // cells)


def _held(blocks: Iterable[LiveBlock], base: int, span: int, cells: int) -> list[Counter[str]]:
    """Bytes by letter of each cell."""
    held: list[Counter[str]] = [Counter() for _ in range(cells)]
    for block in blocks:
        letter = LETTERS.get(block.tag, OTHER)
        at, end = max(block.address, base), min(block.end, base + span)
        while at < end:
            cell = (at - base) * cells // span
            upto = min(end, _start(cell + 1, base, span, cells))
            held[cell][letter] += upto - at
            at = upto
    return held


def _letter(held: Counter[str], size: int) -> str:
    if not held:
        return ""
    letter = max(held, key=lambda t: held[t])
    return letter if 2 * held.total() >= size else letter.lower()


def _coloured(letters: str) -> str:
    text, last = "", 0
    for letter in letters:
        code = _ANSI.get(letter.upper(), 0)
        if code != last:
            text += f"\x1b[38;5;{code}m" if code else "\x1b[0m"
            last = code
        text += letter
    return text + "\x1b[0m" * bool(last)


def _legend(blocks: Sequence[LiveBlock], base: int, brk: int, linear: int, color: bool) -> list[str]:
    span = linear - base
    rows: list[tuple[str, str, int, int | None]] = [
        (LETTERS.get(t, OTHER), t or "untagged", size, count) for t, (size, count) in by_tag(blocks).items()
    ]
    used = sum(size for _, _, size, _ in rows)
    rows.append((".", "free, headers", max(min(brk, linear) - base - used, 0), None))
    rows.append(("-", "never used", max(linear - max(brk, base), 0), None))
    return [
        f"{'':7}{_coloured(letter) if color else letter}  {name:14} {human(size):>11}  {size / span:6.1%}"
        + ("" if count is None else f"  {count:,} block{'s' * (count != 1)}")
        for letter, name, size, count in rows
    ]
