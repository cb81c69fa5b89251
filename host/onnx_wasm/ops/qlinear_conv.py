"""Convolutions of 8-bit integers: ConvInteger and QLinearConv."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..context import Context, Value
from ..dtypes import I8, I32, DType
from ..errors import UnsupportedModelError
from ..registry import op
from ._convolution import Geometry, check_weights, even, geometry
from .qlinear import BYTES, FINISH, flip, offsets, padded, scales
from .quantize import zero_points

_TILE_BYTES = 128
_LINE_MORE = 32
_PATCH_BYTES = 262144
# 36 * 255 * 255 times so many, four times the largest sum of products, fits in 32 bits.
MOST_CHANNELS = 896
# Tiles of 2x2 outputs that are filtered together: at most so many, and as many as take so many bytes. The weights are
# brought to the points anew for each such block.
MOST_TILES, BLOCK_BYTES = 256, 1 << 20


def pack_rows(cx: Context, w: Value, m: int, k: int) -> Value:
    """Weights [groups * m, k] in i8 panels of 4 rows: [group][panel][kp / 2][4][2]."""
    groups = w.size // (m * k)

    def make() -> Value:
        kp, panels = padded(k), -(-m // 4)
        packed = cx.out((groups * panels, kp, 4), I8)
        stream = ("src", 4 * k) if groups == 1 or m % 4 == 0 else None
        cx.emit(
            "qpack_rows", units=groups * panels, stream=stream,
            src=w, dst=packed, k=k, n=m, kp=kp, width=4, flip=flip(w.dtype),
        )  # fmt: skip
        return packed

    return cx.derived(f"qconv_a4 {m}", (w,), make)


def convolve(
    cx: Context,
    x: Value,
    x_zero: Value | None,
    w: Value,
    w_zero: Value | None,
    dtype: DType,
    *,
    scale: tuple[Value, Value, Value] | None = None,
    y_zero: Value | None = None,
    bias: Value | None = None,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Value:
    """(x - x_zero) convolved with (w - w_zero), plus bias, times x's scale * w's scale / y's scale."""
    outputs = check_weights(cx, x, w, bias, group, kernel_shape)
    if x.dtype not in BYTES or w.dtype not in BYTES or dtype not in FINISH:
        cx.fail(f"no convolution of {x.dtype} and {w.dtype} to {dtype}", UnsupportedModelError)
    if x.rank > 5:
        cx.fail(f"{x.rank - 2} spatial dimensions; at most 3 are supported", UnsupportedModelError)
    zero_points(cx, (x, x_zero), (w, w_zero))
    if bias is not None and bias.dtype is not I32:
        cx.fail(f"B must be int32, got {bias!r}")
    batch, channels = x.shape[:2]
    if x_zero is not None and x_zero.size != 1:
        cx.fail(f"the zero point of x must be a scalar, got {x_zero!r}")
    for v in (w_zero, None if scale is None else scale[1]):
        if v is not None and v.size not in (1, outputs):
            cx.fail(f"{v!r} must be a scalar or have one element for each of {outputs} channels")
    g = geometry(cx, x.shape[2:], w.shape[2:], auto_pad=auto_pad, pads=pads, strides=strides, dilations=dilations)
    y = cx.out((batch, outputs, *g.output), dtype)
    if not y.size:
        return y
    shared: dict[str, Any] = {
        "scale": None if scale is None else scales(cx, *scale, outputs),
        "bias": bias,
        "w_zero": offsets(cx, w_zero, w.dtype, outputs),
        "x_zero": x_zero,
        "y_zero": y_zero,
    }
    if len(g.input) < 3 and group == channels and outputs <= 2 * channels:
        _emit_depthwise(cx, x, w, y, g.padded_to(2), shared)
    elif _is_filtered(x, y, g, group):
        _emit_filtered(cx, x, w, y, g, group, shared)
    else:
        _emit_product(cx, x, w, y, g.padded_to(3), group, shared)
    return y


def _finish(y: Value) -> dict[str, Any]:
    return {"mode": int(FINISH[y.dtype]), "size": y.dtype.itemsize}


def _emit_depthwise(cx: Context, x: Value, w: Value, y: Value, g: Geometry, shared: dict[str, Any]) -> None:
    (k_h, k_w), (s_h, s_w), (q_h, q_w), (o_h, o_w) = g.kernel, g.strides, g.dilations, g.output
    rows = (o_h - 1) * s_h + (k_h - 1) * q_h + 1
    line = o_w + (k_w - 1) * q_w // s_w
    cx.emit(
        f"qdwconv_{x.dtype.short}",
        units=y.shape[0] * y.shape[1],
        x=x,
        w=w,
        y=y,
        **shared,
        scratch=cx.scratch(4 * k_h * k_w + rows * s_w * line + _LINE_MORE),
        flip=flip(w.dtype),
        channels=y.shape[1],
        per_input=y.shape[1] // x.shape[1],
        **g.arguments(),
        rows=rows,
        line=line,
        **_finish(y),
    )


