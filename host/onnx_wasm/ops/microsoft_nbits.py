"""Products with weights of 2, 4 or 8 bits in blocks that have their own scales: MatMulNBits."""

from __future__ import annotations

from typing import Any

from ..context import Context, Value
from ..dtypes import F32, I32, U8
from ..errors import UnsupportedModelError
from ..registry import op
from ..words import counted
from .matmul import BLOCK_M, TILE_BYTES, gemm, split_k
from .microsoft_quant import DOMAIN, cast_to
from .quantize import as_f32

FEW_ROWS = 4
"""So many rows are multiplied by weights of a few bits as those are decoded; for more, they go into panels first."""
TILED_COLUMNS = 64
"""A unit of the kernel for many rows."""


@op("MatMulNBits", domain=DOMAIN)
def matmul_nbits(
    cx: Context,
    a: Value,
    b: Value,
    scales: Value,
    zero_points: Value | None = None,
    g_idx: Value | None = None,
    bias: Value | None = None,
    *,
    K: int,
    N: int,
    bits: int = 4,
    block_size: int,
    accuracy_level: int = 0,
    weight_prepacked: int = 0,
) -> Value:
    """a [..., K] times weights of 2, 4 or 8 bits, [N, K] in blocks along K, transposed. Computed in f32 at every
    accuracy level."""
    if bits not in (2, 4, 8) or weight_prepacked:
        cx.fail(f"bits {bits} and weight_prepacked {weight_prepacked} are not supported", UnsupportedModelError)
    if block_size < 16 or block_size & (block_size - 1):
        cx.fail(f"block_size {block_size} must be a power of two and at least 16")
    blocks = -(-K // block_size)
    if not a.shape or a.shape[-1] != K:
        cx.fail(f"A {a!r} must have {counted(K, 'column')}")
    if b.dtype is not U8 or b.size != N * blocks * block_size * bits // 8:
        cx.fail(f"B {b!r} must be uint8{[N, blocks, block_size * bits // 8]}")
    if scales.size != N * blocks:
        cx.fail(f"the scales {scales!r} must be {[N, blocks]}")
    if bias is not None and bias.shape != (N,):
        cx.fail(f"the bias {bias!r} must have {counted(N, 'element')}")
    zeros = zeros_f = None
    if zero_points is not None:
        packed = zero_points.dtype is U8
        if zero_points.size != N * (-(-blocks * bits // 8) if packed else blocks):
            cx.fail(f"the zero points {zero_points!r} do not fit {N} columns of {blocks} blocks")
        zeros, zeros_f = (zero_points, None) if packed else (None, as_f32(cx, zero_points))
    shape, shift = (*a.shape[:-1], N), None if bias is None else as_f32(cx, bias)
    wide, scales = as_f32(cx, a), as_f32(cx, scales)
    if g_idx is not None:
        weights = _decoded(cx, b, scales, zeros, zeros_f, g_idx, bits, block_size, K, N)
        y = gemm(cx, cx.alias(wide, (wide.size // K, K)), weights, shift, transB=1)
        return cast_to(cx, cx.alias(y, shape), a)
    y = cx.out(shape, F32)
    m = a.size // K
    numbers: dict[str, Any] = {
        "a": wide, "b": b, "scales": scales, "zeros": zeros, "zeros_f": zeros_f, "bias": shift, "y": y,
        "m": m, "n": N, "k": K, "block": block_size, "blocks": blocks,
    }  # fmt: skip
    if m > FEW_ROWS:
        kc = -(-split_k(K) // 16) * 16
        block_m = min(BLOCK_M, -(-m // 4) * 4)
        scratch = cx.scratch(TILE_BYTES + block_m * kc * 4 + 8 * kc * 4 + TILED_COLUMNS // 8 * (kc * 32 + 64))
        units = -(-N // TILED_COLUMNS)
        cx.emit(f"matmul_nbits_tiles_{bits}", units=units, **numbers, kc=kc, block_m=block_m, scratch=scratch)
    elif y.size:
        cx.emit(f"matmul_nbits_{bits}", units=N, **numbers)
    return cast_to(cx, y, a)


def _decoded(
    cx: Context,
    b: Value,
    scales: Value,
    zeros: Value | None,
    zeros_f: Value | None,
    groups: Value,
    bits: int,
    block: int,
    k: int,
    n: int,
) -> Value:
    """Weights whose blocks are not consecutive, as f32 [n, k]."""
    if groups.dtype is not I32 or groups.size < k:
        cx.fail(f"g_idx {groups!r} must be int32{[k]}")

    def make() -> Value:
        weights = cx.out((n, k), F32)
        cx.emit(
            f"dequantize_nbits_{bits}", units=n, b=b, scales=scales, zeros=zeros, zeros_f=zeros_f, groups=groups,
            y=weights, k=k, block=block, blocks=-(-k // block),
        )  # fmt: skip
        return weights

    return cx.derived(
        f"nbits {bits} {block}", [v for v in (b, scales, zeros, zeros_f, groups) if v is not None], make
    )  # fmt: skip
