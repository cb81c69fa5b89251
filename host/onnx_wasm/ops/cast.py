"""Conversions between number types."""

from __future__ import annotations

from typing import Any

from .. import dtypes
from ..context import Array, Context, Value
from ..dtypes import BOOL, DType
from ..errors import UnsupportedModelError
from ..registry import op
from . import _elementwise
from ._elementwise import INTEGERS, NUMBERS

_TYPES = NUMBERS | {"bool"}


def _target(cx: Context, to: int) -> DType:
    try:
        return dtypes.from_onnx(to)
    except ValueError as error:
        cx.fail(str(error), UnsupportedModelError)


def _fold(x: Array, *, to: int, saturate: int = 1, round_mode: str = "up") -> Any:
    """Integers and bools only: a float is not shape arithmetic."""
    target = dtypes.from_onnx(to)
    if x.dtype.kind not in "iub" or not (target.short in INTEGERS or target is BOOL):
        return NotImplemented
    return x.astype(target.numpy)


def _cast(cx: Context, x: Value, target: DType) -> Value:
    _elementwise.require(cx, x, _TYPES)
    if target.short not in _TYPES:
        cx.fail(f"a cast from {x.dtype} to {target} is not supported", UnsupportedModelError)
    y = _elementwise.cast(cx, x, target)
    return cx.alias(x, x.shape) if y is x else y


@op("Cast", since=6, fold=_fold)
def cast(cx: Context, x: Value, *, to: int, saturate: int = 1, round_mode: str = "up") -> Value:
    """x in the type ``to``. The other attributes only concern 8-bit floats."""
    return _cast(cx, x, _target(cx, to))


@op("CastLike", since=15)
def cast_like(cx: Context, x: Value, like: Value, *, saturate: int = 1, round_mode: str = "up") -> Value:
    """x in the type of ``like``."""
    return _cast(cx, x, like.dtype)
