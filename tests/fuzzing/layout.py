"""Tensors whose axes are moved and moved back around products and elementwise nodes, and attention written out."""

from __future__ import annotations

import numpy as np

from . import conv, elementwise, linear, movement
from .builder import Builder, Skip, Tensor


def start(g: Builder) -> Tensor:
    return g.value(g.shape(2, 5, most=9), "float32", const=False)


def transpose(g: Builder) -> Tensor:
    x = g.pick(lambda t: 2 <= t.rank <= 5)
    if x is None:
        raise Skip("nothing to transpose")
    perm = [int(p) for p in np.random.default_rng(g.int(0, 9999)).permutation(x.rank)]
    return g.node("Transpose", [x], exact=True, perm=perm)[0]


def back(g: Builder) -> Tensor:
    """The latest transpose undone."""
    perms = [list(s.node.attribute[0].ints) for s in g.steps if s.node.op_type == "Transpose"]
    x = g.pick(lambda t: t.rank == len(perms[-1])) if perms else None
    if x is None:
        raise Skip("no transpose")
    return g.node("Transpose", [x], exact=True, perm=[int(p) for p in np.argsort(perms[-1])])[0]


def column(g: Builder) -> Tensor:
    """Something with one element for each place of one axis."""
    x = g.pick(lambda t: t.rank >= 1 and t.floating)
    if x is None:
        raise Skip("nothing to add to")
    axis = g.int(0, x.rank - 1)
    shape = [d if i == axis else 1 for i, d in enumerate(x.shape)]
    other = g.value(shape[axis if g.chance(50) else 0 :], x.dtype)
    op = g.choice(["Add", "Mul", "Sub", "Div", "PRelu"])
    operands = [x, other] if op == "PRelu" or g.chance(70) else [other, x]
    return g.node(op, operands)[0]


def both(g: Builder) -> Tensor:
    """A tensor and another of its shape, moved in the same way or not."""
    x = g.pick(lambda t: t.floating and t.rank > 0)
    other = x and g.pick(lambda t: t.dtype == x.dtype and t.shape == x.shape and t is not x)
    if x is None or other is None:
        raise Skip("no pair")
    return g.node(g.choice(["Add", "Mul", "Max"]), [x, other])[0]


def _heads(g: Builder, batch: int, rows: int, heads: int, size: int, *, transposed: bool) -> Tensor:
    """(batch, heads, rows, size), or with the last two axes exchanged, as models come to it."""
    how = g.int(0, 4)
    if how == 0:
        made = g.value([batch, heads, *((size, rows) if transposed else (rows, size))], const=False)
        return made
    x = g.value([batch, rows, heads * size], const=False)
    if how == 1:
        # One of three that lie beside each other.
        x = g.value([batch, rows, 3 * heads * size], const=False)
        at = heads * size * g.int(0, 2)
        if g.opset >= 10:
            ends = [g.host(np.array([v], np.int64)) for v in (at, at + heads * size, 2)]
            (x,) = g.node("Slice", [x, *ends], exact=True)
        else:
            (x,) = g.node("Slice", [x], exact=True, starts=[at], ends=[at + heads * size], axes=[2])
    if g.chance(30):
        (x,) = g.node("MatMul", [x, g.value([heads * size, heads * size], kind="unit", const=True)])
    (y,) = g.node("Reshape", [x, g.host(np.array([batch, rows, heads, size], np.int64))], exact=True)
    if not transposed or how == 2:
        (y,) = g.node("Transpose", [y], exact=True, perm=[0, 2, 1, 3])
        return g.node("Transpose", [y], exact=True, perm=[0, 1, 3, 2])[0] if transposed else y
    if how == 3:
        (y,) = g.node("Transpose", [y], exact=True, perm=[0, 2, 1, 3])
        (y,) = g.node("Reshape", [y, g.host(np.array([-1, rows, size], np.int64))], exact=True)
        (y,) = g.node("Transpose", [y], exact=True, perm=[0, 2, 1])
        return g.node("Reshape", [y, g.host(np.array([batch, heads, size, rows], np.int64))], exact=True)[0]
    return g.node("Transpose", [y], exact=True, perm=[0, 2, 3, 1])[0]


def _times(g: Builder, x: Tensor, factor: float) -> Tensor:
    divides = g.chance(50)
    number = g.given(np.array(1 / factor if divides else factor, np.float32), const=not g.chance(10))
    return g.node("Div" if divides else "Mul", [x, number] if divides or g.chance(70) else [number, x])[0]


def attention(g: Builder) -> Tensor:
    """softmax(q k' scale + mask) v of some heads, and the heads beside each other again."""
    batch, heads, rows, keys = g.int(1, 2), g.int(1, 3), g.choice([1, 2, 3, 5, 9]), g.choice([1, 2, 4, 7, 11])
    size, values = g.choice([1, 3, 4, 8]), g.choice([1, 2, 8])
    q = _heads(g, batch, rows, heads, size, transposed=False)
    k = _heads(g, batch, keys, heads, size, transposed=True)
    v = _heads(g, batch, keys, heads, values, transposed=False)
    where = g.int(0, 3)
    if where == 1:
        q, k = _times(g, q, 0.5), _times(g, k, 0.5)
    (x,) = g.node("MatMul", [q, k])
    if where == 2:
        x = _times(g, x, size**-0.5)
    for _ in range(g.int(0, 2)):
        shape = g.choice([(batch, 1, 1, keys), (rows, keys), (1, heads, rows, keys), (keys,), (batch, 1, 1, 1)])
        if g.chance(40) and g.opset >= 9:
            visible = g.value(shape, "bool")
            low = g.given(np.array(g.choice([-np.inf, np.finfo(np.float32).min, -1e4]), np.float32), const=True)
            (x,) = g.node("Where", [visible, x, low])
        else:
            mask = g.value(shape, "float32")
            if g.chance(30):
                hidden = g.given(np.array(g.choice([-np.inf, np.finfo(np.float32).min]), np.float32), const=True)
                (mask,) = g.node("Where", [g.value(shape, "bool"), mask, hidden]) if g.opset >= 9 else (mask,)
            elif g.chance(40):
                (mask,) = g.node("MatMul", [q, g.value([size, keys], kind="unit")])
            (x,) = g.node("Add", [x, mask] if g.chance(70) else [mask, x])
    (x,) = g.node("Softmax", [x], axis=g.choice([-1, 3]) if g.opset >= 11 else 3)
    if g.opset >= 16 and g.chance(30):
        (nan,) = g.node("IsNaN", [x])
        (x,) = g.node("Where", [nan, g.given(np.array(0, np.float32), const=True), x])
    (y,) = g.node("MatMul", [x, v])
    if g.chance(70):
        (y,) = g.node("Transpose", [y], perm=[0, 2, 1, 3])
        (y,) = g.node("Reshape", [y, g.host(np.array([batch, rows, -1], np.int64))])
    return y


def again(g: Builder) -> Tensor:
    """Another reader of any tensor but the latest."""
    x = g.choice([t for t in g.tensors if t.name not in g.hidden and t.floating])
    return g.node(g.choice(["Relu", "Neg", "Abs"]), [x], exact=x.exact)[0]


def unary(g: Builder) -> Tensor:
    return linear.activate(g)


STEPS = [
    transpose,
    transpose,
    back,
    unary,
    column,
    both,
    linear.matmul,
    conv.conv,
    again,
    movement.reshape,
    movement.slice_,
    movement.split,
    elementwise.binary,
    attention,
]
