"""16-bit floats for ops that have kernels for f32: converted before and after."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from ..context import Context, Value
from ..dtypes import BF16, F16, F32, DType
from ..errors import UnsupportedModelError
from ._elementwise import cast

Function = TypeVar("Function", bound=Callable[..., Any])


def widened(function: Function) -> Function:
    """The op with 16-bit floats computed as f32: inputs of the first one's type are converted, and results back."""

    @functools.wraps(function)
    def op(cx: Context, x: Value, *args: Any, **attributes: Any) -> Any:
        narrow = x.dtype
        if narrow is not F16 and narrow is not BF16:
            return function(cx, x, *args, **attributes)
        others = [wide(cx, a) if isinstance(a, Value) and a.dtype is narrow else a for a in args]
        result = function(cx, cast(cx, x, F32), *others, **attributes)
        if isinstance(result, tuple):
            return tuple(_narrow(cx, y, narrow) for y in result)
        return _narrow(cx, result, narrow)

    return op  # type: ignore[return-value]


def only_floats(cx: Context, *values: Value | None) -> None:
    """Demand floats of 32 or 16 bits, of those that are given."""
    for x in values:
        if x is not None and x.dtype not in (F32, F16, BF16):
            cx.fail(f"{x} must be float32, float16 or bfloat16", UnsupportedModelError)


def only_f32(cx: Context, *values: Value | None) -> None:
    """Demand f32, once those of the first input's type are ``widened``, of those that are given."""
    for x in values:
        if x is not None and x.dtype is not F32:
            cx.fail(f"{x} must be a float of the first input's type", UnsupportedModelError)


def wide_type(x: Value) -> DType:
    """The type in which an op on x is computed."""
    return F32 if x.dtype is F16 or x.dtype is BF16 else x.dtype


def wide(cx: Context, x: Value) -> Value:
    """x in its ``wide_type``; a constant once for the session."""
    return as_type(cx, x, wide_type(x))


def as_type(cx: Context, x: Value, to: DType) -> Value:
    """x in a number type; a constant once for the session."""
    return x if x.dtype is to else cx.derived(("as_type", to), (x,), lambda: cast(cx, x, to))


def _narrow(cx: Context, y: Value | None, to: DType) -> Value | None:
    return cast(cx, y, to) if y is not None and y.dtype is F32 else y
