"""Quantized operators of com.microsoft that fuse the layers of transformers."""

from __future__ import annotations

from ..context import Context, Value
from ..dtypes import F32
from ..errors import UnsupportedModelError
from ..registry import MICROSOFT, op
from ..words import counted
from ._widen import as_type
from .attention import narrow
from .binary import add
from .gather import gather
from .microsoft_attention import attention_of
from .microsoft_quant import to_float
from .microsoft_transformer import normalized, words_of
from .qlinear import BYTES
from .quantize import dequantize


@op("QAttention", domain=MICROSOFT)
def qattention(
    cx: Context,
    x: Value,
    weight: Value,
    bias: Value,
    input_scale: Value,
    weight_scale: Value,
    mask_index: Value | None = None,
    input_zero_point: Value | None = None,
    weight_zero_point: Value | None = None,
    past: Value | None = None,
    *,
    num_heads: int,
    do_rotary: int = 0,
    mask_filter_value: float = -10000.0,
    past_present_share_buffer: int = 0,
    scale: float | None = None,
    unidirectional: int = 0,
) -> tuple[Value | None, ...]:
    """Attention of com.microsoft, where x (batch, rows, k) and its weights (k, 3 * hidden) are of 8 bits; the scale and
    the zero point of the weights are scalars, or have one element for each column."""
    if do_rotary or past_present_share_buffer:
        cx.fail("do_rotary and past_present_share_buffer are not supported", UnsupportedModelError)
    if x.rank != 3 or weight.rank != 2:
        cx.fail(f"input {x} must have rank 3, and weights {weight} rank 2")
    hidden, odd = divmod(weight.shape[1], 3)
    if odd or num_heads < 1 or hidden % num_heads:
        cx.fail(f"the {counted(weight.shape[1], 'column')} of {weight} do not divide into 3 times {num_heads} heads")
    if input_zero_point is not None and input_zero_point.size != 1:
        cx.fail(f"the zero point of the input must be a scalar, got {input_zero_point!r}")
    columns = as_type(cx, weight_scale, F32)
    qkv = to_float(cx, x, weight, input_zero_point, weight_zero_point, input_scale, columns, as_type(cx, bias, F32))
    results = attention_of(
        cx, qkv, mask_index, past, None,
        sizes=[hidden] * 3, num_heads=num_heads, mask_filter_value=mask_filter_value, scale=scale,
        unidirectional=unidirectional,
    )  # fmt: skip
    return tuple(narrow(cx, y, bias.dtype) for y in results)


@op("QEmbedLayerNormalization", domain=MICROSOFT)
def qembed_layer_normalization(
    cx: Context,
    input_ids: Value,
    segment_ids: Value | None,
    word_embedding: Value,
    position_embedding: Value,
    segment_embedding: Value | None,
    gamma: Value,
    beta: Value,
    mask: Value | None,
    word_embedding_scale: Value,
    position_embedding_scale: Value,
    segment_embedding_scale: Value | None,
    gamma_scale: Value,
    beta_scale: Value,
    word_embedding_zero_point: Value,
    position_embedding_zero_point: Value,
    segment_embedding_zero_point: Value | None,
    gamma_zero_point: Value,
    beta_zero_point: Value,
    *,
    epsilon: float = 1e-12,
) -> tuple[Value | None, ...]:
    """EmbedLayerNormalization of ids (batch, rows) with embeddings (count, hidden), gamma and beta (hidden) of 8 bits,
    each with a scalar scale and zero point."""
    segments = (segment_ids, segment_embedding, segment_embedding_scale, segment_embedding_zero_point)
    if len({x is None for x in segments}) > 1:
        cx.fail("the four inputs of segments must all be given, or none of them")
    if input_ids.rank != 2 or (segment_ids is not None and segment_ids.shape != input_ids.shape):
        cx.fail(f"{input_ids} must have rank 2, and segment_ids {segment_ids} its shape")
    tables = [x for x in (word_embedding, position_embedding, segment_embedding) if x is not None]
    hidden = word_embedding.shape[-1:]
    if any(x.rank != 2 or x.shape[1:] != hidden for x in tables) or gamma.shape != hidden or beta.shape != hidden:
        cx.fail(f"embeddings {tables} and gamma {gamma} and beta {beta} do not have the same columns")
    rows = input_ids.shape[1]
    if position_embedding.shape[0] < rows:
        cx.fail(f"{position_embedding} has fewer than {rows} positions")

    def decoded(x: Value, scale: Value, zero: Value) -> Value:
        if x.dtype not in BYTES:
            cx.fail(f"no form for {x.dtype}", UnsupportedModelError)
        if scale.size != 1 or zero.size != 1:
            cx.fail(f"the scale and zero point of an input must be scalars, got {scale!r} and {zero!r}")
        return dequantize(cx, x, cx.alias(scale, ()), cx.alias(zero, ()))

    places = cx.alias(position_embedding, (rows, *hidden))
    total = add(
        cx,
        decoded(gather(cx, word_embedding, input_ids), word_embedding_scale, word_embedding_zero_point),
        decoded(places, position_embedding_scale, position_embedding_zero_point),
    )
    if segment_ids is not None:
        assert segment_embedding is not None
        assert segment_embedding_scale is not None
        assert segment_embedding_zero_point is not None
        of_segments = gather(cx, segment_embedding, segment_ids)
        total = add(cx, total, decoded(of_segments, segment_embedding_scale, segment_embedding_zero_point))
    total.producer = None
    factor, shift = (
        cx.derived("dequantized", parts, lambda parts=parts: decoded(*parts))  # type: ignore[misc]
        for parts in ((gamma, gamma_scale, gamma_zero_point), (beta, beta_scale, beta_zero_point))
    )
    return normalized(cx, total, factor, shift, epsilon), words_of(cx, mask, input_ids)
