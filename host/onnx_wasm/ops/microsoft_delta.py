"""GatedDeltaNet of com.microsoft: linear attention with its gates and normalisations."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ..context import Context, Value
from ..dtypes import F32
from ..errors import UnsupportedModelError
from ..registry import MICROSOFT, op
from . import activation as activations
from . import binary, transpose
from ._copy import copy, wanted
from ._elementwise import cast, flat
from ._widen import only_floats, wide
from .microsoft_linear import linear_attention
from .rownorm import lp_normalization


class _Tokens(NamedTuple):
    """Queries, keys and values, f32 [batch, tokens, heads * size]."""

    q: Value
    k: Value
    v: Value
    batch: int
    tokens: int
    heads: int
    """Of queries and keys."""
    value_heads: int
    d: int
    dv: int


@op("GatedDeltaNet", domain=MICROSOFT)
def gated_delta_net(
    cx: Context,
    query: Value,
    key: Value | None = None,
    value: Value | None = None,
    cu_seqlens: Value | None = None,
    decay: Value | None = None,
    beta: Value | None = None,
    initial_state: Value | None = None,
    a_log: Value | None = None,
    dt_bias: Value | None = None,
    capture_count: Value | None = None,
    state_update_active: Value | None = None,
    *,
    beta_activation: str = "none",
    chunk_size: int = 64,
    gate_activation: str = "none",
    gate_lower_bound: float = -5.0,
    qk_l2_norm: int = 0,
    scale: float = 0.0,
    state_update_capacity: int = 0,
    update_rule: str = "gated_delta",
) -> Any:
    """The recurrence of LinearAttention over query and key [tokens, heads, d] and value [tokens, value heads, dv], all
    with an axis of batches before them, or as many tokens for each batch of initial_state [batch, value heads, dv, d].
    The formulas are those of onnxruntime's schema."""
    if cu_seqlens is not None or capture_count is not None or state_update_capacity or wanted(cx, 2):
        cx.fail("cu_seqlens and state_update are not supported", UnsupportedModelError)
    if update_rule not in ("linear", "gated", "delta", "gated_delta"):
        cx.fail(f"update_rule {update_rule!r} is not one of linear, gated, delta and gated_delta")
    only_floats(cx, query, key, value, decay, beta, a_log, dt_bias)
    if key is not None and value is not None:
        t, lead = _apart(cx, query, key, value, initial_state), query.shape[:-2]
    elif key is None and value is None:
        t, lead = _split(cx, query, initial_state), query.shape[:1]
    else:
        cx.fail("key and value must be given together")
    q, k = t.q, t.k
    if qk_l2_norm:
        q, k = (_unit(cx, x, t) for x in (q, k))
    gated, delta = update_rule.startswith("gated"), update_rule.endswith("delta")
    if gated != (decay is not None) or delta != (beta is not None):
        cx.fail(f"update_rule {update_rule} takes {'a' if gated else 'no'} decay and {'a' if delta else 'no'} beta")
    rows = (t.batch, t.tokens, t.value_heads)
    if decay is not None:
        decay = _gate(cx, decay, a_log, dt_bias, gate_activation, gate_lower_bound, t)
    if beta is not None:
        if beta.size != math.prod(rows):
            cx.fail(f"beta {beta} must have a number for each of {t.value_heads} heads of a token")
        if beta_activation not in ("none", "sigmoid"):
            cx.fail(f"beta_activation {beta_activation!r} is not none or sigmoid")
        beta = cx.alias(wide(cx, beta), rows)
        beta = activations.sigmoid(cx, beta) if beta_activation == "sigmoid" else beta
    past = None
    if initial_state is not None:
        if initial_state.shape != (t.batch, t.value_heads, t.dv, t.d) or initial_state.dtype is not F32:
            cx.fail(f"initial_state {initial_state} must be float32{[t.batch, t.value_heads, t.dv, t.d]}")
        past = transpose.transpose(cx, initial_state, perm=[0, 1, 3, 2])
    y, present = linear_attention(
        cx, q, k, t.v, past, decay, beta,
        kv_num_heads=t.value_heads, q_num_heads=t.heads, scale=scale, update_rule=update_rule,
    )  # fmt: skip
    final = transpose.transpose(cx, present, perm=[0, 1, 3, 2]) if wanted(cx, 1) else None
    return cx.alias(cast(cx, y, query.dtype), (*lead, t.value_heads, t.dv)), final


