"""Reductions, softmax and normalizations."""

from __future__ import annotations

import numpy as np

from . import elementwise
from .builder import FLOATS, Builder, Skip, Tensor, allowed, schema

SUMS = [
    "ReduceSum",
    "ReduceMean",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceSumSquare",
    "ReduceProd",
]


def _axes(g: Builder, rank: int, most: int = 8) -> list[int]:
    """Some axes, from either end."""
    chosen = [a for a in range(rank) if g.chance(45)][:most]
    return [a - rank if g.chance(40) else a for a in chosen]


def _axis(g: Builder, rank: int) -> int:
    if rank == 0:
        raise Skip("no axis")
    return g.int(-rank, rank - 1)


def reduction(g: Builder) -> Tensor:
    """Reduce* with axes as an attribute or as an input."""
    op = g.choice([*SUMS, "ReduceMax", "ReduceMin", "ReduceMax", "ReduceSum", "ReduceMean"])
    # The logarithm of a sum that roundings alone keep from 0 is anything.
    x = g.operand(op, high=6, fits=lambda t: t.exact or op != "ReduceLogSum")
    if op == "ReduceProd" and not x.floating:
        x = g.value(x.shape, x.dtype, low=-1, high=2)
    found = schema(op, g.opset)
    if found is None:
        raise Skip(op)
    axes: list[int] | None = _axes(g, x.rank) if g.chance(80) else None
    made = {} if g.chance(40) else {"keepdims": g.int(0, 1)}
    inputs: list[Tensor | None] = [x]
    if len(found.inputs) > 1:
        if axes is not None:
            inputs.append(g.host(np.array(axes, np.int64)))
        if g.chance(30):
            made["noop_with_empty_axes"] = 1
        (y,) = g.node(op, inputs, exact=op in ("ReduceMax", "ReduceMin") or not x.floating, **made)
    else:
        (y,) = g.node(op, inputs, exact=op in ("ReduceMax", "ReduceMin") or not x.floating, axes=axes or None, **made)
    return y


def arg(g: Builder) -> Tensor:
    """ArgMax, ArgMin."""
    op = g.choice(["ArgMax", "ArgMin"])
    x = g.operand(op, low=1, high=5, fits=lambda t: t.exact)
    made = {"select_last_index": 1} if g.opset >= 12 and g.chance(40) else {}
    (y,) = g.node(op, [x], exact=True, axis=_axis(g, x.rank), keepdims=g.int(0, 1), **made)
    return y


def softmax(g: Builder) -> Tensor:
    """Softmax, LogSoftmax, Hardmax."""
    op = g.choice(["Softmax", "Softmax", "LogSoftmax", "Hardmax"])
    x = g.operand(op, low=1, high=5, fits=lambda t: t.exact or op != "Hardmax")
    axis = _axis(g, x.rank) if g.opset >= 11 else g.int(0, x.rank - 1)
    # By default the second axis, which native misses only where there is something to sum.
    needed = g.opset < 13 and x.rank == 1
    (y,) = g.node(op, [x], exact=op == "Hardmax", axis=axis if needed or g.chance(85) else None)
    return y


def layer_norm(g: Builder) -> Tensor:
    """LayerNormalization or RMSNormalization over the last axes."""
    op = g.choice([o for o in ("LayerNormalization", "RMSNormalization") if g.has(o)])
    x = g.operand(op, low=1, high=4)
    axis = _axis(g, x.rank)
    dims = x.shape[axis:] if axis >= 0 else x.shape[axis + x.rank :]
    scale = g.value(dims, x.dtype)
    made = {"epsilon": 1e-2} if g.chance(40) else {}
    if op == "RMSNormalization":
        (y,) = g.node(op, [x, scale], axis=axis, **made)
        return y
    bias = g.value(dims, x.dtype) if g.chance(60) else None
    wanted = [True, g.chance(15), g.chance(15)]
    while not wanted[-1]:
        wanted.pop()
    return g.node(op, [x, scale, bias], wanted, axis=axis, **made)[0]


