"""Events of a heap for tests: made by hand, from recordings, and from runs."""

from __future__ import annotations

from onnx_wasm import heap_layout, trace
from onnx_wasm.heap_events import EventKind, HeapEvent

BASE = 6_303_872
MIB = 1 << 20
TAGS = ("weights", "activations", "input", "output", "tape", "user", "")


class Script:
    """Events by hand: the used bytes are the sum of sizes."""

    def __init__(self, linear: int = 16 * MIB) -> None:
        self.events: list[HeapEvent] = []
        self.linear = linear
        self._live: dict[int, int] = {}

    def alloc(self, address: int, nbytes: int, tag: str = "", owner: str = "") -> None:
        self._live[address] = nbytes
        self._add("alloc", address, nbytes, tag=tag, owner=owner)

    def free(self, address: int) -> None:
        self._add("free", address, self._live.pop(address))

    def fail(self, nbytes: int) -> None:
        self._add("fail", 0, nbytes)

    def grow(self, linear: int) -> None:
        self.linear = linear
        self._add("grow", 0, linear)

    def _add(self, kind: EventKind, address: int, nbytes: int, **about: str) -> None:
        time = len(self.events) / 1000
        self.events.append(HeapEvent(kind, time, address, nbytes, sum(self._live.values()), self.linear, **about))


def events_of(recording: trace.Trace) -> tuple[list[HeapEvent], int]:
    """Events of a recording's replay, and the break at its end. Tags follow from sizes, so that there are some."""
    heap = trace.ModuleHeap(recording)
    trace.begin(recording, heap)
    events: list[HeapEvent] = []
    blocks: list[int] = []
    linear = heap.memory_size()

    def add(kind: EventKind, address: int, nbytes: int, **about: str) -> None:
        used = heap.word(heap_layout.USED)
        events.append(HeapEvent(kind, len(events) / 1000, address, nbytes, used, linear, **about))

    for op, arg in zip(recording.op, recording.arg, strict=True):
        if op == trace.FREE:
            heap.free(blocks[arg])
            if blocks[arg]:
                add("free", blocks[arg], 0)
            continue
        address = heap.malloc(arg) if op == trace.MALLOC else heap.memalign(64 if op == 2 else 1 << (op - 4), arg)
        if heap.memory_size() != linear:
            linear = heap.memory_size()
            add("grow", 0, linear)
        add("alloc" if address else "fail", address, arg, tag=TAGS[arg // 64 % len(TAGS)], owner=f"<{len(blocks)}>")
        blocks.append(address)
    brk = heap.brk()
    heap.close()
    return events, brk
