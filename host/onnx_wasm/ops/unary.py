"""Ops of one tensor that are not activations: signs, roundings, roots, exponentials."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..context import CHUNK, Context, Value
from ..dtypes import BOOL
from ..registry import op
from ._elementwise import FLOATS, INTEGERS, NUMBERS, SIGNED, UNSIGNED, arrays, flat, require
from ._narrow import SMALL_FLOATS, decode


def _unary(name: str, kernel: str, types: frozenset[str], since: int, fold: Callable[..., Any] | None = None) -> None:
    @op(name, since=since, fold=fold, elementwise=True)
    def lower(cx: Context, x: Value) -> Value:
        return flat(cx, f"{kernel}_{require(cx, x, types)}", x)


_unary("Neg", "neg", FLOATS | SIGNED, 6, arrays(np.negative))
_unary("Sqrt", "sqrt", FLOATS, 6)
_unary("Reciprocal", "reciprocal", FLOATS, 6)
_unary("Floor", "floor", FLOATS, 6)
_unary("Ceil", "ceil", FLOATS, 6)
_unary("Round", "round", FLOATS, 11)
_unary("Sign", "sign", NUMBERS, 9, arrays(np.sign))
_unary("Exp", "exp", FLOATS, 6)
_unary("Log", "log", FLOATS, 6)
_unary("Erf", "erf", FLOATS, 9)
_unary("Sin", "sin", FLOATS, 7)
_unary("Cos", "cos", FLOATS, 7)
_unary("Tan", "tan", FLOATS, 7)
for _name in ("Asin", "Acos", "Atan"):
    _unary(_name, _name.lower(), FLOATS, 7)
for _name in ("Sinh", "Cosh", "Asinh", "Acosh", "Atanh"):
    _unary(_name, _name.lower(), FLOATS, 9)


@op("Abs", since=6, fold=arrays(np.abs), elementwise=True)
def abs_(cx: Context, x: Value) -> Value:
    """|x|; the smallest signed integer stays."""
    short = require(cx, x, NUMBERS)
    return cx.alias(x, x.shape) if short in UNSIGNED else flat(cx, f"abs_{short}", x)


@op("Not", since=1, fold=arrays(np.logical_not), elementwise=True)
def not_(cx: Context, x: Value) -> Value:
    """Logical not of bools."""
    require(cx, x, frozenset({"bool"}))
    return flat(cx, "not_bool", x)


@op("BitwiseNot", since=18, fold=arrays(np.invert))
def bitwise_not(cx: Context, x: Value) -> Value:
    """Every bit flipped."""
    require(cx, x, INTEGERS)
    y = cx.out(x.shape, x.dtype, reuse=(x,))
    if y.size:
        cx.emit("bitwise_not", units=-(-y.nbytes // CHUNK), x=x, y=y, n=y.nbytes)
    return y


def _decoded(cx: Context, x: Value) -> Value:
    return decode(cx, x) if x.dtype.short in SMALL_FLOATS else x


@op("IsNaN", since=9, elementwise=True)
def isnan(cx: Context, x: Value) -> Value:
    """Where x is not a number."""
    x = _decoded(cx, x)
    return flat(cx, f"isnan_{require(cx, x, FLOATS)}", x, BOOL)


@op("IsInf", since=10)
def isinf(cx: Context, x: Value, *, detect_negative: int = 1, detect_positive: int = 1) -> Value:
    """Where x is infinite."""
    x = _decoded(cx, x)
    short = require(cx, x, FLOATS)
    return flat(cx, f"isinf_{short}", x, BOOL, negative=int(detect_negative != 0), positive=int(detect_positive != 0))
