"""Transposes that wait until after an elementwise node: where another then cancels them, or a reader needs no copy,
none is done; and the node can join the one before them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from .context import Context, Item, Value
from .layout import whole

Order = tuple[int, ...]


def untransposed(cx: Context, args: Sequence[Item | None]) -> tuple[list[Item | None], Order] | None:
    """The inputs of an elementwise node as they were before they were transposed, and the order of axes that its output
    is then to get; None, unless this holds for all of them."""
    found = [_before(cx, a) if isinstance(a, Value) else None for a in args]
    orders = {f[1] for f in found if f is not None}
    if len(orders) != 1:
        return None
    (order,) = orders
    inner: list[Item | None] = []
    for arg, before in zip(args, found, strict=True):
        given = before[0] if before is not None else _small(cx, arg, order)
        if given is None and arg is not None:
            return None
        inner.append(given)
    return (inner, order) if _broadcasts(inner) else None


def _broadcasts(args: Sequence[Item | None]) -> bool:
    shapes = [a.shape[::-1] for a in args if isinstance(a, Value)]
    return all(len({*extents} - {1}) <= 1 for extents in zip_longest(*shapes, fillvalue=1))


def _before(cx: Context, x: Value) -> tuple[Value, Order] | None:
    """What ``x`` was before its axes were put in another order, and that order, if this is its only reader."""
    seen = cx.view(x) if x.uses == 1 else None
    if seen is None or seen.source.size != x.size or seen.source.rank != x.rank:
        return None
    axes = dict.fromkeys(range(x.rank))
    order = []
    _, shape, strides = whole(seen.source.shape)
    for n, step in zip(x.shape, seen.layout.strides, strict=True):
        found = next((a for a in axes if shape[a] == n and (n == 1 or strides[a] == step)), None)
        if found is None:
            return None
        del axes[found]
        order.append(found)
    return seen.source, tuple(order)


def _small(cx: Context, x: Item | None, order: Order) -> Value | None:
    """``x``, which has one axis at most, for axes that have not been put in this order yet."""
    if not isinstance(x, Value) or x.rank > len(order) or sum(n != 1 for n in x.shape) > 1:
        return None
    if x.size == 1:
        return x
    shape = [1] * (len(order) - x.rank) + list(x.shape)
    return cx.alias(x, [shape[order.index(a)] for a in range(len(order))])
