"""Normalisations of channels, and the affine map over channels that BatchNormalization is at inference."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

from ..context import Context, Value
from ..dtypes import F32
from ..errors import UnsupportedModelError
from ..registry import op
from ._elementwise import FLOATS, cast
from ._widen import as_type, wide_type, widened
from .fusion import Activation, fuse_affine
from .training import batch_statistics

Function = TypeVar("Function", bound=Callable[..., Any])


def check_float(cx: Context, *values: Value) -> None:
    """Fail unless all are floats of a kind that there are kernels or conversions for."""
    for x in values:
        if x.dtype.short not in FLOATS:
            cx.fail(f"has no form for {x.dtype}", UnsupportedModelError)


def _in_type_of_x(function: Function) -> Function:
    """A BatchNormalization whose parameters may have other types than x: computed in that of x, f32 at least. The
    running mean and variance keep theirs."""

    @functools.wraps(function)
    def op(cx: Context, x: Value, *parameters: Value, **attributes: Any) -> Any:
        check_float(cx, x, *parameters)
        to = wide_type(x)
        result = function(cx, as_type(cx, x, to), *(as_type(cx, p, to) for p in parameters), **attributes)
        if not isinstance(result, tuple):
            return cast(cx, result, x.dtype)
        y, *running = result
        return cast(cx, y, x.dtype), *(None if v is None else cast(cx, v, parameters[2].dtype) for v in running)

    return op  # type: ignore[return-value]


def _check_parameters(cx: Context, x: Value, shape: tuple[int, ...], **parameters: Value | None) -> None:
    for name, value in parameters.items():
        if value is None:
            continue
        if value.shape != shape:
            cx.fail(f"{name} is {value}, must have shape {list(shape)}")
        if value.dtype != x.dtype:
            cx.fail(f"{name} is {value}, must have the type of {x}", UnsupportedModelError)


def affine(cx: Context, x: Value, scale: Value, shift: Value) -> Value:
    """x * scale[c] + shift[c] over channels (axis 1), folded into the record that computes x if that can be."""
    if scale.const and shift.const and fuse_affine(cx, x, scale, shift):
        return x
    y = cx.out(x.shape, x.dtype, reuse=(x,))
    if y.size == 0:
        return y
    n = math.prod(x.shape[2:])
    short = x.dtype.short
    args: dict[str, Any] = {"x": x, "y": y, "scale": scale, "shift": shift}
    activation: dict[str, Any] = {"act": int(Activation.NONE), "alpha": 0.0, "beta": 0.0} if x.dtype is F32 else {}
    if n == 1:
        record = cx.emit(f"affine_{short}_last", units=x.shape[0], **args, channels=x.shape[1], **activation)
    else:
        units = x.shape[0] * x.shape[1]
        record = cx.emit(f"affine_{short}", units=units, **args, n=n, channels=x.shape[1], **activation)
    if scale.const and shift.const:
        record.affine = lambda s, t: _compose(cx, record.args, s, t)
    y.producer = record
    return y


def _compose(cx: Context, args: dict[str, Any], scale: Value | None, shift: Value | None) -> bool:
    first: tuple[Value, Value] = (args["scale"], args["shift"])
    present = [v for v in (scale, shift) if v is not None]
    if not present or any(v.dtype != first[0].dtype or v.shape != first[0].shape for v in present):
        return not present
    short = first[0].dtype.short

    def make() -> tuple[Value, Value]:
        s, t = (cx.out(first[0].shape, first[0].dtype) for _ in range(2))
        cx.emit(f"affine_compose_{short}", s1=first[0], t1=first[1], s2=scale, t2=shift, s=s, t=t, n=s.size)
        return s, t

    key = f"affine_compose {scale is not None} {shift is not None}"
    args["scale"], args["shift"] = cx.derived(key, (*first, *present), make)
    return True


def _batchnorm(cx: Context, x: Value, scale: Value, bias: Value, mean: Value, var: Value, epsilon: float) -> Value:
    check_float(cx, x)
    channels = x.shape[1] if x.rank > 1 else 1
    _check_parameters(cx, x, (channels,), scale=scale, bias=bias, mean=mean, var=var)
    if x.rank > 1:
        return _normalize_channels(cx, x, scale, bias, mean, var, epsilon)
    return cx.alias(_normalize_channels(cx, cx.alias(x, (x.size, 1)), scale, bias, mean, var, epsilon), x.shape)


def _normalize_channels(
    cx: Context, x: Value, scale: Value, bias: Value, mean: Value, var: Value, epsilon: float
) -> Value:
    channels = x.shape[1]

    def make() -> tuple[Value, Value]:
        s, t = (cx.out((channels,), x.dtype) for _ in range(2))
        cx.emit(
            f"batchnorm_fold_{x.dtype.short}",
            scale=scale,
            bias=bias,
            mean=mean,
            var=var,
            s=s,
            t=t,
            n=channels,
            epsilon=epsilon,
        )
        return s, t

    s, t = cx.derived(f"batchnorm {epsilon!r}", (scale, bias, mean, var), make)
    return affine(cx, x, s, t)


@op("BatchNormalization", since=14)
@_in_type_of_x
def batchnorm(
    cx: Context,
    x: Value,
    scale: Value,
    bias: Value,
    mean: Value,
    var: Value,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> Value | tuple[Value, Value, Value]:
    """(x - mean) / sqrt(var + epsilon) * scale + bias over channels. In training mode the mean and variance are those
    of x, and move the running ones, which are the further outputs."""
    if not training_mode:
        return _batchnorm(cx, x, scale, bias, mean, var, epsilon)
    check_float(cx, x)
    if x.rank < 2:
        cx.fail(f"{x} must have a batch and a channel dimension")
    _check_parameters(cx, x, (x.shape[1],), scale=scale, bias=bias, mean=mean, var=var)
    mean, var, new_mean, new_var = batch_statistics(cx, x, mean, var, momentum)
    return _normalize_channels(cx, x, scale, bias, mean, var, epsilon), new_mean, new_var


@op("BatchNormalization", since=7)
@_in_type_of_x
def batchnorm_7(
    cx: Context,
    x: Value,
    scale: Value,
    bias: Value,
    mean: Value,
    var: Value,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    spatial: int = 1,
) -> Value:
    """Opset 7 to 13; unless ``spatial``, every element of an item is a channel of its own. The outputs after the first
    belong to training, but exporters list them."""
    if spatial:
        return _batchnorm(cx, x, scale, bias, mean, var, epsilon)
    _check_parameters(cx, x, x.shape[1:], scale=scale, bias=bias, mean=mean, var=var)
    n = math.prod(x.shape[1:])
    scale, bias, mean, var = (cx.alias(p, (n,)) for p in (scale, bias, mean, var))
    return cx.alias(_batchnorm(cx, cx.alias(x, (x.shape[0], n)), scale, bias, mean, var, epsilon), x.shape)


def _group_normalization(
    cx: Context, x: Value, scale: Value, bias: Value, groups: int, share: int, epsilon: float
) -> Value:
    y = cx.out(x.shape, x.dtype, reuse=(x,))
    if y.size:
        n = math.prod(x.shape[2:])
        cx.emit(
            f"groupnorm_{x.dtype.short}",
            units=x.shape[0] * groups,
            x=x,
            y=y,
            scale=scale,
            bias=bias,
            n=n,
            groups=groups,
            per=x.shape[1] // groups,
            share=share,
            epsilon=epsilon,
        )
    return y


@op("InstanceNormalization", since=6)
@widened
def instance_normalization(cx: Context, x: Value, scale: Value, bias: Value, *, epsilon: float = 1e-5) -> Value:
    """Each channel of each item normalised by its own mean and variance."""
    check_float(cx, x)
    if x.rank < 2:
        cx.fail(f"{x} must have a batch and a channel dimension")
    _check_parameters(cx, x, (x.shape[1],), scale=scale, bias=bias)
    return _group_normalization(cx, x, scale, bias, x.shape[1], 1, epsilon)


def _group_checked(
    cx: Context, x: Value, scale: Value, bias: Value, groups: int, epsilon: float, by_group: bool
) -> Value:
    check_float(cx, x)
    if x.rank < 2:
        cx.fail(f"{x} must have a batch and a channel dimension")
    if groups < 1 or x.shape[1] % groups:
        cx.fail(f"num_groups {groups} must divide the {x.shape[1]} channels of {x}")
    _check_parameters(cx, x, (groups if by_group else x.shape[1],), scale=scale, bias=bias)
    return _group_normalization(cx, x, scale, bias, groups, x.shape[1] // groups if by_group else 1, epsilon)


@op("GroupNormalization", since=18)
@widened
def group_normalization_18(
    cx: Context, x: Value, scale: Value, bias: Value, *, num_groups: int, epsilon: float = 1e-5
) -> Value:
    """Groups of channels normalised together; scale and bias for each group."""
    return _group_checked(cx, x, scale, bias, num_groups, epsilon, by_group=True)


@op("GroupNormalization", since=21)
@widened
def group_normalization(
    cx: Context,
    x: Value,
    scale: Value,
    bias: Value,
    *,
    num_groups: int,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Value:
    """Groups of channels normalised together; scale and bias for each channel."""
    return _group_checked(cx, x, scale, bias, num_groups, epsilon, by_group=False)
