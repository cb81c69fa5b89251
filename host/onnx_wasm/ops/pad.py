"""Pad, and triangles of matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..context import Array, Context, Value
from ..registry import op
from ._copy import fill, normal_axes, only, strides, width
from ._narrow import by_bytes
from .slice import pick

MODES = {"constant": 0, "reflect": 1, "edge": 2, "wrap": 3}

# (extent in x, places before, extent in y, stride in x)
_Axis = tuple[int, int, int, int]


def _is_row(pads: Array) -> bool:
    return pads.ndim == 1 or (pads.ndim == 2 and len(pads) == 1)


def fold_pad(
    x: Array, pads: Array, constant_value: Array | None = None, axes: Array | None = None, *, mode: str = "constant"
) -> Array:
    where = range(x.ndim) if axes is None else [int(a) for a in axes]
    if not _is_row(pads) or pads.size != 2 * len(where) or len({a % x.ndim for a in where}) != len(where):
        raise ValueError("pads do not fit")
    amounts = np.zeros((x.ndim, 2), np.int64)
    amounts[list(where)] = pads.reshape(2, -1).T
    if (amounts.sum(1) + x.shape < 0).any():
        raise ValueError(f"pads {pads.tolist()} take more than shape {list(x.shape)} holds")
    cut = np.minimum(amounts, 0)
    x = x[tuple(slice(-a, max(0, d + b)) for d, (a, b) in zip(x.shape, cut.tolist(), strict=True))]
    amounts = np.maximum(amounts, 0)
    if mode == "constant":
        zero: Any = "" if x.dtype == object else 0
        return np.pad(x, amounts, constant_values=zero if constant_value is None else constant_value.item())
    return np.pad(x, amounts, mode=mode)  # type: ignore[call-overload, no-any-return]


@op("Pad", since=2)
@by_bytes
def pad_2(cx: Context, x: Value, *, pads: Sequence[int], mode: str = "constant", value: float = 0.0) -> Value:
    """Places before each axis, then places behind; negative ones are taken away."""
    one = None if value == 0 else cx.known(np.full(1, value, x.dtype.numpy))
    return _pad(cx, x, list(pads), range(x.rank), mode, one)


@op("Pad", since=11, host=("pads",), fold=fold_pad)
@by_bytes
def pad_11(cx: Context, x: Value, pads: Array, constant_value: Value | None = None, *, mode: str = "constant") -> Value:
    """As before; amounts and value are inputs."""
    return pad(cx, x, pads, constant_value, mode=mode)


@op("Pad", since=18, host=("pads", "axes"), fold=fold_pad)
@by_bytes
def pad(
    cx: Context,
    x: Value,
    pads: Array,
    constant_value: Value | None = None,
    axes: Array | None = None,
    *,
    mode: str = "constant",
) -> Value:
    """As before, for the axes listed (mode "wrap" since opset 19)."""
    if constant_value is not None and (constant_value.size != 1 or constant_value.dtype != x.dtype):
        cx.fail(f"{constant_value} must be one element of type {x.dtype}")
    if not _is_row(pads):
        cx.fail(f"pads has shape {list(pads.shape)}, must have one dimension, or two of which the first is 1")
    where = range(x.rank) if axes is None else normal_axes(cx, axes.reshape(-1).tolist(), x.rank)
    return _pad(cx, x, [int(p) for p in pads.reshape(-1)], where, mode, constant_value)


@op("CenterCropPad", since=18, host=("shape",))
def center_crop_pad(cx: Context, x: Value, shape: Array, *, axes: Sequence[int] | None = None) -> Value:
    """The middle of each axis, or the axis in the middle of zeros, to the extents asked for."""
    where = range(x.rank) if axes is None else normal_axes(cx, axes, x.rank)
    target = [int(d) for d in shape.reshape(-1)]
    if len(target) != len(where):
        cx.fail(f"shape {target} needs an extent for each of {len(where)} axes of {x}")
    if min(target, default=0) < 0:
        cx.fail(f"shape {target} must not be negative")
    more = [t - x.shape[a] for t, a in zip(target, where, strict=True)]
    before = [m // 2 if m > 0 else -(-m // 2) for m in more]
    return _pad(cx, x, before + [m - b for m, b in zip(more, before, strict=True)], where, "constant", None)


def _pad(cx: Context, x: Value, pads: list[int], where: Sequence[int], mode: str, value: Value | None) -> Value:
    if mode not in MODES:
        cx.fail(f"mode {mode!r} is none of {', '.join(MODES)}")
    if len(pads) != 2 * len(where):
        cx.fail(f"pads {pads} must hold 2 amounts for each of {len(where)} axes of {x}")
    before, after = [0] * x.rank, [0] * x.rank
    for i, a in enumerate(where):
        before[a], after[a] = pads[i], pads[i + len(where)]
    for d, b, a in zip(x.shape, before, after, strict=True):
        if d + b + a < 0:
            cx.fail(f"pads {pads} take {-a - b} from an extent of {d} in {x}")
    # What negative amounts leave of x comes first, and is then padded.
    kept = [range(max(0, -b), d - max(0, -a)) for d, b, a in zip(x.shape, before, after, strict=True)]
    if max(pads, default=0) <= 0:
        return pick(cx, x, kept)
    shape = [d + b + a for d, b, a in zip(x.shape, before, after, strict=True)]
    y = cx.out(shape, x.dtype)
    axes: list[_Axis] = [
        (max(0, len(k)), max(0, b), n, s) for k, b, n, s in zip(kept, before, shape, strides(x.shape), strict=True)
    ]
    if y.size == 0:
        return y
    if any(d == 0 for d, _, _, _ in axes):
        if mode != "constant":
            cx.fail(f"mode {mode!r} has nothing to repeat: {x} is empty where it is padded")
        fill(cx, y, value)
        return y
    size = width(cx, x)
    first = sum(k.start * s for k, s in zip(kept, strides(x.shape), strict=True))
    if first:
        x = cx.alias(x, (x.size - first,), offset=first * size)
    *outer, (extent, gap, row, _) = _collapse(axes, mode == "constant")
    outer = outer or [(1, 0, 1, 0)]
    cx.emit(
        f"pad_b{size}",
        units=y.size // row,
        x=x,
        y=y,
        value=value,
        mode=MODES[mode],
        n=extent,
        before=gap,
        out=row,
        rank=len(outer),
        axes=[v for d, b, n, s in reversed(outer) for v in (n, b, d, s * size)],
    )
    return y


def _collapse(axes: Sequence[_Axis], constant: bool) -> list[_Axis]:
    # An axis that keeps its extent merges into the one before it, if that is not padded, or with a constant only.
    result: list[_Axis] = []
    for d, b, n, s in axes:
        if result and d == n:
            outer, gap, total, step = result[-1]
            if step == d * s and (constant or outer == total):
                result[-1] = (outer * d, gap * d, total * d, s)
                continue
        result.append((d, b, n, s))
    return result


def fold_trilu(x: Array, k: Array | None = None, *, upper: int = 1) -> Any:
    if x.dtype == object or x.ndim < 2:
        return NotImplemented
    offset = 0 if k is None else k.item()
    return np.triu(x, offset) if upper else np.tril(x, offset)


@op("Trilu", since=14, host=("k",), fold=fold_trilu)
def trilu(cx: Context, x: Value, k: Array | None = None, *, upper: int = 1) -> Value:
    """Zeros below (or above, unless ``upper``) the k-th diagonal of each matrix."""
    if x.rank < 2:
        cx.fail(f"{x} has rank {x.rank}, needs 2 or more")
    rows, cols = x.shape[-2:]
    offset = 0 if k is None else only(cx, "k", k)
    y = cx.out(x.shape, x.dtype)
    if y.size:
        cx.emit(
            "trilu",
            units=math.prod(x.shape[:-1]),
            x=x,
            y=y,
            rows=rows,
            cols=cols,
            width=width(cx, x),
            k=max(-rows - 1, min(cols + 1, offset)),
            upper=int(bool(upper)),
        )
    return y
