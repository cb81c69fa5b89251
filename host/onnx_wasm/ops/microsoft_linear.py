"""Linear attention of com.microsoft, and the convolution that goes before it."""

from __future__ import annotations

import math
from typing import Any

from ..context import Context, Value
from ..dtypes import F32
from ..errors import UnsupportedModelError
from ..registry import MICROSOFT, op
from . import activation as activations
from . import transpose
from ._copy import copy, fill
from ._elementwise import cast, flat
from ._widen import only_f32, only_floats, wide, widened
from .conv import conv

COLUMNS = 16
"""A unit of the kernel."""


@op("LinearAttention", domain=MICROSOFT)
def linear_attention(
    cx: Context,
    query: Value,
    key: Value,
    value: Value,
    past_state: Value | None = None,
    decay: Value | None = None,
    beta: Value | None = None,
    *,
    chunk_size: int = 64,
    kv_num_heads: int,
    q_num_heads: int,
    scale: float = 0.0,
    state_window: int = 0,
    update_rule: str = "gated_delta",
) -> Any:
    """The recurrence of onnxruntime's schema, token by token: query [batch, tokens, q heads * d], key [batch, tokens, k
    heads * d], value [batch, tokens, kv heads * dv], and a state [batch, kv heads, d, dv], the second output."""
    if state_window:
        cx.fail("state_window is not supported", UnsupportedModelError)
    only_floats(cx, query, key, value, past_state, decay, beta)
    if update_rule not in ("linear", "gated", "delta", "gated_delta"):
        cx.fail(f"update_rule {update_rule!r} is not one of linear, gated, delta and gated_delta")
    if any(x.rank != 3 or x.shape[:2] != query.shape[:2] for x in (query, key, value)):
        cx.fail(f"{query}, {key} and {value} must have rank 3, and the same batch and tokens")
    if min(q_num_heads, kv_num_heads) < 1 or max(q_num_heads, kv_num_heads) % min(q_num_heads, kv_num_heads):
        cx.fail(f"of q_num_heads {q_num_heads} and kv_num_heads {kv_num_heads} one must divide the other")
    batch, tokens, width = query.shape
    d, dv = width // q_num_heads, value.shape[2] // kv_num_heads
    k_heads = key.shape[2] // d if d else 0
    if (
        (d * q_num_heads, dv * kv_num_heads, d * k_heads) != (width, value.shape[2], key.shape[2])
        or k_heads == 0
        or kv_num_heads % k_heads
    ):
        cx.fail(f"the columns of {query}, {key} and {value} do not divide into {q_num_heads} and {kv_num_heads} heads")
    shape = (batch, kv_num_heads, d, dv)
    if past_state is not None and past_state.shape != shape:
        cx.fail(f"past_state {past_state} must be {list(shape)}")
    decay, each = _decay(cx, decay if update_rule.startswith("gated") else None, update_rule, query, kv_num_heads, d)
    beta = _beta(cx, beta, query, kv_num_heads) if update_rule.endswith("delta") else None
    y = cx.out((batch, tokens, max(q_num_heads, kv_num_heads) * dv), F32)
    present = cx.out(shape, F32)
    if present.size:
        cx.emit(
            "linear_attention_f32", units=batch * kv_num_heads * -(-dv // COLUMNS),
            q=wide(cx, query), k=wide(cx, key), v=wide(cx, value), decay=decay, beta=beta,
            past=None if past_state is None else wide(cx, past_state), y=y, present=present,
            scratch=cx.scratch(64 * d + 128),
            tokens=tokens, d=d, dv=dv, q_heads=q_num_heads, k_heads=k_heads, kv_heads=kv_num_heads, each=each,
            beta_heads=1 if beta is None else beta.shape[2], scale=scale or 1 / math.sqrt(d),
        )  # fmt: skip
    return cast(cx, y, query.dtype), cast(cx, present, query.dtype if past_state is None else past_state.dtype)


def _decay(cx: Context, decay: Value | None, rule: str, query: Value, heads: int, d: int) -> tuple[Value | None, int]:
    """The factors of the state, and whether each row has its own."""
    if not rule.startswith("gated"):
        return None, 0
    if (
        decay is None
        or decay.rank != 3
        or decay.shape[:2] != query.shape[:2]
        or decay.shape[2] not in (heads, heads * d)
    ):
        cx.fail(f"update_rule {rule} needs a decay {[*query.shape[:2], heads]} or {[*query.shape[:2], heads * d]}")
    return flat(cx, "exp_f32", wide(cx, decay)), int(decay.shape[2] == heads * d)


def _beta(cx: Context, beta: Value | None, query: Value, heads: int) -> Value:
    rows = query.shape[:2]
    if beta is None or beta.shape not in ((*rows, heads), (*rows, 1)):
        cx.fail(f"the update rule needs a beta {[*rows, heads]} or {[*rows, 1]}, got {beta}")
    return wide(cx, beta)


@op("CausalConvWithState", domain=MICROSOFT)
@widened
def causal_conv_with_state(
    cx: Context,
    x: Value,
    weight: Value,
    bias: Value | None = None,
    past_state: Value | None = None,
    *,
    activation: str = "none",
    channels_last: int = 0,
    dilation: int = 1,
    input_channel_offset: int = 0,
    input_channels: int = 0,
    ndim: int = 1,
    state_channels_last: int = -1,
    state_length: int = 0,
    state_update_capacity: int = 0,
    state_window: int = 0,
) -> Any:
    """A convolution of each channel of x [batch, channels, length], or with channels_last [batch, length, channels...],
    with a kernel of its own that ends at the element itself. The state, which is the second output, is what lies before
    x, (taps - 1) * dilation elements."""
    if input_channel_offset or input_channels or state_channels_last != -1 or state_length or state_update_capacity:
        cx.fail("selected channels, and states of other lengths and layouts, are not supported", UnsupportedModelError)
    only_f32(cx, x, weight, bias, past_state)
    if ndim != 1 or state_window:
        cx.fail(f"ndim {ndim} and state_window {state_window} are not supported", UnsupportedModelError)
    if activation not in ("none", "silu", "swish"):
        cx.fail(f"activation {activation!r} is not one of none, silu and swish")
    if x.rank < 3 or (x.rank > 3 and not channels_last):
        cx.fail(f"{x} must be {['batch', 'channels', 'length']}")
    batch, length = x.shape[0], x.shape[1 if channels_last else 2]
    channels = math.prod(x.shape[2:]) if channels_last else x.shape[1]
    if weight.rank != 3 or weight.shape[:2] != (channels, 1) or weight.shape[2] < 1 or dilation < 1:
        cx.fail(f"weight {weight} must be {[channels, 1, 'taps']}, and dilation {dilation} at least 1")
    if bias is not None and bias.shape != (channels,):
        cx.fail(f"bias {bias} must be {[channels]}")
    before = (weight.shape[2] - 1) * dilation
    shape = (batch, before, *x.shape[2:]) if channels_last else (batch, channels, before)
    if past_state is not None and past_state.shape != shape:
        cx.fail(f"past_state {past_state} must be {list(shape)}")
    # Runs of what lies side by side in each batch, or each channel, and before them those of the state.
    rows, run = (batch, channels) if channels_last else (batch * channels, 1)
    total = before + length
    joined = cx.out((batch, total, channels) if channels_last else (batch, channels, total), F32)
    if past_state is None:
        fill(cx, joined, None)
    else:
        copy(cx, past_state, joined, [(rows, before * run, total * run), (before * run, 1, 1)])
    copy(cx, x, joined, [(rows, length * run, total * run), (length * run, 1, 1)], target=before * run)
    present = cx.out(shape, F32)
    copy(cx, joined, present, [(rows, total * run, before * run), (before * run, 1, 1)], source=length * run)
    if channels_last:
        joined = transpose.transpose(cx, joined, perm=[0, 2, 1])
    if not length:
        return cx.out(x.shape, F32), present
    y = conv(cx, joined, weight, bias, dilations=[dilation], group=channels)
    if activation != "none":
        y = activations.swish(cx, y)
    if channels_last:
        y = transpose.transpose(cx, y, perm=[0, 2, 1])
    return cx.alias(y, x.shape), present