def _is_filtered(x: Value, y: Value, g: Geometry, group: int) -> bool:
    """Whether Winograd's filtering is exact, and quicker than the plain product."""
    if g.kernel != (3, 3) or {*g.strides, *g.dilations} != {1}:
        return False
    channels = x.shape[1] // group
    return channels <= MOST_CHANNELS and channels % 2 == 0 and _pays(channels, math.prod(g.output))


def _pays(channels: int, positions: int) -> bool:
    """By measurement. There are fewer products, but channels go in eights, tiles too."""
    return channels >= 4 and positions >= 16


def _emit_filtered(
    cx: Context, x: Value, w: Value, y: Value, g: Geometry, group: int, shared: dict[str, Any]
) -> None:  # fmt: skip
    (in_h, in_w), (p_h, p_w), (o_h, o_w) = g.input, g.pads, g.output
    batch, m, channels = y.shape[0], y.shape[1] // group, x.shape[1] // group
    padded_channels, k = -(-channels // 8) * 8, 9 * channels
    tiles_h, tiles_w = -(-o_h // 2), -(-o_w // 2)
    most = max(16, min(MOST_TILES, BLOCK_BYTES // (32 * padded_channels)))
    if cx.threads > 1:
        most = min(most, max(16, -(-batch * group * tiles_h * tiles_w // (2 * cx.threads))))
    cols = tiles_w if tiles_w <= most else even(tiles_w, most)
    rows = min(tiles_h, max(1, most // cols))
    rows = -(-tiles_h // -(-tiles_h // rows))
    per_image = -(-tiles_h // rows) * -(-tiles_w // cols)
    pitch, panels = 2 * even(cols, cols) + 32, -(-rows * cols // 8)
    work = 4 * (rows + 1) * pitch + 16 * (panels * padded_channels * 16 + 64) + 256 * padded_channels
    cx.emit(
        f"qwinograd_{x.dtype.short}",
        units=batch * group * per_image,
        x=x,
        w=pack_rows(cx, w, m, k),
        y=y,
        **shared,
        scratch=cx.scratch(640 + work + 16 * (256 * panels + 64) + 16 * (rows + 8) * cols + 64),
        m=m,
        c=channels,
        kp=padded(k),
        groups=group,
        in_h=in_h,
        in_w=in_w,
        p_h=p_h,
        p_w=p_w,
        o_h=o_h,
        o_w=o_w,
        tiles_h=tiles_h,
        tiles_w=tiles_w,
        rows=rows,
        cols=cols,
        per_image=per_image,
        pitch=pitch,
        **_finish(y),
    )


def _emit_product(
    cx: Context, x: Value, w: Value, y: Value, g: Geometry, group: int, shared: dict[str, Any]
) -> None:  # fmt: skip
    batch, outputs = y.shape[:2]
    per_group = x.shape[1] // group
    m, k = outputs // group, per_group * math.prod(g.kernel)
    kp, positions = padded(k), math.prod(g.output)
    plain = g.input == g.output and math.prod(g.kernel) == 1 and not any(g.pads) and set(g.strides) == {1}
    nc = max(8, min(256, _PATCH_BYTES // max(2 * kp, 1) // 8 * 8))
    nc = -(-positions // -(-positions // nc) // 8) * 8
    per_image = -(-positions // nc)
    cx.emit(
        f"qconv_{x.dtype.short}",
        units=batch * group * per_image,
        x=x,
        w=pack_rows(cx, w, m, k) if k else w,
        y=y,
        **shared,
        scratch=cx.scratch(_TILE_BYTES + 2 * (nc + _LINE_MORE) + nc // 8 * (16 * kp + 32)),
        m=m,
        k=k,
        kp=kp,
        groups=group,
        image_bytes=per_group * math.prod(g.input),
        **g.arguments(),
        plain=int(plain),
        nc=nc,
        per_image=per_image,
        **_finish(y),
    )


@op("ConvInteger", since=10)
def conv_integer(
    cx: Context,
    x: Value,
    w: Value,
    x_zero_point: Value | None = None,
    w_zero_point: Value | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Value:
    """The convolution of x - x_zero_point, padded with 0, with w - w_zero_point, in int32."""
    return convolve(
        cx, x, x_zero_point, w, w_zero_point, I32, auto_pad=auto_pad, dilations=dilations, group=group,
        kernel_shape=kernel_shape, pads=pads, strides=strides,
    )  # fmt: skip


@op("QLinearConv", since=10)
def qlinear_conv(
    cx: Context,
    x: Value,
    x_scale: Value,
    x_zero_point: Value,
    w: Value,
    w_scale: Value,
    w_zero_point: Value,
    y_scale: Value,
    y_zero_point: Value,
    b: Value | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Value:
    """The convolution of what x and w stand for, quantized; b counts in units of x_scale * w_scale."""
    if y_zero_point.dtype not in BYTES:
        cx.fail(f"no convolution with an output of {y_zero_point.dtype}", UnsupportedModelError)
    return convolve(
        cx, x, x_zero_point, w, w_zero_point, y_zero_point.dtype,
        scale=(x_scale, w_scale, y_scale), y_zero=y_zero_point, bias=b, auto_pad=auto_pad, dilations=dilations,
        group=group, kernel_shape=kernel_shape, pads=pads, strides=strides,
    )  # fmt: skip
