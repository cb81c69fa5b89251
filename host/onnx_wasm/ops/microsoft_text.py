"""com.microsoft's operators on words and tokens: hashes, n-grams, and the embedding of words by their characters."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..context import Array, Context, Steps, Value
from ..dtypes import F32, I32, I64, STRING, U32
from ..registry import MICROSOFT, op
from ._elementwise import flat, require
from .activation import tanh
from .matmul import multiply
from .transpose import permute

_MASK = 0xFFFFFFFF
_HASHED = frozenset({"i32", "u32", "i64", "u64", "f32", "f64"})


def _mix(k: int) -> int:
    k = k * 0xCC9E2D51 & _MASK
    return (k << 15 | k >> 17) * 0x1B873593 & _MASK


def _hash(text: str, seed: int) -> int:
    """MurmurHash3_x86_32 of the text in UTF-8."""
    data = text.encode()
    whole = len(data) & ~3
    h = seed
    for block in np.frombuffer(data[:whole], "<u4").tolist():
        h ^= _mix(block)
        h = ((h << 13 | h >> 19) * 5 + 0xE6546B64) & _MASK
    h ^= _mix(int.from_bytes(data[whole:], "little")) ^ len(data)
    h = (h ^ h >> 16) * 0x85EBCA6B & _MASK
    h = (h ^ h >> 13) * 0xC2B2AE35 & _MASK
    return h ^ h >> 16


def _hashes(x: Array, positive: int, seed: int) -> Array:
    hashes = [_hash(s, seed & _MASK) for s in x.reshape(-1).tolist()]
    return np.array(hashes, np.uint32).reshape(x.shape).view(np.uint32 if positive == 1 else np.int32)


def fold_murmur_hash3(x: Array, *, positive: int = 1, seed: int = 0) -> Any:
    return _hashes(x, positive, seed) if x.dtype == object else NotImplemented


@op("MurmurHash3", domain=MICROSOFT, fold=fold_murmur_hash3)
def murmur_hash3(cx: Context, x: Value, *, positive: int = 1, seed: int = 0) -> Value:
    """MurmurHash3_x86_32 (Austin Appleby, public domain) of each element of x, of a string in UTF-8, with 32 bits of
    the seed: uint32 if ``positive`` is 1, else int32."""
    if x.dtype is STRING and x.known is not None:
        return cx.known(_hashes(x.known, positive, seed))
    require(cx, x, _HASHED)
    y = flat(cx, f"murmur3_b{x.dtype.itemsize}", x, I32, seed=seed & _MASK)
    return y if positive != 1 else cx.alias(y, y.shape, U32)


@op("NGramRepeatBlock", domain=MICROSOFT)
def ngram_repeat_block(cx: Context, input_ids: Value, scores: Value, *, ngram_size: int) -> Value:
    """scores [N, V], but -inf where the token behind the last ones of input_ids [N, T] makes an n-gram of the row."""
    if input_ids.dtype is not I64 or scores.dtype is not F32 or input_ids.rank != 2 or scores.rank != 2:
        cx.fail(f"input_ids must be int64 [N, T], scores float32 [N, V], got {input_ids!r} and {scores!r}")
    if scores.shape[0] != input_ids.shape[0]:
        cx.fail(f"{input_ids!r} and {scores!r} have not the same batch size")
    if ngram_size < 1:
        cx.fail(f"ngram_size is {ngram_size}, must be at least 1")
    y = cx.out(scores.shape, F32, reuse=(scores,))
    length, tokens = input_ids.shape[1], scores.shape[1]
    if input_ids.shape[0]:
        n = min(ngram_size, length + 1)
        cx.emit("ngram_block", units=y.shape[0], ids=input_ids, x=scores, y=y, length=length, tokens=tokens, n=n)
    return y


@op("BifurcationDetector", domain=MICROSOFT)
def bifurcation_detector(
    cx: Context,
    src_tokens: Value,
    cur_tokens: Value,
    prev_suffix_match_idx: Value,
    pred_tokens: Value | None = None,
    *,
    max_ngram_size: int = 3,
    min_ngram_size: int = 1,
) -> Steps:
    """What aggressive decoding goes on with: the current tokens [C] with those predicted tokens behind them that agree
    with the source [S] from the place of the last match on, and one more; and the place in the source behind the only
    n-gram that equals their last n, for the greatest n of the range for which there is one up to the first without any,
    or -1. Where the only n-gram ends the source, no greater n is tried."""
    given = (src_tokens, cur_tokens, pred_tokens)
    if any(v is not None and (v.rank != 1 or v.dtype is not I64) for v in given):
        cx.fail(f"tokens must be int64 vectors, got {', '.join(repr(v) for v in given if v is not None)}")
    if prev_suffix_match_idx.size != 1 or prev_suffix_match_idx.dtype is not I64:
        cx.fail(f"prev_suffix_match_idx is {prev_suffix_match_idx!r}, must be one int64")
    if not 1 <= min_ngram_size <= max_ngram_size:
        cx.fail(f"n-grams of {min_ngram_size} to {max_ngram_size} tokens")
    length, current = src_tokens.size, cur_tokens.size
    taken = 0
    if pred_tokens is not None:
        if not 1 <= pred_tokens.size <= length + 1:
            cx.fail(
                f"{pred_tokens!r} must have 1 to {length + 1} tokens, one more than the source has behind the match"
            )
        count = cx.out((1,), I64)
        cx.emit(
            "bifurcation",
            src=src_tokens,
            pred=pred_tokens,
            at=prev_suffix_match_idx,
            count=count,
            length=length,
            n=pred_tokens.size,
        )
        (found,) = yield count
        taken = int(found)
    tokens, match = cx.out((current + taken,), I64), cx.out(prev_suffix_match_idx.shape, I64)
    cx.emit(
        "suffix_match",
        src=src_tokens,
        cur=cur_tokens,
        pred=pred_tokens,
        y=tokens,
        match=match,
        length=length,
        current=current,
        taken=taken,
        least=min(min_ngram_size, current + taken + 1),
        most=min(max_ngram_size, current + taken),
    )
    return tokens, match


@op("WordConvEmbedding", domain=MICROSOFT)
def word_conv_embedding(
    cx: Context,
    sequence: Value,
    w: Value,
    b: Value,
    c: Value,
    *,
    char_embedding_size: int | None = None,
    conv_window_size: int | None = None,
    embedding_size: int | None = None,
) -> Value:
    """Words [N, L] of characters, embedded by c [characters, E], convolved with w [M, 1, k, E] and b [M]: for each word
    the maximum of tanh over its windows of k characters. A word is as long as it has positive characters, but none if
    the first is not, and then its embedding is 0; a character that c has not is embedded as 0."""
    if sequence.rank != 2 or sequence.dtype is not I32 or any(v.dtype is not F32 for v in (w, b, c)):
        cx.fail(f"Sequence must be int32 [N, L], the others float32; got {sequence!r}, {w!r}, {b!r} and {c!r}")
    if w.rank != 4 or w.shape[1] != 1 or c.rank != 2 or c.shape[1] != w.shape[3] or b.shape != w.shape[:1]:
        cx.fail(f"W must be [M, 1, k, E], B [M] and C [characters, E]; got {w!r}, {b!r} and {c!r}")
    filters, _, window, size = w.shape
    told = {"char_embedding_size": char_embedding_size, "conv_window_size": conv_window_size}
    told["embedding_size"] = embedding_size
    for (name, value), is_ in zip(told.items(), (size, window, filters), strict=True):
        if value not in (None, -1, is_):
            cx.fail(f"{name} is {value}, but {w!r} and {c!r} say {is_}")
    words, length = sequence.shape
    if not 1 <= window <= length:
        cx.fail(f"windows of {window} characters do not fit words of {length}")
    if 0 in (words, filters):
        return cx.out((words, filters), F32)

    def make() -> Value:
        """What each character adds to a sum from each place of a window: [characters, k * M]."""
        return multiply(cx, c, permute(cx, w, (filters, window, size), (2, 1, 0), (size, window * filters)))

    y = cx.out((words, filters), F32)
    cx.emit(
        "word_conv",
        units=words,
        words=sequence,
        table=cx.derived("word_conv", (w, c), make),
        bias=b,
        y=y,
        length=length,
        rows=c.shape[0],
        filters=filters,
        window=window,
    )
    # The greatest of the values of tanh is that of the greatest sum.
    return tanh(cx, y)
