"""Attention operators of com.microsoft against native onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphs
import onnx_wasm as ort
from test_microsoft_transformer import build, chance, compare, normal, run

B, S, N, H = 2, 5, 3, 8


def mask_of(kind: str, total: int) -> np.ndarray[Any, Any] | None:
    if kind == "none":
        return None
    if kind == "ends":
        return np.array([total, total - 2], np.int32)
    if kind == "ends-starts":
        return np.array([total, total - 1, 0, 2], np.int32)
    if kind == "keys":
        return (np.arange(total) < np.array([[total], [total - 2]])).astype(np.int32)
    return chance.integers(0, 2, (B, S, total)).astype(np.int32)


@pytest.mark.parametrize("kind", ["none", "ends", "ends-starts", "keys", "rows"])
@pytest.mark.parametrize("past", [0, 4])
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_attention(kind: str, past: int, unidirectional: int) -> None:
    d = N * H
    inputs = [
        normal(B, S, 7),
        normal(7, 3 * d),
        normal(3 * d),
        mask_of(kind, past + S),
        normal(2, B, N, past, H) if past else None,
    ]
    compare(
        "Attention", inputs, 2, constants=(1, 2), num_heads=N, unidirectional=unidirectional, atol=1e-5,
    )  # fmt: skip


def test_attention_with_a_bias_of_the_scores_and_narrow_values() -> None:
    weights, bias = normal(7, 2 * N * H + N * 4), normal(2 * N * H + N * 4)
    inputs = [normal(B, S, 7), weights, bias, mask_of("keys", S), None, normal(1, N, S, S)]
    sizes = [N * H, N * H, N * 4]
    compare("Attention", inputs, num_heads=N, qkv_hidden_sizes=sizes, scale=0.3, atol=1e-5)


@pytest.mark.parametrize("constants", [(), (1, 2)])
def test_attention_of_16_bit_floats(constants: tuple[int, ...]) -> None:
    inputs = [x.astype(np.float16) for x in (normal(B, S, 7), normal(7, 3 * N * H), normal(3 * N * H))]
    compare("Attention", inputs, constants=constants, num_heads=N, atol=2e-3, rtol=2e-3)


def test_constants_of_16_bit_floats_are_converted_once() -> None:
    inputs = [x.astype(np.float16) for x in (normal(B, S, 7), normal(7, 3 * N * H), normal(3 * N * H))]
    data, feeds = build("Attention", list(inputs), 1, constants=(1, 2), num_heads=N)
    with ort.Runtime() as runtime, ort.InferenceSession.create(data, runtime=runtime) as session:
        session.start_profiling()
        session.run(feeds)["y0"].dispose()
        assert [event.kernel for event in session.end_profiling()].count("cast_f16_f32") == 1


@pytest.mark.parametrize("layout", ["apart", "by-head"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("mask", ["none", "ends", "keys", "rows"])
def test_multi_head_attention(layout: str, bias: bool, mask: str) -> None:
    t, d = 6, N * H
    shape = (B, N, t, H) if layout == "by-head" else (B, t, d)
    key, value = normal(*shape), normal(*shape)
    inputs = [normal(B, S, d), key, value, normal(3 * d) if bias else None, mask_of(mask, t)]
    compare("MultiHeadAttention", inputs, num_heads=N, atol=1e-5)


@pytest.mark.parametrize("unidirectional", [0, 1])
def test_multi_head_attention_with_a_past(unidirectional: int) -> None:
    d, past = N * H, 4
    inputs = [
        normal(B, S, d), normal(B, S, d), normal(B, S, d), normal(3 * d), None, normal(B, N, S, past + S),
        normal(B, N, past, H), normal(B, N, past, H),
    ]  # fmt: skip
    compare("MultiHeadAttention", inputs, 3, num_heads=N, unidirectional=unidirectional, atol=1e-5)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("count", [2, 3])
def test_packed_inputs_are_as_those_apart(count: int, bias: bool) -> None:
    packed, query = normal(B, S, N, count, H), normal(B, S, N * H)
    parts = [np.ascontiguousarray(packed[:, :, :, i]).reshape(B, S, N * H) for i in range(count)]
    more = [normal(3 * N * H)] if bias else []
    inputs = [packed, None, None, *more] if count == 3 else [query, packed, None, *more]
    data, feeds = build("MultiHeadAttention", inputs, 1, num_heads=N)
    apart, given = build("MultiHeadAttention", [*([] if count == 3 else [query]), *parts, *more], 1, num_heads=N)
    np.testing.assert_allclose(run(data, feeds)["y0"], graphs.native(apart, given)["y0"], atol=1e-5)


def group_inputs(
    batch: int, rows: int, past: int, total: list[int], q: int = 4, kv: int = 2, h: int = 16, capacity: int = 12
) -> list[np.ndarray[Any, Any] | None]:
    held = None if past == 0 else past
    return [
        normal(batch, rows, q * h),
        normal(batch, rows, kv * h),
        normal(batch, rows, kv * h),
        normal(batch, kv, held, h) if held else None,
        normal(batch, kv, held, h) if held else None,
        np.array([t - 1 for t in total], np.int32),
        np.array(max(total), np.int32),
        normal(capacity, h // 2),
        normal(capacity, h // 2),
    ]


OPTIONS: list[dict[str, Any]] = [
    {},
    {"do_rotary": 1},
    {"do_rotary": 1, "rotary_interleaved": 1},
    {"softcap": 1.5},
    {"local_window_size": 3},
    {"smooth_softmax": 1},
    {"scale": 0.2, "local_window_size": 2, "do_rotary": 1},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(o) or "plain")
@pytest.mark.parametrize("step", ["prompt", "append", "append-many"])
def test_group_query_attention(options: dict[str, Any], step: str) -> None:
    inputs = {
        "prompt": lambda: group_inputs(2, 5, 0, [5, 5]),
        "append": lambda: group_inputs(2, 1, 6, [7, 7]),
        "append-many": lambda: group_inputs(1, 3, 6, [9]),
    }[step]()
    compare("GroupQueryAttention", inputs, 3, num_heads=4, kv_num_heads=2, atol=1e-5, **options)


def test_group_query_attention_in_shared_buffers_of_different_lengths() -> None:
    inputs = group_inputs(2, 1, 12, [7, 4])
    data, feeds = build("GroupQueryAttention", inputs, 3, num_heads=4, kv_num_heads=2, do_rotary=1)
    got, expected = run(data, feeds), graphs.native(data, feeds)
    np.testing.assert_allclose(got["y0"], expected["y0"], atol=1e-5)
    for name in ("y1", "y2"):
        for b, n in enumerate((7, 4)):
            np.testing.assert_allclose(got[name][b, :, :n], expected[name][b, :, :n], atol=1e-5)


def test_group_query_attention_of_packed_input_with_sinks() -> None:
    inputs = group_inputs(2, 1, 6, [7, 7])
    packed = np.concatenate([inputs[i] for i in range(3)], -1)  # type: ignore[misc]
    inputs[:3] = [packed, None, None]
    inputs += [None, normal(2, 1, 1, 7), normal(4)]
    compare("GroupQueryAttention", inputs, 3, num_heads=4, kv_num_heads=2, do_rotary=1, atol=1e-5)


def test_group_query_attention_of_16_bit_floats() -> None:
    inputs = [
        x.astype(np.float16) if x is not None and x.dtype == np.float32 else x for x in group_inputs(2, 1, 6, [7, 7])
    ]
    compare("GroupQueryAttention", inputs, 3, num_heads=4, kv_num_heads=2, atol=2e-3, rtol=2e-3)


def test_a_cache_that_is_too_short_is_an_error() -> None:
    data, feeds = build("GroupQueryAttention", group_inputs(2, 1, 6, [7, 9]), 3, num_heads=4, kv_num_heads=2)
    feeds["x6"] = np.array(7, np.int32)
    with pytest.raises(ort.OnnxWasmError, match=r"\b8\b"):
        run(data, feeds)
