"""Attention, by its operator and spelled out as exporters do, with rotated positions and normalizations."""

from __future__ import annotations

from typing import Any

import numpy as np

from .builder import Builder, Skip, Tensor
from .elementwise import binary, unary
from .linear import bias, residual
from .reduce import layer_norm


def dtype(g: Builder) -> str:
    return g.choice(["float32", "float32", "float32", "float64", "float16"])


def heads(g: Builder) -> tuple[int, int]:
    """Heads of queries, and of keys and values."""
    shared = g.choice([1, 1, 2, 3])
    each = g.choice([1, 2, 4])
    return shared * each, each


def attention(g: Builder) -> Tensor:
    """Attention in both layouts, with masks, a past, and all its outputs."""
    kind, batch = dtype(g), g.int(1, 2)
    steps, total, size = g.choice([1, 2, 3, 5, 9]), g.choice([1, 2, 3, 5, 8, 17]), g.choice([1, 2, 4, 8, 12])
    value_size = size if g.chance(70) else g.choice([1, 3, 8])
    queries, keys = heads(g)
    flat = g.chance(40)

    def operand(count: int, length: int, width: int) -> Tensor:
        shape = (batch, length, count * width) if flat else (batch, count, length, width)
        found = g.pick(lambda t: t.dtype == kind and t.shape == shape)
        return found if found is not None and g.chance(70) else g.value(shape, kind, kind="unit", const=False)

    inputs: list[Tensor | None] = [
        operand(queries, steps, size), operand(keys, total, size), operand(keys, total, value_size)
    ]  # fmt: skip
    past = g.int(0, 4) if g.chance(30) else None
    everything = total + (past or 0)
    mask = None
    if g.chance(50):
        shape = g.choice([
            (steps, everything), (1, 1, steps, everything), (batch, 1, steps, everything),
            (batch, queries, steps, everything), (1, steps, everything), (1, everything),
        ])  # fmt: skip
        if g.chance(40):
            array = np.random.default_rng(g.int(0, 999)).random(shape) < 0.7
            # A row of nothing has no softmax.
            array[..., 0] = True
            mask = g.given(array, hidden=True)
        else:
            mask = g.value(shape, kind, kind="unit", hidden=True)
    inputs.append(mask)
    if past is not None:
        inputs += [g.value((batch, keys, past, w), kind, kind="unit") for w in (size, value_size)]
    made: dict[str, Any] = {"is_causal": g.choice([None, None, 1])}
    if flat:
        made |= {"q_num_heads": queries, "kv_num_heads": keys}
    if g.chance(30):
        made["scale"] = g.choice([0.25, 1.0, 2.0])
    if g.chance(25):
        made["softcap"] = g.choice([0.5, 2.0, 30.0])
    wanted = [True]
    if past is not None:
        wanted += [True, True]
    if g.chance(20):
        wanted = [*wanted, *[False] * (3 - len(wanted)), True]
        made["qk_matmul_output_mode"] = g.int(0, 3)
    return g.node("Attention", inputs, wanted, **made)[0]


def rotate(g: Builder) -> Tensor:
    """RotaryEmbedding of both layouts, of all or some of each head, with positions or without."""
    kind, batch, steps, count = dtype(g), g.int(1, 2), g.int(1, 5), g.int(1, 3)
    size = g.choice([2, 4, 6, 8, 16])
    turned = g.choice([None, None, *range(2, size + 1, 2)])
    half = (turned or size) // 2
    flat = g.chance(40)
    x = g.value((batch, steps, count * size) if flat else (batch, count, steps, size), kind, kind="unit")
    positions = None
    shape: tuple[int, ...] = (batch, steps, half)
    if g.chance(60):
        shape = (steps + g.int(0, 4), half)
        random = np.random.default_rng(g.int(0, 999))
        positions = g.given(random.integers(0, shape[0], (batch, steps)).astype(np.int64), hidden=True)
    caches = [g.value(shape, kind, kind="unit", hidden=True) for _ in range(2)]
    return g.node(
        "RotaryEmbedding",
        [x, *caches, positions],
        interleaved=g.choice([None, 1]),
        rotary_embedding_dim=turned,
        num_heads=count if flat or g.chance(20) else None,
    )[0]


def spelled_out(g: Builder) -> Tensor:
    """Softmax(Q * K' * scale + mask) * V, of tensors that are there or new."""
    q = g.pick(lambda t: t.dtype == "float32" and 2 <= t.rank <= 4 and 0 not in t.shape)
    if q is None or g.chance(40):
        q = g.value([*g.shape(0, 2, most=3, zeros=False), g.int(1, 9), g.choice([1, 4, 8, 9])], kind="unit")
    total = g.choice([1, 2, 5, 8, 17])
    k = g.value([*q.shape[:-2], total, q.shape[-1]], kind="unit", const=g.chance(20))
    perm = [*range(q.rank - 2), q.rank - 1, q.rank - 2]
    (t,) = g.node("Transpose", [k], exact=True, perm=perm)
    (s,) = g.node("MatMul", [q, t])
    if g.chance(70):
        (s,) = g.node(g.choice(["Mul", "Div"]), [s, g.given(np.float32(g.choice([0.5, 0.25, 2.0])), hidden=True)])
    if g.chance(50):
        (s,) = g.node("Add", [s, g.value(g.choice([s.shape[-2:], s.shape, s.shape[-1:]]), kind="unit")])
    (p,) = g.node("Softmax", [s], axis=-1)
    return g.node("MatMul", [p, g.value([*q.shape[:-2], total, g.choice([1, 4, 8])], kind="unit")])[0]


def start(g: Builder) -> None:
    if g.opset < 13:
        raise Skip("Softmax of all axes from one on")


STEPS = [attention, attention, attention, rotate, spelled_out, spelled_out, layer_norm, bias, residual, unary, binary]
