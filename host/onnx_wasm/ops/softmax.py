"""Softmax and LogSoftmax."""

from __future__ import annotations

import math

from ..context import Context, Value
from ..dtypes import F32, F64
from ..errors import UnsupportedModelError
from ..registry import op
from ._widen import widened
from .reduce import UNIT, normalize_axes


@op("Softmax", "LogSoftmax", since=13)
@widened
def softmax(cx: Context, x: Value, *, axis: int = -1) -> Value:
    """e^x over the sum of e^x along an axis, or its logarithm."""
    (axis,) = normalize_axes(cx, (axis,), x.rank)
    return softmax_over(cx, cx.node.op_type.lower(), x, x.shape[axis], math.prod(x.shape[axis + 1 :]))


@op("Softmax", "LogSoftmax", since=1)
@widened
def softmax_flat(cx: Context, x: Value, *, axis: int = 1) -> Value:
    """Softmax over all axes from ``axis`` on."""
    (axis,) = normalize_axes(cx, (axis,), x.rank)
    n = math.prod(x.shape[axis:])
    return softmax_over(cx, cx.node.op_type.lower(), x, n, 1)


def softmax_over(cx: Context, kernel: str, x: Value, n: int, inner: int) -> Value:
    """``softmax`` or ``logsoftmax`` over n elements that lie ``inner`` apart."""
    if x.dtype not in (F32, F64):
        cx.fail(f"has no form for {x.dtype}", UnsupportedModelError)
    y = cx.out(x.shape, x.dtype, reuse=(x,))
    if y.size == 0:
        return y
    if inner == 1:
        per = max(1, UNIT // 4 // n)
        rows = x.size // n
        cx.emit(f"{kernel}_{x.dtype.short}_last", units=-(-rows // per), x=x, y=y, n=n, rows=rows, per=per)
    else:
        block = min(inner, max(64, UNIT // 4 // n & ~63))
        units = x.size // (n * inner) * -(-inner // block)
        cx.emit(f"{kernel}_{x.dtype.short}_mid", units=units, x=x, y=y, n=n, inner=inner, block=block)
    return y
