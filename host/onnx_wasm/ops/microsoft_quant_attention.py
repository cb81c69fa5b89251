"""Quantized operators of com.microsoft that fuse the layers of transformers."""

from __future__ import annotations

from ..context import Context, Value
from ..dtypes import F32
from ..errors import UnsupportedModelError
from ..registry import op
from ..words import counted
from ._widen import as_type
from .attention import narrow
from .microsoft_attention import attention_of
from .microsoft_quant import DOMAIN, to_float


@op("QAttention", domain=DOMAIN)
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
