"""Comparisons, and the choice between two tensors by a third."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..context import Context, Value
from ..dtypes import BOOL, F64
from ..registry import op
from ._elementwise import NUMBERS, arrays, broadcast, require, same_type


def _compare(name: str, kernel: str, since: int, fold: Callable[..., Any], *, reverse: bool = False) -> None:
    @op(name, since=since, fold=arrays(fold))
    def lower(cx: Context, a: Value, b: Value) -> Value:
        same_type(cx, a, b)
        short = require(cx, a, NUMBERS | {"bool"})
        if kernel == "equal" and (short[0] == "u" or short == "bool"):
            short = f"i{a.dtype.bits}"
        elif short == "bool":
            short = "u8"
        operands = (b, a) if reverse else (a, b)
        swaps = kernel == "equal" and short not in ("f64", "i64")
        return broadcast(cx, f"{kernel}_{short}", "ab", operands, BOOL, swaps=swaps)[0]


_compare("Equal", "equal", 7, np.equal)
_compare("Less", "less", 7, np.less)
_compare("LessOrEqual", "less_equal", 12, np.less_equal)
_compare("Greater", "less", 7, np.greater, reverse=True)
_compare("GreaterOrEqual", "less_equal", 12, np.greater_equal, reverse=True)


@op("Where", since=9, fold=arrays(np.where))
def where(cx: Context, condition: Value, a: Value, b: Value) -> Value:
    """condition ? a : b"""
    require(cx, condition, frozenset({"bool"}))
    dtype = same_type(cx, a, b)
    if dtype.bits == 128:
        # As pairs of 64 bits.
        y = where(cx, cx.alias(condition, (*condition.shape, 1)), *(cx.alias(v, (*v.shape, 2), F64) for v in (a, b)))
        return cx.alias(y, y.shape[:-1], dtype)
    if dtype.bits not in (8, 16, 32, 64):
        cx.fail(f"type {dtype} is not supported")
    return broadcast(cx, f"where_{dtype.bits}", "cab", (condition, a, b), dtype)[0]
