"""Arithmetic on shapes, as exporters write it, and what it decides."""

from __future__ import annotations

import numpy as np
from onnx import numpy_helper

from .builder import Builder, Skip, Tensor
from .movement import concat as concat_data
from .movement import glue, slice_, transpose


def vectors(g: Builder) -> list[Tensor]:
    """1-D integers that came of shapes."""
    return [t for t in g.tensors if t.name in g.hidden and t.dtype == "int64" and t.rank == 1 and t.array.size]


def scalars(g: Builder) -> list[Tensor]:
    return [t for t in g.tensors if t.name in g.hidden and t.dtype == "int64" and t.rank == 0]


def data(g: Builder) -> Tensor:
    x = g.pick(lambda t: 1 <= t.rank <= 5)
    if x is None or g.chance(10):
        x = g.value(g.shape(1, 5), g.choice(["float32", "float32", "int64", "int32"]), const=g.chance(10))
    return x


def shape_of(g: Builder) -> Tensor:
    x = data(g)
    made = {}
    if g.opset >= 15 and g.chance(40):
        made = {"start": g.int(-x.rank, x.rank), "end": g.int(-x.rank, x.rank)}
    return g.node("Shape", [x], exact=True, hidden=True, **made)[0]


def size_of(g: Builder) -> Tensor:
    return g.node("Size", [data(g)], exact=True, hidden=True)[0]


def pick_dim(g: Builder) -> Tensor:
    v = g.choice(vectors(g))
    index = g.int(-len(v.array) if g.opset >= 11 else 0, len(v.array) - 1)
    i = g.given(np.asarray(index if g.chance(60) else [index], np.int64), const=True, hidden=True)
    return g.node("Gather", [v, i], exact=True, hidden=True, axis=0)[0]


def slice_dims(g: Builder) -> Tensor:
    v = g.choice(vectors(g))
    a, b = g.int(0, len(v.array)), g.int(-1, len(v.array))
    if g.opset < 10:
        return g.node("Slice", [v], exact=True, hidden=True, starts=[a], ends=[b], axes=[0])[0]
    return g.node("Slice", [v, g.host([a]), g.host([b]), g.host([0])], exact=True, hidden=True)[0]


def to_vector(g: Builder) -> Tensor:
    s = g.choice(scalars(g))
    if g.opset >= 13:
        return g.node(
            "Unsqueeze", [s, g.given(np.array([0], np.int64), const=True, hidden=True)], exact=True, hidden=True
        )[0]
    return g.node("Unsqueeze", [s], exact=True, hidden=True, axes=[0])[0]


def concat(g: Builder) -> Tensor:
    parts = [g.choice(vectors(g)) for _ in range(g.int(1, 3))]
    if g.chance(40):
        parts.insert(
            g.int(0, len(parts)), g.given(np.array([g.choice([1, 2, -1, 3])], np.int64), const=True, hidden=True)
        )
    return g.node("Concat", parts, exact=True, hidden=True, axis=0)[0]


def arithmetic(g: Builder) -> Tensor:
    x = g.choice([*vectors(g), *scalars(g)])
    op = g.choice(["Add", "Sub", "Mul", "Div", "Max", "Min", "Mod", "Neg", "Abs"])
    if op in ("Neg", "Abs"):
        return g.node(op, [x], exact=True, hidden=True)[0]
    if (op in ("Max", "Min") and g.opset < 12) or (op == "Mod" and g.opset < 10):
        raise Skip(op)
    other = g.given(np.asarray(g.choice([2, 1, 3, -2, -1]), np.int64), const=g.chance(70), hidden=True)
    if abs(x.array).max(initial=0) > 1e6:
        raise Skip("grows")
    return g.node(op, [x, other], exact=True, hidden=True)[0]


def convert(g: Builder) -> Tensor:
    """There and back: through another integer type or through floats."""
    x = g.choice([t for t in (*vectors(g), *scalars(g)) if abs(t.array.astype(float)).max(initial=0) < 1e6])
    if g.chance(50):
        (y,) = g.node("Cast", [x], exact=True, hidden=True, to=6)
        return g.node("Cast", [y], exact=True, hidden=True, to=7)[0]
    (y,) = g.node("Cast", [x], exact=True, hidden=True, to=1)
    (y,) = g.node(
        "Mul", [y, g.given(np.float32(g.choice([1, 2, 0.5])), const=True, hidden=True)], exact=True, hidden=True
    )
    if g.chance(70):
        (y,) = g.node(g.choice(["Floor", "Ceil"]), [y], exact=True, hidden=True)
    return g.node("Cast", [y], exact=True, hidden=True, to=7)[0]


