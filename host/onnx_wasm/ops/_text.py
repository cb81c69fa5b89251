"""Strings and numbers, and the pattern language of RE2, which ONNX's patterns are written in."""

from __future__ import annotations

import functools
import re
from typing import Any

import numpy as np

from ..context import Array
from ..dtypes import DType

_CLASSES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "ascii": r"\x00-\x7f",
    "blank": r"\t ",
    "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\t\n\v\f\r ",
    "upper": "A-Z",
    "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}
# An escape, a class with a name, the start of a group, or a repetition with what follows it.
_TOKEN = re.compile(r"\\.|\[:(\^?)(\w+):\]|\(\?(?:<?[=!]|>|\(|P=|#)?|(?:[*+?]|\{\d*,?\d*\})[?+]?", re.DOTALL)


def strings(array: Array) -> Array:
    """An array of Python strings of any numpy type, as the host holds them."""
    return array if array.dtype == object else array.astype(object)


def apply(function: Any, x: Array, dtype: Any) -> Array:
    """A function of each element."""
    y = np.empty(x.shape, dtype)
    y.reshape(-1)[:] = [function(v) for v in x.reshape(-1).tolist()]
    return y


def numbers(x: Array, to: DType) -> Array:
    """Numbers from their decimal representations. Raises ValueError."""
    assert to.numpy is not None
    if not to.is_integer:
        result = apply(_parse, x, np.float64)
        return result.astype(bool) if to.short == "bool" else result.astype(to.numpy)
    low, high = (-(1 << to.bits - 1), 1 << to.bits - 1) if to.is_signed else (0, 1 << to.bits)

    def whole(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = int(_parse(text))
        if not low <= value < high:
            raise ValueError(f"{text!r} is out of the range of {to}")
        return value

    return apply(whole, x, to.numpy)


def _parse(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None


def decimals(x: Array) -> Array:
    """Numbers as text, the way ONNX Runtime writes them."""
    if x.dtype.kind in "iub":
        return apply(lambda v: str(int(v)), x, object)
    return apply(_decimal, x.astype(np.float64), object)


def _decimal(value: float) -> str:
    if value != value:
        return "NaN"
    if abs(value) == float("inf"):
        return "INF" if value > 0 else "-INF"
    return f"{value:.8g}"


@functools.lru_cache(maxsize=64)
def pattern(text: str) -> re.Pattern[str]:
    """An RE2 pattern as one of Python's. Raises ValueError for what one of the two does not have."""

    def python(match: re.Match[str]) -> str:
        token = match[0]
        if match[2]:
            if match[2] not in _CLASSES or match[1]:
                raise ValueError(f"pattern {text!r}: class {token} is not supported")
            return _CLASSES[match[2]]
        if token == r"\z":
            return r"\Z"
        if token[0] == "\\" and (token[1] in "ZpPCQEGK" or token[1] in "123456789"):
            raise ValueError(f"pattern {text!r}: {token} is not supported")
        if token[:2] == "(?" and len(token) > 2:
            raise ValueError(f"pattern {text!r}: RE2 has no group {token}")
        if token[0] in "*+?{" and len(token) > 1 and token[-1] == "+":
            raise ValueError(f"pattern {text!r}: RE2 has no repetition {token}")
        return token

    try:
        return re.compile(_TOKEN.sub(python, text), re.ASCII)
    except re.error as error:
        raise ValueError(f"pattern {text!r}: {error}") from None
