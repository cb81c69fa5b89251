"""Attention that a model has written out: the product with the values finds what its weights were computed from.

    softmax(q k' scale + mask) v

``scale`` is of constants that q, k or the scores are multiplied or divided by before anything is added to them; masks
are added, or one chooses between scores and a number (Where). Where then what is not a number becomes 0, as exporters
write for rows without a key, that is part of it. The scores are never in memory as a whole; q, k and v are read where
their heads were moved from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ..context import Context, Item, Origin, Record, Value
from ..dtypes import F32
from ..layout import dense
from ._operands import Operand, operand
from .attention import EMPTY_IS_NAN, NAN_IS_ZERO, Heads, attend
from .binary import add

# Factors beyond may overflow, or become 0, where they are multiplied with each other before they meet a tensor.
_LEAST = 1e-30


@dataclass(frozen=True)
class _Scores:
    q: Value
    k: Value
    """Transposed."""
    scale: float
    masks: tuple[Value, ...] = ()
    """To be added."""
    visible: Value | None = None
    """Where this does not hold, scores are replaced by ``low``."""
    low: float = -math.inf


def attended(cx: Context, weights: Value, v: Value) -> Value | None:
    """The product weights v, if the weights are a softmax of scores that nothing else reads; None, if not."""
    if weights.dtype is not F32 or v.dtype is not F32 or weights.rank != v.rank or not 2 <= v.rank <= 4:
        return None
    softmax, guarded = _softmax(cx, weights)
    if softmax is None:
        return None
    scores = _chosen(cx, softmax.args[0], weights.shape) or _scores(cx, softmax.args[0], weights.shape)
    if scores is None or not _fits(scores, weights, v):
        return None
    q, k = scores.q, scores.k
    keys = operand(cx, k)
    if keys is None or not keys.transposed:
        return None
    y = cx.out((*q.shape[:-1], v.shape[-1]), F32)
    record = attend(
        cx,
        _heads(q, _by_rows(cx, q)),
        _heads(k, keys),
        _heads(v, _by_rows(cx, v)),
        _heads(y, None),
        batch=y.shape[0] if y.rank == 4 else 1,
        scale=scores.scale,
        mask=_mask(cx, scores),
        low=scores.low,
        undefined=NAN_IS_ZERO if guarded else EMPTY_IS_NAN,
    )
    if record is not None:
        record.permute = _permuting(record)
        y.producer = record
    return y


def _fits(scores: _Scores, weights: Value, v: Value) -> bool:
    """Whether the shapes are those of one product of scores and one of weights for each head, the scale is ordinary."""
    q, k = scores.q, scores.k
    masks = [*scores.masks, *([scores.visible] if scores.visible is not None else [])]
    return (
        q.dtype is F32
        and q.rank == k.rank == v.rank
        and q.shape[:-2] == k.shape[:-2] == v.shape[:-2]
        and v.shape[-2] == weights.shape[-1]
        and (scores.scale == 0 or _LEAST < abs(scores.scale) < 1 / _LEAST)
        and min(*q.shape, *k.shape, *v.shape) > 0
        and all(m.rank <= v.rank and m.shape[-1:] == weights.shape[-1:] for m in masks)
    )


def _softmax(cx: Context, x: Value) -> tuple[Origin | None, bool]:
    """The softmax along the last axis that ``x`` is, and whether what is not a number was replaced by 0."""
    chosen = _made_by(cx, x, 1, "Where")
    weights: Item | None = x
    if chosen is not None:
        test, zero, weights = chosen.args
        nan = _made_by(cx, test, 1, "IsNaN")
        if nan is None or nan.args[0] is not weights or _number(cx, zero) != 0:
            return None, False
    softmax = _made_by(cx, weights, 1 if chosen is None else 2, "Softmax")
    if softmax is None:
        return None, False
    axis = softmax.node.attributes.get("axis", -1 if softmax.opset >= 13 else 1)
    return (softmax if axis in (-1, x.rank - 1) else None), chosen is not None


def _made_by(cx: Context, x: Item | None, readers: int, *kinds: str) -> Origin | None:
    """The node of one of these kinds that computed ``x``, if that has so many readers."""
    origin = cx.origin(x) if isinstance(x, Value) and x.uses == readers else None
    return origin if origin is not None and origin.node.op_type in kinds else None


def _number(cx: Context, x: Item | None) -> float | None:
    """A number that is the same in all runs."""
    if not isinstance(x, Value) or x.size != 1 or x.dtype is not F32 or not (x.known is not None or x.const):
        return None
    number: float = cx.read(x).item()
    return number


def _chosen(cx: Context, x: Item | None, shape: Sequence[int]) -> _Scores | None:
    """What ``x`` is computed from, if these are scores of which some are replaced by a number."""
    origin = _made_by(cx, x, 1, "Where")
    if origin is None or not isinstance(x, Value) or x.shape != tuple(shape):
        return None
    visible, inner, other = origin.args
    low, found = _number(cx, other), _scores(cx, inner, shape, masked=False)
    if low is None or found is None or not isinstance(visible, Value):
        return None
    return replace(found, visible=visible, low=low)


def _scores(cx: Context, x: Item | None, shape: Sequence[int], *, masked: bool = True) -> _Scores | None:
    """What ``x``, of this shape, is computed from, if these are scores; without ``masked``, before any mask."""
    origin = _made_by(cx, x, 1, "MatMul", "Mul", "Div", *(("Add",) if masked else ()))
    if origin is None or not isinstance(x, Value) or x.shape != tuple(shape):
        return None
    kind, args = origin.node.op_type, [a for a in origin.args if isinstance(a, Value)]
    if kind == "MatMul":
        (q, by_q), (k, by_k) = (_unscaled(cx, a) for a in args)
        return _Scores(q, k, by_q * by_k)
    if kind == "Add":
        for inner, mask in ((0, 1), (1, 0)):
            found = _scores(cx, args[inner], shape) if mask not in origin.rewritten else None
            if found is not None:
                return replace(found, masks=(*found.masks, args[mask]))
        return None
    for inner, factor in _factors(cx, origin):
        found = _scores(cx, args[inner], shape, masked=False)
        if found is not None:
            return replace(found, scale=found.scale * factor)
    return None


def _factors(cx: Context, origin: Origin) -> Iterator[tuple[int, float]]:
    """Ways in which a Mul or Div is one of its inputs times a number."""
    by_a, by_b = (_number(cx, a) for a in origin.args)
    divides = origin.node.op_type == "Div"
    if by_b is not None and not (divides and by_b == 0):
        yield 0, 1 / by_b if divides else by_b
    if by_a is not None and not divides:
        yield 1, by_a


def _unscaled(cx: Context, x: Value) -> tuple[Value, float]:
    """What ``x`` is a multiple of, if only scores read it."""
    origin = _made_by(cx, x, 1, "Mul", "Div")
    for i, factor in _factors(cx, origin) if origin is not None else ():
        inner = origin.args[i] if origin is not None and i not in origin.rewritten else None
        if isinstance(inner, Value) and inner.shape == x.shape:
            return inner, factor
    return x, 1.0


def _mask(cx: Context, scores: _Scores) -> Value | None:
    """All masks as one: f32 to add, or bool."""
    total = scores.visible
    for mask in scores.masks:
        total = mask if total is None else add(cx, total, mask)
    return total


def _by_rows(cx: Context, x: Value) -> Operand | None:
    at = operand(cx, x)
    return None if at is not None and at.transposed else at


def _heads(x: Value, at: Operand | None) -> Heads:
    """The heads of ``x``; of keys, where they are the columns of what is stored transposed."""
    transposed = at is not None and at.transposed
    batch = dense(x.shape)[:-2] if at is None else at.batch
    rows, size = x.shape[-2:][::-1] if transposed else x.shape[-2:]
    step = x.shape[-1] if at is None else at.step
    steps = (0,) * (2 - len(batch)) + tuple(batch)
    heads = x.shape[-3] if x.rank > 2 else 1
    return Heads(x if at is None else at.value, steps[0], steps[1], step, heads, rows, size)


def _permuting(record: Record) -> Callable[[Value, Sequence[int]], bool]:
    def permute(y: Value, order: Sequence[int]) -> bool:
        rank = len(order)
        if order[-1] != rank - 1:
            return False
        steps = {axis: 4 * step for axis, step in zip(order, dense(y.shape), strict=True)}
        names = ("y_batch", "y_head", "y_row")[4 - rank :]
        record.args.update(zip(names, (steps[a] for a in range(rank - 1)), strict=True), y=y)
        y.maker = record.maker
        return True

    return permute
