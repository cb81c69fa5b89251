"""Activation functions. On f32 the common ones fold into the record that computes their input."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..context import Array, Context, Value
from ..dtypes import BOOL, F32
from ..registry import op
from ._elementwise import FLOATS, NUMBERS, SIGNED, broadcast, flat, require, same_type
from ._shapes import broadcast_shape
from .fusion import Activation, fuse_activation

_FLT_MAX = 3.4028234663852886e38


def _activation(
    cx: Context, x: Value, kernel: str, act: Activation, alpha: float | None = None, beta: float | None = None
) -> Value:
    short = require(cx, x, FLOATS)
    if x.dtype is F32 and fuse_activation(cx, x, act, alpha or 0.0, beta or 0.0):
        return x
    args: dict[str, Any] = {k: v for k, v in (("alpha", alpha), ("beta", beta)) if v is not None}
    return flat(cx, f"{kernel}_{short}", x, **args)


@op("Relu", since=6, elementwise=True)
def relu(cx: Context, x: Value) -> Value:
    """max(x, 0)"""
    if x.dtype.short in SIGNED:
        return flat(cx, f"relu_{x.dtype.short}", x)
    return _activation(cx, x, "relu", Activation.RELU)


@op("LeakyRelu", since=6, elementwise=True)
def leaky_relu(cx: Context, x: Value, *, alpha: float = 0.01) -> Value:
    """x < 0 ? alpha x : x"""
    return _activation(cx, x, "leaky_relu", Activation.LEAKY_RELU, alpha)


@op("HardSigmoid", since=6, elementwise=True)
def hard_sigmoid(cx: Context, x: Value, *, alpha: float = 0.2, beta: float = 0.5) -> Value:
    """min(max(alpha x + beta, 0), 1)"""
    return _activation(cx, x, "hard_sigmoid", Activation.HARD_SIGMOID, alpha, beta)


@op("HardSwish", since=14, elementwise=True)
def hard_swish(cx: Context, x: Value) -> Value:
    """x min(max(x / 6 + 1 / 2, 0), 1); 1 / 6 is float32 for all types, as in the body that ONNX gives it."""
    short = require(cx, x, FLOATS)
    if x.dtype is F32 and fuse_activation(cx, x, Activation.HARD_SWISH, 1 / 6, 0.5):
        return x
    return flat(cx, f"hard_swish_{short}", x)


@op("Sigmoid", since=6, elementwise=True)
def sigmoid(cx: Context, x: Value) -> Value:
    """1 / (1 + e^-x)"""
    return _activation(cx, x, "sigmoid", Activation.SIGMOID)


@op("Tanh", since=6, elementwise=True)
def tanh(cx: Context, x: Value) -> Value:
    """The hyperbolic tangent."""
    return _activation(cx, x, "tanh", Activation.TANH)


@op("Elu", since=6, elementwise=True)
def elu(cx: Context, x: Value, *, alpha: float = 1.0) -> Value:
    """x < 0 ? alpha (e^x - 1) : x"""
    return _elu(cx, x, alpha, 1.0, 1.0)


@op("Selu", since=6, elementwise=True)
def selu(
    cx: Context, x: Value, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875
) -> Value:
    """gamma (x < 0 ? alpha (e^x - 1) : x)"""
    return _elu(cx, x, alpha * gamma, 1.0, gamma)


@op("Celu", since=12, elementwise=True)
def celu(cx: Context, x: Value, *, alpha: float = 1.0) -> Value:
    """x < 0 ? alpha (e^(x / alpha) - 1) : x"""
    if alpha == 0:
        cx.fail("alpha must not be 0")
    return _elu(cx, x, alpha, 1.0 / alpha, 1.0)


def _elu(cx: Context, x: Value, alpha: float, beta: float, gamma: float) -> Value:
    return flat(cx, f"elu_{require(cx, x, FLOATS)}", x, alpha=alpha, beta=beta, gamma=gamma)


@op("Softplus", since=1, elementwise=True)
def softplus(cx: Context, x: Value) -> Value:
    """ln(1 + e^x)"""
    return flat(cx, f"softplus_{require(cx, x, FLOATS)}", x)


@op("Softsign", since=1, elementwise=True)
def softsign(cx: Context, x: Value) -> Value:
    """x / (1 + |x|)"""
    return flat(cx, f"softsign_{require(cx, x, FLOATS)}", x)


@op("ThresholdedRelu", since=10, elementwise=True)
def thresholded_relu(cx: Context, x: Value, *, alpha: float = 1.0) -> Value:
    """x > alpha ? x : 0"""
    return flat(cx, f"thresholded_relu_{require(cx, x, FLOATS)}", x, alpha=alpha)


@op("Shrink", since=9, elementwise=True)
def shrink(cx: Context, x: Value, *, bias: float = 0.0, lambd: float = 0.5) -> Value:
    """x < -lambd ? x + bias : x > lambd ? x - bias : 0"""
    return flat(cx, f"shrink_{require(cx, x, NUMBERS)}", x, bias=bias, lambd=lambd)


@op("Gelu", since=20, elementwise=True)
def gelu(cx: Context, x: Value, *, approximate: str = "none") -> Value:
    """x / 2 (1 + erf(x / sqrt(2))), or its approximation by tanh."""
    if approximate not in ("none", "tanh"):
        cx.fail(f"approximate is {approximate!r}, must be 'none' or 'tanh'")
    return flat(cx, f"{'gelu' if approximate == 'none' else 'gelu_tanh'}_{require(cx, x, FLOATS)}", x)


@op("Mish", since=18, elementwise=True)
def mish(cx: Context, x: Value) -> Value:
    """x tanh(softplus(x))"""
    return flat(cx, f"mish_{require(cx, x, FLOATS)}", x)


@op("Swish", since=24, elementwise=True)
def swish(cx: Context, x: Value, *, alpha: float = 1.0) -> Value:
    """x sigmoid(alpha x)"""
    short = require(cx, x, FLOATS)
    if alpha == 1.0 and x.dtype is F32 and fuse_activation(cx, x, Activation.SILU):
        return x
    return flat(cx, f"swish_{short}", x, alpha=alpha)


@op("PRelu", since=7, elementwise=True)
def prelu(cx: Context, x: Value, slope: Value) -> Value:
    """x < 0 ? slope x : x, with a slope that broadcasts to x."""
    same_type(cx, x, slope)
    short = require(cx, x, FLOATS | {"i32", "i64", "u32", "u64"})
    if broadcast_shape(cx, x, slope) != x.shape:
        cx.fail(f"slope {list(slope.shape)} does not broadcast to {list(x.shape)}")
    if not x.dtype.is_float:
        if not x.dtype.is_signed:
            return cx.alias(x, x.shape)
        zero = cx.known(np.zeros((), x.dtype.numpy))
        negative, _ = broadcast(cx, f"less_{short}", "ab", (x, zero), BOOL)
        scaled, _ = broadcast(cx, f"mul_{short}", "ab", (x, slope), x.dtype, swaps=True)
        return broadcast(cx, f"where_{x.dtype.bits}", "cab", (negative, scaled, x), x.dtype)[0]
    return broadcast(cx, f"prelu_{short}", "ab", (x, slope), x.dtype)[0]


@op("Clip", since=6, elementwise=True)
def clip_6(cx: Context, x: Value, *, min: float = -_FLT_MAX, max: float = _FLT_MAX) -> Value:
    """Clip with the bounds as attributes."""
    # 16 bits do not hold the default bounds; without bounds the type's own hold.
    low, high = (
        None if x.dtype.bits == 16 and abs(v) >= _FLT_MAX else cx.known(np.array(v, x.dtype.numpy)) for v in (min, max)
    )
    return clip(cx, x, low, high)


def _clip_fold(x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    y = x if low is None else np.maximum(x, low)
    return np.asarray(y if high is None else np.minimum(y, high))


@op("Clip", since=11, fold=_clip_fold, elementwise=True)
def clip(cx: Context, x: Value, low: Value | None = None, high: Value | None = None) -> Value:
    """min(max(x, low), high); a bound that is not given is the type's lowest or highest finite number."""
    short = require(cx, x, NUMBERS)
    for name, bound in (("min", low), ("max", high)):
        if bound is not None and (bound.size != 1 or bound.dtype is not x.dtype):
            cx.fail(f"{name} must be a {x.dtype} scalar, got {bound}")
    if x.dtype is F32 and cx.fusable(x) is not None:
        alpha, beta = _bound(cx, low, -_FLT_MAX), _bound(cx, high, _FLT_MAX)
        if alpha is not None and beta is not None and fuse_activation(cx, x, Activation.CLIP, alpha, beta):
            return x
    return flat(cx, f"clip_{short}", x, low=low, high=high)


def _bound(cx: Context, value: Value | None, default: float) -> float | None:
    """A bound if the model fixes it."""
    if value is None:
        return default
    if value.known is None and not (value.const and value.source is not None):
        return None
    return float(cx.read(value).item())
