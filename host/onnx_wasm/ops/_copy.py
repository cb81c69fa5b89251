"""What the ops that only move elements share: describing a strided copy, a fill, an axis."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from ..context import Array, Context, Value
from ..errors import UnsupportedModelError
from ..layout import dense

Dim = tuple[int, int, int]
"""(extent, source stride, destination stride); strides count elements."""

# Longer rows are cut, if their length divides, so that threads can share them.
ROW_BYTES = 1 << 16


def width(cx: Context, x: Value) -> int:
    """Bytes of an element of ``x``; fails for types that are not whole bytes in the heap."""
    if x.dtype.bits < 8:
        cx.fail(f"{x} of type {x.dtype} cannot be moved by elements", UnsupportedModelError)
    return x.dtype.itemsize


def normal_axis(cx: Context, axis: int, rank: int, *, end: bool = False) -> int:
    """``axis`` counted from the front; with ``end`` it may be the rank itself."""
    limit = rank + 1 if end else rank
    if not -rank <= axis < limit:
        cx.fail(f"axis {axis} out of range [{-rank}, {limit})")
    return axis + rank if axis < 0 else axis


def only(cx: Context, name: str, values: Array) -> Any:
    """The one element of the input ``name``, a scalar or a tensor of one element."""
    if values.size != 1:
        cx.fail(f"{name} has shape {list(values.shape)}, must hold one element")
    return values.item()


def normal_axes(cx: Context, axes: Iterable[int], rank: int) -> list[int]:
    """Distinct axes counted from the front, in the order given."""
    result = [normal_axis(cx, int(a), rank) for a in axes]
    if len(set(result)) != len(result):
        cx.fail(f"axes {result} name an axis twice")
    return result


def strides(shape: Sequence[int]) -> list[int]:
    """`layout.dense` as a list."""
    return list(dense(shape))


def collapse(dims: Iterable[Dim]) -> list[Dim]:
    """The fewest dims, slowest first, that visit the same pairs of places."""
    result: list[Dim] = []
    for n, s, d in dims:
        if n == 1:
            continue
        if result and result[-1][1] == n * s and result[-1][2] == n * d:
            result[-1] = (result[-1][0] * n, s, d)
        else:
            result.append((n, s, d))
    return result


def words(dims: Sequence[Dim], scale: int = 1) -> tuple[int, ...]:
    """Dims as kernels read them: strides times ``scale``, the fastest dim first, at least one."""
    return tuple(v for n, s, d in reversed(dims) for v in (n, s * scale, d * scale)) or (1, 0, 0)


def copy(cx: Context, x: Value, y: Value, dims: Iterable[Dim], *, source: int = 0, target: int = 0) -> None:
    """Emit a copy of what ``dims`` (slowest first) visits, from element ``source`` of x to element ``target`` of y."""
    size = width(cx, x)
    movement = _movement(tuple(dims), size)
    if movement is None:
        return
    if source:
        x = cx.alias(x, (x.size - source,), offset=source * size)
    if target:
        y = cx.alias(y, (y.size - target,), offset=target * size)
    kernel, units, numbers = movement
    cx.emit(kernel, units=units, x=x, y=y, **numbers)


@lru_cache(256)
def _movement(dims: tuple[Dim, ...], size: int) -> tuple[str, int, dict[str, Any]] | None:
    """The kernel, the units and the numbers of a record; None, if it has nothing to do."""
    left = [(n, s * size, d * size) for n, s, d in collapse(dims)]
    if any(n == 0 for n, _, _ in left):
        return None
    run = size
    if left and left[-1][1:] == (size, size):
        run *= left.pop()[0]
    if run > 16 or run.bit_count() > 1 or not left:
        pieces = _pieces(run)
        if pieces > 1:
            run //= pieces
            left.append((pieces, run, run))
        units = math.prod(n for n, _, _ in left)
        return "copy_runs", units, {"run": run, "rank": max(len(left), 1), "dims": words(left)}
    # A short run moves as one wide element.
    n, ss, ds = left.pop()
    if n <= 4 and left and left[-1][0] > 4 * n:
        left[-1], (n, ss, ds) = (n, ss, ds), left[-1]
    pieces = _pieces(n * run)
    if pieces > 1 and n % pieces == 0:
        n //= pieces
        left.append((pieces, n * ss, n * ds))
    units = math.prod(d for d, _, _ in left)
    return f"copy_strided_b{run}", units, {"n": n, "ss": ss, "ds": ds, "rank": max(len(left), 1), "dims": words(left)}


def _pieces(nbytes: int) -> int:
    least = -(-nbytes // ROW_BYTES)
    return next((k for k in range(least, least + 64) if nbytes % k == 0), 1) if least > 1 else 1


def copy_flat(cx: Context, x: Value, y: Value, *, target: int = 0) -> None:
    """Emit a copy of all of ``x`` to element ``target`` of ``y`` and those behind it."""
    copy(cx, x, y, [(x.size, 1, 1)], target=target)


def fill(cx: Context, y: Value, value: Value | None) -> None:
    """Emit what sets every element of ``y`` to the first of ``value``, or to zero."""
    if y.size:
        cx.emit(f"fill_b{width(cx, y)}", units=cx.chunks(y), x=value, y=y, n=y.size).uniform = True


def wanted(cx: Context, output: int) -> bool:
    """Whether the node's output of that index has a reader."""
    return len(cx.node.outputs) > output and cx.node.outputs[output] != ""
