"""Pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..context import Context, Value
from ..dtypes import F32, F64, I8, I32, I64, U8, DType
from ..errors import UnsupportedModelError
from ..registry import MICROSOFT, op
from ._widen import widened
from .reduce import reduce_to


class Axis(NamedTuple):
    """One dimension of a pooling window's path."""

    size: int
    out: int
    kernel: int
    stride: int = 1
    dilation: int = 1
    begin: int = 0
    """Padding before the first element."""
    end: int = 0
    """Padding after the last."""


_NO_AXIS = Axis(1, 1, 1)


def window(
    cx: Context,
    x: Value,
    kernel: Sequence[int],
    strides: Sequence[int] | None,
    pads: Sequence[int] | None,
    dilations: Sequence[int] | None,
    auto_pad: str,
    ceil_mode: int,
) -> list[Axis]:
    """The spatial axes of a pooling operator with the sizes of its output."""
    rank = x.rank - 2
    if rank < 1:
        cx.fail(f"{x} must have a batch, a channel and spatial dimensions")
    strides, dilations, pads = strides or [1] * rank, dilations or [1] * rank, pads or [0] * 2 * rank
    for name, values, count in (
        ("kernel_shape", kernel, rank),
        ("strides", strides, rank),
        ("dilations", dilations, rank),
        ("pads", pads, 2 * rank),
    ):
        if len(values) != count or min(values) < (0 if name == "pads" else 1):
            cx.fail(f"{name} {list(values)} does not fit the {rank} spatial dimensions of {x}")
    axes = []
    for i, (size, k, s, d) in enumerate(zip(x.shape[2:], kernel, strides, dilations, strict=True)):
        extent = (k - 1) * d + 1
        begin = end = 0
        if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            out = -(-size // s)
            total = max(0, (out - 1) * s + extent - size)
            begin = (total + (auto_pad == "SAME_LOWER")) // 2
            end = total - begin
        else:
            if auto_pad == "NOTSET":
                begin, end = pads[i], pads[i + rank]
            elif auto_pad != "VALID":
                cx.fail(f"auto_pad is {auto_pad!r}, must be NOTSET, SAME_UPPER, SAME_LOWER or VALID")
            room = size + begin + end - extent
            if room < 0:
                cx.fail(f"a window of {extent} does not fit in spatial dimension {i} of {x}, padded to {room + extent}")
            out = room // s + 1
            # A last window that is cut short counts, unless it starts in the padding behind.
            if ceil_mode and room % s and out * s < size + begin:
                out += 1
        # One window takes no step and one tap spans nothing, however large; scratch is laid out by both.
        axes.append(Axis(size, out, k, s if out > 1 else 1, d if k > 1 else 1, begin, end))
    return axes


def _placed(cx: Context, axes: list[Axis]) -> list[int]:
    """Which axes are the kernels' d, h and w: those that are not of size 1, if w is or there are too many."""
    places = list(range(len(axes)))
    if len(axes) > 3 or (len(axes) > 1 and axes[-1] == _NO_AXIS):
        places = [i for i in places if axes[i] != _NO_AXIS] or [0]
    if len(places) > 3:
        cx.fail(f"pooling over {len(places)} dimensions is not implemented", UnsupportedModelError)
    return places


def _geometry(cx: Context, axes: list[Axis]) -> tuple[tuple[Axis, Axis, Axis], dict[str, Any]]:
    """The axes d, h, w of the kernels, and their arguments."""
    placed = [axes[i] for i in _placed(cx, axes)]
    d, h, w = [_NO_AXIS] * (3 - len(placed)) + placed
    low = min(w.out, -(-w.begin // w.stride))
    high = (w.size - 1 - (w.kernel - 1) * w.dilation + w.begin) // w.stride + 1
    args: dict[str, Any] = {
        "od": d.out, "oh": h.out, "ow": w.out,
        "id": d.size, "ih": h.size, "iw": w.size,
        "kd": d.kernel, "kh": h.kernel, "kw": w.kernel,
        "sd": d.stride, "sh": h.stride, "sw": w.stride,
        "dd": d.dilation, "dh": h.dilation, "dw": w.dilation,
        "pd": d.begin, "ph": h.begin, "pw": w.begin,
        "low": low, "high": max(low, min(w.out, high)),
    }  # fmt: skip
    return (d, h, w), args


def _check_type(cx: Context, x: Value, types: tuple[DType, ...]) -> None:
    if x.dtype not in types:
        cx.fail(f"has no form for {x.dtype}", UnsupportedModelError)


def _shape(x: Value, axes: list[Axis]) -> list[int]:
    return [*x.shape[:2], *(a.out for a in axes)]


def _by_rows(cx: Context, kernel: str, x: Value, y: Value, axes: list[Axis], **more: Any) -> None:
    """Emit a kernel that reduces the rows of each window into a padded row, and that along its length."""
    (d, h, w), args = _geometry(cx, axes)
    item = x.dtype.itemsize
    # Up to a vector of outputs more than there are is made, with all their taps; a vector may be stored past the end.
    taps = (w.out + 16 // item) * w.stride + w.kernel * w.dilation
    row = (max(w.begin + w.size, taps) * item + 16 + 32 + 63) & ~63
    units = y.size // (w.out * h.out)
    if "include" in more:
        more |= {f"e{n}": a.size + a.end for n, a in zip("dhw", (d, h, w), strict=True)}
    cx.emit(kernel, units=units, x=x, y=y, scratch=cx.work(units * row), row=row, **args, **more)


@op("MaxPool")
@widened
def max_pool(
    cx: Context,
    x: Value,
    *,
    kernel_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    storage_order: int = 0,
) -> tuple[Value | None, ...]:
    """The maximum of each window, and its index in the whole input if that is wanted."""
    _check_type(cx, x, (F32, F64, I8, U8))
    axes = window(cx, x, kernel_shape, strides, pads, dilations, auto_pad, ceil_mode)
    y = cx.out(_shape(x, axes), x.dtype)
    indices = cx.out(y.shape, I64) if len(cx.node.outputs) > 1 and cx.node.outputs[1] else None
    if y.size:
        if indices is None:
            _by_rows(cx, f"maxpool_{x.dtype.short}", x, y, axes)
        else:
            (_, _, w), args = _geometry(cx, axes)
            sizes = x.shape[2:]
            places = _placed(cx, axes)
            steps = [math.prod(sizes[:i] if storage_order else sizes[i + 1 :]) for i in places]
            md, mh, mw = [0] * (3 - len(steps)) + steps
            cx.emit(
                f"maxpool_{x.dtype.short}_indices",
                units=y.size // w.out,
                x=x,
                y=y,
                indices=indices,
                **args,
                md=md,
                mh=mh,
                mw=mw,
            )
    return y, indices


@op("MaxpoolWithMask", domain=MICROSOFT)
def masked_max_pool(
    cx: Context,
    x: Value,
    mask: Value,
    *,
    kernel_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    auto_pad: str = "NOTSET",
    storage_order: int = 0,
) -> Value:
    """The maximum of each window of x [N, C, ...], of each of its rows only what lies before the first 0 of the mask
    [M, K, ...]; the lowest float if that is nothing. As in ONNX Runtime plane i takes the mask's elements from number
    (i * size of a plane) mod (M * K) on, and the first of more than one axis never ends a row."""
    if x.dtype is not F32 or mask.dtype is not I32:
        cx.fail(f"X must be float32 and the mask int32, got {x!r} and {mask!r}", UnsupportedModelError)
    axes = window(cx, x, kernel_shape, strides, pads, None, auto_pad, 0)
    if len(axes) > 3:
        cx.fail(f"pooling over {len(axes)} dimensions is not implemented", UnsupportedModelError)
    if mask.rank != x.rank or mask.shape[2:] != x.shape[2:]:
        cx.fail(f"the mask is {mask!r}, must have the spatial dimensions of {x!r}")
    y = cx.out(_shape(x, axes), F32)
    if y.size:
        masks, plane = math.prod(mask.shape[:2]), math.prod(x.shape[2:])
        if not masks:
            cx.fail(f"the mask {mask!r} has no planes")
        d, h, w = [_NO_AXIS] * (3 - len(axes)) + axes
        placed = {"d": d, "h": h, "w": w}
        fields = {"o": "out", "i": "size", "k": "kernel", "s": "stride", "p": "begin"}
        geometry = {f + n: getattr(axis, field) for n, axis in placed.items() for f, field in fields.items()}
        cx.emit(
            "maxpool_masked",
            units=y.size // w.out,
            x=x,
            mask=mask,
            y=y,
            **geometry,
            step=plane % masks,
            masks=masks,
            first=int(len(axes) > 1),
        )
    return y


@op("AveragePool")
@widened
def average_pool(
    cx: Context,
    x: Value,
    *,
    kernel_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
) -> Value:
    """The mean of each window, over its elements inside the input or, with count_include_pad, the padded input."""
    _check_type(cx, x, (F32, F64))
    axes = window(cx, x, kernel_shape, strides, pads, dilations, auto_pad, ceil_mode)
    if all(a == Axis(a.size, 1, a.size, a.stride) for a in axes):
        return _global(cx, "ReduceMean", x)
    y = cx.out(_shape(x, axes), x.dtype)
    if y.size:
        _by_rows(cx, f"averagepool_{x.dtype.short}", x, y, axes, include=count_include_pad)
    return y


@op("LpPool", since=2)
@widened
def lp_pool(
    cx: Context,
    x: Value,
    *,
    kernel_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    p: int = 2,
) -> Value:
    """The p-norm of each window."""
    return _lp_pool(cx, x, window(cx, x, kernel_shape, strides, pads, dilations, auto_pad, ceil_mode), p)


def _lp_pool(cx: Context, x: Value, axes: list[Axis], p: int) -> Value:
    _check_type(cx, x, (F32, F64))
    if p < 1:
        cx.fail(f"p is {p}, must be positive")
    y = cx.out(_shape(x, axes), x.dtype)
    if y.size:
        (_, _, w), args = _geometry(cx, axes)
        cx.emit(f"lppool_{x.dtype.short}", units=y.size // w.out, x=x, y=y, **args, power=p)
    return y


def _check_rank(cx: Context, x: Value) -> None:
    if x.rank < 3:
        cx.fail(f"{x} must have a batch, a channel and a spatial dimension")


def _global(cx: Context, reduction: str, x: Value) -> Value:
    _check_rank(cx, x)
    return reduce_to(cx, reduction, x, range(2, x.rank), [*x.shape[:2], *[1] * (x.rank - 2)])


@op("GlobalAveragePool")
@widened
def global_average_pool(cx: Context, x: Value) -> Value:
    """The mean over all spatial dimensions."""
    return _global(cx, "ReduceMean", x)


@op("GlobalMaxPool")
@widened
def global_max_pool(cx: Context, x: Value) -> Value:
    """The maximum over all spatial dimensions."""
    return _global(cx, "ReduceMax", x)


@op("GlobalLpPool", since=2)
@widened
def global_lp_pool(cx: Context, x: Value, *, p: int = 2) -> Value:
    """The p-norm over all spatial dimensions."""
    _check_rank(cx, x)
    if p in (1, 2):
        return _global(cx, f"ReduceL{p}", x)
    n = math.prod(x.shape[2:])
    flat = cx.alias(x, (*x.shape[:2], n))
    return cx.alias(_lp_pool(cx, flat, [Axis(n, 1, n)], p), [*x.shape[:2], *[1] * (x.rank - 2)])
