"""com.microsoft's Tokenizer, which exported text pipelines begin with."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from ..context import Array, Context, Value
from ..dtypes import STRING
from ..registry import MICROSOFT, op
from . import _text

_START, _END = "\x02", "\x03"
# Where Python's first match may be shorter than RE2's longest one; and what looks past a match's end.
_ALTERNATIVES = re.compile(r"(?<!\\)\||[*+?}]\?")
_BOUNDARIES = re.compile(r"\\[bBzZ]|\$")


class _Longest:
    """Finds the leftmost match of an RE2 pattern, and of those the longest."""

    def __init__(self, text: str) -> None:
        self.pattern = _text.pattern(text)
        self.several = bool(_ALTERNATIVES.search(text))
        if self.several and _BOUNDARIES.search(text):
            raise ValueError(f"pattern {text!r}: alternatives together with $, \\b, \\B or \\z are not supported")

    def find(self, text: str, start: int) -> tuple[int, int] | None:
        found = self.pattern.search(text, start)
        if found is None:
            return None
        begin, end = found.span()
        if self.several:
            end = next(e for e in range(len(text), end - 1, -1) if self.pattern.fullmatch(text, begin, e))
        return begin, end


def _separated(text: str, separator: _Longest, least: int) -> list[str]:
    parts, start = [], 0
    while start < len(text) and (found := separator.find(text, start)):
        begin, end = found
        parts.append(text[start:begin])
        # An empty match takes a character with it.
        start = end if end > begin else begin + 1
    parts.append(text[start:])
    return [p for p in parts if len(p) >= least]


def _matches(text: str, expression: _Longest, least: int) -> list[str]:
    tokens, start = [], 0
    while start < len(text) and (found := expression.find(text, start)):
        begin, end = found
        if end - begin >= least:
            tokens.append(text[begin:end])
            start = end
        else:
            start = begin + 1
    return tokens


def fold_tokenizer(
    x: Array, *, mark: int, mincharnum: int, pad_value: str, separators: Sequence[str] = (), tokenexp: str = ""
) -> Array:
    if x.ndim not in (1, 2):
        raise ValueError(f"the shape is {list(x.shape)}, must be [C] or [N, C]")
    if mincharnum < 1:
        raise ValueError(f"mincharnum {mincharnum} must be at least 1")
    if not separators and not tokenexp:
        raise ValueError("neither separators nor tokenexp is given")
    texts = x.reshape(-1).tolist()
    if list(separators) == [""]:
        if mincharnum > 1:
            raise ValueError(f"mincharnum {mincharnum} leaves no token of one character")
        rows = [list(t) for t in texts]
    elif separators:
        rows = [[t] for t in texts]
        for separator in map(_Longest, separators):
            rows = [[p for t in row for p in _separated(t, separator, mincharnum)] for row in rows]
    else:
        expression = _Longest(tokenexp)
        rows = [_matches(t, expression, mincharnum) for t in texts]
    width = max(map(len, rows), default=0)
    if not x.size:
        return np.empty((*x.shape[:-1], 0), object)
    if width and mark:
        rows = [[_START, *row, _END] for row in rows]
        width += 2
    y = np.full((len(rows), width), pad_value, object)
    for line, row in zip(y, rows, strict=True):
        line[: len(row)] = row
    return y.reshape(*x.shape, width)


@op("Tokenizer", domain=MICROSOFT, fold=fold_tokenizer)
def tokenizer(
    cx: Context,
    x: Value,
    *,
    mark: int,
    mincharnum: int,
    pad_value: str,
    separators: Sequence[str] = (),
    tokenexp: str = "",
) -> Value:
    """The tokens of each string along a new axis: what is between separators, or each match of an expression."""
    if x.dtype is not STRING or x.known is None:
        cx.fail(f"{x} must be a tensor of strings")
    assert x.known is not None
    return cx.known(
        fold_tokenizer(
            x.known, mark=mark, mincharnum=mincharnum, pad_value=pad_value, separators=separators, tokenexp=tokenexp
        )
    )
