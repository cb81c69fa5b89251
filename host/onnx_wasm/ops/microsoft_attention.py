"""Attention operators of the com.microsoft domain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..context import Array, Context, Value
from ..dtypes import F32, I32
from ..errors import UnsupportedModelError
from ..registry import MICROSOFT, op
from ..words import counted
from ._copy import copy, copy_flat, fill, only, wanted
from ._widen import as_type
from .attention import Heads, attend, by_head, by_row, check, gathered, narrow, place, wide
from .binary import add
from .matmul import multiply
from .rotary import rotate


def padding(cx: Context, mask: Value | None, batch: int, rows: int, total: int, masked: float) -> Value | None:
    """What a padding mask adds to the scores, (batch, 1, 1 or rows, total)."""
    if mask is None:
        return None
    if mask.dtype is not I32:
        cx.fail(f"the mask is {mask}, must be int32")
    if mask.rank == 1:
        if mask.size not in (batch, 2 * batch):
            cx.fail(f"a mask like {mask} is not supported", UnsupportedModelError)
        y = cx.out((batch, 1, 1, total), F32)
        starts = cx.alias(mask, (batch,), offset=4 * batch) if mask.size == 2 * batch else None
        if y.size:
            cx.emit("attention_bounds_f32", units=batch, last=mask, first=starts, y=y, n=total, fill=masked)
        return y
    if mask.shape not in ((batch, total), (batch, rows, total)):
        cx.fail(f"the mask {mask} does not fit: {[batch, total]} or {[batch, rows, total]} expected")
    y = cx.out((batch, 1, *(mask.shape[1:] if mask.rank == 3 else (1, total))), F32)
    if y.size:
        cx.emit("attention_mask_f32", units=cx.chunks(y), x=mask, y=y, n=y.size, fill=masked)
    return y


def added(cx: Context, mask: Value | None, bias: Value | None) -> Value | None:
    if mask is None or bias is None:
        return bias if mask is None else mask
    return add(cx, mask, bias)


def score_scale(scale: float | None, size: int) -> float:
    return scale or 1 / math.sqrt(size)


@op("Attention", domain=MICROSOFT)
def attention(
    cx: Context,
    x: Value,
    weights: Value,
    bias: Value | None = None,
    mask_index: Value | None = None,
    past: Value | None = None,
    attention_bias: Value | None = None,
    past_sequence_length: Value | None = None,
    *,
    num_heads: int,
    do_rotary: int = 0,
    mask_filter_value: float = -10000.0,
    past_present_share_buffer: int = 0,
    qkv_hidden_sizes: Sequence[int] | None = None,
    rotary_embedding_dim: int = 0,
    scale: float | None = None,
    unidirectional: int = 0,
) -> Any:
    """Projection of x to queries, keys and values, and their attention."""
    if do_rotary or past_present_share_buffer:
        cx.fail("do_rotary and past_present_share_buffer are not supported", UnsupportedModelError)
    if x.rank != 3 or weights.rank != 2:
        cx.fail(f"input {x} must have rank 3, and weights {weights} rank 2")
    sizes = list(qkv_hidden_sizes) if qkv_hidden_sizes else [weights.shape[1] // 3] * 3
    if len(sizes) != 3 or sum(sizes) != weights.shape[1] or sizes[0] != sizes[1] or any(n % num_heads for n in sizes):
        cx.fail(f"hidden sizes {sizes} do not fit {num_heads} heads and weights {weights}")
    qkv = multiply(cx, f32(cx, x), f32(cx, weights))
    if bias is not None:
        qkv = add(cx, qkv, f32(cx, bias))
    results = attention_of(
        cx, qkv, mask_index, past, attention_bias,
        sizes=sizes, num_heads=num_heads, mask_filter_value=mask_filter_value, scale=scale,
        unidirectional=unidirectional,
    )  # fmt: skip
    return tuple(narrow(cx, y, x.dtype) for y in results)


def attention_of(
    cx: Context,
    qkv: Value,
    mask_index: Value | None,
    past: Value | None,
    attention_bias: Value | None,
    *,
    sizes: Sequence[int],
    num_heads: int,
    mask_filter_value: float,
    scale: float | None,
    unidirectional: int,
) -> tuple[Value, Value | None]:
    """Attention of queries, keys and values, f32 (batch, rows, sum of ``sizes``), and the keys and values with those of
    the past before them, if they are asked for."""
    batch, rows, width = qkv.shape
    if mask_index is not None and mask_index.shape in ((batch, 1), (1, 1)):
        # A placeholder: onnxruntime does not look at it.
        mask_index = None
    qkv.producer = None
    q, k, v = (
        Heads(qkv, rows * width, n // num_heads, width, num_heads, rows, n // num_heads, at)
        for n, at in zip(sizes, (0, sizes[0], 2 * sizes[0]), strict=True)
    )
    present, before = None, 0
    if past is not None or wanted(cx, 1):
        if q.size != v.size:
            cx.fail("with a past, values must be as wide as keys")
        if past is not None:
            if past.rank != 5 or past.shape[:3] != (2, batch, num_heads) or past.shape[4] != q.size:
                cx.fail(f"past {past} does not fit: {[2, batch, num_heads, 'past', q.size]} expected")
            before = past.shape[3]
        total = before + rows
        present = cx.out((2, batch, num_heads, total, q.size), F32)
        if past is not None:
            n = before * q.size
            copy(cx, f32(cx, past), present, [(2 * batch * num_heads, n, total * q.size), (n, 1, 1)])
        half = present.size // 2
        halves = [cx.alias(present, present.shape[1:], offset=4 * half * i) for i in (0, 1)]
        for source, target in zip((k, v), halves, strict=True):
            place(cx, source, target, batch, before)
        k, v = by_head(halves[0]), by_head(halves[1])
    y = cx.out((batch, rows, sizes[2]), F32)
    attend(
        cx, q, k, v, by_row(y, num_heads),
        batch=batch,
        scale=score_scale(scale, q.size),
        mask=added(
            cx, padding(cx, mask_index, batch, rows, k.rows, mask_filter_value), wide(cx, attention_bias)
        ),
        offset=before,
        right=0 if unidirectional else -1,
    )  # fmt: skip
    return y, present


def f32(cx: Context, x: Value) -> Value:
    return as_type(cx, x, F32)


@op("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(
    cx: Context,
    query: Value,
    key: Value | None = None,
    value: Value | None = None,
    bias: Value | None = None,
    key_padding_mask: Value | None = None,
    attention_bias: Value | None = None,
    past_key: Value | None = None,
    past_value: Value | None = None,
    past_sequence_length: Value | None = None,
    cache_indirection: Value | None = None,
    *,
    num_heads: int,
    mask_filter_value: float = -10000.0,
    scale: float | None = None,
    unidirectional: int = 0,
) -> Any:
    """Queries, keys and values apart, or packed: (batch, rows, heads, 2 or 3, size)."""
    if wanted(cx, 3) or past_sequence_length is not None or cache_indirection is not None:
        cx.fail("qk, past_sequence_length and cache_indirection are not supported", UnsupportedModelError)
    dtype, batch = query.dtype, query.shape[0]
    query = f32(cx, query)
    if query.rank == 5:
        q, k, v = _packed(cx, query, num_heads, 3)
    else:
        q = split(cx, query, num_heads)
        if key is None:
            cx.fail("key is missing")
        key = f32(cx, key)
        if key.rank == 5:
            k, v = _packed(cx, key, num_heads, 2)
        else:
            if value is None:
                cx.fail("value is missing")
            value = f32(cx, value)
            k, v = (by_head(x) if x.rank == 4 else split(cx, x, num_heads) for x in (key, value))
    if bias is not None:
        width = num_heads * q.size
        if bias.shape != (2 * width + num_heads * v.size,):
            cx.fail(f"bias {bias} does not fit: {counted(2 * width + num_heads * v.size, 'element')} expected")
        takes = (q,) if key is not None and key.rank == 4 else (q, k, v)
        made = [biased(cx, x, f32(cx, bias), batch, i * width) for i, x in enumerate(takes)]
        q, k, v = (*made, k, v) if len(made) == 1 else made
    check(cx, batch, q, k, v)
    before = 0
    present: list[Value | None] = [None, None]
    if past_key is not None and past_value is not None:
        for x, h in ((past_key, k), (past_value, v)):
            if x.rank != 4 or x.shape[:2] != (batch, num_heads) or x.shape[3] != h.size:
                cx.fail(f"past {x} does not fit: {[batch, num_heads, 'past', h.size]} expected")
        before = past_key.shape[2]
        joined = [gathered(cx, h, batch, past=f32(cx, x)) for h, x in ((k, past_key), (v, past_value))]
        k, v = by_head(joined[0]), by_head(joined[1])
        present = list(joined)
    else:
        present = [gathered(cx, h, batch) if wanted(cx, i) else None for i, h in ((1, k), (2, v))]
    y = cx.out((batch, q.rows, num_heads * v.size), F32)
    attend(
        cx, q, k, v, by_row(y, num_heads),
        batch=batch,
        scale=score_scale(scale, q.size),
        mask=added(
            cx,
            padding(cx, key_padding_mask, batch, q.rows, k.rows, mask_filter_value),
            wide(cx, attention_bias),
        ),
        offset=before,
        right=0 if unidirectional else -1,
    )  # fmt: skip
    return tuple(narrow(cx, x, dtype) for x in (y, *present))


def split(cx: Context, x: Value, heads: int) -> Heads:
    if x.rank != 3 or heads < 1 or x.shape[2] % heads:
        cx.fail(f"{x} must have rank 3, and columns that divide into {heads} heads")
    return by_row(x, heads)


def _packed(cx: Context, x: Value, heads: int, count: int) -> list[Heads]:
    if x.shape[2:4] != (heads, count):
        cx.fail(f"packed {x} does not fit: {['batch', 'rows', heads, count, 'size']} expected")
    rows, size = x.shape[1], x.shape[4]
    width = heads * count * size
    return [Heads(x, rows * width, count * size, width, heads, rows, size, i * size) for i in range(count)]


def biased(cx: Context, x: Heads, bias: Value, batch: int, at: int) -> Heads:
    """The rows plus a bias of heads * size elements, (batch, rows, heads, size)."""
    width = x.heads * x.size
    dense = x.value
    if x.at or x.row != width or x.head != x.size:
        dense = cx.out((batch, x.rows, width), F32)
        dims = [
            (batch, x.batch, x.rows * width), (x.rows, x.row, width), (x.heads, x.head, x.size), (x.size, 1, 1),
        ]  # fmt: skip
        copy(cx, x.value, dense, dims, source=x.at)
    part = cx.alias(bias, (width,), offset=4 * at)
    y = add(cx, cx.alias(dense, (batch, x.rows, width)), part)
    y.producer = None
    return by_row(y, x.heads)


@op("GroupQueryAttention", domain=MICROSOFT, host=("total_sequence_length",))
def group_query_attention(
    cx: Context,
    query: Value,
    key: Value | None = None,
    value: Value | None = None,
    past_key: Value | None = None,
    past_value: Value | None = None,
    seqlens_k: Value | None = None,
    total_sequence_length: Array | None = None,
    cos_cache: Value | None = None,
    sin_cache: Value | None = None,
    position_ids: Value | None = None,
    attention_bias: Value | None = None,
    head_sink: Value | None = None,
    k_scale: Value | None = None,
    v_scale: Value | None = None,
    q_norm_weight: Value | None = None,
    k_norm_weight: Value | None = None,
    query_seqlens: Value | None = None,
    *,
    kv_num_heads: int,
    num_heads: int,
    causal: int = 1,
    do_rotary: int = 0,
    k_norm_epsilon: float | None = None,
    k_quant_type: str = "NONE",
    kv_cache_bit_width: int = 0,
    local_window_size: int = -1,
    q_norm_epsilon: float | None = None,
    qk_norm_epsilon: float = 1e-6,
    qk_output: int = 0,
    rotary_interleaved: int = 0,
    scale: float | None = None,
    sliding_window_cache: int = 0,
    smooth_softmax: int = -1,
    softcap: float = 0.0,
    v_quant_type: str = "NONE",
) -> Any:
    """Attention with a cache: the new keys and values come behind those that each batch has."""
    extra = (k_scale, v_scale, q_norm_weight, k_norm_weight, query_seqlens)
    if any(x is not None for x in extra) or sliding_window_cache or qk_output or (k_quant_type, v_quant_type) != (
        "NONE", "NONE",
    ):  # fmt: skip
        cx.fail(
            "quantized and windowed caches, query_seqlens, norms of Q and K and output_qk are not supported",
            UnsupportedModelError,
        )
    if query.rank != 3 or kv_num_heads < 1 or num_heads % kv_num_heads:
        cx.fail(f"query {query} must have rank 3, and {kv_num_heads} key heads divide {num_heads} query heads")
    dtype, (batch, rows, width) = query.dtype, query.shape
    query = f32(cx, query)
    if key is None or value is None:
        size, odd = divmod(width, num_heads + 2 * kv_num_heads)
        if odd:
            cx.fail(f"the {width} columns of packed {query} do not divide into {num_heads + 2 * kv_num_heads} heads")
        counts = (num_heads, kv_num_heads, kv_num_heads)
        starts = (0, num_heads * size, (num_heads + kv_num_heads) * size)
        q, k, v = (
            Heads(query, rows * width, size, width, n, rows, size, at) for n, at in zip(counts, starts, strict=True)
        )
    else:
        q = split(cx, query, num_heads)
        k, v = (split(cx, f32(cx, x), kv_num_heads) for x in (key, value))
    check(cx, batch, q, k, v)
    if k.rows != rows:
        cx.fail(f"{key} must have as many rows as {query}")
    if seqlens_k is None or total_sequence_length is None:
        cx.fail("seqlens_k and total_sequence_length are required")
    if seqlens_k.size != batch or seqlens_k.dtype is not I32:
        cx.fail(f"seqlens_k is {seqlens_k}, must be int32[{batch}]")
    total = int(only(cx, "total_sequence_length", total_sequence_length))
    first = total == rows
    lengths = None if first else seqlens_k
    more = 0 if first else 1 - rows
    if do_rotary:
        if cos_cache is None or sin_cache is None:
            cx.fail("do_rotary needs cos_cache and sin_cache")
        cos, sin = f32(cx, cos_cache), f32(cx, sin_cache)
        each = position_ids if position_ids is not None and position_ids.size == batch * rows else None
        turned = []
        for x in (q, k):
            rotated = by_row(cx.out((batch, rows, x.heads * x.size), F32), x.heads)
            rotate(
                cx, x, rotated, batch, cos, sin,
                size=2 * cos.shape[-1],
                interleaved=bool(rotary_interleaved),
                positions=each,
                lengths=lengths,
                more=more,
            )  # fmt: skip
            turned.append(rotated)
        q, k = turned
    present: list[Value] = []
    for past, x in ((past_key, k), (past_value, v)):
        if past is not None and (past.rank != 4 or past.shape[:2] != (batch, kv_num_heads) or past.shape[3] != x.size):
            cx.fail(f"past {past} does not fit: {[batch, kv_num_heads, 'past', x.size]} expected")
        held = 0 if past is None else past.shape[2]
        present.append(_cached(cx, None if past is None else f32(cx, past), x, batch, max(total, held), lengths, more))
    sinks = None if head_sink is None else f32(cx, head_sink)
    if sinks is None and smooth_softmax > 0:
        sinks = cx.known(np.zeros(num_heads, np.float32))
    y = cx.out((batch, rows, num_heads * v.size), F32)
    attend(
        cx, q, by_head(present[0]), by_head(present[1]), by_row(y, num_heads),
        batch=batch,
        scale=score_scale(scale, q.size),
        softcap=softcap,
        mask=wide(cx, attention_bias),
        lengths=seqlens_k,
        more=1,
        aligned=not first,
        left=local_window_size - 1 if local_window_size > 0 else -1,
        right=0 if causal else -1,
        sinks=sinks,
    )  # fmt: skip
    return tuple(narrow(cx, x, dtype) for x in (y, *present))


def _cached(
    cx: Context, past: Value | None, x: Heads, batch: int, capacity: int, lengths: Value | None, more: int
) -> Value:
    """The past, then from row ``lengths`` + ``more`` of each batch on (0 without) the rows of ``x``."""
    if lengths is not None and capacity < x.rows:
        cx.fail(f"{counted(x.rows, 'row')} do not fit in a cache of {capacity}")
    y = cx.out((batch, x.heads, capacity, x.size), F32)
    held = 0 if past is None else past.shape[2]
    if past is not None and held == capacity:
        copy_flat(cx, past, y)
    else:
        if held + x.rows != capacity or batch > 1:
            fill(cx, y, None)
        if past is not None:
            copy(cx, past, y, [(batch * x.heads, held * x.size, capacity * x.size), (held * x.size, 1, 1)])
    if lengths is None:
        place(cx, x, y, batch, 0)
    elif y.size:
        cx.emit(
            "cache_append",
            units=batch * x.heads,
            x=x.start(cx),
            y=y,
            lengths=lengths,
            more=more,
            rows=x.rows,
            capacity=capacity,
            heads=x.heads,
            run=4 * x.size,
            x_batch=4 * x.batch,
            x_head=4 * x.head,
            x_row=4 * x.row,
        )
    return y
