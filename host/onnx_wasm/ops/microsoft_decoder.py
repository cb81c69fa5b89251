"""Attention of com.microsoft for one new token: the last of a sequence whose keys and values lie in a cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..context import Array, Context, Value
from ..dtypes import F32, I32
from ..errors import UnsupportedModelError
from ..registry import MICROSOFT, op
from ..words import counted
from ._copy import copy_flat, only, wanted
from .attention import Heads, attend, by_head, by_row, check, narrow, wide
from .expand import expand
from .microsoft_attention import added, biased, f32, padding, score_scale, split


@op("DecoderMaskedMultiHeadAttention", domain=MICROSOFT, host=("beam_width",))
def decoder_masked_multi_head_attention(
    cx: Context,
    query: Value,
    key: Value | None = None,
    value: Value | None = None,
    mask_index: Value | None = None,
    attention_bias: Value | None = None,
    past_key: Value | None = None,
    past_value: Value | None = None,
    past_sequence_length: Value | None = None,
    beam_width: Array | None = None,
    cache_indirection: Value | None = None,
    bias: Value | None = None,
    *,
    num_heads: int,
    mask_filter_value: float = -10000.0,
    output_qk: int = 0,
    past_present_share_buffer: int = 0,
    scale: float | None = None,
) -> Any:
    """Query, key and value [batch, 1, heads * size], or all three in the query. Caches are [batch, heads, capacity,
    size], and the new token comes behind ``past_sequence_length`` others. With keys and values of rank 4 the query sees
    those. Of w beams, row i of the batch is beam i mod w, and cache_indirection [batch / w, w, capacity] tells whose
    cache has each token of a beam, as in onnxruntime's schema. past_sequence_length is read in the module alone: a plan
    holds for every length."""
    if output_qk or wanted(cx, 3):
        cx.fail("output_qk is not supported", UnsupportedModelError)
    dtype = query.dtype
    if query.rank != 3 or query.shape[1] != 1:
        cx.fail(f"query {query} must be {['batch', 1, 'heads * size']}")
    batch = query.shape[0]
    beams = 1 if beam_width is None else int(only(cx, "beam_width", beam_width))
    if mask_index is not None and (mask_index.rank != 2 or mask_index.shape[0] != batch):
        cx.fail(f"the mask {mask_index} must be {[batch, 'keys']}")
    if attention_bias is not None and attention_bias.rank != 4:
        cx.fail(f"attention_bias {attention_bias} must be {['batch or 1', 'heads or 1', 1, 'keys']}")
    mask = None if mask_index is None else padding(cx, mask_index, batch, 1, mask_index.shape[1], mask_filter_value)
    if past_key is None and past_value is None and key is not None and key.rank == 4:
        if value is None or value.rank != 4 or attention_bias is not None or wanted(cx, 1):
            cx.fail("keys of rank 4 come with values of rank 4, without attention_bias, and without present outputs")
        q = split(cx, f32(cx, query), num_heads)
        k, v = (by_head(f32(cx, x)) for x in (key, value))
        check(cx, batch, q, k, v)
        (q,) = _shifted(cx, bias, batch, num_heads * v.size, q)
        y = cx.out((batch, 1, num_heads * v.size), F32)
        if mask is not None and mask.shape[-1] != k.rows:
            cx.fail(f"the mask {mask_index} must be {[batch, k.rows]}")
        attend(cx, q, k, v, by_row(y, num_heads), batch=batch, scale=score_scale(scale, q.size), mask=mask)
        return narrow(cx, y, dtype), None, None
    if not past_present_share_buffer or past_key is None or past_value is None or past_sequence_length is None:
        cx.fail(
            "past_present_share_buffer with past_key, past_value and past_sequence_length, or keys and values of rank 4"
            " expected",
            UnsupportedModelError,
        )
    q, k, v = _token(cx, query, key, value, num_heads)
    check(cx, batch, q, k, v)
    if q.size != v.size or k.rows != 1:
        cx.fail(f"{k.value} and {v.value} must have one row, and heads as wide as those of {q.value}")
    q, k, v = _shifted(cx, bias, batch, num_heads * v.size, q, k, v)
    for x in (past_key, past_value):
        if x.rank != 4 or x.shape[:2] != (batch, num_heads) or x.shape[3] != q.size or x.shape != past_key.shape:
            cx.fail(f"past {x} does not fit: {[batch, num_heads, 'capacity', q.size]} expected")
    if past_sequence_length.size != 1 or past_sequence_length.dtype is not I32:
        cx.fail(f"past_sequence_length is {past_sequence_length}, must be int32[1]")
    lengths = cx.alias(past_sequence_length, (1,))
    if batch > 1:
        lengths = expand(cx, lengths, np.array([batch]))
    present = [_appended(cx, f32(cx, past), x, batch, lengths) for past, x in ((past_key, k), (past_value, v))]
    caches = present
    if beams > 1:
        if attention_bias is not None and attention_bias.shape[0] != 1:
            cx.fail("with beams, attention_bias must have a batch of 1", UnsupportedModelError)
        caches = [_of_beams(cx, x, cache_indirection, beams, lengths) for x in present]
    y = cx.out((batch, 1, num_heads * v.size), F32)
    attend(
        cx, q, by_head(caches[0]), by_head(caches[1]), by_row(y, num_heads),
        batch=batch,
        scale=score_scale(scale, q.size),
        mask=added(cx, mask, wide(cx, attention_bias)),
        lengths=lengths,
        more=1,
    )  # fmt: skip
    return tuple(narrow(cx, x, dtype) for x in (y, *present))


def _token(cx: Context, query: Value, key: Value | None, value: Value | None, heads: int) -> tuple[Heads, Heads, Heads]:
    """Query, key and value of the new token, apart or side by side in ``query``."""
    if heads < 1:
        cx.fail(f"num_heads is {heads}, must be at least 1")
    query = f32(cx, query)
    if key is not None and value is not None:
        q, k, v = (split(cx, x, heads) for x in (query, f32(cx, key), f32(cx, value)))
        return q, k, v
    width = query.shape[2]
    if key is not None or value is not None or width % (3 * heads):
        cx.fail(f"key and value are missing, and {query} does not hold them: {3 * heads} heads expected")
    size = width // (3 * heads)
    q, k, v = (Heads(query, width, size, width, heads, 1, size, i * width // 3) for i in range(3))
    return q, k, v


def _shifted(cx: Context, bias: Value | None, batch: int, width: int, *rows: Heads) -> list[Heads]:
    """The rows plus their parts of a bias of three times ``width`` elements."""
    if bias is None:
        return list(rows)
    if bias.shape != (3 * width,):
        cx.fail(f"bias {bias} does not fit: {counted(3 * width, 'element')} expected")
    return [biased(cx, x, f32(cx, bias), batch, i * width) for i, x in enumerate(rows)]


def _appended(cx: Context, past: Value, x: Heads, batch: int, lengths: Value) -> Value:
    """The cache with the new row of each head behind ``lengths`` others."""
    if not past.shape[2]:
        cx.fail(f"the cache {past} has no room for a row")
    y = cx.out(past.shape, F32)
    copy_flat(cx, past, y)
    if x.heads * batch * x.size:
        cx.emit(
            "cache_append", units=batch * x.heads, x=x.start(cx), y=y, lengths=lengths, more=0, rows=1,
            capacity=past.shape[2], heads=x.heads, run=4 * x.size,
            x_batch=4 * x.batch, x_head=4 * x.head, x_row=4 * x.row,
        )  # fmt: skip
    return y


def _of_beams(cx: Context, x: Value, indirection: Value | None, beams: int, lengths: Value) -> Value:
    """The cache as each beam sees it."""
    batch, heads, capacity, size = x.shape
    if indirection is None or indirection.dtype is not I32 or indirection.rank != 3 or (
        batch % beams or indirection.shape[:2] != (batch // beams, beams)
    ):  # fmt: skip
        cx.fail(
            f"a beam_width of {beams} needs a cache_indirection of type int32 and shape"
            f" {[f'{batch} / {beams}', beams, 'capacity']}, got {indirection}"
        )
    y = cx.out(x.shape, F32)
    if y.size:
        cx.emit(
            "cache_beams", units=batch * heads, x=x, y=y, beams=indirection, lengths=lengths, width=beams,
            columns=indirection.shape[2], heads=heads, capacity=capacity, run=4 * size,
        )  # fmt: skip
    return y
