"""Experimental operators of the first versions of ONNX, removed since: the first exporters of CoreML, MXNet and Caffe2
wrote them. Only ONNX Runtime still has schemas of them, and runs them up to opset 9."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..context import Array, Context, Value
from ..registry import op
from . import activation, binary, slice
from ._elementwise import FLOATS, require
from ._widen import widened
from .norm import affine


def _constant(cx: Context, name: str, x: Value, values: float | Sequence[float]) -> Value:
    """Attributes as a tensor of the type of x, the same for all plans."""

    def make() -> Value:
        value = cx.known(np.array(values, x.dtype.numpy))
        value.const = True
        return value

    return cx.derived((cx.node, name, x.dtype, np.shape(values)), (), make)


@op("Affine", elementwise=True)
@widened
def affine_1(cx: Context, x: Value, *, alpha: float = 1.0, beta: float = 0.0) -> Value:
    """alpha x + beta"""
    require(cx, x, FLOATS)
    y = binary.mul(cx, x, _constant(cx, "alpha", x, alpha))
    return binary.add(cx, y, _constant(cx, "beta", x, beta))


@op("Scale", elementwise=True)
@widened
def scale_1(cx: Context, x: Value, *, scale: float = 1.0) -> Value:
    """scale x"""
    require(cx, x, FLOATS)
    return binary.mul(cx, x, _constant(cx, "scale", x, scale))


def _scaled(cx: Context, function: Callable[[Context, Value], Value], x: Value, alpha: float, beta: float) -> Value:
    """alpha function(beta x)"""
    y = function(cx, binary.mul(cx, x, _constant(cx, "beta", x, beta)))
    return binary.mul(cx, y, _constant(cx, "alpha", x, alpha))


@op("ScaledTanh", elementwise=True)
@widened
def scaled_tanh(cx: Context, x: Value, *, alpha: float, beta: float) -> Value:
    """alpha tanh(beta x)"""
    require(cx, x, FLOATS)
    return _scaled(cx, activation.tanh, x, alpha, beta)


@op("ParametricSoftplus", elementwise=True)
@widened
def parametric_softplus(cx: Context, x: Value, *, alpha: float, beta: float) -> Value:
    """alpha log(1 + exp(beta x))"""
    require(cx, x, FLOATS)
    return _scaled(cx, activation.softplus, x, alpha, beta)


def _check_image(cx: Context, x: Value) -> None:
    if x.rank != 4:
        cx.fail(f"input must be [N, C, H, W], got {x!r}")


@op("ImageScaler")
@widened
def image_scaler(cx: Context, x: Value, *, bias: Sequence[float], scale: float = 1.0) -> Value:
    """scale x + bias[c] of x [N, C, H, W]"""
    require(cx, x, FLOATS)
    _check_image(cx, x)
    channels = x.shape[1]
    if len(bias) != channels:
        cx.fail(f"bias has {len(bias)} elements, {x!r} has {channels} channels")
    return affine(cx, x, _constant(cx, "scale", x, (scale,) * channels), _constant(cx, "bias", x, tuple(bias)))


@op("Crop")
def crop(cx: Context, x: Value, *, border: Sequence[int], scale: Sequence[int] | None = None) -> Value:
    """x [N, C, H, W] without ``border`` (left, top, right, bottom), or ``scale`` (height, width) from its corner on."""
    _check_image(cx, x)
    if len(border) != 4 or min(border) < 0 or (scale and (len(scale) != 2 or min(scale) < 0)):
        cx.fail(f"border {list(border)} must be four sizes, and scale {list(scale or ())} two")
    left, top, right, bottom = border
    height, width = x.shape[2:]
    low, high = (top + scale[0], left + scale[1]) if scale else (height - bottom, width - right)
    if not (top <= low <= height and left <= high <= width):
        cx.fail(f"rows {top} to {low} and columns {left} to {high} are not in {x!r}")
    return slice.pick(cx, x, [range(x.shape[0]), range(x.shape[1]), range(top, low), range(left, high)])


@op("DynamicSlice", host=("starts", "ends", "axes"), fold=slice.fold_slice)
def dynamic_slice(cx: Context, x: Value, starts: Array, ends: Array, axes: Array | None = None) -> Value:
    """Slice as it became in opset 10, without steps."""
    y: Value = slice.slice_(cx, x, starts, ends, axes)
    return y
