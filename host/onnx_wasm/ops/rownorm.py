"""Normalisations of rows: over trailing axes, over any axes, over neighbouring channels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from ..context import Context, Value
from ..dtypes import from_onnx
from ..registry import op
from ._copy import wanted
from ._elementwise import cast
from ._widen import as_type, wide, wide_type, widened
from .binary import add, mul
from .norm import check_float
from .reduce import UNIT, dim_words, group, normalize_axes


# In the standard from 17 on; onnxruntime writes it into models of older opsets when it saves them optimised.
@op("LayerNormalization")
def layer_normalization(
    cx: Context,
    x: Value,
    scale: Value,
    bias: Value | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> tuple[Value | None, ...]:
    """All axes from ``axis`` on normalised together, and the mean and 1 / standard deviation, in the type
    ``stash_type``, if they are wanted. Computed in f32 at least."""
    y, *statistics = _normalize(cx, "layernorm", x, scale, bias, axis, epsilon)
    stash = from_onnx(stash_type)
    return cast(cx, y, x.dtype), *(None if v is None else cast(cx, v, stash) for v in statistics)


@op("RMSNormalization", since=23)
def rms_normalization(
    cx: Context, x: Value, scale: Value, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Value:
    """All axes from ``axis`` on divided by the root of their mean square, in the type of ``scale``."""
    y, *_ = _normalize(cx, "rmsnorm", x, scale, None, axis, epsilon)
    return cast(cx, y, scale.dtype)


def _normalize(
    cx: Context, family: str, x: Value, scale: Value, bias: Value | None, axis: int, epsilon: float
) -> tuple[Value, Value | None, Value | None]:
    check_float(cx, x, *(p for p in (scale, bias) if p is not None))
    (axis,) = normalize_axes(cx, (axis,), x.rank)
    x, scale = wide(cx, x), as_type(cx, scale, wide_type(x))
    bias = None if bias is None else as_type(cx, bias, x.dtype)
    # The kernel reads a dense row of the normalised elements; leading ones do not matter.
    dense = True
    for name, p in (("scale", scale), ("bias", bias)):
        if (
            p is None
            or p.shape == x.shape[axis:]
            or (p.rank <= x.rank and _trimmed(p.shape) == _trimmed(x.shape[axis:]))
        ):
            continue
        dense = False
        if p.rank > x.rank or any(d not in (1, n) for d, n in zip(p.shape[::-1], x.shape[::-1], strict=False)):
            cx.fail(f"{name} is {p}, must have shape {list(x.shape[axis:])} or broadcast to {x}")
    y = cx.out(x.shape, x.dtype, reuse=(x,))
    mean = factor = None
    if family == "layernorm" and len(cx.node.outputs) > 1:
        statistics = [1 if a >= axis else d for a, d in enumerate(x.shape)]
        mean, factor = (cx.out(statistics, x.dtype) if wanted(cx, i) else None for i in (1, 2))
    if y.size:
        n = math.prod(x.shape[axis:])
        rows = x.size // n
        per = max(1, UNIT // 2 // n)
        cx.emit(
            f"{family}_{x.dtype.short}",
            units=-(-rows // per),
            x=x,
            y=y,
            scale=scale if dense else None,
            bias=bias if dense else None,
            mean=mean,
            factor=factor,
            n=n,
            rows=rows,
            per=per,
            epsilon=epsilon,
        )
        if not dense:
            y = mul(cx, y, scale)
            y = y if bias is None else add(cx, y, bias)
    return y, mean, factor


def _trimmed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(itertools.dropwhile(lambda d: d == 1, shape))


@op("MeanVarianceNormalization")
@widened
def mean_variance_normalization(cx: Context, x: Value, *, axes: Sequence[int] = (0, 2, 3)) -> Value:
    """(x - mean) / (standard deviation + 1e-9) over some axes."""
    check_float(cx, x)
    over = normalize_axes(cx, axes, x.rank)
    y = cx.out(x.shape, x.dtype, reuse=(x,))
    if y.size:
        groups = group(x.shape, over)
        reduced = groups.reduced or [(1, 1)]
        n, outer = (reduced[0][0], reduced[1:]) if groups.last else (1, reduced)
        kept = math.prod(size for size, _ in groups.kept)
        cx.emit(
            f"mvn_{x.dtype.short}",
            units=kept,
            x=x,
            y=y,
            n=n,
            runs=x.size // kept // n,
            kept=dim_words(groups.kept, x.dtype.itemsize),
            reduced=dim_words(outer, x.dtype.itemsize),
        )
    return y


@op("LpNormalization")
@widened
def lp_normalization(cx: Context, x: Value, *, axis: int = -1, p: int = 2) -> Value:
    """x over its p-norm along an axis, p being 1 or 2."""
    check_float(cx, x)
    (axis,) = normalize_axes(cx, (axis,), x.rank)
    if p not in (1, 2):
        cx.fail(f"p is {p}, must be 1 or 2")
    y = cx.out(x.shape, x.dtype, reuse=(x,))
    if y.size:
        n, inner = x.shape[axis], math.prod(x.shape[axis + 1 :])
        cx.emit(f"lpnorm_{x.dtype.short}", units=x.size // (n * inner), x=x, y=y, n=n, inner=inner, p=p)
    return y


@op("LRN")
@widened
def lrn(cx: Context, x: Value, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Value:
    """x over (bias + alpha / size * sum of squares of neighbouring channels) ^ beta."""
    check_float(cx, x)
    if x.rank < 2:
        cx.fail(f"{x} must have a batch and a channel dimension")
    if size < 1:
        cx.fail(f"size is {size}, must be positive")
    y = cx.out(x.shape, x.dtype)
    if y.size:
        cx.emit(
            f"lrn_{x.dtype.short}",
            units=x.shape[0] * x.shape[1],
            x=x,
            y=y,
            n=math.prod(x.shape[2:]),
            channels=x.shape[1],
            before=(size - 1) // 2,
            after=size // 2,
            alpha=alpha / size,
            beta=beta,
            bias=bias,
        )
    return y
