"""Ops on strings. The host holds strings, so it is the host that looks at them; counts of integers are a kernel's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..context import Array, Context, Value
from ..dtypes import F32, I32, I64, STRING
from ..errors import UnsupportedModelError
from ..registry import op
from ..words import counted
from . import _text


def _held(cx: Context, *xs: Value) -> list[Array]:
    for x in xs:
        if x.dtype is not STRING or x.known is None:
            cx.fail(f"{x} must be a tensor of strings")
    return [x.known for x in xs if x.known is not None]


def fold_concat(x: Array, y: Array) -> Array:
    return np.asarray(np.add(x, y), object)


@op("StringConcat", since=20, fold=fold_concat)
def string_concat(cx: Context, x: Value, y: Value) -> Value:
    """Each string of x with that of y behind it, with numpy's broadcasting."""
    return cx.known(fold_concat(*_held(cx, x, y)))


def fold_full_match(x: Array, *, pattern: str = "") -> Array:
    compiled = _text.pattern(pattern)
    return _text.apply(lambda s: compiled.fullmatch(s) is not None, x, bool)


@op("RegexFullMatch", since=20, fold=fold_full_match)
def regex_full_match(cx: Context, x: Value, *, pattern: str = "") -> Value:
    """Where the whole string matches the RE2 pattern."""
    return cx.known(fold_full_match(*_held(cx, x), pattern=pattern))


def fold_split(x: Array, *, delimiter: str = "", maxsplit: int | None = None) -> tuple[Array, Array]:
    most = -1 if maxsplit is None else maxsplit
    flat = [(s.split(delimiter, most) if delimiter else s.strip().split(None, most)) for s in x.reshape(-1).tolist()]
    width = max(map(len, flat), default=0)
    parts = np.full((len(flat), width), "", object)
    for row, found in zip(parts, flat, strict=True):
        row[: len(found)] = found
    counts = np.array([len(found) for found in flat], np.int64)
    return parts.reshape(*x.shape, width), counts.reshape(x.shape)


@op("StringSplit", since=20, fold=fold_split)
def string_split(cx: Context, x: Value, *, delimiter: str = "", maxsplit: int | None = None) -> tuple[Value, Value]:
    """The parts of each string along a new axis, filled with "", and how many there are; without a delimiter, words."""
    parts, counts = fold_split(*_held(cx, x), delimiter=delimiter, maxsplit=maxsplit)
    return cx.known(parts), cx.known(counts)


_CASES: Mapping[str, Callable[[str], str]] = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}


def fold_normalize(
    x: Array,
    *,
    case_change_action: str = "NONE",
    is_case_sensitive: int = 0,
    locale: str = "",
    stopwords: Sequence[str] = (),
) -> Array:
    if x.ndim not in (1, 2) or (x.ndim == 2 and x.shape[0] != 1):
        raise ValueError(f"the shape is {list(x.shape)}, must be [C] or [1, C]")
    if case_change_action not in _CASES:
        raise ValueError(f"case_change_action {case_change_action!r} is none of {', '.join(_CASES)}")
    compared = str if is_case_sensitive else str.lower
    stops = {compared(w) for w in stopwords}
    change = _CASES[case_change_action]
    kept = [change(s) for s in x.reshape(-1).tolist() if compared(s) not in stops] or [""]
    return np.array(kept, object).reshape(*(1,) * (x.ndim - 1), len(kept))


@op("StringNormalizer", since=10, fold=fold_normalize)
def string_normalizer(
    cx: Context,
    x: Value,
    *,
    case_change_action: str = "NONE",
    is_case_sensitive: int = 0,
    locale: str = "",
    stopwords: Sequence[str] = (),
) -> Value:
    """The strings that are no stopwords, in upper or lower case, whatever the locale; one empty string if none is."""
    (held,) = _held(cx, x)
    return cx.known(
        fold_normalize(
            held, case_change_action=case_change_action, is_case_sensitive=is_case_sensitive, stopwords=stopwords
        )
    )


