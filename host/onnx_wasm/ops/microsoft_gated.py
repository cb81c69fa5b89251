"""Normalisations and gates of com.microsoft that newer language models are made of."""

from __future__ import annotations

import math

import numpy as np

from ..context import Context, Value
from ..dtypes import F32
from ..errors import UnsupportedModelError
from ..registry import MICROSOFT, op
from . import activation as activations
from . import binary, rownorm
from ._copy import wanted
from ._elementwise import cast
from ._widen import as_type, only_f32, only_floats, widened


@op("GatedRMSNorm", domain=MICROSOFT)
@widened
def gated_rms_norm(
    cx: Context, x: Value, scale: Value, gate: Value, *, activation: str = "silu", epsilon: float = 1e-5
) -> Value:
    """RMSNormalization of x [..., heads * n] over every n elements, n being the size of ``scale``, times the activation
    of gate."""
    only_f32(cx, x, scale, gate)
    if activation not in ("silu", "swish", "sigmoid"):
        cx.fail(f"activation {activation!r} is not supported", UnsupportedModelError)
    if gate.shape != x.shape:
        cx.fail(f"gate {gate} must have the shape of {x}")
    n = scale.size
    if scale.rank != 1 or x.rank == 0 or n == 0 or x.shape[-1] % n:
        cx.fail(f"the columns of {x} must be a multiple of the elements of scale {scale}")
    rows = rownorm.rms_normalization(cx, cx.alias(x, (x.size // n, n)), scale, epsilon=epsilon)
    factor = activations.sigmoid(cx, gate) if activation == "sigmoid" else activations.swish(cx, gate)
    return binary.mul(cx, cx.alias(rows, x.shape), factor)


@op("BranchwiseRMSNorm", domain=MICROSOFT)
@widened
def branchwise_rms_norm(
    cx: Context, x: Value, scale: Value | None = None, *, epsilon: float = 1e-5, num_branches: int = 0
) -> Value:
    """RMSNormalization of each branch: x is [..., branches, n], or [..., branches * n] with num_branches."""
    only_f32(cx, x)
    only_floats(cx, scale)
    if num_branches < 0 or x.rank < (1 if num_branches else 2) or (num_branches and x.shape[-1] % num_branches):
        cx.fail(f"{x} must be [..., branches, n], or have columns that num_branches, {num_branches}, divides")
    branches = num_branches or x.shape[-2]
    n = x.shape[-1] // num_branches if num_branches else x.shape[-1]
    if scale is None:
        scale = cx.known(np.ones(n, np.float32))
    elif scale.shape not in ((branches * n,), (branches, n), (n,)):
        cx.fail(f"scale {scale} must be {[branches * n]}, {[branches, n]} or {[n]}")
    scale = as_type(cx, scale, F32)
    if scale.size == branches * n:
        scale = cx.alias(scale, (branches, n))
    rows = cx.alias(x, (math.prod(x.shape) // max(branches * n, 1), branches, n))
    return cx.alias(rownorm.rms_normalization(cx, rows, scale, epsilon=epsilon), x.shape)


@op("ScaledSiLU", domain=MICROSOFT)
def scaled_silu(cx: Context, x: Value, scale: Value | None = None, *, alpha: float = 1.0) -> Value:
    """z sigmoid(z) with z = scale x, or alpha x without it; rounded to the type of x after each step."""
    only_floats(cx, x, scale)
    if scale is not None and scale.rank:
        cx.fail(f"scale {scale} must be a scalar")
    factor = cx.known(np.array(alpha, np.float32)) if scale is None else as_type(cx, scale, F32)
    z = binary.mul(cx, cast(cx, x, F32), factor)
    if x.dtype is F32:
        return activations.swish(cx, z)
    z = cast(cx, z, x.dtype)
    z.producer = None
    return binary.mul(cx, z, activations.sigmoid(cx, z))


@op("GatedAdd", domain=MICROSOFT)
def gated_add(cx: Context, x: Value, y: Value, gate: Value, gate_weight: Value | None = None) -> Value:
    """x + y * gate, gate being one number for each row."""
    if gate_weight is not None:
        cx.fail("gate_weight is not supported", UnsupportedModelError)
    only_floats(cx, x, y, gate)
    if x.rank == 0 or y.shape != x.shape or gate.shape != (*x.shape[:-1], 1):
        cx.fail(f"{y} must have the shape of {x}, and gate {gate} one column in its place")
    return binary.add(cx, x, binary.mul(cx, y, gate))


@op("LinearAttentionGate", domain=MICROSOFT)
def linear_attention_gate(
    cx: Context, a: Value, dt_bias: Value, decay_scale: Value, b: Value | None = None
) -> tuple[Value, Value | None]:
    """decay_scale * Softplus(a + dt_bias), and Sigmoid(b); computed in f32."""
    only_floats(cx, a, b)
    heads = a.shape[-1] if a.rank else 0
    if dt_bias.shape != (heads,) or decay_scale.shape != (heads,) or {dt_bias.dtype, decay_scale.dtype} != {F32}:
        cx.fail(f"dt_bias {dt_bias} and decay_scale {decay_scale} must be float32{[heads]}")
    if b is None and wanted(cx, 1):
        cx.fail("the output beta needs the input b")
    if b is not None and b.shape != a.shape:
        cx.fail(f"b {b} must have the shape of {a}")
    summed = activations.softplus(cx, binary.add(cx, cast(cx, a, F32), dt_bias))
    decay = cast(cx, binary.mul(cx, summed, decay_scale), a.dtype)
    return decay, None if b is None or not wanted(cx, 1) else activations.sigmoid(cx, b)
