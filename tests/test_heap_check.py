"""heap_check finds what is broken, and where."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from onnx_wasm import heap_layout as layout
from wasm_harness import WasmHeap, at_trace_start

HEAD, NEXT, SLOT, LEFT, OWNER = 4, 8, 12, 16, 24
P, C = 1, 2


class Broken:
    """A heap with free chunks of every kind, each between blocks in use; names are chunk addresses.

    small: two of 48 bytes, ``small2`` binned last. ring: two of 1008 bytes, ``ring1`` in the tree with
    ``leaf`` (904) below it. victim: dv.
    """

    def __init__(self) -> None:
        self.heap = heap = at_trace_start()
        sizes = {"small1": 40, "small2": 40, "ring1": 1000, "ring2": 1000, "leaf": 900, "victim": 400}
        blocks = {}
        for name, size in sizes.items():
            blocks[name] = heap.malloc(size)
            setattr(self, name, blocks[name] - 8)
            self.used = heap.malloc(20) - 8
        for name in sizes:
            heap.free(blocks[name])
        heap.malloc(100)
        self.victim = heap.dv
        assert self.victim
        assert heap.heap_check() == 0

    def xor(self, address: int, bits: int) -> None:
        self.heap.set_word(address, self.heap.word(address) ^ bits)

    def set(self, address: int, value: int) -> None:
        self.heap.set_word(address, value)

    def bin_of(self, size: int) -> int:
        return layout.SMALL_BINS + size // 2


def behind(b: Broken, c: int) -> int:
    return c + (b.heap.word(c + HEAD) & ~7)


def lose_small1(b: Broken) -> None:
    b.set(b.small2 + NEXT, 0)


def lose_small2(b: Broken) -> None:
    b.set(b.bin_of(48), b.small1)
    b.set(b.small1 + SLOT, b.bin_of(48))


def past_the_end(b: Broken) -> None:
    b.set(layout.BRK, 1 << 31)
    b.set(layout.TOP_SIZE, (1 << 31) - b.heap.top - 40)


def wrong_bin(b: Broken) -> None:
    b.set(b.bin_of(56), b.small2)
    b.xor(layout.SMALL_MAP, 1 << 7)


BREAKS: dict[str, tuple[Callable[[Broken], None], int, str | None]] = {
    "break moved": (lambda b: b.xor(layout.BRK, 4096), 1, None),
    "break past the end": (past_the_end, 1, None),
    "size 8": (lambda b: b.set(b.used + HEAD, 8 | C), 2, "used"),
    "size past top": (lambda b: b.set(b.used + HEAD, 0x7FFFFFF8 | C), 2, "used"),
    "bit 2": (lambda b: b.xor(b.used + HEAD, 4), 2, "used"),
    "P cleared": (lambda b: b.xor(b.small1 + HEAD, P), 3, "small1"),
    "P set": (lambda b: b.xor(behind(b, b.small1) + HEAD, P), 3, None),
    "C cleared beside a free chunk": (lambda b: b.xor(behind(b, b.small1) + HEAD, C), 4, None),
    "footer": (lambda b: b.set(behind(b, b.ring1), 16), 5, "ring1"),
    "small NEXT into a block": (lambda b: b.set(b.small2 + NEXT, b.used), 6, None),
    "small NEXT out of the heap": (lambda b: b.set(b.small2 + NEXT, 0xFFFFFFF8), 6, None),
    "small NEXT to itself": (lambda b: b.set(b.small2 + NEXT, b.small2), 6, "small2"),
    "small SLOT": (lambda b: b.set(b.small1 + SLOT, b.used), 6, "small1"),
    "ring NEXT": (lambda b: b.set(b.ring1 + NEXT, 12), 6, "ring1"),
    "ring NEXT to itself": (lambda b: b.set(b.ring2 + NEXT, b.ring2), 6, "ring2"),
    "ring LAST": (lambda b: b.set(b.ring2 + SLOT, b.used), 6, "ring2"),
    "tree OWNER": (lambda b: b.set(b.leaf + OWNER, 0), 6, "leaf"),
    "tree LEFT": (lambda b: b.set(b.ring1 + LEFT, b.used), 6, "used"),
    "other size in a bin": (wrong_bin, 7, "small2"),
    "small map": (lambda b: b.xor(layout.SMALL_MAP, 1 << 6), 8, None),
    "large map": (lambda b: b.xor(layout.LARGE_MAP, 1 << 9), 8, None),
    "quarters of an octave": (lambda b: b.xor(layout.QUARTERS + 8, 1 << 3), 8, None),
    "end of a bin cut off": (lose_small1, 9, "small1"),
    "head of a bin cut off": (lose_small2, 9, "small2"),
    "dv size": (lambda b: b.xor(layout.DV_SIZE, 8), 10, "victim"),
    "dv forgotten": (lambda b: (b.set(layout.DV, 0), b.set(layout.DV_SIZE, 0)), 9, "victim"),
    "dv without size": (lambda b: b.set(layout.DV_SIZE, 0), 10, "victim"),
    "header of top": (lambda b: b.xor(b.heap.top + HEAD, P), 11, None),
    "header behind top": (lambda b: b.set(b.heap.brk() - 36, 0), 11, None),
    "bytes in use": (lambda b: b.xor(layout.USED, 8), 12, None),
    "blocks in use": (lambda b: b.xor(layout.BLOCKS, 1), 12, None),
}  # fmt: skip


@pytest.mark.parametrize(("damage", "code", "where"), BREAKS.values(), ids=BREAKS)
def test_damage_is_found(damage: Callable[[Broken], None], code: int, where: str | None) -> None:
    broken = Broken()
    damage(broken)
    assert broken.heap.heap_check() == code
    assert code in layout.CHECK_CODES
    if where is not None:
        assert broken.heap.bad_chunk == getattr(broken, where)
    broken.heap.heap_stats()
    broken.heap.close()


def test_random_damage_neither_traps_nor_hangs() -> None:
    rng = random.Random(1)
    heap: WasmHeap
    for _ in range(300):
        broken = Broken()
        heap = broken.heap
        where = rng.choice(
            [rng.randrange(heap.top, heap.brk()), rng.randrange(6309864, heap.top), rng.randrange(280, 768)]
        )
        value = rng.choice([0, 8, 0xFFFFFFFF, 0xFFFFFFF8, rng.getrandbits(32), broken.small1, broken.ring1, heap.top])
        heap.set_word(where & ~3, value)
        heap.heap_check()
        heap.heap_stats()
        heap.heap_owns(broken.used + 8)
        heap.close()
