"""Resize and Upsample.

Every resized axis gets a table of where its outputs come from and with which weights, which kernels make
(`resize_table`). Without arithmetic (nearest), whole elements move by it; else the axes are summed one after the other,
the last one first, and the last two in one go where the image grows.

Where a scale times a size is no integer, the modes align_corners and tf_crop_and_resize go by that number, as the
specification's reference does, not by the size it is rounded down to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..context import Array, Context, Value
from ..dtypes import BOOL, F32, F64, I32, U8, DType
from ..errors import UnsupportedModelError
from ..registry import op
from ._copy import normal_axes, width
from ._elementwise import INTEGERS, NUMBERS, cast, flat

_TRANSFORMS = {
    "half_pixel": 0,
    "half_pixel_symmetric": 1,
    "pytorch_half_pixel": 2,
    "align_corners": 3,
    "asymmetric": 4,
    "tf_crop_and_resize": 5,
    "tf_half_pixel_for_nn": 6,
}
_ROUNDINGS = {"round_prefer_floor": 0, "round_prefer_ceil": 1, "floor": 2, "ceil": 3, "legacy": 4}
_MODES = {"nearest": 0, "linear": 1, "cubic": 2}
_POLICIES = ("stretch", "not_larger", "not_smaller")
# What the widened rows of one plane may take.
_PLANE_BYTES = 1 << 20


class Sampling(NamedTuple):
    """How outputs are placed on the input, and how they are computed from what lies there."""

    mode: int = 0
    transform: int = 0
    rounding: int = 0
    cubic_a: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    extrapolation_value: float = 0.0
    precise: bool = False
    """Coordinates are of f64."""


class Axis(NamedTuple):
    """One axis that is resized."""

    axis: int
    size: int
    """Of the output."""
    scale: float
    length: float
    """Of the output, before it is rounded down."""
    roi: tuple[float, float] = (0.0, 1.0)


class Table(NamedTuple):
    """What `resize_table` has made of an axis."""

    indices: Value
    weight: Value | None
    outside: Value | None
    taps: int
    padded: int


def _sampling(
    cx: Context,
    mode: str,
    transform: str,
    rounding: str,
    **options: Any,
) -> Sampling:
    mode = {"bilinear": "linear"}.get(mode, mode)
    for name, value, known in (
        ("mode", mode, _MODES),
        ("coordinate_transformation_mode", transform, _TRANSFORMS),
        ("nearest_mode", rounding, _ROUNDINGS),
    ):
        if value not in known:
            cx.fail(f"{name} {value!r} is none of {', '.join(known)}")
    return Sampling(_MODES[mode], _TRANSFORMS[transform], _ROUNDINGS[rounding], **options)


@op("Upsample", since=7)
def upsample_7(cx: Context, x: Value, *, scales: Sequence[float], mode: str = "nearest") -> Value:
    """x resized by ``scales``, one for each axis."""
    return resize_10(cx, x, np.array(scales, np.float32), mode=mode)


@op("Upsample", since=9, host=("scales",))
@op("Resize", since=10, host=("scales",))
def resize_10(cx: Context, x: Value, scales: Array, *, mode: str = "nearest") -> Value:
    """x resized by ``scales``, one for each axis."""
    axes = _scaled(cx, x, range(x.rank), scales)
    return _resize(cx, x, axes, _sampling(cx, mode, "asymmetric", "legacy"))


@op("Resize", since=11, host=("roi", "scales", "sizes"))
def resize(
    cx: Context,
    x: Value,
    roi: Array | None = None,
    scales: Array | None = None,
    sizes: Array | None = None,
    *,
    antialias: int = 0,
    axes: Sequence[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Value:
    """x resized by ``scales`` or to ``sizes``, one for each of ``axes``."""
    sampling = _sampling(
        cx,
        mode,
        coordinate_transformation_mode,
        nearest_mode,
        cubic_a=cubic_coeff_a,
        exclude_outside=bool(exclude_outside),
        antialias=bool(antialias),
        extrapolation_value=extrapolation_value,
    )
    order = list(range(x.rank)) if axes is None else normal_axes(cx, axes, x.rank)
    bounds: list[tuple[float, float]] | None = None
    if coordinate_transformation_mode == "tf_crop_and_resize":
        if roi is None or roi.size != 2 * len(order):
            cx.fail(f"roi must have {2 * len(order)} elements, got {0 if roi is None else roi.size}")
        flat_roi = [float(v) for v in roi]
        bounds = list(zip(flat_roi[: len(order)], flat_roi[len(order) :], strict=True))
    given_scales, given_sizes = scales is not None and scales.size > 0, sizes is not None and sizes.size > 0
    if given_scales == given_sizes:
        cx.fail("exactly one of scales and sizes must be given")
    if scales is not None and given_scales:
        return _resize(cx, x, _scaled(cx, x, order, scales, bounds), sampling)
    assert sizes is not None
    return _resize(cx, x, _sized(cx, x, order, sizes, keep_aspect_ratio_policy, bounds), sampling)


def _scaled(
    cx: Context, x: Value, order: Sequence[int], scales: Array, bounds: Sequence[tuple[float, float]] | None = None
) -> list[Axis]:
    if scales.shape != (len(order),):
        cx.fail(f"scales of shape {list(scales.shape)}; {len(order)} axes are to be resized")
    found = []
    for i, (axis, scale) in enumerate(zip(order, scales.astype(np.float32), strict=True)):
        if not 0 < scale < math.inf:
            cx.fail(f"scale {scale} of axis {axis} is not a positive number")
        size = scale * np.float32(x.shape[axis])
        length = float(scale) * x.shape[axis] if x.dtype is F64 else float(size)
        found.append(Axis(axis, int(size), float(scale), length, (0.0, 1.0) if bounds is None else bounds[i]))
    return found


def _sized(
    cx: Context,
    x: Value,
    order: Sequence[int],
    sizes: Array,
    policy: str,
    bounds: Sequence[tuple[float, float]] | None = None,
) -> list[Axis]:
    if sizes.shape != (len(order),) or (sizes.size and sizes.min() < 0):
        cx.fail(f"sizes {sizes.tolist()} must be {len(order)} numbers, none of them negative")
    if policy not in _POLICIES:
        cx.fail(f"keep_aspect_ratio_policy {policy!r} is none of {', '.join(_POLICIES)}")
    targets = [int(s) for s in sizes]
    scales = [t / max(x.shape[a], 1) for t, a in zip(targets, order, strict=True)]
    if policy != "stretch" and scales:
        best = scales.index(min(scales) if policy == "not_larger" else max(scales))
        target, size = targets[best], max(x.shape[order[best]], 1)
        scales = [scales[best]] * len(order)
        targets = [(2 * target * x.shape[a] + size) // (2 * size) for a in order]
    if x.dtype is not F64:
        scales = [float(np.float32(s)) for s in scales]
    lengths = targets if policy == "stretch" else [s * x.shape[a] for s, a in zip(scales, order, strict=True)]
    return [
        Axis(axis, targets[i], scales[i], float(lengths[i]), (0.0, 1.0) if bounds is None else bounds[i])
        for i, axis in enumerate(order)
    ]


def _resize(cx: Context, x: Value, axes: Sequence[Axis], sampling: Sampling) -> Value:
    shape = list(x.shape)
    for a in axes:
        shape[a.axis] = a.size
    if math.prod(shape) == 0:
        return cx.out(shape, x.dtype)
    if x.size == 0:
        cx.fail(f"{x!r} has no elements to make {shape} of")
    changed = sorted(
        (a for a in axes if a.size != x.shape[a.axis] or a.scale != 1 or a.roi != (0.0, 1.0)), key=lambda a: a.axis
    )
    if not changed:
        return cx.alias(x, x.shape)
    if sampling.mode == 0:
        return _nearest(cx, x, changed, sampling)
    if x.dtype.short not in NUMBERS and x.dtype is not BOOL:
        cx.fail(f"no interpolation of type {x.dtype}", UnsupportedModelError)
    # Weights of f64 made of coordinates of f32 add up to exactly 1, so that a surface of one integer stays one.
    wide = x.dtype is F64 or x.dtype.is_integer
    y = _weighted(cx, cast(cx, x, F64 if wide else F32), changed, sampling._replace(precise=x.dtype is F64))
    if sampling.mode == _MODES["cubic"] and x.dtype.short in INTEGERS and x.dtype.bits < 32:
        # Cubic sums leave the type's range, and a cast to these types would wrap.
        low, high = (
            (-1 << x.dtype.bits - 1, (1 << x.dtype.bits - 1) - 1) if x.dtype.is_signed else (0, (1 << x.dtype.bits) - 1)
        )
        bounds = [cx.known(np.array(v, np.float64)) for v in (low, high)]
        y = flat(cx, "clip_f64", y, low=bounds[0], high=bounds[1])
    return cast(cx, y, x.dtype)


def _table(cx: Context, a: Axis, size: int, step: int, dtype: DType, sampling: Sampling) -> Table:
    """The table of one axis of ``size`` elements that lie ``step`` bytes apart."""
    padded = -(-a.size // 4) * 4
    filter_scale = min(a.scale, 1.0) if sampling.antialias and sampling.mode else 1.0
    first = math.floor(-max(sampling.mode, 1) / filter_scale) + 1
    taps = 2 - 2 * first if sampling.mode else 1
    index = cx.out((taps, padded), I32)
    weight = cx.out((taps, padded), dtype) if sampling.mode else None
    outside = cx.out((a.size,), U8) if sampling.transform == _TRANSFORMS["tf_crop_and_resize"] else None
    cx.emit(
        f"resize_table_{'f64' if sampling.precise else 'f32'}",
        units=padded,
        index=index,
        weight=weight,
        outside=outside,
        n_in=size,
        n_out=a.size,
        padded=padded,
        scale=a.scale,
        length=a.length,
        transform=sampling.transform,
        roi_start=a.roi[0],
        roi_end=a.roi[1],
        mode=sampling.mode,
        rounding=sampling.rounding,
        taps=taps,
        first=first,
        filter=filter_scale,
        cubic_a=sampling.cubic_a,
        drop=int(sampling.exclude_outside),
        step=step,
        wide=int(dtype is F64),
    )
    return Table(index, weight, outside, taps, padded)


def _groups(axes: Sequence[Axis]) -> list[tuple[Axis | None, Axis]]:
    """The axes from the last to the first, neighbours in pairs where an axis has one."""
    found: list[tuple[Axis | None, Axis]] = []
    left = list(axes)
    while left:
        last = left.pop()
        pair = bool(left) and left[-1].axis == last.axis - 1
        found.append((left.pop() if pair else None, last))
    return found


def _nearest(cx: Context, x: Value, axes: Sequence[Axis], sampling: Sampling) -> Value:
    size = width(cx, x)
    outside: dict[int, Table] = {}
    for row, last in _groups(axes):
        shape = list(x.shape)
        for a in (row, last):
            if a is not None:
                shape[a.axis] = a.size
        y = cx.out(shape, x.dtype)
        run = math.prod(x.shape[last.axis + 1 :]) * size
        table = _table(cx, last, x.shape[last.axis], run, F32, sampling)
        outside[last.axis] = table
        index: Value | None = None
        row_index: Value | None = table.indices
        n_in, n_out, row_bytes, out_w = 1, 1, x.shape[last.axis] * run, last.size
        if row is not None:
            outside[row.axis] = row_table = _table(cx, row, x.shape[row.axis], row_bytes, F32, sampling)
            index, n_in, n_out = row_table.indices, x.shape[row.axis], row.size
        elif run > size:
            index, row_index, n_in, n_out, row_bytes, out_w = table.indices, None, x.shape[last.axis], last.size, run, 1
        cx.emit(
            f"resize_nearest_b{size}",
            units=math.prod(shape) * size // (out_w * run),
            x=x,
            y=y,
            index=index,
            row_index=row_index,
            n_in=n_in,
            n_out=n_out,
            row=row_bytes,
            out_w=out_w,
            run=run,
        )
        x = y
    _mark_outside(cx, x, outside, sampling)
    return x


def _weighted(cx: Context, x: Value, axes: Sequence[Axis], sampling: Sampling) -> Value:
    short, size = x.dtype.short, x.dtype.itemsize
    outside: dict[int, Table] = {}
    left = list(axes)
    while left:
        last = left.pop()
        row = left[-1] if left and left[-1].axis == last.axis - 1 else None
        inner = math.prod(x.shape[last.axis + 1 :])
        shape = list(x.shape)
        shape[last.axis] = last.size
        n = x.shape[last.axis]
        if row is not None and inner == 1:
            h = x.shape[row.axis]
            planes = math.prod(shape[: row.axis])
            # Rows first where the image grows, so that fewer of them are summed.
            grows = row.size >= h
            table = _table(cx, row, h, (last.size if grows else n) * size, x.dtype, sampling)
            row_table = _table(cx, last, n, size, x.dtype, sampling)
            outside[row.axis], outside[last.axis] = table, row_table
            left.pop()
            if grows and planes > 1 and h * last.size * size <= _PLANE_BYTES:
                shape[row.axis] = row.size
                y = cx.out(shape, x.dtype)
                cx.emit(
                    f"resize_planes_{short}",
                    units=planes,
                    x=x,
                    y=y,
                    row_index=row_table.indices,
                    row_weight=row_table.weight,
                    index=table.indices,
                    weight=table.weight,
                    scratch=cx.scratch(h * last.size * size),
                    row_taps=row_table.taps,
                    row_padded=row_table.padded,
                    taps=table.taps,
                    padded=table.padded,
                    h=h,
                    w=n,
                    out_h=row.size,
                    out_w=last.size,
                )
                x = y
            elif grows:
                x = _slabs(cx, _rows(cx, x, row_table, last), table, row)
            else:
                x = _rows(cx, _slabs(cx, x, table, row), row_table, last)
            continue
        table = _table(cx, last, n, inner * size, x.dtype, sampling)
        outside[last.axis] = table
        x = _rows(cx, x, table, last) if inner == 1 else _slabs(cx, x, table, last)
    _mark_outside(cx, x, outside, sampling)
    return x


def _rows(cx: Context, x: Value, table: Table, a: Axis) -> Value:
    """Emit the resizing of an axis whose elements are neighbours."""
    n, shape = x.shape[a.axis], list(x.shape)
    shape[a.axis] = a.size
    y = cx.out(shape, x.dtype)
    cx.emit(
        f"resize_rows_{x.dtype.short}",
        units=x.size // n,
        x=x,
        y=y,
        index=table.indices,
        weight=table.weight,
        taps=table.taps,
        padded=table.padded,
        n_in=n,
        n_out=a.size,
    )
    return y


def _slabs(cx: Context, x: Value, table: Table, a: Axis) -> Value:
    """Emit the resizing of an axis whose elements are blocks of the axes behind it."""
    shape = list(x.shape)
    shape[a.axis] = a.size
    y = cx.out(shape, x.dtype)
    cx.emit(
        f"resize_slabs_{x.dtype.short}",
        units=math.prod(shape[: a.axis + 1]),
        x=x,
        y=y,
        index=table.indices,
        weight=table.weight,
        taps=table.taps,
        padded=table.padded,
        n_in=x.shape[a.axis],
        n_out=a.size,
        inner=math.prod(shape[a.axis + 1 :]),
    )
    return y


def _mark_outside(cx: Context, y: Value, tables: dict[int, Table], sampling: Sampling) -> None:
    value = None
    for axis, table in tables.items():
        if table.outside is None:
            continue
        if value is None:
            value = cx.known(np.array(sampling.extrapolation_value).astype(y.dtype.numpy))
        cx.emit(
            f"resize_outside_b{width(cx, y)}",
            units=math.prod(y.shape[: axis + 1]),
            y=y,
            outside=table.outside,
            value=value,
            n=y.shape[axis],
            inner=math.prod(y.shape[axis + 1 :]),
        )