def channel_norm(g: Builder) -> Tensor:
    """InstanceNormalization, GroupNormalization, LRN, LpNormalization, MeanVarianceNormalization."""
    ops = ["InstanceNormalization", "GroupNormalization", "LRN", "LpNormalization", "MeanVarianceNormalization"]
    op = g.choice([o for o in ops if g.has(o)])
    if op == "LpNormalization":
        x = g.operand(op, low=1, high=4)
        (y,) = g.node(op, [x], axis=_axis(g, x.rank), p=g.int(1, 2))
        return y
    low = 4 if op in ("LRN", "MeanVarianceNormalization") else 3
    x = g.operand(op, low=low, high=5 if low == 3 else 4)
    c = x.shape[1]
    if op == "LRN":
        (y,) = g.node(
            op,
            [x],
            size=g.choice([1, 2, 3, 4, 5]),
            alpha=0.5,
            beta=g.choice([0.75, 0.5, 1.0]),
            bias=g.choice([1.0, 2.0]),
        )
    elif op == "MeanVarianceNormalization":
        (y,) = g.node(op, [x], axes=g.choice([None, [0, 1, 2, 3], [2, 3], [0, 2, 3], [1]]))
    elif op == "InstanceNormalization":
        (y,) = g.node(op, [x, g.value([c], x.dtype), g.value([c], x.dtype)], epsilon=g.choice([None, 1e-2]))
    else:
        if c == 0:
            raise Skip("no channels")
        groups = g.choice([d for d in range(1, c + 1) if c % d == 0])
        n = groups if g.opset < 21 else c
        (y,) = g.node(op, [x, g.value([n], x.dtype), g.value([n], x.dtype)], num_groups=groups)
    return y


def cumulative(g: Builder) -> Tensor:
    """CumSum."""
    x = g.operand("CumSum", low=1, high=4)
    axis = g.host(_axis(g, x.rank), g.choice(["int64", "int32"]))
    (y,) = g.node("CumSum", [x, axis], exact=not x.floating, exclusive=g.int(0, 1), reverse=g.int(0, 1))
    return y


def top_k(g: Builder) -> Tensor:
    """TopK of distinct values."""
    x = g.operand("TopK", low=1, high=4, fits=lambda t: t.exact)
    axis = _axis(g, x.rank)
    k = g.int(0, x.shape[axis])
    if g.opset < 10:
        return g.node("TopK", [x], 2, exact=True, axis=axis, k=max(k, 1))[0]
    made = {} if g.opset < 11 else {"largest": g.int(0, 1)}
    return g.node("TopK", [x, g.host([k])], 2, exact=True, axis=axis, **made)[0]


def attention_like(g: Builder) -> Tensor:
    """Softmax(x * scale + mask) over the last axis."""
    x = g.pick(lambda t: t.floating and t.rank >= 2 and t.dtype in allowed("Softmax", g.opset))
    if x is None:
        raise Skip("no scores")
    (s,) = g.node("Mul", [x, g.given(np.asarray(0.5, x.array.dtype))], exact=True)
    if g.chance(60):
        (s,) = g.node("Add", [s, g.value(g.partner(s.shape), x.dtype)], exact=True)
    (y,) = g.node("Softmax", [s], axis=x.rank - 1)
    return y


def by_hand(g: Builder) -> Tensor:
    """A normalization written with ReduceMean, Sub, Pow, Sqrt and Div."""
    x = g.pick(lambda t: t.dtype == "float32" and t.rank >= 1 and t.array.size > 0) or g.value((3, 8))
    if g.opset < 18:
        (mean,) = g.node("ReduceMean", [x], axes=[-1] if g.opset >= 11 else [x.rank - 1])
    else:
        (mean,) = g.node("ReduceMean", [x, g.host([-1])])
    (d,) = g.node("Sub", [x, mean])
    (square,) = g.node("Pow", [d, g.given(np.float32(2), const=True)]) if g.chance(50) else g.node("Mul", [d, d])
    if g.opset < 18:
        (var,) = g.node("ReduceMean", [square], axes=[-1] if g.opset >= 11 else [x.rank - 1])
    else:
        (var,) = g.node("ReduceMean", [square, g.host([-1])])
    (var,) = g.node("Add", [var, g.given(np.float32(0.01), const=True)])
    (std,) = g.node("Sqrt", [var])
    (y,) = g.node("Div", [d, std])
    return y


def start(g: Builder) -> Tensor:
    return g.value(
        g.shape(1, 5, most=17),
        g.choice([*FLOATS, "int32", "int64", "uint8", "int8"]) if g.chance(30) else "float32",
        const=g.chance(5),
    )


STEPS = [
    reduction,
    reduction,
    reduction,
    arg,
    softmax,
    softmax,
    layer_norm,
    channel_norm,
    cumulative,
    top_k,
    attention_like,
    by_hand,
    elementwise.unary,
    elementwise.binary,
]
