"""RoiAlign, MaxRoiPool and CropAndResize: regions of an image made equal in size."""

from __future__ import annotations

from collections.abc import Sequence

from ..context import Array, Context, Value
from ..dtypes import F32, F64, I32, I64
from ..registry import MICROSOFT, op
from ._elementwise import FLOATS, cast, require, same_type
from ._shapes import extents
from .sampling import sample_scratch


@op("RoiAlign", since=10)
def roi_align_10(
    cx: Context,
    x: Value,
    rois: Value,
    batch_indices: Value,
    *,
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Value:
    """The form without a shift by half a pixel."""
    return roi_align(
        cx,
        x,
        rois,
        batch_indices,
        coordinate_transformation_mode="output_half_pixel",
        mode=mode,
        output_height=output_height,
        output_width=output_width,
        sampling_ratio=sampling_ratio,
        spatial_scale=spatial_scale,
    )


@op("RoiAlign", since=16)
def roi_align(
    cx: Context,
    x: Value,
    rois: Value,
    batch_indices: Value,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Value:
    """Regions [n, 4] (first column, row, last column, row) of x [N, C, H, W], in bins that are averages or maxima."""
    given = same_type(cx, x, rois)
    require(cx, x, FLOATS)
    if x.rank != 4 or rois.shape != (*batch_indices.shape, 4) or batch_indices.rank != 1:
        cx.fail(f"X must be [N, C, H, W], rois [n, 4], batch_indices [n]; got {x!r}, {rois!r} and {batch_indices!r}")
    if batch_indices.dtype is not I64:
        cx.fail(f"batch_indices must be int64, got {batch_indices!r}")
    if mode not in ("avg", "max") or coordinate_transformation_mode not in ("half_pixel", "output_half_pixel"):
        cx.fail(f"mode {mode!r} or coordinate_transformation_mode {coordinate_transformation_mode!r} is unknown")
    if output_height < 1 or output_width < 1 or sampling_ratio < 0:
        cx.fail(f"no output of {output_height} x {output_width} with {sampling_ratio} samples")
    dtype = F64 if given is F64 else F32
    shape = (rois.shape[0], x.shape[1], output_height, output_width)
    y = cx.out(shape, dtype)
    if y.size == 0:
        return cast(cx, y, given)
    if x.size == 0:
        cx.fail(f"{x!r} has no elements to pool")
    cx.emit(
        f"roi_align_{dtype.short}",
        units=rois.shape[0] * output_height * output_width,
        x=cast(cx, x, dtype),
        rois=cast(cx, rois, dtype),
        batch=batch_indices,
        y=y,
        scratch=sample_scratch(cx),
        images=x.shape[0],
        channels=x.shape[1],
        h=x.shape[2],
        w=x.shape[3],
        o_h=output_height,
        o_w=output_width,
        ratio=sampling_ratio,
        scale=spatial_scale,
        half_pixel=int(coordinate_transformation_mode == "half_pixel"),
        max=int(mode == "max"),
    )
    return cast(cx, y, given)


@op("MaxRoiPool", since=1)
def max_roi_pool(
    cx: Context, x: Value, rois: Value, *, pooled_shape: Sequence[int], spatial_scale: float = 1.0
) -> Value:
    """Regions [n, 5] (image, first column, row, last column, row) of x [N, C, H, W], in bins that are maxima."""
    given = same_type(cx, x, rois)
    require(cx, x, FLOATS)
    if x.rank != 4 or rois.rank != 2 or rois.shape[1] != 5 or len(pooled_shape) != 2 or min(pooled_shape) < 1:
        cx.fail(f"X must be [N, C, H, W], rois [n, 5], pooled_shape two sizes; got {x!r}, {rois!r}, {pooled_shape}")
    dtype = F64 if given is F64 else F32
    y = cx.out((rois.shape[0], x.shape[1], *pooled_shape), dtype)
    if y.size:
        cx.emit(
            f"roi_pool_{dtype.short}",
            units=rois.shape[0] * x.shape[1],
            x=cast(cx, x, dtype),
            rois=cast(cx, rois, dtype),
            y=y,
            images=x.shape[0],
            channels=x.shape[1],
            h=x.shape[2],
            w=x.shape[3],
            o_h=pooled_shape[0],
            o_w=pooled_shape[1],
            scale=spatial_scale,
        )
    return cast(cx, y, given)


@op("CropAndResize", domain=MICROSOFT, host=("crop_size",))
def crop_and_resize(
    cx: Context,
    x: Value,
    rois: Value,
    batch_indices: Value,
    crop_size: Array,
    *,
    extrapolation_value: float = 0.0,
    mode: str = "bilinear",
) -> Value:
    """Regions [n, 4] (first row, column, last row, column, of 0 to 1) of x [N, C, H, W], each of ``crop_size`` samples
    that begin and end at its corners; ``extrapolation_value`` outside of the image."""
    given = same_type(cx, x, rois)
    require(cx, x, FLOATS)
    if x.rank != 4 or batch_indices.rank != 1 or rois.shape != (*batch_indices.shape, 4):
        cx.fail(f"X must be [N, C, H, W], rois [n, 4], batch_indices [n]; got {x!r}, {rois!r} and {batch_indices!r}")
    if batch_indices.dtype is not I32:
        cx.fail(f"batch_indices must be int32, got {batch_indices!r}")
    if mode not in ("bilinear", "nearest"):
        cx.fail(f"mode {mode!r} is none of bilinear, nearest")
    size = extents(cx, "crop_size", crop_size)
    if len(size) != 2 or min(size) < 1:
        cx.fail(f"crop_size is {size}, must be two positive sizes")
    dtype = F64 if given is F64 else F32
    y = cx.out((rois.shape[0], x.shape[1], *size), dtype)
    if y.size:
        cx.emit(
            f"roi_crop_{dtype.short}",
            units=rois.shape[0] * size[0],
            x=cast(cx, x, dtype),
            rois=cast(cx, rois, dtype),
            batch=batch_indices,
            y=y,
            images=x.shape[0],
            channels=x.shape[1],
            h=x.shape[2],
            w=x.shape[3],
            o_h=size[0],
            o_w=size[1],
            outside=extrapolation_value,
            nearest=int(mode == "nearest"),
        )
    return cast(cx, y, given)
