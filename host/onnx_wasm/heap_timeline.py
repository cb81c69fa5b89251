"""How a heap filled: bytes in use and linear memory over the events, as a part of a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .heap_events import HeapEvent
from .heap_map import peak_index
from .picture import LEFT, MIB, SMALL, human, ticks
from .words import counted

HEIGHT = 252
"""Pixels below ``y``, the axis' captions included."""
_PLOT = 200


@dataclass(frozen=True)
class Stage:
    """A moment that gets a strip: what it is, and the number of its event."""

    label: str
    index: int


@dataclass(frozen=True)
class _Plot:
    """Where an event's number and a number of bytes lie in the timeline; ``y`` and ``floor`` are its edges."""

    inner: int
    y: int
    last: int
    top: float

    @property
    def floor(self) -> int:
        return self.y + _PLOT

    def at_event(self, index: float) -> float:
        return LEFT + index * self.inner / self.last

    def at_bytes(self, nbytes: float) -> float:
        """Its upper edge for what lies beyond it."""
        return self.floor - min(nbytes / self.top, 1.0) * _PLOT


def timeline(stages: Sequence[Stage], events: Sequence[HeapEvent], inner: int, y: int) -> Iterator[str]:
    """Elements of the picture; its upper edge is at ``y``, ``inner`` is its width in pixels."""
    most, linear = max(e.used for e in events), max(e.linear for e in events)
    small = most < SMALL * linear
    plot = _Plot(inner, y, max(len(events) - 1, 1), max(most, 1) * 1.25 if small else linear * 1.08)
    yield f'<text class="b" x="{LEFT}" y="{y - 16}">over the events of the heap</text>'
    yield f'<text class="m e" x="{LEFT - 10}" y="{y - 16}">MiB</text>'
    for mib in ticks(0, plot.top / MIB, 7):
        at = plot.at_bytes(mib * MIB)
        yield f'<path class="grid" d="M{LEFT} {at:.1f}h{inner}"/>'
        yield f'<text class="m e" x="{LEFT - 10}" y="{at + 4:.1f}">{mib:g}</text>'
    yield from _curves(events, plot)
    for number, stage in enumerate(stages, 1):
        x = plot.at_event(stage.index)
        yield f'<path class="stage" d="M{x:.1f} {y}V{plot.floor}"/>'
        yield f'<text class="m c" x="{x:.1f}" y="{y - 2}">{number}</text>'
    yield from _marks(events, plot)
    yield f'<path class="axis" d="M{LEFT} {plot.floor}h{inner}"/>'
    for index in ticks(0, plot.last, inner // 110):
        if index == int(index):
            x = plot.at_event(index)
            yield f'<path class="axis" d="M{x:.1f} {plot.floor}v5"/>'
            yield f'<text class="m c" x="{x:.1f}" y="{plot.floor + 18}">{int(index):,}</text>'
    yield (
        f'<text class="m" x="{LEFT}" y="{plot.floor + 38}">number of the event. Filled: bytes in use; line: linear '
        f"memory{', which is beyond this scale' * small}; triangles: growths; crosses: failed allocations; "
        "dot: the peak</text>"
    )


def _curves(events: Sequence[HeapEvent], plot: _Plot) -> Iterator[str]:
    used = _thinned([e.used for e in events], plot.inner)
    line = "".join(f"L{plot.at_event(i):.1f} {plot.at_bytes(v):.1f}" for i, v in used)
    yield f'<path class="used" d="M{LEFT} {plot.floor}{line}V{plot.floor}Z"/>'
    sizes = _thinned([e.linear for e in events], plot.inner)
    steps = "".join(
        f"H{plot.at_event(i):.1f}V{plot.at_bytes(v):.1f}"
        for (i, v), (_, before) in zip(sizes[1:], sizes, strict=False)
        if v != before
    )
    yield f'<path class="size" d="M{LEFT} {plot.at_bytes(sizes[0][1]):.1f}{steps}H{LEFT + plot.inner}"/>'


def _marks(events: Sequence[HeapEvent], plot: _Plot) -> Iterator[str]:
    """Growths, failures and the peak; one mark for those that would lie on each other."""
    yield '<g class="grow">'
    for found in _together(events, "grow", plot, 2):
        last = events[found[-1]]
        x, y = plot.at_event(found[-1]), plot.at_bytes(last.linear)
        what = f"event {found[-1]:,}: memory grew to {human(last.linear)}" + _more(found)
        yield f'<path d="M{x:.1f} {y - 9:.1f}l4 7h-8z"><title>{what}</title></path>'
    yield '</g><g class="fail">'
    for found in _together(events, "fail", plot, 9):
        first = events[found[0]]
        x, y = plot.at_event(found[0]), plot.at_bytes(first.used)
        what = f"event {found[0]:,}: no {counted(first.nbytes, 'byte')} with {human(first.used)} in use" + _more(found)
        yield f'<path d="M{x - 4:.1f} {y - 4:.1f}l8 8m0-8l-8 8"><title>{what}</title></path>'
    yield "</g>"
    peak = peak_index(events)
    x, y, size = plot.at_event(peak), plot.at_bytes(events[peak].used), human(events[peak].used)
    yield f'<circle class="peak" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
    left = x > LEFT + plot.inner / 2
    for kind in ("halo", "b"):
        end = " e" if left else ""
        yield f'<text class="{kind}{end}" x="{x + (-8 if left else 8):.1f}" y="{y - 7:.1f}">peak {size}</text>'


def _together(events: Sequence[HeapEvent], kind: str, plot: _Plot, apart: float) -> Iterator[list[int]]:
    """Numbers of the events of a kind, those together that are less than so many pixels behind the first of them."""
    group: list[int] = []
    for i, event in enumerate(events):
        if event.kind == kind:
            if group and plot.at_event(i) - plot.at_event(group[0]) >= apart:
                yield group
                group = []
            group.append(i)
    if group:
        yield group


def _more(found: Sequence[int]) -> str:
    return f" ({len(found):,} within events {found[0]:,} to {found[-1]:,})" if len(found) > 1 else ""


def _thinned(values: Sequence[int], columns: int) -> list[tuple[int, int]]:
    """Indices and values of a line that looks the same in so many columns: of each its first, least, most and last."""
    if len(values) <= 4 * columns:
        return list(enumerate(values))
    kept: set[int] = set()
    for column in range(columns):
        span = range(column * len(values) // columns, (column + 1) * len(values) // columns)
        kept |= {span[0], span[-1], min(span, key=values.__getitem__), max(span, key=values.__getitem__)}
    return [(i, values[i]) for i in sorted(kept)]
