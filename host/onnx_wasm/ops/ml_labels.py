"""Lookups from values to values: LabelEncoder and CategoryMapper. The host holds strings, so it looks them up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..context import Array, Context, HostView, Value
from ..dtypes import F32, F64, I16, I32, I64, STRING
from ..errors import UnsupportedModelError
from ..initializers import Initializer
from ..registry import op
from ._copy import only
from ._elementwise import cast
from ._ml import ML, table

_NUMBERS = (F32, F64, I16, I32, I64)


def _same(key: Any) -> Any:
    """A key as a dictionary wants it: every NaN is the same."""
    return "NaN" if isinstance(key, float) and key != key else key


def encode(cx: Context, x: Value, keys: Array, values: Array, default: Any) -> Value | HostView:
    """For each element of x the value beside it among the keys (the last of equal ones), or the default."""
    if len(keys) != len(values):
        cx.fail(f"{len(keys)} keys and {len(values)} values")
    if (x.dtype is STRING) != (keys.dtype == object):
        cx.fail(f"{x} and the keys must both be strings or both be numbers")
    mapping = {_same(k): v for k, v in zip(keys.tolist(), values, strict=True)}

    def look_up(contents: Array) -> Array:
        found = [mapping.get(_same(v), default) for v in contents.reshape(-1).tolist()]
        return np.array(found, values.dtype).reshape(contents.shape)

    if x.known is not None:
        return cx.known(look_up(x.known))
    if values.dtype == object:
        return HostView((x,), look_up)
    if x.dtype not in _NUMBERS:
        cx.fail(f"type {x.dtype} is not supported", UnsupportedModelError)
    wide = F64 if x.dtype.is_float else I64
    numbers = {k: v for k, v in mapping.items() if k != "NaN"}
    ordered = sorted(numbers)
    nan = len(ordered) + 1 if "NaN" in mapping else len(ordered)
    chosen = [*(numbers[k] for k in ordered), default, *([mapping["NaN"]] if "NaN" in mapping else [])]
    filled = table(cx, "values", lambda: np.array(chosen, values.dtype))
    y = cx.out(x.shape, filled.dtype)
    if y.size:
        cx.emit(
            f"ml_encode_{wide.short}_b{y.dtype.itemsize}",
            units=cx.chunks(x),
            x=cast(cx, x, wide),
            y=y,
            keys=table(cx, "keys", lambda: np.array(ordered, wide.numpy)) if ordered else None,
            values=filled,
            n=x.size,
            count=len(ordered),
            nan=nan,
        )
    return y


def _array(
    cx: Context,
    what: str,
    tensor: Initializer | None,
    strings: Sequence[str] | None,
    ints: Sequence[int] | None,
    numbers: Sequence[float] | None,
) -> Array:
    if tensor is not None:
        return tensor.array().reshape(-1)
    if strings is not None:
        return np.array(strings, object)
    if ints is not None:
        return np.array(ints, np.int64)
    if numbers is not None:
        return np.array(numbers, np.float32)
    cx.fail(f"has no {what}_ attribute")


@op("LabelEncoder", since=2, domain=ML)
def label_encoder(
    cx: Context,
    x: Value,
    *,
    default_float: float = -0.0,
    default_int64: int = -1,
    default_string: str = "_Unused",
    default_tensor: Initializer | None = None,
    keys_floats: Sequence[float] | None = None,
    keys_int64s: Sequence[int] | None = None,
    keys_strings: Sequence[str] | None = None,
    keys_tensor: Initializer | None = None,
    values_floats: Sequence[float] | None = None,
    values_int64s: Sequence[int] | None = None,
    values_strings: Sequence[str] | None = None,
    values_tensor: Initializer | None = None,
) -> Value | HostView:
    """Keys replaced by their values, everything else by the default."""
    keys = _array(cx, "keys", keys_tensor, keys_strings, keys_int64s, keys_floats)
    values = _array(cx, "values", values_tensor, values_strings, values_int64s, values_floats)
    default: Any
    if default_tensor is not None:
        default = only(cx, "default_tensor", default_tensor.array())
    elif values.dtype == object:
        default = default_string
    else:
        default = default_float if values.dtype.kind == "f" else default_int64
    return encode(cx, x, keys, values, default)


@op("LabelEncoder", domain=ML)
def label_encoder_1(
    cx: Context,
    x: Value,
    *,
    classes_strings: Sequence[str] = (),
    default_int64: int = -1,
    default_string: str = "_Unused",
) -> Value | HostView:
    """Strings to their places in a list, or places to strings."""
    strings, places = np.array(classes_strings, object), np.arange(len(classes_strings))
    if x.dtype is STRING:
        return encode(cx, x, strings, places, default_int64)
    return encode(cx, x, places, strings, default_string)


@op("CategoryMapper", domain=ML)
def category_mapper(
    cx: Context,
    x: Value,
    *,
    cats_int64s: Sequence[int] = (),
    cats_strings: Sequence[str] = (),
    default_int64: int = -1,
    default_string: str = "_Unused",
) -> Value | HostView:
    """Strings to integers, or integers to strings."""
    strings, integers = np.array(cats_strings, object), np.array(cats_int64s, np.int64)
    if x.dtype is STRING:
        return encode(cx, x, strings, integers, default_int64)
    return encode(cx, x, integers, strings, default_string)
