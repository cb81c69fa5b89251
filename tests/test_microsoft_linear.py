"""Linear attention and its convolution against native onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphs
import onnx_wasm as ort
from harness import Harness
from onnx_wasm import prepare, registry
from test_microsoft_gated import half, refuse
from test_microsoft_transformer import build, compare, normal, run

Inputs = list[np.ndarray[Any, Any] | None]
RULES = ["linear", "gated", "delta", "gated_delta"]
HALF = {"atol": 1e-2, "rtol": 1e-2}


def unit(x: np.ndarray[Any, Any], size: int) -> np.ndarray[Any, Any]:
    """Rows of so many elements with a norm of 1, without which the recurrence grows beyond bounds."""
    rows = x.reshape(*x.shape[:2], x.shape[2] // size, size)
    return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).reshape(x.shape).astype(np.float32)


def heads(
    batch: int, tokens: int, q: int, k: int, kv: int, d: int, dv: int, *, past: bool = True, wide: bool = False
) -> tuple[Inputs, dict[str, Any]]:
    """Inputs, with ``wide`` those whose decay and beta have the larger of the shapes that they may have; attributes."""
    inputs: Inputs = [
        normal(batch, tokens, q * d),
        unit(normal(batch, tokens, k * d), d),
        normal(batch, tokens, kv * dv),
        normal(batch, kv, d, dv) if past else None,
        -np.abs(normal(batch, tokens, kv * (d if wide else 1))),
        1 / (1 + np.exp(-normal(batch, tokens, kv if wide else 1))),
    ]
    return inputs, {"q_num_heads": q, "kv_num_heads": kv}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("q", "k", "kv"), [(4, 2, 2), (2, 4, 4), (2, 2, 4), (3, 3, 3), (4, 1, 4)])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("past", [False, True])
def test_linear_attention(rule: str, q: int, k: int, kv: int, wide: bool, past: bool) -> None:
    inputs, options = heads(2, 5, q, k, kv, 8, 6, past=past, wide=wide)
    compare("LinearAttention", inputs, 2, update_rule=rule, **options)


@pytest.mark.parametrize(("tokens", "d", "dv"), [(1, 64, 64), (70, 32, 40), (3, 5, 33), (2, 1, 16)])
@pytest.mark.parametrize("scale", [0.0, 0.3])
def test_sizes_of_heads_and_numbers_of_tokens(tokens: int, d: int, dv: int, scale: float) -> None:
    inputs, options = heads(2, tokens, 4, 2, 2, d, dv, wide=True)
    compare("LinearAttention", inputs, 2, scale=scale, atol=1e-5, **options)


@pytest.mark.parametrize(("batch", "tokens"), [(0, 3), (2, 0)])
def test_no_batches_and_no_tokens(batch: int, tokens: int) -> None:
    inputs, options = heads(batch, tokens, 4, 2, 2, 8, 6)
    compare("LinearAttention", inputs, 2, **options)


@pytest.mark.parametrize("state", ["none", "float16", "float32"])
def test_linear_attention_of_16_bit_floats(state: str) -> None:
    inputs, options = heads(2, 5, 4, 2, 2, 8, 6, past=state != "none")
    compare("LinearAttention", half(inputs, but=(3,) if state == "float32" else ()), 2, **HALF, **options)


def test_inputs_that_a_rule_does_not_use_do_not_matter() -> None:
    inputs, options = heads(2, 5, 4, 2, 2, 8, 6)
    expected = compare("LinearAttention", [*inputs[:4]], 2, update_rule="linear", **options)
    got = run(*build("LinearAttention", inputs, 2, update_rule="linear", **options))
    np.testing.assert_array_equal(got["y0"], expected["y0"])


def test_linear_attention_refuses() -> None:
    inputs, options = heads(2, 5, 4, 2, 2, 8, 6)
    op = "LinearAttention"
    refuse(op, inputs, "update_rule 'other'", 2, update_rule="other", **options)
    refuse(op, inputs, "state_window", 2, state_window=2, **options)
    refuse(op, inputs, "one must divide the other", 2, q_num_heads=4, kv_num_heads=3)
    refuse(op, [inputs[0][..., :-1], *inputs[1:]], "do not divide", 2, **options)
    refuse(op, [inputs[0][:, :4], *inputs[1:]], "same batch and tokens", 2, **options)
    refuse(op, [*inputs[:3], normal(2, 2, 8, 7), *inputs[4:]], "past_state", 2, **options)
    refuse(op, [*inputs[:4], None, inputs[5]], "needs a decay", 2, **options)
    refuse(op, [*inputs[:4], normal(2, 5, 3), inputs[5]], "needs a decay", 2, **options)
    refuse(op, inputs[:5], "needs a beta", 2, **options)


@pytest.mark.parametrize("rule", RULES)
def test_any_split_into_ranges_gives_the_same(rule: str) -> None:
    prepare.load_ops()
    function = registry.find("com.microsoft", "LinearAttention", 1).function
    inputs, options = heads(2, 5, 4, 2, 2, 8, 40)
    whole = Harness().op(function, inputs, update_rule=rule, **options)
    for a, b in zip(Harness().op(function, inputs, split=3, update_rule=rule, **options), whole, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("mem_pattern", [False, True])
def test_threads_and_memory_modes(mem_pattern: bool) -> None:
    inputs, options = heads(2, 50, 4, 2, 2, 64, 64)
    data, feeds = build("LinearAttention", inputs, 2, **options)
    expected = graphs.native(data, feeds)
    with (
        ort.Runtime(threads=2) as runtime,
        ort.InferenceSession.create(data, runtime=runtime, enable_mem_pattern=mem_pattern) as session,
    ):
        for name, y in session.run(feeds).items():
            np.testing.assert_allclose(y.get_data(release_data=True), expected[name], atol=1e-5)


def convolved(batch: int, length: int, channels: tuple[int, ...], taps: int, dilation: int, last: bool) -> Inputs:
    n, before = int(np.prod(channels)), (taps - 1) * dilation
    shapes = [(batch, m, *channels) if last else (batch, n, m) for m in (length, before)]
    return [normal(*shapes[0]), normal(n, 1, taps), normal(n), normal(*shapes[1])]


@pytest.mark.parametrize("length", [0, 1, 7, 50])
@pytest.mark.parametrize(("taps", "dilation"), [(1, 1), (4, 1), (3, 2)])
@pytest.mark.parametrize("channels", [(3,), (4, 5)])
@pytest.mark.parametrize("last", [False, True])
def test_causal_convolution(length: int, taps: int, dilation: int, channels: tuple[int, ...], last: bool) -> None:
    x = convolved(2, length, channels, taps, dilation, last)
    options: dict[str, Any] = {"dilation": dilation, "channels_last": int(last)}
    for inputs in (x, x[:3], x[:2]):
        compare("CausalConvWithState", inputs, 2, activation="silu", **options)
    compare("CausalConvWithState", [*x[:2], None, x[3]], 2, **options)
    if length:
        compare("CausalConvWithState", half(x), 2, **HALF, **options)


def test_a_convolution_piece_by_piece() -> None:
    x = convolved(2, 9, (6,), 4, 1, last=False)
    whole = compare("CausalConvWithState", x, 2)
    first = compare("CausalConvWithState", [x[0][..., :2], *x[1:]], 2)
    rest = compare("CausalConvWithState", [x[0][..., 2:], x[1], x[2], first["y1"]], 2)
    np.testing.assert_allclose(np.concatenate([first["y0"], rest["y0"]], axis=2), whole["y0"], atol=1e-6)
    np.testing.assert_array_equal(rest["y1"], whole["y1"])


def test_causal_convolution_refuses() -> None:
    x, op = convolved(2, 7, (3,), 4, 1, last=False), "CausalConvWithState"
    refuse(op, [normal(2, 7), *x[1:]], "must be", 2)
    refuse(op, [x[0], normal(4, 1, 4)], "weight", 2)
    refuse(op, [*x[:2], normal(4)], "bias", 2)
    refuse(op, [*x[:3], normal(2, 3, 4)], "past_state", 2)
    refuse(op, x, "ndim 2", 2, ndim=2)
    refuse(op, x, "state_window 1", 2, state_window=1)
    refuse(op, x, "activation 'relu'", 2, activation="relu")
