"""The placement policy by brute force: a table of chunks, every search a scan over all of it.

It keeps no bins: a free chunk has the time at which it was binned, and the rules say whether the latest
(small) or the earliest (large) of a size goes first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SMALLEST, LARGE, FOOT, UNIT = 16, 256, 40, 4096
MOST = 0xFFFFFFC0


def round_up(n: int, to: int) -> int:
    return -(-n // to) * to


def chunk_size(n: int) -> int:
    return max(SMALLEST, (n + 11) // 8 * 8)


@dataclass
class Chunk:
    size: int
    binned: int | None = None  # when; None: in use, or the designated victim


class Policy:
    def __init__(
        self, *, base: int, initial: int, engine_limit: int, maximum: int, step: float, cap: int, linear: int
    ) -> None:
        self.brk = self.base = base
        self.memory, self.engine_limit, self.maximum = initial, engine_limit, maximum
        self.step, self.cap, self.linear = step, cap, linear
        self.chunks: dict[int, Chunk] = {}
        self.top: int | None = None
        self.top_size = 0
        self.dv: int | None = None
        self.time = 0
        self.noncontiguous = False

    @property
    def dv_size(self) -> int:
        return 0 if self.dv is None else self.chunks[self.dv].size

    def used(self) -> list[int]:
        return [k.size for c, k in self.chunks.items() if k.binned is None and c != self.dv]

    def free_sizes(self) -> list[int]:
        sizes = [k.size for c, k in self.chunks.items() if k.binned is not None or c == self.dv]
        return sizes if self.top is None else [*sizes, self.top_size]

    def grow(self, end: int) -> bool:
        if end > self.maximum:
            return False
        for cut in (1, 2, 4):
            if self.linear != -1:
                over = self.memory + self.linear / cut
            else:
                over = self.memory * (1 + self.step / cut)
                if self.cap:
                    over = min(over, float(end + self.cap))
            target = min(self.maximum, math.ceil(max(end, over) / 65536) * 65536)
            if target <= self.engine_limit:
                self.memory = target
                return True
        return False

    def raise_break(self, ask: int) -> bool:
        end = self.brk + ask
        if end > 0xFFFFFFFF or (end > self.memory and not self.grow(end)):
            return False
        if self.top is None:
            self.top, self.top_size = self.base, -FOOT
        self.brk = end
        self.top_size += ask
        return True

    def extend(self, nb: int) -> int | None:
        whole = round_up(nb + FOOT + 8, UNIT)
        if whole > 0xFFFFFFFF:
            return None
        if not self.noncontiguous:
            ask = round_up(nb - self.top_size + FOOT + 8, UNIT) if self.top is not None else whole + -self.base % UNIT
            if self.raise_break(ask):
                return self.take_top(nb)
            self.noncontiguous = True
        return self.take_top(nb) if self.raise_break(whole) else None

    def take_top(self, nb: int) -> int:
        assert self.top is not None
        c, self.top, self.top_size = self.top, self.top + nb, self.top_size - nb
        self.chunks[c] = Chunk(nb)
        return c

    def bin(self, c: int) -> None:
        self.time += 1
        self.chunks[c].binned = self.time

    def best(self, nb: int) -> int | None:
        fits = [
            (k.size, k.binned if k.size >= LARGE else -k.binned, c)
            for c, k in self.chunks.items()
            if k.binned is not None and k.size >= nb
        ]
        return min(fits)[2] if fits else None

    def split(self, c: int, nb: int) -> int | None:
        """Use the chunk; the rest, if it is one, belongs to nothing yet."""
        chunk = self.chunks[c]
        chunk.binned = None
        if chunk.size - nb < SMALLEST:
            return None
        self.chunks[c + nb] = Chunk(chunk.size - nb)
        chunk.size = nb
        return c + nb

    def allocate(self, nb: int) -> int | None:
        best = self.best(nb)
        size = self.chunks[best].size if best is not None else 0
        if best is not None and nb < LARGE and size <= nb + 8 and size < LARGE:
            self.chunks[best].binned = None
            return best
        fits_dv = nb <= self.dv_size
        if nb >= LARGE and best is not None and size < self.dv_size:
            fits_dv = False
        if fits_dv:
            c = self.dv
            assert c is not None
            self.dv = self.split(c, nb)
            return c
        if best is not None:
            rest = self.split(best, nb)
            if rest is not None and nb >= LARGE:
                self.bin(rest)
            elif rest is not None:
                if self.dv is not None:
                    self.bin(self.dv)
                self.dv = rest
            return best
        return self.take_top(nb) if nb < self.top_size else self.extend(nb)

    def is_free(self, c: int) -> bool:
        return c in self.chunks and (c == self.dv or self.chunks[c].binned is not None)

    def release(self, c: int) -> None:
        before = next((b for b, k in self.chunks.items() if b + k.size == c and self.is_free(b)), None)
        if before is not None:
            self.chunks[before].size += self.chunks.pop(c).size
            self.chunks[before].binned = None
            c = before
        after = c + self.chunks[c].size
        if after == self.top:
            self.top, self.top_size = c, self.top_size + self.chunks.pop(c).size
            if self.dv == c:
                self.dv = None
            return
        if self.is_free(after):
            self.chunks[c].size += self.chunks.pop(after).size
            if self.dv == after:
                self.dv = c
        if self.dv != c:
            self.bin(c)

    def trim(self, c: int, nb: int) -> None:
        rest = self.split(c, nb)
        if rest is not None:
            self.release(rest)

    def request(self, n: int) -> int | None:
        return None if n >= MOST else self.allocate(chunk_size(n))

    def malloc(self, n: int) -> int:
        c = self.request(n)
        return 0 if c is None else c + 8

    def memalign(self, alignment: int, n: int) -> int:
        if alignment <= 8:
            return self.malloc(n)
        alignment = max(16, 1 << (alignment - 1).bit_length())
        if alignment > 2**31 or n >= MOST - alignment:
            return 0
        nb = chunk_size(n)
        c = self.request(nb + alignment + 12)
        if c is None:
            return 0
        lead = -(c + 8) % alignment
        if lead:
            lead += alignment if lead < SMALLEST else 0
            aligned = self.split(c, lead)
            assert aligned is not None
            self.release(c)
            c = aligned
        if self.chunks[c].size > nb + SMALLEST:
            self.trim(c, nb)
        return c + 8

    def aligned_new(self, alignment: int, n: int) -> int:
        n = round_up(max(n, 1), alignment)
        return 0 if n > 0xFFFFFFFF else self.memalign(alignment, n)

    def calloc(self, count: int, size: int) -> int:
        return 0 if count * size > 0xFFFFFFFF else self.malloc(count * size)

    def free(self, p: int) -> None:
        if p:
            self.release(p - 8)

    def realloc(self, p: int, n: int) -> int:
        if not p:
            return self.malloc(n)
        if n >= MOST:
            return 0
        c, nb = p - 8, chunk_size(n)
        size = self.chunks[c].size
        after = c + size
        if size < nb:
            if after == self.top and size + self.top_size > nb:
                self.top, self.top_size = c + nb, size + self.top_size - nb
                self.chunks[c].size = nb
                return p
            if not self.is_free(after) or size + self.chunks[after].size < nb:
                q = self.malloc(n)
                if q:
                    self.free(p)
                return q
            self.chunks[c].size += self.chunks.pop(after).size
            if after == self.dv:
                self.dv = self.split(c, nb)
                return p
        self.trim(c, nb)
        return p
