"""Mixtures of experts whose weights are stored in a few bits: QMoE of com.microsoft."""

from __future__ import annotations

from typing import NamedTuple

from ..context import Context, Value
from ..dtypes import F32, U8
from ..errors import UnsupportedModelError
from ..registry import MICROSOFT, op
from ._copy import copy
from ._elementwise import cast
from ._widen import as_type, only_f32, only_floats, widened
from .microsoft_moe import Gate, Routes, emit_product, mixed, route_by, rows_of
from .microsoft_nbits import sixteens


class StoredExperts(NamedTuple):
    """Weights of one layer of all experts, [experts, n, k] in a few bits, that are decoded as they are multiplied."""

    bits: int
    weights: Value
    bias: Value | None
    scales: Value
    zeros: Value | None
    """Packed like the weights, by columns; or ``zeros_f``, f32 [experts, n]."""
    zeros_f: Value | None
    block: int
    n: int
    k: int

    def multiply(self, cx: Context, x: Value, routes: Routes) -> Value:
        """Of each expert, the rows at its places times its weights, transposed."""
        y = cx.out((routes.size, self.n), F32)
        if y.size:
            emit_product(
                cx, str(self.bits), self.weights, self.bias, x, y, routes,
                row=self.k * self.bits // 8,
                kc=sixteens(self.k),
                scales=self.scales, zeros=self.zeros, zeros_f=self.zeros_f,
                block=self.block or -(-self.k // 16) * 16,
                blocks=self.k // self.block if self.block else 1,
            )  # fmt: skip
        return y


@op("QMoE", domain=MICROSOFT)
@widened
def qmoe(
    cx: Context,
    x: Value,
    router_probs: Value,
    fc1_experts_weights: Value,
    fc1_scales: Value | None = None,
    fc1_experts_bias: Value | None = None,
    fc2_experts_weights: Value | None = None,
    fc2_scales: Value | None = None,
    fc2_experts_bias: Value | None = None,
    fc3_experts_weights: Value | None = None,
    fc3_scales: Value | None = None,
    fc3_experts_bias: Value | None = None,
    fc1_zero_points: Value | None = None,
    fc2_zero_points: Value | None = None,
    fc3_zero_points: Value | None = None,
    router_weights: Value | None = None,
    fc1_global_scale: Value | None = None,
    fc2_global_scale: Value | None = None,
    fc1_act_scale: Value | None = None,
    fc2_act_scale: Value | None = None,
    fc1_act_block_scale: Value | None = None,
    fc2_act_block_scale: Value | None = None,
    *,
    accuracy_level: int = 0,
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
    activation_type: str = "relu",
    block_size: int = 0,
    expert_weight_bits: int = 4,
    fc1_expert_weight_bits: int = 0,
    fc2_expert_weight_bits: int = 0,
    fc3_expert_weight_bits: int = 0,
    k: int = 1,
    normalize_routing_weights: int = 0,
    quant_type: str = "int",
    swiglu_fusion: int = 0,
    swiglu_limit: float | None = None,
    swiglu_limit_after_activation: int = 0,
    use_sparse_mixer: int = 0,
    weights_prepacked: int = -1,
) -> Value:
    """MoE with weights uint8 [experts, n, k * bits / 8], (code - zero point) * scale, with a scale for each column or
    each block of k. The weights of a row's experts add up to 1, or are those of router_weights. Computed in f32 at
    every accuracy level."""
    if use_sparse_mixer or swiglu_limit_after_activation or weights_prepacked == 1 or quant_type != "int":
        cx.fail(
            "use_sparse_mixer, swiglu_limit_after_activation, weights_prepacked 1 and quant_type other than int are not"
            " supported",
            UnsupportedModelError,
        )
    only_f32(cx, x, router_probs, router_weights)
    only_floats(
        cx, fc1_scales, fc2_scales, fc3_scales, fc1_experts_bias, fc2_experts_bias, fc3_experts_bias
    )  # fmt: skip
    rows, hidden = rows_of(cx, x)
    if fc2_experts_weights is None:
        cx.fail("fc2_experts_weights is missing")
    if block_size and (block_size < 16 or block_size & (block_size - 1)):
        cx.fail(f"block_size {block_size} must be a power of two and at least 16")
    third = fc3_experts_weights is not None
    gate = Gate(activation_type, activation_alpha, activation_beta, swiglu_limit, swiglu_fusion)
    gate.check(cx, third)
    routes = route_by(cx, router_probs, rows, k, router_weights, normalize_routing_weights == 1)
    bits = [n or expert_weight_bits for n in (fc1_expert_weight_bits, fc2_expert_weight_bits, fc3_expert_weight_bits)]
    if any(n not in (2, 4, 8) for n in bits):
        cx.fail(f"experts of {bits} bits are not supported, only of 2, 4 and 8", UnsupportedModelError)
    if fc2_experts_weights.rank != 3:
        cx.fail(f"fc2_experts_weights {fc2_experts_weights} must be {[routes.experts, hidden, 'inner * bits / 8']}")
    inner = fc2_experts_weights.shape[2] * 8 // bits[1]

    def layer(
        i: int, w: Value, scales: Value | None, bias: Value | None, zeros: Value | None, n: int, k: int
    ) -> StoredExperts:
        return _stored(cx, f"fc{i}", bits[i - 1], block_size, routes.experts, w, scales, bias, zeros, n, k)

    width = gate.width(third) * inner
    first = layer(1, fc1_experts_weights, fc1_scales, fc1_experts_bias, fc1_zero_points, width, hidden)
    second = layer(2, fc2_experts_weights, fc2_scales, fc2_experts_bias, fc2_zero_points, hidden, inner)
    more = None
    if fc3_experts_weights is not None:
        more = layer(3, fc3_experts_weights, fc3_scales, fc3_experts_bias, fc3_zero_points, inner, hidden)
    return mixed(cx, x, routes, first, second, more, gate)


def _stored(
    cx: Context,
    name: str,
    bits: int,
    block: int,
    experts: int,
    w: Value,
    scales: Value | None,
    bias: Value | None,
    zeros: Value | None,
    n: int,
    k: int,
) -> StoredExperts:
    if w.dtype is not U8 or k * bits % 8 or w.shape != (experts, n, k * bits // 8):
        cx.fail(f"{name}_experts_weights {w} must be uint8{[experts, n, f'{k} * {bits} / 8']}")
    if block and k % block:
        cx.fail(f"block_size {block} must divide {k}, the columns that {name} reads")
    blocks = k // block if block else 1
    shape = (experts, n, blocks) if block else (experts, n)
    if scales is None or scales.shape != shape:
        cx.fail(f"{name}_scales {scales} must be {list(shape)}")
    if bias is not None and bias.shape != (experts, n):
        cx.fail(f"{name}_experts_bias {bias} must be {[experts, n]}")
    packed = (experts, n, -(-blocks * bits // 8)) if block else (experts, -(-n * bits // 8))
    if zeros is not None and (zeros.dtype is not U8 or zeros.shape != packed):
        cx.fail(f"{name}_zero_points {zeros} must be uint8{list(packed)}")
    zeros_f = None
    if zeros is not None and not block:
        given = zeros
        zeros, zeros_f = None, cx.derived(("qmoe_zeros", bits, n), (given,), lambda: _unpacked(cx, given, bits, n))
    bias = None if bias is None else as_type(cx, bias, F32)
    return StoredExperts(bits, w, bias, as_type(cx, scales, F32), zeros, zeros_f, block, n, k)


def _unpacked(cx: Context, zeros: Value, bits: int, n: int) -> Value:
    """Zero points of columns, packed for each expert, as f32 [experts, n]."""
    experts, width = zeros.shape[0], zeros.shape[1] * 8 // bits
    if bits != 8:
        codes = cx.out((experts, width), U8)
        cx.emit(f"narrow_unpack_u{bits}", units=cx.chunks(codes), x=zeros, y=codes, n=codes.size)
        zeros = codes
    if width != n:
        kept = cx.out((experts, n), U8)
        copy(cx, zeros, kept, [(experts, width, n), (n, 1, 1)])
        zeros = kept
    return cast(cx, zeros, F32)
