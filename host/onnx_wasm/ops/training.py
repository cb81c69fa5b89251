"""Losses, steps of optimizers, and statistics of batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..context import Context, Value
from ..dtypes import BF16, F16, F32, F64, I32, I64, DType
from ..errors import UnsupportedModelError
from ..registry import op
from ..words import counted
from ._copy import wanted
from ._elementwise import FLOATS, cast, require
from .softmax import softmax_over

_TRAINING = "ai.onnx.preview.training"


def _loss(
    cx: Context, x: Value, labels: Value, weights: Value | None, ignore_index: int | None, reduction: str
) -> Value:
    require(cx, x, FLOATS)
    if x.rank < 2 or labels.shape != (x.shape[0], *x.shape[2:]):
        cx.fail(f"{x} has shape [batch, classes, ...], so labels {labels} must have the same without classes")
    if labels.dtype not in (I32, I64):
        cx.fail(f"labels {labels} must be int32 or int64", UnsupportedModelError)
    if weights is not None and (weights.shape != (x.shape[1],) or weights.dtype is not x.dtype):
        cx.fail(f"weights {weights} must have a {x.dtype} for each of {x.shape[1]} classes")
    if reduction not in ("none", "sum", "mean"):
        cx.fail(f"reduction {reduction!r} must be 'none', 'sum' or 'mean'")
    n = labels.size
    y = cx.out(labels.shape if reduction == "none" else (), x.dtype)
    if not y.size:
        return y
    each = reduction == "none"
    cx.emit(
        f"loss_{'each' if each else 'total'}_{x.dtype.short}",
        units=cx.chunks(labels) if each else 1,
        x=x,
        labels=labels,
        weights=weights,
        y=y,
        n=n,
        classes=x.shape[1],
        inner=max(1, math.prod(x.shape[2:])),
        wide=int(labels.dtype is I64),
        ignores=int(ignore_index is not None),
        ignored=ignore_index or 0,
        mean=int(reduction == "mean"),
    )
    return y


@op("NegativeLogLikelihoodLoss", since=12)
def nll_loss(
    cx: Context,
    x: Value,
    target: Value,
    weight: Value | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Value:
    """Minus the logarithm that x gives for the labelled class, weighted by class."""
    return _loss(cx, x, target, weight, ignore_index, reduction)


@op("SoftmaxCrossEntropyLoss", since=12)
def softmax_cross_entropy(
    cx: Context,
    scores: Value,
    labels: Value,
    weights: Value | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> tuple[Value, Value]:
    """The same of the logarithm of the softmax of scores, and that logarithm."""
    require(cx, scores, FLOATS)
    if scores.rank < 2:
        cx.fail(f"{scores} must have a batch and a class axis")
    small = scores.dtype in (F16, BF16)
    x = cast(cx, scores, F32) if small else scores
    logs = softmax_over(cx, "logsoftmax", x, x.shape[1], math.prod(x.shape[2:]))
    if small:
        logs = cast(cx, logs, scores.dtype)
    if wanted(cx, 1):
        # It is read here, and by what follows.
        logs.uses = max(logs.uses, 2)
    return _loss(cx, logs, labels, weights, ignore_index, reduction), logs


def batch_statistics(
    cx: Context, x: Value, mean: Value, var: Value, momentum: float
) -> tuple[Value, Value, Value, Value]:
    """Mean and variance of each channel (axis 1) of x, and the given running ones moved towards them."""
    channels, n = x.shape[1], math.prod(x.shape[2:])
    results = [cx.out((channels,), x.dtype) for _ in range(4)]
    if not x.size:
        cx.fail(f"{x} has no elements to take the mean of")
    cx.emit(
        f"batch_statistics_{x.dtype.short}",
        units=channels,
        x=x,
        mean=results[0],
        var=results[1],
        old_mean=mean,
        old_var=var,
        new_mean=results[2],
        new_var=results[3],
        batch=x.shape[0],
        channels=channels,
        n=n,
        momentum=momentum,
    )
    return results[0], results[1], results[2], results[3]


def _groups(cx: Context, rate: Value, count: Value, tensors: Sequence[Value], per: int) -> list[tuple[Value, ...]]:
    """The tensors of each parameter: it, its gradient, its states."""
    if rate.dtype not in (F32, F64) or rate.size != 1 or count.dtype is not I64 or count.size != 1:
        cx.fail(f"the rate {rate} must be one float, the update count {count} one int64")
    if not tensors or len(tensors) % per:
        cx.fail(f"{counted(len(tensors), 'tensor')}, needs {per} for each parameter")
    m = len(tensors) // per
    groups = [tuple(tensors[i + k * m] for k in range(per)) for i in range(m)]
    for group in groups:
        x = group[0]
        if x.dtype not in (F32, F64) or any(t.shape != x.shape or t.dtype is not x.dtype for t in group):
            cx.fail(f"{', '.join(map(repr, group))} must have one shape and float type")
    return groups


def _transposed(results: Sequence[tuple[Value, ...]]) -> tuple[Value, ...]:
    return tuple(v for kind in zip(*results, strict=True) for v in kind)


def _new(cx: Context, shape: Sequence[int], dtype: DType, count: int) -> tuple[Value, ...]:
    return tuple(cx.out(shape, dtype) for _ in range(count))


def _step(
    cx: Context, family: str, rate: Value, count: Value, tensors: Sequence[Value], **constants: Any
) -> tuple[Value, ...]:
    """One step of an optimizer that keeps one tensor of state for each parameter."""
    results = []
    for x, g, h in _groups(cx, rate, count, tensors, 3):
        x_new, h_new = _new(cx, x.shape, x.dtype, 2)
        if x.size:
            cx.emit(
                f"{family}_{x.dtype.short}",
                units=cx.chunks(x),
                rate=rate,
                count=count,
                x=x,
                g=g,
                h=h,
                x_new=x_new,
                h_new=h_new,
                n=x.size,
                rate_wide=int(rate.dtype is F64),
                **constants,
            )
        results.append((x_new, h_new))
    return _transposed(results)


@op("Adagrad", domain=_TRAINING)
def adagrad(
    cx: Context,
    rate: Value,
    count: Value,
    *tensors: Value,
    decay_factor: float = 0.0,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
) -> tuple[Value, ...]:
    """One step of Adagrad on each parameter: the new parameters, then the new sums of squared gradients."""
    return _step(cx, "adagrad", rate, count, tensors, norm=norm_coefficient, decay=decay_factor, epsilon=epsilon)


@op("Momentum", domain=_TRAINING)
def momentum(
    cx: Context,
    rate: Value,
    count: Value,
    *tensors: Value,
    alpha: float,
    beta: float,
    mode: str,
    norm_coefficient: float,
) -> tuple[Value, ...]:
    """One step with momentum on each parameter: the new parameters, then the new momenta."""
    if mode not in ("nesterov", "standard"):
        cx.fail(f"mode {mode!r} must be 'nesterov' or 'standard'")
    return _step(
        cx,
        "momentum",
        rate,
        count,
        tensors,
        nesterov=int(mode == "nesterov"),
        norm=norm_coefficient,
        alpha=alpha,
        beta=beta,
    )


@op("Adam", domain=_TRAINING)
def adam(
    cx: Context,
    rate: Value,
    count: Value,
    *tensors: Value,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> tuple[Value, ...]:
    """One step of Adam on each parameter: the new parameters, then the new means of gradients and of their squares."""
    results = []
    for x, g, m, h in _groups(cx, rate, count, tensors, 4):
        x_new, m_new, h_new = _new(cx, x.shape, x.dtype, 3)
        if x.size:
            cx.emit(
                f"adam_{x.dtype.short}",
                units=cx.chunks(x),
                rate=rate,
                count=count,
                x=x,
                g=g,
                m=m,
                h=h,
                x_new=x_new,
                m_new=m_new,
                h_new=h_new,
                n=x.size,
                rate_wide=int(rate.dtype is F64),
                norm=norm_coefficient,
                post=norm_coefficient_post,
                alpha=alpha,
                beta=beta,
                epsilon=epsilon,
            )
        results.append((x_new, m_new, h_new))
    return _transposed(results)
