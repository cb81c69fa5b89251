"""Products with weights of few bits in blocks that have their own scales: MatMulNBits,
MatMulBnb4 and MatMulFpQ4."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..context import Array, Context, Value
from ..dtypes import BF16, F16, F32, I32, U8
from ..errors import UnsupportedModelError
from ..registry import MICROSOFT, op
from ..words import counted
from ._widen import as_type
from .matmul import BLOCK_M, TILE_BYTES, gemm, split_k
from .microsoft_quant import cast_to
from .quantize import as_f32

FEW_ROWS = 4
"""So many rows are multiplied by weights of a few bits as those are decoded; for more, they go into panels first."""
TILED_COLUMNS = 64
"""A unit of the kernel for many rows."""


@op("MatMulNBits", domain=MICROSOFT)
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
    if K < 1 or N < 1:
        cx.fail(f"K {K} and N {N} must be at least 1")
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
        units = -(-N // TILED_COLUMNS)
        cx.emit(f"matmul_nbits_tiles_{bits}", units=units, **numbers, **tile_blocks(cx, m, sixteens(K)))
    elif y.size:
        cx.emit(f"matmul_nbits_{bits}", units=N, **numbers)
    return cast_to(cx, y, a)


def sixteens(k: int) -> int:
    """How many of k columns a kernel of tiles takes at a time where weights are decoded by sixteens."""
    return -(-split_k(k) // 16) * 16


def tile_blocks(cx: Context, m: int, kc: int) -> dict[str, Any]:
    """How a kernel of tiles divides the work on m rows, as kernels_wat/_nbits.wat.j2 describes it."""
    block_m = min(BLOCK_M, -(-m // 4) * 4)
    scratch = cx.scratch(TILE_BYTES + block_m * kc * 4 + 8 * kc * 4 + TILED_COLUMNS // 8 * (kc * 32 + 64))
    return {"kc": kc, "block_m": block_m, "scratch": scratch}


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


_FP4 = (0.0, 5.208333333e-03, 2 / 3, 1.0, 1 / 3, 0.5, 1 / 6, 0.25)
_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
BNB4 = ((*_FP4, *(-v for v in _FP4)), _NF4)
"""What codes stand for, by quant_type: FP4 and NF4 of the paper QLoRA (Dettmers et al., 2023) and of its library
bitsandbytes."""


@op("MatMulBnb4", domain=MICROSOFT)
def matmul_bnb4(
    cx: Context,
    a: Value,
    b: Value,
    absmax: Value,
    *,
    K: int,
    N: int,
    block_size: int,
    quant_type: int,
    training_mode: int = 0,
    transB: int = 1,
) -> Value:
    """a [..., K] times weights [N, K], transposed: entries of a table of 16 times the ``absmax`` of their block, where
    blocks are of all N * K weights one after the other."""
    if not transB:
        cx.fail("transB 0 is not supported", UnsupportedModelError)
    if quant_type not in (0, 1):
        cx.fail(f"quant_type {quant_type} is not supported: 0 is FP4, 1 is NF4", UnsupportedModelError)
    if block_size < 16 or block_size & (block_size - 1):
        cx.fail(f"block_size {block_size} must be a power of two and at least 16")
    if K < 1 or N < 1 or K * N >= 1 << 31:
        cx.fail(f"K {K} and N {N} must be at least 1, and their product less than 2**31")
    if not a.shape or a.shape[-1] != K:
        cx.fail(f"A {a!r} must have {counted(K, 'column')}")
    if b.dtype is not U8 or b.size != (N * K + 1) // 2:
        cx.fail(f"B {b!r} must be uint8{[(N * K + 1) // 2]}")
    if absmax.size != -(-N * K // block_size):
        cx.fail(f"absmax {absmax!r} must be {[-(-N * K // block_size)]}")
    if any(x.dtype not in (F32, F16, BF16) for x in (a, absmax)):
        cx.fail(f"no form for A {a!r} and absmax {absmax!r}", UnsupportedModelError)
    y, m = cx.out((*a.shape[:-1], N), F32), a.size // K
    if y.size:
        numbers: dict[str, Any] = {
            "a": as_f32(cx, a), "b": b, "scales": as_type(cx, absmax, F32), "table": _table(cx, quant_type), "y": y,
            "m": m, "n": N, "k": K, "block": block_size,
        }  # fmt: skip
        if m > FEW_ROWS or K % 16:
            cx.emit("matmul_bnb4_tiles", units=-(-N // TILED_COLUMNS), **numbers, **tile_blocks(cx, m, sixteens(K)))
        else:
            cx.emit("matmul_bnb4", units=N, **numbers)
    return cast_to(cx, y, a)


def _table(cx: Context, quant_type: int) -> Value:
    """A table as kernels_wat/quant_bnb4.wat.j2 describes it."""
    values = np.array(BNB4[quant_type], np.float32)
    return cx.known(np.concatenate([values.view(np.uint8).reshape(16, 4).T.reshape(-1), values.view(np.uint8)]))


@op("MatMulFpQ4", domain=MICROSOFT, host=("b_shape",))
def matmul_fpq4(cx: Context, a: Value, b: Value, b_shape: Array, *, blk_quant_type: int = 1) -> Value:
    """a [..., K] times weights of 4 bits, one column after the other in blocks of 32: a scale, a byte with the zero
    point, and 16 bytes with weights i and i + 16. Type 0 has no zero points, all others do, as in onnxruntime."""
    if b_shape.shape != (2,) or b_shape.min() < 1:
        cx.fail(f"B_shape is {b_shape.tolist()}, must be K and N")
    k, n = (int(v) for v in b_shape)
    blocks, size = -(-k // 32), 21 if blk_quant_type else 20
    if b.dtype is not U8 or b.size != n * blocks * size:
        cx.fail(f"B {b!r} must be uint8{[n * blocks * size]}")

    def make() -> tuple[Value, Value, Value | None]:
        codes, scales = cx.out((n, blocks, 16), U8), cx.out((n, blocks), F32)
        zeros = cx.out((n, blocks), F32) if blk_quant_type else None
        cx.emit(
            "nbits_from_blobs", units=n * blocks, stream=("x", size), x=b, b=codes, scales=scales, zeros=zeros
        )  # fmt: skip
        return codes, scales, zeros

    parts = cx.derived(f"blobs {size} {k} {n}", (b,), make)
    return matmul_nbits(cx, a, *parts, K=k, N=n, bits=4, block_size=32)
