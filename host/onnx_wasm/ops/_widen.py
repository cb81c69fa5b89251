"""16-bit floats for ops that have kernels for f32: converted before and after."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from ..context import Context, Value
from ..dtypes import BF16, F16, F32, DType
from ._elementwise import cast

Function = TypeVar("Function", bound=Callable[..., Any])


def widened(function: Function) -> Function:
    """The op with 16-bit floats computed as f32: inputs of the first one's type are converted, and results back."""

    @functools.wraps(function)
    def op(cx: Context, x: Value, *args: Any, **attributes: Any) -> Any:
        narrow = x.dtype
        if narrow is not F16 and narrow is not BF16:
            return function(cx, x, *args, **attributes)
        others = [_wide(cx, a) if isinstance(a, Value) and a.dtype is narrow else a for a in args]
        result = function(cx, cast(cx, x, F32), *others, **attributes)
        if isinstance(result, tuple):
            return tuple(_narrow(cx, y, narrow) for y in result)
        return _narrow(cx, result, narrow)

    return op  # type: ignore[return-value]


def _wide(cx: Context, x: Value) -> Value:
    return cx.derived("widened", (x,), lambda: cast(cx, x, F32))


def _narrow(cx: Context, y: Value | None, to: DType) -> Value | None:
    return cast(cx, y, to) if y is not None and y.dtype is F32 else y