class _Grams:
    """The n-grams that a TfIdfVectorizer counts: their outputs, and the outputs' weights."""

    def __init__(
        self,
        max_gram_length: int,
        max_skip_count: int,
        min_gram_length: int,
        mode: str,
        ngram_counts: Sequence[int],
        ngram_indexes: Sequence[int],
        pool: Sequence[Any],
        weights: Sequence[float],
    ) -> None:
        if mode not in ("TF", "IDF", "TFIDF"):
            raise ValueError(f"mode {mode!r} is none of TF, IDF, TFIDF")
        if not 1 <= min_gram_length <= max_gram_length:
            raise ValueError(f"n-grams of {min_gram_length} to {max_gram_length} elements")
        if weights and len(weights) != len(ngram_indexes):
            raise ValueError(f"{len(weights)} weights for {len(ngram_indexes)} n-grams")
        self.least, self.most, self.skips, self.mode = min_gram_length, max_gram_length, max_skip_count, mode
        self.outputs = max(ngram_indexes, default=-1) + 1
        self.places: dict[tuple[Any, ...], int] = {}
        number = 0
        ends = [*ngram_counts[1:], len(pool)]
        for length, (start, end) in enumerate(zip(ngram_counts, ends, strict=True), 1):
            if not 0 <= start <= end <= len(pool) or (end - start) % length:
                raise ValueError(
                    f"ngram_counts {list(ngram_counts)} do not fit a pool of {counted(len(pool), 'element')}"
                )
            for at in range(start, end, length):
                if number >= len(ngram_indexes):
                    raise ValueError(f"{len(ngram_indexes)} ngram_indexes are fewer than the n-grams of the pool")
                if min_gram_length <= length <= max_gram_length:
                    self.places[tuple(pool[at : at + length])] = ngram_indexes[number]
                number += 1
        self.scale: Array | None = None
        if mode != "TF" and weights:
            self.scale = np.ones(self.outputs, np.float32)
            self.scale[list(ngram_indexes)] = weights

    def count(self, row: Sequence[Any]) -> list[int]:
        """How often each output's n-gram occurs, with elements up to skips + 1 places apart."""
        counts = [0] * self.outputs
        for length in range(self.least, self.most + 1):
            # A single element has no distance.
            for step in range(1, self.skips + 2 if length > 1 else 2):
                for start in range(len(row) - step * (length - 1)):
                    place = self.places.get(tuple(row[start : start + step * (length - 1) + 1 : step]))
                    if place is not None:
                        counts[place] += 1
        return counts

    def vector(self, x: Array) -> Array:
        """The output for strings, or integers that the host knows."""
        rows = x.reshape(-1, x.shape[-1]).tolist() if x.size else [[]] * (x.shape[0] if x.ndim == 2 else 1)
        y = np.array([self.count(row) for row in rows], np.float32).reshape(*x.shape[:-1], self.outputs)
        if self.mode == "IDF":
            y = np.minimum(y, 1)
        return y if self.scale is None else y * self.scale

    def tree(self) -> tuple[Array, Array]:
        """Keys and nodes as kernels_wat/tfidf.wat.j2 walks them; every node's children lie together."""
        grams = sorted(self.places.items())
        keys, nodes = [0], [[0, 0, 0]]
        # Ranges of n-grams that share their first elements: (node, depth, begin, end); n-grams themselves come first.
        waiting = [(0, 0, 0, len(grams))]
        for node, depth, begin, end in waiting:
            nodes[node][0] = len(keys)
            at = begin
            while at < end:
                gram, place = grams[at]
                if len(gram) == depth:
                    nodes[node][2] = place + 1
                    at += 1
                    continue
                stop = at + 1
                while stop < end and grams[stop][0][depth] == gram[depth]:
                    stop += 1
                waiting.append((len(keys), depth + 1, at, stop))
                nodes[node][1] += 1
                keys.append(gram[depth])
                nodes.append([0, 0, 0])
                at = stop
        return np.array(keys, np.int64), np.array(nodes, np.int32)


def _grams(
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: Sequence[int],
    ngram_indexes: Sequence[int],
    pool_int64s: Sequence[int] = (),
    pool_strings: Sequence[str] = (),
    weights: Sequence[float] = (),
) -> _Grams:
    pool = pool_int64s or pool_strings
    return _Grams(
        max_gram_length, max_skip_count, min_gram_length, mode, ngram_counts, ngram_indexes, pool, weights or ()
    )


def fold_tfidf(x: Array, **attributes: Any) -> Any:
    if x.ndim not in (1, 2) or (x.dtype == object) != bool(attributes.get("pool_strings")):
        return NotImplemented
    return _grams(**attributes).vector(x)


@op("TfIdfVectorizer", since=9, fold=fold_tfidf)
def tfidf_vectorizer(
    cx: Context,
    x: Value,
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: Sequence[int],
    ngram_indexes: Sequence[int],
    pool_int64s: Sequence[int] = (),
    pool_strings: Sequence[str] = (),
    weights: Sequence[float] = (),
) -> Value:
    """How often each n-gram of the pool occurs in x, or in each row of x; weighted, or only whether it does."""
    grams = _grams(
        max_gram_length=max_gram_length,
        max_skip_count=max_skip_count,
        min_gram_length=min_gram_length,
        mode=mode,
        ngram_counts=ngram_counts,
        ngram_indexes=ngram_indexes,
        pool_int64s=pool_int64s,
        pool_strings=pool_strings,
        weights=weights,
    )
    if x.rank not in (1, 2):
        cx.fail(f"{x} must have shape [C] or [N, C]")
    if (x.dtype is STRING) != bool(pool_strings):
        cx.fail(f"{x} does not fit a pool of {'strings' if pool_strings else 'integers'}")
    if x.known is not None and x.dtype is STRING:
        return cx.known(grams.vector(x.known))
    if x.dtype not in (I32, I64):
        cx.fail(f"type {x.dtype} of {x.name or 'an input'} is not supported", UnsupportedModelError)
    y = cx.out((*x.shape[:-1], grams.outputs), F32)
    if y.size:
        keys, nodes = grams.tree()
        cx.emit(
            "tfidf",
            units=y.size // grams.outputs,
            x=x,
            y=y,
            keys=cx.known(keys),
            nodes=cx.known(nodes),
            scale=None if grams.scale is None else cx.known(grams.scale),
            wide=int(x.dtype is I64),
            n=x.shape[-1],
            outputs=grams.outputs,
            least=grams.least,
            most=grams.most,
            skips=grams.skips,
            binary=int(grams.mode == "IDF"),
        )
    return y
