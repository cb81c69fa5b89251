"""Conv.

Five ways: as a matrix product whose second operand, the patches of the image, is made block by block
(`conv_f32`, up to three spatial dimensions, any groups); to one or two channels, row by row (`conv_few_f32`); by
Winograd's filtering where that is quicker (`winograd_f32`, 3 or 5 taps along one axis or both); one channel at a time
where every channel is a group of its own (`dwconv_f32`); and plain loops (`conv_direct_*`) for the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..context import Context, Value
from ..dtypes import F32, F64
from ..errors import UnsupportedModelError
from ..registry import op
from ._convolution import Geometry, allow_affine, check_weights, even, geometry, within
from ._panels import pack_rows
from ._widen import widened
from ._winograd import emit_filtered, filtering
from .matmul import TILE_BYTES, split_k
from .slice import pick

# Rows of a block of patches, and its positions if it has all rows of no more than half as many, else half of that.
BLOCK_K, BLOCK_N = 512, 256
# How conv_f32 makes the patches.
PATCHES_ROWS, PATCHES_LINES, PATCHES_IMAGE = 0, 1, 2
# What the lines of a block may take.
LINE_BYTES = 98304
# So few rows of weights do not fill a tile; their taps have a table of so many. Positions of a block.
FEW_ROWS, FEW_TAPS, FEW_POSITIONS = 2, 512, 1024
# What the copied rows of a depthwise convolution may take.
STRIP_BYTES = 32768


@op("Conv", since=1)
@widened
def conv(
    cx: Context,
    x: Value,
    w: Value,
    b: Value | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Value:
    """Convolution of x [N, C, ...] with w [M, C / group, ...]."""
    outputs = check_weights(cx, x, w, b, group, kernel_shape)
    if x.dtype != w.dtype or (b is not None and b.dtype != x.dtype):
        cx.fail(f"operands differ in type: {x.dtype} and {w.dtype}")
    if x.dtype not in (F32, F64):
        cx.fail(f"no convolution of type {x.dtype}", UnsupportedModelError)
    batch, channels = x.shape[:2]
    g = geometry(cx, x.shape[2:], w.shape[2:], auto_pad=auto_pad, pads=pads, strides=strides, dilations=dilations)
    y = cx.out((batch, outputs, *g.output), x.dtype)
    if y.size == 0:
        return y
    trimmed, taps = within(g)
    if trimmed.kernel != g.kernel:
        whole, g = w, trimmed
        axes = (range(whole.shape[0]), range(whole.shape[1]), *taps)
        w = cx.derived(f"conv_taps {axes}", (whole,), lambda: pick(cx, whole, axes))
    if x.dtype != F32 or len(g.input) > 3:
        _emit_direct(cx, x, w, b, y, g, group)
    elif len(g.input) < 3 and group == channels and outputs <= 2 * channels:
        _emit_depthwise(cx, x, w, b, y, g.padded_to(2), group)
    elif channels and _are_few(outputs // group, g.padded_to(3)):
        _emit_few(cx, x, w, b, y, g.padded_to(3), group)
    elif len(g.input) < 3 and (how := filtering(cx, x, y, g.padded_to(2), group)):
        emit_filtered(cx, x, w, b, y, g.padded_to(2), group, how)
    else:
        _emit_product(cx, x, w, b, y, g.padded_to(3), group)
    return y


def _blocks(g: Geometry, channels: int, pointwise: bool) -> tuple[int, int, int, int]:
    """How patches are made, the rows and columns of a block of them, and the bytes of the lines they come from."""
    taps, positions = math.prod(g.kernel), math.prod(g.output)
    k = channels * taps
    block_n = BLOCK_N if k <= BLOCK_K // 2 else BLOCK_N // 2
    nc = even(positions, block_n)
    rows = (PATCHES_IMAGE if pointwise else PATCHES_ROWS), split_k(k, BLOCK_K), nc, nc * 4 + 64
    (d, k_h, k_w), s_h, o_w = g.kernel, g.strides[1], g.output[2]
    if pointwise or k_h == 1 or (d, g.output[0], g.pads[0]) != (1, 1, 0) or taps > BLOCK_K:
        return rows
    # Whole channels, so that no lines are made twice; a block ends with a row of y that is longer than a block.
    kc = -(-channels // -(-k // (BLOCK_K + BLOCK_K // 4))) * taps
    if o_w > block_n:
        nc = even(o_w, block_n)
    reached = 1 if o_w > nc else min(g.output[1], (nc + o_w - 2) // o_w + 1)
    reached += (k_h - 1) * g.dilations[1] // s_h
    lines = k_w * s_h * reached * min(o_w, nc) * 4 + 64
    return rows if lines > LINE_BYTES else (PATCHES_LINES, kc, nc, lines)


def _is_pointwise(g: Geometry) -> bool:
    return g.input == g.output and math.prod(g.kernel) == 1 and not any(g.pads) and set(g.strides) == {1}


def _emit_product(cx: Context, x: Value, w: Value, b: Value | None, y: Value, g: Geometry, group: int) -> None:
    batch, outputs = y.shape[:2]
    m, channels = outputs // group, x.shape[1] // group
    k = channels * math.prod(g.kernel)
    positions = math.prod(g.output)
    pointwise = _is_pointwise(g)
    if positions == 1 and g.kernel == g.input and not any(g.pads) and set(g.dilations) == {1}:
        pointwise = True
    patches, kc, nc, lines = _blocks(g, channels, pointwise)
    # Few positions: threads share the rows, so that each weight is read by one of them only, and each makes the patches
    # once.
    by_rows = positions <= BLOCK_N and m >= 32
    unit = max(16, -(-m // (4 * cx.threads)) * 4) if by_rows else 32
    per_image = -(-(m if by_rows else positions) // unit)
    record = cx.emit(
        "conv_f32",
        units=batch * group * per_image,
        x=x,
        w=pack_rows(cx, w, m, k),
        y=y,
        bias=b,
        residual=None,
        scratch=cx.scratch(TILE_BYTES + lines + nc // 8 * (kc * 32 + 64)),
        m=m,
        k=k,
        groups=group,
        image_bytes=channels * math.prod(g.input) * 4,
        **g.arguments(),
        patches=patches,
        lines=lines,
        kc=kc,
        nc=nc,
        by_rows=int(by_rows),
        unit=unit,
        per_image=per_image,
        act=0,
        alpha=0.0,
        beta=0.0,
    )
    y.producer = record
    allow_affine(cx, record, w, b, lambda scale: pack_rows(cx, w, m, k, scale))


def _are_few(m: int, g: Geometry) -> bool:
    """Whether there are too few rows of weights for tiles, and enough positions for another way."""
    flat = (g.kernel[0], g.input[0], g.output[0], g.pads[0]) == (1, 1, 1, 0) and g.strides[2] == 1
    return (
        m <= FEW_ROWS and math.prod(g.output) >= 16 and math.prod(g.kernel) <= FEW_TAPS and (flat or _is_pointwise(g))
    )


def _emit_few(cx: Context, x: Value, w: Value, b: Value | None, y: Value, g: Geometry, group: int) -> None:
    batch, outputs = y.shape[:2]
    m, channels, pointwise = outputs // group, x.shape[1] // group, _is_pointwise(g)
    k, image_bytes = channels * math.prod(g.kernel), channels * math.prod(g.input) * 4
    # Of two dimensions; where no tap has neighbours, all positions are one row.
    row = (1, math.prod(g.output))
    g = Geometry(row, (1, 1), row, (1, 1), (1, 1), (0, 0)) if pointwise else Geometry(*(v[1:] for v in g))
    arguments = g.arguments()
    del arguments["s_w"]
    (k_h, k_w), (o_h, o_w) = g.kernel, g.output
    nc = o_w if o_w <= FEW_POSITIONS else even(o_w, FEW_POSITIONS)
    rows = max(1, min(o_h, FEW_POSITIONS // nc))
    lines = ((rows - 1) * g.strides[0] + (k_h - 1) * g.dilations[0] + 1) * (nc + (k_w - 1) * g.dilations[1])
    record = cx.emit(
        "conv_few_f32",
        units=batch * group * -(-o_h // rows) * -(-o_w // nc),
        x=x,
        w=pack_rows(cx, w, m, k),
        y=y,
        bias=b,
        residual=None,
        scratch=cx.scratch(4 * FEW_TAPS + m * rows * (4 * nc + 128) + (0 if pointwise else 4 * lines) + 128),
        m=m,
        k=k,
        groups=group,
        image_bytes=image_bytes,
        **arguments,
        pointwise=int(pointwise),
        rows=rows,
        nc=nc,
        act=0,
        alpha=0.0,
        beta=0.0,
    )
    y.producer = record
    allow_affine(cx, record, w, b, lambda scale: pack_rows(cx, w, m, k, scale))


def _emit_depthwise(cx: Context, x: Value, w: Value, b: Value | None, y: Value, g: Geometry, group: int) -> None:
    batch, outputs = y.shape[:2]
    (k_h, k_w), (s_h, s_w), (q_h, q_w), (o_h, o_w) = g.kernel, g.strides, g.dilations, g.output
    phase = (max(o_w, 4) + (k_w - 1) * q_w // s_w + 3) * 4
    halo = (k_h - 1) * q_h + 1
    strip = max(1, min(o_h, (STRIP_BYTES // (phase * s_w) - halo) // s_h + 1))
    fixed = 8 * k_h + s_w if k_h == k_w and k_h in (3, 5) and s_w <= 2 and (q_h, q_w) == (1, 1) else 0
    record = cx.emit(
        "dwconv_f32",
        units=batch * outputs,
        x=x,
        w=w,
        y=y,
        bias=b,
        residual=None,
        scratch=cx.scratch(32 * k_h * k_w + ((strip - 1) * s_h + halo) * phase * s_w + 64),
        channels=outputs,
        per_input=outputs // group,
        **g.arguments(),
        fixed=fixed,
        phase=phase,
        strip=strip,
        act=0,
        alpha=0.0,
        beta=0.0,
    )
    y.producer = record
    allow_affine(cx, record, w, b, lambda scale: _scaled_rows(cx, w, k_h * k_w, scale))


def _scaled_rows(cx: Context, w: Value, k: int, scale: Value) -> Value:
    def make() -> Value:
        scaled = cx.out(w.shape, F32)
        cx.emit(
            "scale_rows_f32", units=w.shape[0], stream=("src", k * 4), makes=("dst", k * 4),
            src=w, dst=scaled, scale=scale, k=k,
        )  # fmt: skip
        return scaled

    return cx.derived("scale_rows", (w, scale), make)


def _emit_direct(cx: Context, x: Value, w: Value, b: Value | None, y: Value, g: Geometry, group: int) -> None:
    batch, outputs = y.shape[:2]
    spatial = zip(g.input, g.kernel, g.output, g.strides, g.dilations, g.pads, strict=True)
    cx.emit(
        f"conv_direct_{x.dtype.short}",
        units=batch * outputs,
        x=x,
        w=w,
        y=y,
        bias=b,
        m=outputs // group,
        channels=x.shape[1] // group,
        groups=group,
        taps=math.prod(g.kernel),
        positions=math.prod(g.output),
        plane=math.prod(g.input),
        rank=len(g.input),
        geometry=[v for axis in spatial for v in axis],
    )
