"""Conversions between types."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import dtypes
from ..context import Array, Context, HostView, Item, Quantized, Value
from ..dtypes import BOOL, F32, F64, I8, STRING, U8, DType
from ..errors import UnsupportedModelError
from ..registry import op
from . import _elementwise, _text
from ._elementwise import INTEGERS, NUMBERS
from ._narrow import ROUND_MODES, SMALL_FLOATS, SMALL_INTEGERS, decode, encode, pack, unpack

_PLAIN = NUMBERS | {"bool"}
_TYPES = _PLAIN | SMALL_FLOATS | SMALL_INTEGERS


def _target(cx: Context, to: int) -> DType:
    try:
        return dtypes.from_onnx(to)
    except ValueError as error:
        cx.fail(str(error), UnsupportedModelError)


def _fold(x: Array, *, to: int, saturate: int = 1, round_mode: str = "up") -> Any:
    """Integers, bools and strings only: a float is not shape arithmetic."""
    target = dtypes.from_onnx(to)
    if x.dtype == object:
        return x if target is STRING else _text.numbers(x, target) if target.short in _PLAIN else NotImplemented
    if target is STRING:
        return _text.decimals(x)
    if x.dtype.kind not in "iub" or not (target.short in INTEGERS or target is BOOL):
        return NotImplemented
    return x.astype(target.numpy)


def _cast_text(cx: Context, x: Value, target: DType, saturate: int, round_mode: str) -> Item:
    if x.known is not None and x.dtype is STRING:
        if target.short in _PLAIN or target is STRING:
            return cx.known(x.known if target is STRING else _text.numbers(x.known, target))
        return _cast_number(cx, cx.known(_text.numbers(x.known, F32)), target, saturate, round_mode)
    if x.dtype.short not in _PLAIN:
        x = _cast_number(cx, x, F32, saturate, round_mode)
    return HostView((x,), _text.decimals)


def _cast(cx: Context, x: Value, target: DType, saturate: int, round_mode: str) -> Item:
    if STRING in (x.dtype, target):
        return _cast_text(cx, x, target, saturate, round_mode)
    return _cast_number(cx, x, target, saturate, round_mode)


def _cast_number(cx: Context, x: Value, target: DType, saturate: int, round_mode: str) -> Value:
    if round_mode not in ROUND_MODES:
        cx.fail(f"round_mode {round_mode!r} is none of {', '.join(ROUND_MODES)}")
    _elementwise.require(cx, x, _TYPES)
    if target.short not in _TYPES:
        cx.fail(f"a cast from {x.dtype} to {target} is not supported", UnsupportedModelError)
    source = x.dtype
    if source is target:
        return cx.alias(x, x.shape)
    if source.short in SMALL_INTEGERS and target.is_integer and target.bits == source.bits:
        return cx.alias(x, x.shape, target)
    x = decode(cx, x) if source.short in SMALL_FLOATS else unpack(cx, x)
    if target.short in SMALL_FLOATS:
        x = x if x.dtype is F64 else _elementwise.cast(cx, x, F32)
        return encode(cx, x, target, bool(saturate), round_mode)
    if target.short in SMALL_INTEGERS:
        return pack(cx, _elementwise.cast(cx, x, U8), target)
    y = _elementwise.cast(cx, x, target)
    if source in (I8, U8) and target is F32 and x.const:
        y.quantized = Quantized(x)
    return cx.alias(x, x.shape) if y is x else y


@op("Cast", since=6, fold=_fold)
def cast(cx: Context, x: Value, *, to: int, saturate: int = 1, round_mode: str = "up") -> Item:
    """x in the type ``to``. ``saturate`` concerns 8-bit floats, ``round_mode`` powers of two."""
    return _cast(cx, x, _target(cx, to), saturate, round_mode)


@op("CastLike", since=15)
def cast_like(cx: Context, x: Value, like: Value, *, saturate: int = 1, round_mode: str = "up") -> Item:
    """x in the type of ``like``."""
    return _cast(cx, x, like.dtype, saturate, round_mode)


def _fold_bits(x: Array, *, to: int) -> Any:
    target = dtypes.from_onnx(to)
    if target.numpy is None or target.is_float or target.bits != 8 * x.itemsize:
        return NotImplemented
    return np.ascontiguousarray(x).view(target.numpy).reshape(x.shape)


@op("BitCast", since=26, fold=_fold_bits)
def bit_cast(cx: Context, x: Value, *, to: int) -> Value:
    """The same bits as elements of another type of the same width."""
    target = _target(cx, to)
    if target.bits != x.dtype.bits:
        cx.fail(f"{x.dtype} has {x.dtype.bits} bits, {target} has {target.bits}")
    return cx.alias(x, x.shape, target)
