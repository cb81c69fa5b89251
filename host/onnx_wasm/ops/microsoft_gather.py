"""Embeddings of a few bits an element: GatherBlockQuantized."""

from __future__ import annotations

import math

import numpy as np

from ..context import Context, Value
from ..dtypes import F16, F32, U8
from ..errors import UnsupportedModelError
from ..registry import MICROSOFT, op
from ._copy import normal_axis
from ._narrow import decode
from .expand import expand
from .gather import is_wide

_FLOATS = frozenset({"f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz", "f4e2m1"})


@op("GatherBlockQuantized", domain=MICROSOFT)
def gather_block_quantized(
    cx: Context,
    data: Value,
    indices: Value,
    scales: Value,
    zero_points: Value | None = None,
    *,
    bits: int = 4,
    block_size: int = 128,
    gather_axis: int = 0,
    quantize_axis: int = 1,
) -> Value:
    """Slices of the gather axis in the order and shape of the indices, as (code - zero point) * scale; an index that is
    out of range picks zeros. Bytes hold 8 / ``bits`` elements each, along the last axis."""
    small, packed = data.dtype.short in _FLOATS, data.dtype is U8
    if not small and not packed and data.dtype.short not in ("i4", "u4"):
        cx.fail(f"no form for data of {data.dtype}", UnsupportedModelError)
    if scales.dtype not in (F32, F16):
        cx.fail(f"no form for scales of {scales.dtype}", UnsupportedModelError)
    if small:
        bits = data.dtype.bits
    if bits not in ((2, 4, 8) if packed or small else (4,)):
        cx.fail(f"bits {bits} do not fit {data!r}", UnsupportedModelError)
    if block_size < 16 - 16 * small or block_size & (block_size - 1) or 0 < block_size < 16:
        cx.fail(f"block_size {block_size} must be a power of two and at least 16{', or 0' if small else ''}")
    if data.rank < 2:
        cx.fail(f"{data!r} must have at least two axes")
    axis, along = (normal_axis(cx, a, data.rank) for a in (gather_axis, quantize_axis))
    shape = list(data.shape)
    if packed:
        if axis or along != data.rank - 1:
            cx.fail(f"gather_axis {axis} and quantize_axis {along} of {data!r} must be 0 and {data.rank - 1}")
        shape[-1] *= 8 // bits
    if math.prod(shape) >= 1 << 31:
        cx.fail(f"{data!r} has 2**31 elements or more", UnsupportedModelError)
    block = block_size or max(shape[along], 1)
    blocks = -(-shape[along] // block)
    expected = [*shape[:along], blocks, *shape[along + 1 :]]
    scales = _fitting(cx, scales, expected, along, small)
    zero_row = blocks if packed else scales.size
    if zero_points is not None:
        if small or zero_points.dtype is not data.dtype:
            cx.fail(f"zero points {zero_points!r} do not fit {data!r}")
        rows = [*expected[:-1], -(-blocks * bits // 8)] if packed else expected
        if list(zero_points.shape) != rows:
            cx.fail(f"zero points {zero_points!r} do not fit: {rows} expected")
    wide = is_wide(cx, indices)
    y = cx.out((*shape[:axis], *indices.shape, *shape[axis + 1 :]), scales.dtype)
    if y.size:
        cx.emit(
            f"gather_blocks_{bits}_{scales.dtype.short}",
            units=math.prod(shape[:axis]) * indices.size,
            x=data,
            index=indices,
            scales=scales,
            zeros=zero_points,
            table=_table(cx, data) if small else None,
            y=y,
            wide=wide,
            n=indices.size,
            axis=shape[axis],
            item=math.prod(shape[axis + 1 :]),
            extent=shape[along],
            inner=math.prod(shape[along + 1 :]),
            block=block,
            blocks=blocks,
            zero_row=zero_row,
            zero=float({"i4": 8, "u4": 0}.get(data.dtype.short, 1 << (bits - 1))),
            flip=8 if data.dtype.short == "i4" else 0,
        )
    return y


def _fitting(cx: Context, scales: Value, expected: list[int], along: int, small: bool) -> Value:
    """The scales, repeated where an axis of one stands for a longer one, which those of small floats may have."""
    if list(scales.shape) == expected:
        return scales
    fits = scales.rank == len(expected) and all(
        n == full or (small and n == 1 and i != along)
        for i, (n, full) in enumerate(zip(scales.shape, expected, strict=True))
    )
    if not fits:
        cx.fail(f"scales {scales!r} do not fit: {expected} expected")
    return cx.derived(("expanded", *expected), (scales,), lambda: expand(cx, scales, np.array(expected)))


def _table(cx: Context, data: Value) -> Value:
    """What each code of a small float stands for, f32."""
    codes = cx.known(np.arange(256, dtype=np.uint8))
    if data.dtype.bits == 8:
        every = cx.alias(codes, codes.shape, data.dtype)
    else:
        # Two codes in a byte, the first in the low bits.
        every = cx.alias(cx.known(np.arange(0x10, 0x110, 0x22, dtype=np.uint8)), (16,), data.dtype)
    return cx.derived(f"table {data.dtype.short}", (), lambda: decode(cx, every))
