"""GridSample, AffineGrid and DeformConv: values between the pixels of an image."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..context import Array, Context, Value
from ..dtypes import BOOL, F32, F64, DType
from ..errors import UnsupportedModelError
from ..registry import op
from ._convolution import geometry
from ._elementwise import FLOATS, NUMBERS, cast, require, same_type
from .conv import conv

_MODES = {"nearest": 0, "linear": 1, "bilinear": 1, "cubic": 2, "bicubic": 2}
_PADDINGS = {"zeros": 0, "border": 1, "reflection": 2}
# Taps of three axes with up to 4 and of all of them, 16 bytes each, and then 64 samples that wait.
_SCRATCH_BYTES = (3 * 4 + 64) * 16 + 64 * (24 + 4 * 8)


def sample_scratch(cx: Context) -> Value:
    """Working memory of a kernel that samples (kernels_wat/grid_sample.wat.j2)."""
    return cx.scratch(_SCRATCH_BYTES)


def computed_as(x: Value) -> DType:
    """The type that samples of ``x`` are computed in: f64 where f32 does not hold all its values."""
    return F64 if x.dtype is F64 or (x.dtype.is_integer and x.dtype.bits > 16) else F32


@op("GridSample", since=16)
def grid_sample(
    cx: Context,
    x: Value,
    grid: Value,
    *,
    align_corners: int = 0,
    mode: str = "linear",
    padding_mode: str = "zeros",
) -> Value:
    """x [N, C, (D,) H, W] at the places of grid [N, ..., axes], which runs from -1 to 1."""
    if mode not in _MODES:
        cx.fail(f"mode {mode!r} is none of {', '.join(_MODES)}")
    if padding_mode not in _PADDINGS:
        cx.fail(f"padding_mode {padding_mode!r} is none of {', '.join(_PADDINGS)}")
    axes = x.rank - 2
    if axes not in (2, 3) or grid.rank != x.rank or grid.shape[-1] != axes or grid.shape[0] != x.shape[0]:
        cx.fail(f"X must be [N, C, (D,) H, W] and grid [N, (D,) H, W, axes], got {x!r} and {grid!r}")
    if x.dtype.short not in NUMBERS and x.dtype is not BOOL:
        cx.fail(f"no samples of type {x.dtype}", UnsupportedModelError)
    require(cx, grid, FLOATS)
    shape = (*x.shape[:2], *grid.shape[1:-1])
    if math.prod(shape) == 0:
        return cx.out(shape, x.dtype)
    if x.size == 0:
        cx.fail(f"{x!r} has no elements to sample")
    dtype = computed_as(x)
    depth, height, width = (1, *x.shape[2:])[-3:]
    places = math.prod(grid.shape[1:-1])
    y = cx.out(shape, dtype)
    cx.emit(
        f"grid_sample_{dtype.short}",
        units=x.shape[0] * places,
        x=cast(cx, x, dtype),
        grid=cast(cx, grid, dtype),
        y=y,
        scratch=sample_scratch(cx),
        mode=_MODES[mode],
        padding=_PADDINGS[padding_mode],
        align=int(bool(align_corners)),
        axes=axes,
        channels=x.shape[1],
        d=depth,
        h=height,
        w=width,
        places=places,
    )
    return cast(cx, y, x.dtype)


@op("AffineGrid", since=20, host=("size",))
def affine_grid(cx: Context, theta: Value, size: Array, *, align_corners: int = 0) -> Value:
    """The grid for GridSample that theta [N, axes, axes + 1] maps an output of ``size`` to."""
    require(cx, theta, FLOATS)
    sizes = [int(v) for v in size]
    axes = len(sizes) - 2
    if axes not in (2, 3) or theta.shape != (sizes[0], axes, axes + 1):
        cx.fail(f"theta must be [N, axes, axes + 1] and size [N, C, (D,) H, W], got {theta!r} and {sizes}")
    shape = (sizes[0], *sizes[2:], axes)
    if math.prod(shape) == 0:
        return cx.out(shape, theta.dtype)
    dtype = F64 if theta.dtype is F64 else F32
    y = cx.out(shape, dtype)
    depth, height, width = (1, *sizes[2:])[-3:]
    cx.emit(
        f"affine_grid_{dtype.short}",
        units=y.size // axes,
        theta=cast(cx, theta, dtype),
        y=y,
        axes=axes,
        d=depth,
        h=height,
        w=width,
        align=int(bool(align_corners)),
    )
    return cast(cx, y, theta.dtype)


@op("DeformConv", since=19)
def deform_conv(
    cx: Context,
    x: Value,
    w: Value,
    offset: Value,
    b: Value | None = None,
    mask: Value | None = None,
    *,
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    offset_group: int = 1,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Value:
    """Convolution whose kernel's taps each lie where ``offset`` moves them, and count as ``mask`` says."""
    given = same_type(cx, *(v for v in (x, w, offset, b, mask) if v is not None))
    require(cx, x, FLOATS)
    if x.rank != 4 or w.rank != 4:
        cx.fail(f"X must be [N, C, H, W] and W [M, C / group, kH, kW], got {x!r} and {w!r}", UnsupportedModelError)
    if kernel_shape is not None and tuple(kernel_shape) != w.shape[2:]:
        cx.fail(f"kernel_shape {list(kernel_shape)} is not that of W {w!r}")
    batch, channels, *size = x.shape
    g = geometry(cx, size, w.shape[2:], auto_pad="NOTSET", pads=pads, strides=strides, dilations=dilations)
    taps, places = math.prod(g.kernel), math.prod(g.output)
    if offset_group < 1 or channels % offset_group:
        cx.fail(f"{channels} channels do not divide into {offset_group} groups of offsets")
    if offset.shape != (batch, offset_group * taps * 2, *g.output):
        cx.fail(f"offset must have shape {[batch, offset_group * taps * 2, *g.output]}, got {offset!r}")
    if mask is not None and mask.shape != (batch, offset_group * taps, *g.output):
        cx.fail(f"mask must have shape {[batch, offset_group * taps, *g.output]}, got {mask!r}")
    dtype = F64 if given is F64 else F32
    x, w, offset = cast(cx, x, dtype), cast(cx, w, dtype), cast(cx, offset, dtype)
    b, mask = (None if v is None else cast(cx, v, dtype) for v in (b, mask))
    columns = cx.out((batch, channels * taps, places), dtype)
    if columns.size:
        cx.emit(
            f"deform_columns_{dtype.short}",
            units=batch * offset_group * taps,
            x=x,
            offset=offset,
            mask=mask,
            y=columns,
            scratch=sample_scratch(cx),
            groups=offset_group,
            channels=channels // offset_group,
            h=size[0],
            w=size[1],
            k_h=g.kernel[0],
            k_w=g.kernel[1],
            s_h=g.strides[0],
            s_w=g.strides[1],
            q_h=g.dilations[0],
            q_w=g.dilations[1],
            p_h=g.pads[0],
            p_w=g.pads[1],
            o_h=g.output[0],
            o_w=g.output[1],
        )
    rows = cx.alias(w, (w.shape[0], w.shape[1] * taps, 1))
    y = conv(cx, columns, rows, b, group=group)
    return cast(cx, cx.alias(y, (batch, w.shape[0], *g.output)), given)
