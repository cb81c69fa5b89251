"""Attention of com.microsoft for one new token against native onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphs
import onnx_wasm as ort
from harness import Harness
from onnx_wasm import prepare, registry
from test_microsoft_transformer import build, chance, compare, normal, run

N, H, CAPACITY = 3, 8, 10
D = N * H
OP = "DecoderMaskedMultiHeadAttention"
SHARED: dict[str, Any] = {"num_heads": N, "past_present_share_buffer": 1}
Inputs = list[np.ndarray[Any, Any] | None]


def token(batch: int = 2, past: int = 4, capacity: int = CAPACITY) -> Inputs:
    """Query, key, value, no mask, no bias of scores, and caches."""
    rows = [normal(batch, 1, D) for _ in range(3)]
    return [*rows, None, None, *(normal(batch, N, capacity, H) for _ in range(2)), np.array([past], np.int32)]


def mask_of(batch: int, total: int) -> np.ndarray[Any, Any]:
    mask = chance.integers(0, 2, (batch, total)).astype(np.int32)
    # Of scores that are all behind a mask of -10000, native and this keep other digits.
    mask[:, 0] = 1
    return mask


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("past", [0, 4, CAPACITY - 1])
@pytest.mark.parametrize("masked", [False, True])
def test_a_token_behind_a_cache(batch: int, past: int, masked: bool) -> None:
    x = token(batch, past)
    x[3] = mask_of(batch, past + 1) if masked else None
    compare(OP, x, 3, **SHARED)
    compare(OP, x, 3, scale=0.3, mask_filter_value=-5.0, **SHARED)


@pytest.mark.parametrize("shape", [(1, 1), (1, N), (2, 1), (2, N)])
@pytest.mark.parametrize("masked", [False, True])
def test_a_bias_of_the_scores(shape: tuple[int, int], masked: bool) -> None:
    x = token()
    x[3], x[4] = mask_of(2, 5) if masked else None, normal(*shape, 1, 5)
    compare(OP, x, 3, **SHARED)


def test_a_bias_of_the_projection_and_16_bit_floats() -> None:
    x = [*token(), None, None, normal(3 * D)]
    compare(OP, x, 3, **SHARED)
    narrow: Inputs = [a if a is None or a.dtype != np.float32 else a.astype(np.float16) for a in x]
    data, feeds = build(OP, narrow, 3, **SHARED)
    wide = {n: a.astype(np.float32) if a.dtype == np.float16 else a for n, a in feeds.items()}
    expected = graphs.native(build(OP, x, 3, **SHARED)[0], wide)
    for name, y in run(data, feeds).items():
        assert y.dtype == np.float16
        np.testing.assert_allclose(y, expected[name], atol=3e-3)


def test_a_packed_token_is_as_one_apart() -> None:
    x = token()
    packed: Inputs = [np.concatenate(x[:3], axis=2), None, None, *x[3:]]
    expected = compare(OP, x, 3, **SHARED)
    got = run(*build(OP, packed, 3, **SHARED))
    for name in expected:
        np.testing.assert_allclose(got[name], expected[name], atol=2e-6)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_keys_and_values_of_an_encoder(masked: bool, biased: bool) -> None:
    x: Inputs = [normal(2, 1, D), normal(2, N, 7, H), normal(2, N, 7, H), mask_of(2, 7) if masked else None]
    compare(OP, [*x, *[None] * 6, normal(3 * D)] if biased else x, num_heads=N)


def beams_of(batch: int, width: int, columns: int = CAPACITY) -> Inputs:
    return [
        np.array([width], np.int32),
        chance.integers(0, width, (batch // width, width, columns)).astype(np.int32),
    ]


@pytest.mark.parametrize(("batch", "width"), [(2, 1), (2, 2), (6, 2), (6, 3)])
@pytest.mark.parametrize("options", ["none", "mask", "bias", "bias of the projection"])
def test_beams_take_rows_of_the_caches_of_others(batch: int, width: int, options: str) -> None:
    x = [*token(batch), *beams_of(batch, width)]
    if options == "mask":
        x[3] = mask_of(batch, 5)
    if options == "bias":
        x[4] = normal(1, N, 1, 5)
    if options == "bias of the projection":
        x.append(normal(3 * D))
    compare(OP, x, 3, **SHARED)


def test_one_plan_holds_for_every_length() -> None:
    x = token()
    data, feeds = build(OP, x, 3, **SHARED)
    expected, got = dict(feeds), dict(feeds)
    with ort.Runtime() as runtime, ort.InferenceSession.create(data, runtime=runtime) as session:
        for past in range(CAPACITY):
            for held in (expected, got):
                held["x7"] = np.array([past], np.int32)
            native = graphs.native(data, expected)
            ours = {n: t.get_data(release_data=True) for n, t in session.run(got).items()}
            for name, y in native.items():
                np.testing.assert_allclose(ours[name], y, atol=2e-6)
            expected.update(x5=native["y1"], x6=native["y2"])
            got.update(x5=ours["y1"], x6=ours["y2"])
        assert len(session._programs) == 1


def test_an_empty_batch() -> None:
    y = run(*build(OP, token(0), 3, **SHARED))
    assert [a.shape for a in y.values()] == [(0, 1, D), (0, N, CAPACITY, H), (0, N, CAPACITY, H)]


@pytest.mark.parametrize("mem_pattern", [False, True])
def test_threads_and_memory_modes(mem_pattern: bool) -> None:
    x = [*token(4, 200, 256), *beams_of(4, 2, 256)]
    data, feeds = build(OP, x, 3, **SHARED)
    expected = graphs.native(data, feeds)
    with (
        ort.Runtime(threads=2) as runtime,
        ort.InferenceSession.create(data, runtime=runtime, enable_mem_pattern=mem_pattern) as session,
    ):
        for name, t in session.run(feeds).items():
            np.testing.assert_allclose(t.get_data(release_data=True), expected[name], atol=2e-6)


def test_any_split_into_ranges_gives_the_same() -> None:
    prepare.load_ops()
    function = registry.find("com.microsoft", OP, 1).function
    x = [*token(4), *beams_of(4, 2)]
    whole = Harness().op(function, x, host=(8,), **SHARED)
    for a, b in zip(Harness().op(function, x, host=(8,), split=3, **SHARED), whole, strict=True):
        np.testing.assert_array_equal(a, b)


BAD: list[tuple[dict[int, Any], str]] = [
    ({0: normal(2, 2, D)}, "query"),
    ({3: np.ones((2, 1, 5), np.int32)}, "mask"),
    ({4: normal(1, 5)}, "attention_bias"),
    ({5: normal(2, N, CAPACITY, H + 1)}, "past"),
    ({5: None}, "past_key"),
    ({7: np.array([CAPACITY], np.int32)}, r"10 out of range \[0, 10\)"),
    ({7: np.array([-1], np.int32)}, r"-1 out of range \[0, 10\)"),
    ({7: np.array([1, 2], np.int32)}, "past_sequence_length"),
    ({8: np.array([2], np.int32)}, "cache_indirection"),
    ({8: np.array([2], np.int32), 9: np.full((1, 2, CAPACITY), 2, np.int32)}, r"2 out of range \[0, 2\)"),
    ({8: np.array([2], np.int32), 9: np.zeros((1, 2, 3), np.int32)}, r"4 out of range \[0, 4\)"),
    ({10: normal(D)}, "bias"),
]


@pytest.mark.parametrize(("changed", "message"), BAD)
def test_what_does_not_fit_is_refused(changed: dict[int, Any], message: str) -> None:
    x = [*token(), None, None, None]
    for i, a in changed.items():
        x[i] = a
    data, feeds = build(OP, x, 3, **SHARED)
    with pytest.raises((ort.OnnxWasmError, IndexError), match=message):
        run(data, feeds)
