"""Elements narrower than a byte, and floats of 8 bits and fewer: as bytes and as f32, and back.

They are packed in the heap. What moves or computes takes them as one byte an element; kernels of other types never see
them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from ..context import Context, Value
from ..dtypes import F32, F64, I8, U8, DType
from . import _elementwise

Function = TypeVar("Function", bound=Callable[..., Any])

SMALL_FLOATS = frozenset({"f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz", "f8e8m0", "f6e2m3", "f6e3m2", "f4e2m1"})
SMALL_INTEGERS = frozenset({"i4", "u4", "i2", "u2"})
ROUND_MODES = {"up": 0, "down": 1, "nearest": 2}
"""How a float becomes a power of two, f8e8m0."""


def unpack(cx: Context, x: Value) -> Value:
    """One byte an element; floats as their codes."""
    if x.dtype.bits >= 8:
        return x
    signed = x.dtype.short[0] == "i"
    y = cx.out(x.shape, I8 if signed else U8)
    if y.size:
        kernel = f"narrow_unpack_{'i' if signed else 'u'}{x.dtype.bits}"
        cx.emit(kernel, units=cx.chunks(y), x=x, y=y, n=y.size)
    return y


def pack(cx: Context, x: Value, dtype: DType) -> Value:
    """The low bits of bytes as elements of a narrower type."""
    y = cx.out(x.shape, dtype)
    if y.size:
        cx.emit(f"narrow_pack_{dtype.bits}", units=cx.chunks(x), x=x, y=y, n=x.size)
    return y


def decode(cx: Context, x: Value) -> Value:
    """A small float in f32."""
    return _elementwise.flat(cx, f"narrow_decode_{x.dtype.short}", unpack(cx, x), F32)


def encode(cx: Context, x: Value, dtype: DType, saturate: bool, round_mode: str = "up") -> Value:
    """f32 or f64 as a small float, rounded once."""
    if x.dtype is F64:
        x = _elementwise.flat(cx, "round_odd_f64_f32", x, F32)
    kernel, mode = f"narrow_encode_{dtype.short}", int(saturate)
    if dtype.bits < 8:
        return pack(cx, _elementwise.flat(cx, kernel, x, U8, saturate=1), dtype)
    if dtype.short == "f8e8m0":
        return _elementwise.flat(cx, kernel, x, dtype, saturate=mode, rounding=ROUND_MODES[round_mode])
    return _elementwise.flat(cx, kernel, x, dtype, saturate=mode)


def by_bytes(function: Function) -> Function:
    """An op that only moves elements, for types below 8 bits: the inputs of such a type are unpacked, and what comes
    out as bytes is packed."""

    @functools.wraps(function)
    def op(cx: Context, *args: Any, **attributes: Any) -> Any:
        for arg in args:
            if isinstance(arg, Value) and 0 < arg.dtype.bits < 8:
                narrow = arg.dtype
                break
        else:
            return function(cx, *args, **attributes)
        wide = [_unpacked(cx, a) if isinstance(a, Value) and a.dtype is narrow else a for a in args]
        result = function(cx, *wide, **attributes)
        if isinstance(result, tuple):
            return tuple(None if y is None else pack(cx, y, narrow) for y in result)
        return pack(cx, result, narrow)

    return op  # type: ignore[return-value]


def _unpacked(cx: Context, x: Value) -> Value:
    return cx.derived("unpacked", (x,), lambda: unpack(cx, x))
