"""Where the elements of a tensor lie among those of another: an offset, and a stride for each axis."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

Ints = tuple[int, ...]


class Layout(NamedTuple):
    """A tensor of ``shape`` within a dense one; offset and strides count elements."""

    offset: int
    shape: Ints
    strides: Ints

    def permuted(self, order: Sequence[int]) -> Layout:
        """With the axes in another order."""
        return Layout(self.offset, tuple(self.shape[a] for a in order), tuple(self.strides[a] for a in order))

    def part(self, places: Sequence[range]) -> Layout:
        """Of these places along each axis."""
        offset = self.offset + sum(p.start * s for p, s in zip(places, self.strides, strict=True))
        return Layout(
            offset, tuple(map(len, places)), tuple(p.step * s for p, s in zip(places, self.strides, strict=True))
        )

    def reshaped(self, shape: Ints) -> Layout | None:
        """The same elements in the same order with other axes; None, if no strides say where they lie."""
        return _reshaped(self, shape)


@lru_cache(256)
def _reshaped(layout: Layout, shape: Ints) -> Layout | None:
    if 0 in shape:
        return None
    groups = _groups([(n, s) for n, s in zip(layout.shape, layout.strides, strict=True) if n != 1])
    strides: list[int] = []
    # From the last axis on, each must fit into what is left of a group.
    left, step = 1, 1
    for n in reversed(shape):
        if n == 1:
            strides.append(0)
            continue
        if left == 1:
            left, step = groups.pop()
        if left % n:
            return None
        strides.append(step)
        left, step = left // n, step * n
    return Layout(layout.offset, tuple(shape), tuple(reversed(strides)))


def _groups(axes: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Neighbouring axes as one wherever one stride serves both."""
    groups: list[tuple[int, int]] = []
    for n, s in axes:
        if groups and groups[-1][1] == n * s:
            groups[-1] = (groups[-1][0] * n, s)
        else:
            groups.append((n, s))
    return groups


def dense(shape: Sequence[int]) -> Ints:
    """Elements between neighbours along each axis of a dense tensor."""
    steps = [1] * len(shape)
    for i in range(len(shape) - 1, 0, -1):
        steps[i - 1] = steps[i] * shape[i]
    return tuple(steps)


def whole(shape: Sequence[int]) -> Layout:
    """A dense tensor within itself."""
    return Layout(0, tuple(shape), dense(shape))


__all__ = ["Layout", "dense", "whole"]
