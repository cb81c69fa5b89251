"""Einsum, lowered to diagonals, sums over axes, transposes and matrix products."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ..context import Context, Value
from ..dtypes import F32, F64, I32, I64, U32, U64, DType
from ..registry import op
from ..words import counted
from ._copy import copy, strides
from ._elementwise import NUMBERS, cast, require, same_type
from .binary import mul
from .matmul import product
from .reduce import reduce_to
from .transpose import permute

# Types that products and sums have; any other is computed in a wider one, whose low bits are the same.
_COMPUTED = (F32, F64, I32, I64, U32, U64)


@dataclass
class Term:
    """An operand or a partial product, and the label of each of its axes."""

    value: Value
    labels: str


@op("Einsum", since=12)
def einsum(cx: Context, *xs: Value, equation: str) -> Value:
    """The sum over all indices that the output does not name of the product of the operands."""
    dtype = same_type(cx, *xs)
    require(cx, xs[0], NUMBERS)
    terms, output, extents = _parse(cx, xs, equation)
    wide = _wide(dtype)
    parts = [Term(cast(cx, t.value, wide) if dtype is not wide else t.value, t.labels) for t in terms]
    parts = [_squeeze(cx, _diagonal(cx, t), extents) for t in parts]
    total = parts[0]
    for i, part in enumerate(parts[1:], 1):
        later = set(output).union(*(p.labels for p in parts[i + 1 :]))
        total = _multiply(cx, total, part, later, extents)
    total = _sum(cx, total, set(output))
    missing = "".join(c for c in output if c not in total.labels)
    shape = [extents[c] for c in output]
    if any(extents[c] != 1 for c in missing):
        cx.fail(f"equation {equation!r}: the output names {missing!r}, which no operand has")
    order = [total.labels.index(c) for c in output if c in total.labels]
    y = permute(cx, total.value, total.value.shape, order, shape)
    return cast(cx, y, dtype) if dtype is not wide else y


def _wide(dtype: DType) -> DType:
    if dtype in _COMPUTED:
        return dtype
    return F32 if dtype.is_float else I32


def _parse(cx: Context, xs: Sequence[Value], equation: str) -> tuple[list[Term], str, dict[str, int]]:
    """Operands with a label for every axis, the output's labels, and the extent of each label. The axes that "..."
    stands for are labelled from the last on with characters that an equation cannot have."""
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    sides = left.split(",")
    if len(sides) != len(xs):
        cx.fail(f"equation {equation!r} has {counted(len(sides), 'operand')}, the node {counted(len(xs), 'input')}")
    most = 0
    terms: list[Term] = []
    extents: dict[str, int] = {}
    for x, side in zip(xs, sides, strict=True):
        named = side.replace("...", "", 1)
        hidden = x.rank - len(named)
        if not all(c.isalpha() for c in named) or hidden < 0 or (hidden and "..." not in side):
            cx.fail(f"equation {equation!r}: {side!r} does not label the {x.rank} axes of {x}")
        most = max(most, hidden)
        labels = side.replace("...", _hidden(hidden))
        for label, extent in zip(labels, x.shape, strict=True):
            known = extents.setdefault(label, extent)
            if known == 1:
                extents[label] = extent
            elif extent not in (1, known):
                cx.fail(f"equation {equation!r}: {label!r} is {known} and {extent}")
        terms.append(Term(x, labels))
    if not arrow:
        counts = Counter(left.replace("...", "").replace(",", ""))
        right = ("..." if "..." in left else "") + "".join(sorted(c for c, n in counts.items() if n == 1))
    output = right.replace("...", _hidden(most))
    if len(set(output)) != len(output) or any(c not in extents for c in output):
        cx.fail(f"equation {equation!r}: the output must name labels of the operands, each once")
    return terms, output, extents


def _hidden(count: int) -> str:
    return "".join(map(chr, range(count, 0, -1)))


def _diagonal(cx: Context, term: Term) -> Term:
    """The elements whose indices along axes with the same label are equal."""
    labels = "".join(dict.fromkeys(term.labels))
    if labels == term.labels:
        return term
    x = term.value
    steps = dict.fromkeys(labels, 0)
    extents: dict[str, int] = {}
    for label, step, extent in zip(term.labels, strides(x.shape), x.shape, strict=True):
        if extents.setdefault(label, extent) != extent:
            cx.fail(f"{label!r} labels axes of different extents of {x}")
        steps[label] += step
    y = cx.out([extents[c] for c in labels], x.dtype)
    copy(cx, x, y, zip(y.shape, steps.values(), strides(y.shape), strict=True))
    return Term(y, labels)


def _squeeze(cx: Context, term: Term, extents: dict[str, int]) -> Term:
    """Without the axes of one element that stand for more."""
    pairs = [(c, d) for c, d in zip(term.labels, term.value.shape, strict=True) if d == extents[c]]
    if len(pairs) == len(term.labels):
        return term
    return Term(cx.alias(term.value, [d for _, d in pairs]), "".join(c for c, _ in pairs))


def _sum(cx: Context, term: Term, wanted: set[str]) -> Term:
    axes = [i for i, c in enumerate(term.labels) if c not in wanted]
    if not axes:
        return term
    kept = [i for i, c in enumerate(term.labels) if c in wanted]
    value = reduce_to(cx, "ReduceSum", term.value, axes, [term.value.shape[i] for i in kept])
    return Term(value, "".join(term.labels[i] for i in kept))


def _multiply(cx: Context, a: Term, b: Term, later: set[str], extents: dict[str, int]) -> Term:
    """The product, summed over what neither the output nor a later operand names."""
    a, b = _sum(cx, a, later | set(b.labels)), _sum(cx, b, later | set(a.labels))
    both = [c for c in a.labels if c in b.labels]
    batch, inner = "".join(c for c in both if c in later), "".join(c for c in both if c not in later)
    rows = "".join(c for c in a.labels if c not in both)
    columns = "".join(c for c in b.labels if c not in both)

    def size(labels: str) -> int:
        return math.prod(extents[c] for c in labels)

    def arranged(term: Term, outer: str, last: str) -> tuple[Value, bool]:
        # (batch, outer, last), or (batch, last, outer) where that is no copy.
        swapped = term.labels == batch + last + outer and bool(outer) and bool(last)
        groups = (batch, last, outer) if swapped else (batch, outer, last)
        order = [term.labels.index(c) for c in "".join(groups)]
        shape = [size(g) for g in groups]
        x = term.value
        key = f"einsum {order} {shape}"
        return cx.derived(key, (x,), lambda: permute(cx, x, x.shape, order, shape)), swapped

    if inner:
        left, trans_a = arranged(a, rows, inner)
        right, trans_b = arranged(b, inner, columns)
        value = product(cx, left, right, trans_a=trans_a, trans_b=trans_b)
    else:
        value = mul(cx, arranged(a, rows, "")[0], arranged(b, "", columns)[0])
    labels = batch + rows + columns
    return Term(cx.alias(value, [extents[c] for c in labels]), labels)
