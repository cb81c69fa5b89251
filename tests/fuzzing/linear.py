"""Products of matrices, with what is often fused into them."""

from __future__ import annotations

import numpy as np

from . import elementwise
from .builder import DTYPES, MAX_ELEMENTS, Builder, Skip, Tensor, allowed


def dim(g: Builder, *, zeros: bool = True) -> int:
    """A dimension of a matrix: often at the edges of tiles."""
    return g.choice([0] if zeros and g.chance(3) else [1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 33])


def sizes(g: Builder) -> tuple[int, int, int]:
    """Rows, inner dimension and columns of a product; now and then one of them takes more than one block."""
    found = [dim(g), dim(g), dim(g)]
    if g.chance(8):
        found = [g.int(1, 5), g.int(1, 5), g.int(1, 5)]
        found[g.int(0, 2)] = g.choice([65, 129, 257, 300, 519, 1031])
    return found[0], found[1], found[2]


def _kind(dtype: str) -> str:
    return "exact" if dtype == "float16" else ""


def matmul(g: Builder) -> Tensor:
    """MatMul of any ranks."""
    m, k, n = sizes(g)
    a = g.pick(lambda t: t.dtype in allowed("MatMul", g.opset) and 1 <= t.rank <= 5 and t.array.size <= 1200)
    if a is None or g.chance(30):
        dtype = g.dtype("MatMul")
        batch = g.shape(0, 2, most=4)
        a = g.value([k] if g.chance(15) else [*batch, m, k], dtype, const=g.chance(20), kind=_kind(dtype))
    if g.chance(12):
        b = g.value([a.shape[-1]], a.dtype, kind=_kind(a.dtype))
    else:
        batch = (
            g.partner(a.shape[:-2]) if a.rank > 2 and g.chance(60) else g.shape(0, 2, most=3) if g.chance(20) else ()
        )
        if not elementwise._fits(batch, a.shape[:-2]):
            batch = ()
        b = g.value([*batch, a.shape[-1], n], a.dtype, kind=_kind(a.dtype))
    swapped = a.rank == 2 and b.rank == 2 and g.chance(15)
    if swapped:
        c = g.value([n, a.shape[0]], a.dtype, kind=_kind(a.dtype))
        (y,) = g.node("MatMul", [c, a], exact=not a.floating)
    else:
        (y,) = g.node("MatMul", [a, b], exact=not a.floating)
    return y


def gemm(g: Builder) -> Tensor:
    """Gemm with all its attributes and shapes of C."""
    m, k, n = sizes(g)
    trans_a, trans_b = g.int(0, 1), g.int(0, 1)
    a = g.pick(lambda t: t.dtype in allowed("Gemm", g.opset) and t.rank == 2 and t.array.size <= 1200)
    if a is None or g.chance(30):
        a = g.value([k, m] if trans_a else [m, k], g.dtype("Gemm"), const=g.chance(15))
    m, k = a.shape[::-1] if trans_a else a.shape
    b = g.value([n, k] if trans_b else [k, n], a.dtype)
    c = None
    if g.opset < 11 or g.chance(75):
        c = g.value(g.choice([(n,), (m, n), (1, n), (m, 1), (), (1,), (1, 1)]), a.dtype)
    floats = a.floating
    values = [1.0, 0.5, 2.0, 0.0] if floats else [1.0, 2.0]
    (y,) = g.node(
        "Gemm",
        [a, b, c],
        exact=not floats,
        transA=trans_a or None,
        transB=trans_b or None,
        alpha=g.choice(values) if g.chance(40) else None,
        beta=g.choice(values) if g.chance(40) else None,
    )
    return y


def bias(g: Builder) -> Tensor:
    """What exporters add after a product."""
    x = g.pick(lambda t: t.rank >= 2 and t.dtype == "float32")
    if x is None:
        raise Skip("nothing to add to")
    shapes = [x.shape[-1:], (), (1,), x.shape, (1, x.shape[-1]), (x.shape[-2], 1), (1,) * x.rank, (*x.shape[:-1], 1)]
    b = g.value(g.choice(shapes), x.dtype)
    (y,) = g.node(g.choice(["Add", "Add", "Add", "Mul", "Sub"]), [x, b] if g.chance(50) else [b, x], exact=x.exact)
    return y


def activate(g: Builder) -> Tensor:
    """An activation of the latest tensor."""
    x = g.pick(lambda t: t.floating)
    if x is None:
        raise Skip("nothing to activate")
    if g.chance(20):
        return elementwise.clip(g, x)
    if g.chance(15):
        return elementwise.swish(g)
    return elementwise.unary(g, x, elementwise.ACTIVATIONS)


def residual(g: Builder) -> Tensor:
    """The sum of two tensors of one shape."""
    x = g.pick(lambda t: t.floating and t.rank > 0)
    if x is None:
        raise Skip("nothing to add to")
    other = g.pick(lambda t: t.dtype == x.dtype and t.shape == x.shape and t is not x)
    (y,) = g.node("Add", [x, other or g.value(x.shape, x.dtype, const=False)], exact=x.exact)
    return y


def transpose(g: Builder) -> Tensor:
    """Transpose of the last two axes, or any."""
    x = g.pick(lambda t: t.rank >= 2)
    if x is None:
        raise Skip("nothing to transpose")
    perm = list(range(x.rank))
    if g.chance(70):
        perm[-1], perm[-2] = perm[-2], perm[-1]
    else:
        perm = list(np.random.default_rng(g.int(0, 999)).permutation(x.rank))
    (y,) = g.node("Transpose", [x], exact=True, perm=[int(p) for p in perm])
    return y


def flatten(g: Builder) -> Tensor:
    """Rows for the next Gemm."""
    x = g.pick(lambda t: t.rank >= 1 and t.array.size <= MAX_ELEMENTS)
    if x is None:
        raise Skip("nothing to flatten")
    (y,) = g.node("Flatten", [x], exact=True, axis=g.int(0, x.rank))
    return y


def einsum(g: Builder) -> Tensor:
    """Einsum of one or two operands."""
    text = g.choice(["ij,jk->ik", "bij,bjk->bik", "ij->ji", "ii->i", "i,i->", "bij,bkj", "...ij,jk->...ik", "ij,ij->i"])
    sizes = {c: dim(g, zeros=False) for c in "ijk"} | {"b": g.int(1, 3)}
    dtype = g.dtype("Einsum", among=[t for t in DTYPES if t != "bool"])
    operands = []
    for term in text.split("->")[0].split(","):
        batch = g.shape(0, 2, most=3, zeros=False) if "..." in term else ()
        operands.append(g.value([*batch, *(sizes[c] for c in term if c.isalpha())], dtype))
    (y,) = g.node("Einsum", operands, equation=text)
    return y


STEPS = [matmul, matmul, gemm, gemm, bias, bias, activate, activate, residual, transpose, flatten, einsum]
