"""What lay where in a heap, and how it filled: as a picture in SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .heap_events import HeapEvent
from .heap_map import LETTERS, LiveBlock, by_tag, live_at, reached
from .heap_timeline import HEIGHT, Stage, timeline
from .picture import LEFT, MIB, RIGHT, SMALL, escaped, human, ticks
from .words import counted

# The palette of Okabe and Ito, which people see apart whatever their eyes.
COLOURS = {
    "weights": "#0072B2",
    "activations": "#E69F00",
    "input": "#009E73",
    "output": "#D55E00",
    "tape": "#CC79A7",
    "user": "#56B4E9",
}
OTHER_COLOUR = "#8C8C8C"
_STRIP = 34
_BELOW = "the darker part, below the heap, is static data and stack"
# Where the table's first column begins, and how wide each is.
_COLUMNS = 184, 210

_STYLE = """
text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;fill:#24292f}
.h{font-size:15px;font-weight:600}.b{font-weight:600}.m{fill:#57606a}.e{text-anchor:end}.c{text-anchor:middle}
.paper{fill:#ffffff}.halo{stroke:#ffffff;stroke-width:5;stroke-linejoin:round;font-weight:600}
.linear{fill:#f0f2f4;stroke:#8c959f}.static{fill:#d0d7de}.axis{stroke:#8c959f;fill:none}.grid{stroke:#d8dee4;fill:none}
.used{fill:#0072B2;fill-opacity:.28;stroke:#0072B2}.size{fill:none;stroke:#57606a;stroke-width:1.5}
.stage{stroke:#57606a;stroke-dasharray:3 3}.grow{fill:#57606a}
.fail{stroke:#D55E00;stroke-width:2;fill:none}.peak{fill:#D55E00}
@media (prefers-color-scheme:dark){
text{fill:#e6edf3}.m{fill:#9da7b3}.paper{fill:#0d1117}.halo{stroke:#0d1117}
.linear{fill:#1c2128;stroke:#6e7681}.static{fill:#30363d}.axis{stroke:#6e7681}.grid{stroke:#262c33}
.used{stroke:#56B4E9;fill:#56B4E9}.size{stroke:#9da7b3}.stage{stroke:#9da7b3}.grow{fill:#9da7b3}
}
"""


@dataclass(frozen=True)
class Rectangle:
    """A piece of a strip: one block, or neighbours that are too narrow to be seen apart. Addresses in bytes."""

    address: int
    end: int
    tag: str
    """The one that holds most of it."""
    nbytes: int
    blocks: int
    owner: str
    """Of the only block, or of the largest."""


def svg(
    stages: Sequence[Stage], events: Sequence[HeapEvent], *, base: int, title: str = "Heap", width: int = 1100
) -> str:
    """A strip of linear memory for each stage, a table of bytes by tag, and the bytes in use over all events.

    ``base`` is where the heap begins, in bytes; ``width`` is in pixels. The picture stands alone, and follows the
    reader's light or dark scheme. Raises ValueError without events or for a width that the table does not fit into,
    IndexError for a stage beyond the events.
    """
    least = _COLUMNS[0] + _COLUMNS[1] * len(stages)
    if width < least:
        raise ValueError(f"width {width}: {len(stages)} stages take {least} pixels")
    inner = width - LEFT - RIGHT
    live = [live_at(events, stage.index) for stage in stages]
    scale = _scale(events, base, inner)
    body: list[str] = [f'<text class="h" x="{LEFT}" y="28">{escaped(title)}</text>']
    y = 44
    for number, (stage, blocks) in enumerate(zip(stages, live, strict=True), 1):
        body += _strip(number, stage, blocks, events[stage.index], base, scale, y)
        y += _STRIP + 34
    body += _address_axis(scale, inner, y - 8)
    y += 60
    body += _table(stages, live, events, y)
    y += 20 * (1 + len({b.tag for blocks in live for b in blocks}) + 2) + 34
    body += timeline(stages, events, inner, y)
    height = y + HEIGHT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img"><title>{escaped(title)}</title><style>{_STYLE}</style>'
        f'<rect class="paper" width="{width}" height="{height}"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


@dataclass(frozen=True)
class _Scale:
    """The addresses of the strips' ends, and pixels a byte."""

    low: int
    high: int
    factor: float

    def at(self, address: float) -> float:
        return LEFT + (min(max(address, self.low), self.high) - self.low) * self.factor


def _scale(events: Sequence[HeapEvent], base: int, inner: int) -> _Scale:
    """All of linear memory, or, where the heap has reached a small part of it only, that part."""
    low, high = 0, max(e.linear for e in events)
    reach = reached(events, len(events) - 1, base)
    if reach - base < SMALL * high:
        low, high = base, min(high, reach + max(reach - base, 4096) // 20)
    return _Scale(low, high, inner / (high - low))


def rectangles(blocks: Sequence[LiveBlock], pixel: float) -> list[Rectangle]:
    """What to draw of blocks that are sorted by address, where a pixel is so many bytes.

    A block of a pixel or more is a rectangle of its own. Narrower ones become one with their neighbours: those that
    begin in the same pixel, and those of the same tag that begin less than a pixel behind.
    """
    found: list[Rectangle] = []
    run: list[LiveBlock] = []
    for block in blocks:
        wide = block.nbytes >= pixel
        if run and (wide or not _joins(run, block, pixel)):
            found.append(_merged(run))
            run = []
        if wide:
            found.append(_merged([block]))
        else:
            run.append(block)
    return [*found, _merged(run)] if run else found


def _joins(run: Sequence[LiveBlock], block: LiveBlock, pixel: float) -> bool:
    if block.address // pixel == run[0].address // pixel:
        return True
    return block.tag == run[0].tag == run[-1].tag and block.address - run[-1].end < pixel


def _merged(run: Sequence[LiveBlock]) -> Rectangle:
    tags = by_tag(run)
    tag = max(tags, key=lambda t: tags[t][0])
    owner = max(run, key=lambda b: b.nbytes).owner
    return Rectangle(run[0].address, run[-1].end, tag, sum(b.nbytes for b in run), len(run), owner)


def _strip(
    number: int, stage: Stage, blocks: Sequence[LiveBlock], event: HeapEvent, base: int, scale: _Scale, y: int
) -> Iterator[str]:
    state = f"{human(event.used)} in use of {human(event.linear)} linear memory, {counted(len(blocks), 'block')}"
    yield (
        f'<text x="{LEFT}" y="{y + 14}"><tspan class="b">{number} {escaped(stage.label)}</tspan>'
        f'<tspan class="m" dx="10">{state}</tspan></text>'
    )
    y += 20
    wide = scale.at(event.linear) - LEFT
    yield f'<rect class="linear" x="{LEFT}" y="{y}" width="{wide:.2f}" height="{_STRIP}"/>'
    if scale.low < base:
        yield (
            f'<rect class="static" x="{LEFT}" y="{y}" width="{scale.at(base) - LEFT:.2f}" height="{_STRIP}">'
            f"<title>below the heap: static data and stack, {human(base)}</title></rect>"
        )
    yield '<g class="blocks">'
    for item in rectangles(blocks, 1 / scale.factor):
        wide = max((item.end - item.address) * scale.factor, 0.6)
        full = item.nbytes / (item.end - item.address) if item.end > item.address else 1.0
        faint = f' fill-opacity="{max(full, 0.35):.2f}"' if full < 0.9 else ""
        yield (
            f'<rect x="{scale.at(item.address):.2f}" y="{y}" width="{wide:.2f}" height="{_STRIP}" '
            f'fill="{COLOURS.get(item.tag, OTHER_COLOUR)}"{faint}><title>{_tooltip(item)}</title></rect>'
        )
    yield "</g>"


def _tooltip(item: Rectangle) -> str:
    tag, owner = item.tag or "untagged", f" of {item.owner[:80]}" if item.owner else ""
    if item.blocks == 1:
        return escaped(f"{tag}{owner}: {counted(item.nbytes, 'byte')} at {item.address:#x}")
    largest = f"; the largest{owner}" if owner else ""
    return escaped(
        f"{counted(item.blocks, 'block')}, most {tag}: {counted(item.nbytes, 'byte')} at {item.address:#x}{largest}"
    )


def _address_axis(scale: _Scale, inner: int, y: int) -> Iterator[str]:
    yield f'<path class="axis" d="M{LEFT} {y}h{inner}"/>'
    for mib in ticks(scale.low / MIB, scale.high / MIB, inner // 90):
        x = scale.at(mib * MIB)
        yield f'<path class="axis" d="M{x:.1f} {y}v5"/><text class="m c" x="{x:.1f}" y="{y + 18}">{mib:g}</text>'
    yield f'<text class="m e" x="{LEFT - 10}" y="{y + 18}">MiB</text>'
    note = "only the part of linear memory that the heap has reached" if scale.low else _BELOW
    yield f'<text class="m" x="{LEFT}" y="{y + 34}">{note}</text>'


def _table(
    stages: Sequence[Stage], live: Sequence[Sequence[LiveBlock]], events: Sequence[HeapEvent], y: int
) -> Iterator[str]:
    tables = [by_tag(blocks) for blocks in live]
    tags = [
        t
        for t in [*LETTERS, *sorted({t for table in tables for t in table} - set(LETTERS))]
        if any(t in x for x in tables)
    ]
    columns = [_COLUMNS[0] + _COLUMNS[1] * (i + 1) for i in range(len(stages))]
    yield f'<text class="m" x="{LEFT}" y="{y}">bytes asked for (blocks)</text>'
    for x, (number, stage) in zip(columns, enumerate(stages, 1), strict=True):
        yield f'<text class="b e" x="{x}" y="{y}">{number} {escaped(stage.label)}</text>'
    for tag in tags:
        y += 20
        yield f'<rect x="{LEFT}" y="{y - 11}" width="14" height="14" fill="{COLOURS.get(tag, OTHER_COLOUR)}"/>'
        yield f'<text x="{LEFT + 22}" y="{y}">{escaped(tag or "untagged")}</text>'
        for x, table in zip(columns, tables, strict=True):
            size, count = table.get(tag, (0, 0))
            yield f'<text class="e" x="{x - 70}" y="{y}">{human(size) if count else "-"}</text>'
            yield f'<text class="m e" x="{x}" y="{y}">{f"({count:,})" if count else ""}</text>'
    totals = [("in use, with headers", [e.used for e in _at(stages, events)])]
    totals.append(("linear memory", [e.linear for e in _at(stages, events)]))
    for name, sizes in totals:
        y += 20
        yield f'<text x="{LEFT + 22}" y="{y}">{name}</text>'
        for x, size in zip(columns, sizes, strict=True):
            yield f'<text class="e" x="{x - 70}" y="{y}">{human(size)}</text>'


def _at(stages: Sequence[Stage], events: Sequence[HeapEvent]) -> list[HeapEvent]:
    return [events[stage.index] for stage in stages]