def _apart(cx: Context, query: Value, key: Value, value: Value, state: Value | None) -> _Tokens:
    ranks = {query.rank, key.rank, value.rank}
    if (ranks not in ({3}, {4})) or key.shape != query.shape or value.shape[:-2] != query.shape[:-2]:
        cx.fail(f"{query}, {key} and {value} must be [..., heads, size], and query and key of one shape")
    (heads, d), (value_heads, dv) = query.shape[-2:], value.shape[-2:]
    if heads == 0 or value_heads == 0 or value_heads % heads:
        cx.fail(f"the {value_heads} heads of {value} must be a multiple of the {heads} of {query}")
    batch, tokens = query.shape[:2] if query.rank == 4 else _uniform(cx, query, state)
    q, k, v = (
        cx.alias(wide(cx, x), (batch, tokens, n * size))
        for x, n, size in ((query, heads, d), (key, heads, d), (value, value_heads, dv))
    )
    return _Tokens(q, k, v, batch, tokens, heads, value_heads, d, dv)


def _split(cx: Context, query: Value, state: Value | None) -> _Tokens:
    """Of [tokens, columns of queries, keys and values]."""
    if state is None or state.rank != 4 or query.rank != 2:
        cx.fail(f"a query of rank 2 and an initial_state are required without key and value, got {query} and {state}")
    batch, tokens = _uniform(cx, query, state)
    _, value_heads, dv, d = state.shape
    width = query.shape[1]
    heads, odd = divmod(width - value_heads * dv, max(2 * d, 1))
    if odd or heads < 1 or value_heads % heads:
        cx.fail(f"the columns of {query} do not divide into heads as wide as those of {state}")
    packed, at, parts = wide(cx, query), 0, []
    for size in (heads * d, heads * d, value_heads * dv):
        part = cx.out((batch, tokens, size), F32)
        copy(cx, packed, part, [(batch * tokens, width, size), (size, 1, 1)], source=at)
        parts.append(part)
        at += size
    return _Tokens(parts[0], parts[1], parts[2], batch, tokens, heads, value_heads, d, dv)


def _uniform(cx: Context, query: Value, state: Value | None) -> tuple[int, int]:
    """Batches, and the tokens that each has."""
    if state is None or not state.rank or not state.shape[0] or query.shape[0] % state.shape[0]:
        cx.fail(f"the {query.shape[0]} tokens of {query} must divide into the batches of initial_state {state}")
    return state.shape[0], query.shape[0] // state.shape[0]


def _unit(cx: Context, x: Value, t: _Tokens) -> Value:
    """Rows of each head with a norm of 1."""
    rows = cx.alias(x, (t.batch * t.tokens * t.heads, t.d))
    return cx.alias(lp_normalization(cx, rows, axis=-1, p=2), x.shape)


def _gate(
    cx: Context, decay: Value, a_log: Value | None, dt_bias: Value | None, kind: str, low: float, t: _Tokens
) -> Value:
    """The logarithm of the factors of the state, [batch, tokens, value heads or value heads * d]."""
    columns = t.value_heads * (t.d if decay.size == t.batch * t.tokens * t.value_heads * t.d else 1)
    if decay.size != t.batch * t.tokens * columns:
        cx.fail(f"decay {decay} must have one number or {t.d} for each of {t.value_heads} heads of a token")
    each = columns // t.value_heads
    x = cx.alias(wide(cx, decay), (t.batch, t.tokens, t.value_heads, each))
    if kind != "none":
        if kind not in ("softplus", "qwen", "sigmoid", "kda"):
            cx.fail(f"gate_activation {kind!r} is not one of none, softplus, sigmoid and kda")
        if a_log is None or a_log.shape != (t.value_heads,) or dt_bias is None or (
            dt_bias.size not in (t.value_heads, columns)
        ):  # fmt: skip
            cx.fail(f"gate_activation {kind} needs a_log {[t.value_heads]} and dt_bias {[columns]}")
        factor = flat(cx, "exp_f32", cx.alias(a_log, (t.value_heads, 1)))
        x = binary.add(cx, x, cx.alias(dt_bias, (t.value_heads, dt_bias.size // t.value_heads)))
        if kind in ("softplus", "qwen"):
            x = flat(cx, "neg_f32", binary.mul(cx, activations.softplus(cx, x), factor))
        else:
            x = activations.sigmoid(cx, binary.mul(cx, x, factor))
            x = binary.mul(cx, x, cx.known(np.array(low, np.float32)))
    return cx.alias(x, (t.batch, t.tokens, columns))