def select(g: Builder) -> Tensor:
    """Where(Equal(v, c), a, v): replaces -1 by a dimension."""
    v = g.choice(vectors(g))
    if g.opset < 9:
        raise Skip("Where")
    (mask,) = g.node(
        "Equal",
        [v, g.given(np.asarray(g.choice([-1, 1, 2]), np.int64), const=True, hidden=True)],
        exact=True,
        hidden=True,
    )
    return g.node(
        "Where", [mask, g.given(np.asarray(g.int(1, 3), np.int64), const=True, hidden=True), v], exact=True, hidden=True
    )[0]


def product(g: Builder) -> Tensor:
    v = g.choice(vectors(g))
    op = g.choice(["ReduceProd", "ReduceMax", "ReduceMin", "ReduceSum"])
    if g.opset < 18 and (op != "ReduceSum" or g.opset < 13):
        return g.node(op, [v], exact=True, hidden=True, axes=[0], keepdims=g.int(0, 1))[0]
    return g.node(
        op,
        [v, g.given(np.array([0], np.int64), const=True, hidden=True)],
        exact=True,
        hidden=True,
        keepdims=g.int(0, 1),
    )[0]


def _target(g: Builder, most: int = 600) -> Tensor:
    fitting = [
        v for v in vectors(g) if (v.array >= 0).all() and np.prod(v.array.astype(float)) <= most and len(v.array) <= 6
    ]
    return g.choice(fitting)


def fill(g: Builder) -> Tensor:
    value = g.choice([None, np.array([2], np.int64), np.array([1.5], np.float32), np.array([True])])
    return g.node(
        "ConstantOfShape", [_target(g)], exact=True, value=None if value is None else numpy_helper.from_array(value)
    )[0]


def ranged(g: Builder) -> Tensor:
    limits = [s for s in scalars(g) if 0 <= s.array <= 500]
    return g.node(
        "Range",
        [
            g.given(np.asarray(0, np.int64), const=True, hidden=True),
            g.choice(limits),
            g.given(np.asarray(g.choice([1, 2]), np.int64), const=True, hidden=True),
        ],
        exact=True,
    )[0]


def reshape(g: Builder) -> Tensor:
    """Reshape by whatever vector fits."""
    x = data(g)
    size = x.array.size
    fitting = [v for v in vectors(g) if size and (v.array > 0).all() and np.prod(v.array.astype(float)) == size]
    if not fitting or g.chance(40):
        v = g.choice([v for v in vectors(g) if size and (v.array > 0).all() and size % np.prod(v.array) == 0])
        (target,) = g.node(
            "Concat", [v, g.given(np.array([-1], np.int64), const=True, hidden=True)], exact=True, hidden=True, axis=0
        )
        return g.node("Reshape", [x, target], exact=True)[0]
    return g.node("Reshape", [x, g.choice(fitting)], exact=True)[0]


def keep(g: Builder) -> Tensor:
    """Reshape that keeps leading axes and joins the others."""
    x = data(g)
    kept = g.int(0, x.rank - 1)
    target = [0 if g.chance(80) else d for d in x.shape[:kept]] + [-1]
    if 0 in x.shape:
        raise Skip("no -1 of nothing")
    return g.node("Reshape", [x, g.host(target)], exact=True)[0]


def expand(g: Builder) -> Tensor:
    x = data(g)
    fitting = [v for v in vectors(g) if (v.array > 0).all() and len(v.array) <= 6]
    return g.node("Expand", [x, g.choice(fitting)], exact=True)[0]


def narrow(g: Builder) -> Tensor:
    """Slice whose end is a dimension of another tensor."""
    x = data(g)
    v = g.choice([v for v in vectors(g) if len(v.array) == 1])
    if g.opset < 10:
        raise Skip("Slice")
    return g.node(
        "Slice",
        [
            x,
            g.given(np.array([0], np.int64), const=True, hidden=True),
            v,
            g.given(np.array([0], np.int64), const=True, hidden=True),
        ],
        exact=True,
    )[0]


def from_data(g: Builder) -> Tensor:
    """Integers computed from data that decide a shape."""
    x = g.value([g.int(1, 3)], "int64", low=1, high=3, const=False)
    (y,) = g.node(g.choice(["Abs", "Neg"]), [x], exact=True, hidden=True)
    if (y.array < 0).any():
        (y,) = g.node("Neg", [y], exact=True, hidden=True)
    return y


def used(g: Builder) -> Tensor:
    """Shapes as data: what is read by the host and by kernels."""
    v = g.choice(vectors(g))
    return g.node("Mul", [v, g.value((), "int64", const=False)], exact=True)[0]


STEPS = [
    shape_of, shape_of, size_of, pick_dim, pick_dim, slice_dims, to_vector, concat, concat, arithmetic, arithmetic,
    convert, select, product, fill, fill, ranged, reshape, reshape, reshape, keep, expand, expand, narrow, from_data,
    used, glue, transpose, concat_data, slice_,
]  # fmt: skip


def start(g: Builder) -> None:
    g.value(g.shape(1, 5), "float32", const=False)
    shape_of(g)
