"""com.microsoft's operators on words and tokens, against native onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import microsoft_nodes
import onnx_wasm as ort
from microsoft_nodes import check, fails

chance = np.random.default_rng(17)


def ids(*values: Any) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (3, 3000)])
def test_hashes_of_numbers(dtype: Any, shape: tuple[int, ...]) -> None:
    x = np.asarray(chance.normal(0, 1000, shape) if np.dtype(dtype).kind == "f" else chance.integers(0, 1 << 31, shape))
    for attributes in ({}, {"positive": 0}, {"seed": 5}, {"seed": (1 << 32) - 1, "positive": 0}, {"seed": -3}):
        for constants in ((), (0,)):
            check("MurmurHash3", [x.astype(dtype)], constants, **attributes)


def test_hashes_of_strings() -> None:
    words = ["", "a", "ab", "abc", "abcd", "abcde", "Grüße", "日本語", "x" * 1001, "\U0001f600 z"]
    for attributes in ({}, {"positive": 0}, {"seed": 5}, {"seed": (1 << 32) - 1, "positive": 0}, {"positive": 2}):
        for x in (np.array(words, object), np.array([words] * 2, object), np.zeros((0, 2), object)):
            check(
                "MurmurHash3", [x], kinds=[np.uint32 if attributes.get("positive", 1) == 1 else np.int32], **attributes
            )


def test_types_that_are_not_hashed() -> None:
    with pytest.raises(ort.UnsupportedModelError, match=r"type int8 of .* is not supported"):
        microsoft_nodes.ours("MurmurHash3", [np.zeros(3, np.int8)])


@pytest.mark.parametrize("n", [1, 2, 3, 4, 9, 10, 11, 1 << 40])
@pytest.mark.parametrize("batch", [0, 1, 5])
@pytest.mark.parametrize("length", [0, 1, 9])
def test_ngrams_are_blocked(n: int, batch: int, length: int) -> None:
    tokens = chance.integers(0, 3, (batch, length))
    check("NGramRepeatBlock", [tokens, chance.normal(size=(batch, 7)).astype(np.float32)], ngram_size=n)


def test_what_ngrams_do_not_fit() -> None:
    scores = np.zeros((2, 4), np.float32)
    for wrong in (4, -1):
        tokens = ids([1, 1, 1], [wrong, wrong, wrong])
        fails("NGramRepeatBlock", [tokens, scores], rf"index {wrong} out of range \[0, 4\)", ngram_size=2)
    fails("NGramRepeatBlock", [ids([1, 1]), scores], "not the same batch size", ngram_size=2)
    fails("NGramRepeatBlock", [ids(1, 1), scores], r"must be int64 \[N, T\]", ngram_size=2)
    fails("NGramRepeatBlock", [ids([1], [1]), scores], "ngram_size is 0, must be at least 1", ngram_size=0)


@pytest.mark.parametrize("seed", range(40))
def test_bifurcation(seed: int) -> None:
    rng = np.random.default_rng(seed)
    source = rng.integers(0, 4, rng.integers(0, 9))
    current = rng.integers(0, 4, rng.integers(0, 4))
    at = int(rng.integers(0, source.size + 1))
    predicted = np.append(source[at:], 2)
    predicted[rng.random(predicted.size) < 0.2] = 7
    sizes = (
        {} if seed % 2 else {"min_ngram_size": int(rng.integers(1, 3)), "max_ngram_size": int(rng.integers(2, 1 << 40))}
    )
    for place in (ids(at), np.array(at, np.int64)):
        for constants in ((), (0, 1, 2, 3)):
            check("BifurcationDetector", [source, current, place, predicted], constants, kinds=[np.int64] * 2, **sizes)
        check("BifurcationDetector", [source, current, place], kinds=[np.int64] * 2, **sizes)


def test_what_no_bifurcation_fits() -> None:
    source, current, predicted = ids(1, 5, 3, 4), ids(7, 1), ids(5, 3, 9, 1)

    def wrong(inputs: list[np.ndarray], message: str, **sizes: int) -> None:
        fails("BifurcationDetector", inputs, message, kinds=[np.int64] * 2, **sizes)

    for at in (-1, 0, 2, 5, 1 << 33):
        wrong([source, current, ids(at), predicted], rf"index {at} out of range \[1, 2\)")
    wrong([source, current, ids(0), ids()], "must have 1 to 5 tokens")
    wrong([source, current, ids(0), ids(*range(6))], "must have 1 to 5 tokens")
    wrong([source[None], current, ids(0)], "must be int64 vectors")
    wrong([source, current, ids(0, 0), predicted], "must be one int64")
    wrong([source, current, ids(0)], "n-grams of 2 to 1 tokens", min_ngram_size=2, max_ngram_size=1)
    wrong([source, current, ids(0)], "n-grams of 0 to 3 tokens", min_ngram_size=0)


def word_inputs(words: int, length: int, filters: int = 5, window: int = 3, size: int = 7) -> list[np.ndarray]:
    """Words that do not begin with a 0, whose embedding native onnxruntime leaves undefined."""
    sequence = chance.integers(-1, 11, (words, length))
    sequence *= np.arange(length) < chance.integers(1, length + 1, (words, 1))
    sequence[:, 0] = chance.integers(1, 9, words)
    weights = [chance.normal(0, 0.3, s) for s in ((filters, 1, window, size), filters, (9, size))]
    return [sequence.astype(np.int32), *(w.astype(np.float32) for w in weights)]


@pytest.mark.parametrize("shape", [(0, 4), (1, 3), (6, 12), (33, 20)])
@pytest.mark.parametrize(("filters", "window", "size"), [(5, 3, 7), (1, 1, 1), (16, 2, 8)])
def test_words(shape: tuple[int, int], filters: int, window: int, size: int) -> None:
    for constants in ((), (1, 2, 3)):
        check("WordConvEmbedding", word_inputs(*shape, filters, window, size), constants, tolerance=2e-6)
    told = {"embedding_size": filters, "conv_window_size": window, "char_embedding_size": size}
    check("WordConvEmbedding", word_inputs(*shape, filters, window, size), tolerance=2e-6, **told)


def test_words_without_characters_are_zero() -> None:
    inputs = word_inputs(3, 6)
    inputs[0][1, 0] = 0
    inputs[0][2, 0] = -4
    (y,) = microsoft_nodes.ours("WordConvEmbedding", inputs)
    assert (y[0] != 0).all()
    assert (y[1:] == 0).all()


def test_what_words_do_not_fit() -> None:
    inputs = word_inputs(3, 6)
    fails("WordConvEmbedding", inputs, "conv_window_size is 4", conv_window_size=4)
    fails("WordConvEmbedding", [inputs[0][0], *inputs[1:]], r"must be int32 \[N, L\]")
    fails("WordConvEmbedding", [inputs[0][:, :2], *inputs[1:]], "windows of 3 characters do not fit words of 2")
    fails("WordConvEmbedding", [*inputs[:3], inputs[3][:, :5]], r"C \[characters, E\]")
    fails("WordConvEmbedding", [*inputs[:2], inputs[2][:2], inputs[3]], r"B \[M\]")
