"""Attention and rotary embeddings of ai.onnx: against the onnx package's reference, and in splits of the work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx.reference.ops.op_attention import _compute_attention

import graphs
import onnx_wasm as ort
from graphs import node
from harness import Harness, KernelStatus
from onnx_wasm.context import Context, Value
from onnx_wasm.dtypes import F32
from onnx_wasm.ops.attention import attend, attention, by_head
from onnx_wasm.ops.rotary import rotary_embedding

Array = np.ndarray[Any, Any]
chance = np.random.default_rng(3)


@pytest.fixture(scope="module", params=["relaxed", "strict"])
def harness(request: pytest.FixtureRequest) -> Harness:
    return Harness(request.param)


def normal(*shape: int) -> Array:
    return chance.normal(0, 1, shape).astype(np.float32)


def check(harness: Harness, inputs: Sequence[Any], **attributes: Any) -> None:
    """What the kernel gives, whole and split, is what the reference gives in double precision."""
    wide = [x if x is None or x.dtype != np.float32 else x.astype(np.float64) for x in inputs]
    if len(wide) > 3 and wide[3] is not None:
        # The reference does not stretch a mask of one row before it cuts the triangle out of it.
        mask = wide[3]
        wide[3] = np.broadcast_to(mask, (*mask.shape[:-2], inputs[0].shape[-2], mask.shape[-1]))
    options = {"is_causal": 0, "softcap": 0.0, "q_num_heads": None, "kv_num_heads": None, **attributes}
    expected, key, value, _ = _compute_attention(*wide, **options)
    got, present_key, present_value = harness.op(attention, inputs, **attributes)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=2e-6)
    if len(inputs) > 4 and inputs[4] is not None:
        np.testing.assert_array_equal(present_key, key.astype(np.float32))
        np.testing.assert_array_equal(present_value, value.astype(np.float32))
    np.testing.assert_array_equal(harness.op(attention, inputs, split=3, **attributes)[0], got)


@pytest.mark.parametrize("rows", [1, 3, 4, 5, 63, 66, 130])
@pytest.mark.parametrize("keys", [1, 7, 9, 300])
@pytest.mark.parametrize("causal", [0, 1])
def test_sizes(harness: Harness, rows: int, keys: int, causal: int) -> None:
    d, dv = 5 + keys % 4, 3 + rows % 9
    check(harness, [normal(2, 3, rows, d), normal(2, 3, keys, d), normal(2, 3, keys, dv)], is_causal=causal)


@pytest.mark.parametrize("dv", [1, 2, 3, 4, 8, 31, 32, 36, 70])
@pytest.mark.parametrize("rows", [2, 9])
def test_widths_of_values(harness: Harness, rows: int, dv: int) -> None:
    check(harness, [normal(1, 2, rows, 16), normal(1, 2, 11, 16), normal(1, 2, 11, dv)])


@pytest.mark.parametrize("rows", [2, 6])
@pytest.mark.parametrize("heads", [(6, 2), (4, 1), (3, 3)])
def test_shared_heads_in_rows(harness: Harness, rows: int, heads: tuple[int, int]) -> None:
    n, m = heads
    inputs: list[Array | None] = [normal(2, rows, n * 8), normal(2, 7, m * 8), normal(2, 7, m * 4)]
    check(harness, inputs, q_num_heads=n, kv_num_heads=m, scale=0.3, softcap=0.7)


MASKS = [(7,), (4,), (5, 7), (1, 7), (3, 5, 7), (2, 1, 5, 7), (2, 3, 1, 7), (1, 1, 5, 3), (2, 3, 5, 7)]


@pytest.mark.parametrize("shape", MASKS, ids=str)
@pytest.mark.parametrize("kind", ["float", "bool"])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("rows", [5, 2])
def test_masks(harness: Harness, shape: tuple[int, ...], kind: str, causal: int, rows: int) -> None:
    shape = tuple(rows if d == 5 else d for d in shape)
    mask = normal(*shape) if kind == "float" else chance.integers(0, 2, shape).astype(bool)
    check(harness, [normal(2, 3, rows, 8), normal(2, 3, 7, 8), normal(2, 3, 7, 8), mask], is_causal=causal)


@pytest.mark.parametrize("rows", [2, 5])
def test_a_row_whose_keys_are_all_masked_is_zero(harness: Harness, rows: int) -> None:
    mask = np.zeros((rows, 7), np.float32)
    mask[1] = -np.inf
    inputs: list[Array | None] = [normal(1, 2, rows, 8), normal(1, 2, 7, 8), normal(1, 2, 7, 8), mask]
    check(harness, inputs)
    assert not harness.op(attention, inputs)[0][:, :, 1].any()


@pytest.mark.parametrize("rows", [2, 5])
def test_nan_stays(harness: Harness, rows: int) -> None:
    q = normal(1, 1, rows, 8)
    q[0, 0, 1] = np.nan
    y = harness.op(attention, [q, normal(1, 1, 7, 8), normal(1, 1, 7, 8)])[0]
    assert np.isnan(y[0, 0, 1]).all()
    assert np.isfinite(np.delete(y, 1, 2)).all()


@pytest.mark.parametrize("rows", [1, 6, 70])
@pytest.mark.parametrize("left", [-1, 0, 3])
@pytest.mark.parametrize("right", [-1, 0, 2])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("cache", ["none", "past", "lengths"])
def test_windows_and_caches(harness: Harness, rows: int, left: int, right: int, causal: int, cache: str) -> None:
    keys = rows + (4 if cache == "lengths" else 0)
    inputs: list[Array | None] = [normal(2, 2, rows, 8), normal(2, 2, keys, 8), normal(2, 2, keys, 8)]
    if cache == "past":
        inputs += [None, normal(2, 2, 5, 8), normal(2, 2, 5, 8)]
    if cache == "lengths":
        inputs += [None, None, None, np.array([keys - 1, keys - 3], np.int64)]
    check(harness, inputs, is_causal=causal, left_window_size=left, right_window_size=right)


def test_a_sink_takes_its_share(harness: Harness) -> None:
    q, k, v = normal(1, 2, 5, 8), normal(1, 2, 6, 8), normal(1, 2, 6, 8)
    sinks = np.array([0.5, -3], np.float32)

    def op(cx: Context, q: Value, k: Value, v: Value, sinks: Value) -> Value:
        y = cx.out(q.shape, F32)
        attend(cx, by_head(q), by_head(k), by_head(v), by_head(y), batch=1, scale=1.0, sinks=sinks)
        return y

    scores = np.concatenate([q @ k.swapaxes(2, 3), np.broadcast_to(sinks[:, None, None], (1, 2, 5, 1))], 3)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(harness.op(op, [q, k, v, sinks]), weights[..., :-1] @ v, rtol=1e-4, atol=1e-6)


def test_nothing_to_do(harness: Harness) -> None:
    y = harness.op(attention, [normal(0, 2, 3, 4), normal(0, 2, 5, 4), normal(0, 2, 5, 4)])[0]
    assert y.shape == (0, 2, 3, 4)
    for rows in (2, 5):
        y = harness.op(attention, [normal(1, 2, rows, 4), normal(1, 2, 0, 4), normal(1, 2, 0, 4)])[0]
        np.testing.assert_array_equal(y, np.zeros((1, 2, rows, 4)))


@pytest.mark.parametrize(
    ("shapes", "attributes", "match"),
    [
        ([(1, 2, 3, 4), (1, 2, 3, 5), (1, 2, 3, 4)], {}, "keys of 4 and 5"),
        ([(1, 3, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4)], {}, "3, 2 and 2 heads"),
        ([(1, 3, 8), (1, 3, 8), (1, 3, 8)], {}, "q_num_heads"),
        ([(1, 3, 8), (1, 3, 8), (1, 3, 8)], {"q_num_heads": 3, "kv_num_heads": 1}, "8 columns"),
        ([(1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4), (2, 3)], {}, "does not broadcast"),
        ([(1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4), (3, 9)], {}, "more than 3 keys"),
    ],
)
def test_what_does_not_fit(shapes: list[tuple[int, ...]], attributes: dict[str, Any], match: str) -> None:
    with pytest.raises(ort.OnnxWasmError, match=match):
        Harness().op(attention, [normal(*s) for s in shapes], **attributes)


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_scores_are_answered_by_the_body_of_the_definition(mode: int, kind: Any) -> None:
    feeds = {n: normal(2, 2, 3, 4).astype(kind) for n in "qkv"}
    type_ = graphs.helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    options = {"qk_matmul_output_mode": mode, "is_causal": 1, "softcap": 0.5 if mode else 0.0}
    data = graphs.model(
        [node("Attention", ["q", "k", "v"], ["y", "", "", "s"], **options)],
        {n: (type_, x.shape) for n, x in feeds.items()},
        ["y", "s"],
        opset=24,
    )
    with ort.Runtime() as runtime, ort.InferenceSession.create(data, runtime=runtime) as session:
        got = {n: t.get_data(release_data=True) for n, t in session.run(feeds).items()}
    expected = _compute_attention(*feeds.values(), **options)
    np.testing.assert_allclose(got["y"], expected[0], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(got["s"], expected[3], rtol=1e-4, atol=1e-6)


def rotated(x: Array, cos: Array, sin: Array, interleaved: int, size: int) -> Array:
    """x is (batch, heads, rows, d); cos and sin are (batch, rows, size / 2)."""
    y = x.astype(np.float64)
    first, second = (
        (slice(0, size, 2), slice(1, size, 2)) if interleaved else (slice(size // 2), slice(size // 2, size))
    )
    c, s = cos[:, None], sin[:, None]
    a, b = y[..., first].copy(), y[..., second].copy()
    y[..., first], y[..., second] = a * c - b * s, a * s + b * c
    return y


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("size", [2, 6, 8, 22])
@pytest.mark.parametrize("positions", [False, True])
def test_rotary_embedding(harness: Harness, interleaved: int, size: int, positions: bool) -> None:
    b, n, s, d = 2, 3, 5, 22
    x, ids = normal(b, n, s, d), chance.integers(0, 9, (b, s))
    cos, sin = (normal(9, size // 2), normal(9, size // 2)) if positions else (normal(b, s, size // 2),) * 2
    expected = rotated(x, *((cos[ids], sin[ids]) if positions else (cos, sin)), interleaved, size)
    attributes = {"interleaved": interleaved, "rotary_embedding_dim": size}
    inputs = [x, cos, sin, ids] if positions else [x, cos, sin]
    for split in (1, 3):
        y = harness.op(rotary_embedding, inputs, split=split, **attributes)
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-6)
    inputs[0] = x.swapaxes(1, 2).reshape(b, s, n * d)
    y = harness.op(rotary_embedding, inputs, num_heads=n, **attributes)
    np.testing.assert_allclose(y.reshape(b, s, n, d).swapaxes(1, 2), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("position", [-1, 9])
def test_a_position_outside_the_caches(harness: Harness, position: int) -> None:
    ids = np.array([[0, position]])
    with pytest.raises(KernelStatus) as caught:
        harness.op(rotary_embedding, [normal(1, 1, 2, 4), normal(9, 2), normal(9, 2), ids])
    assert caught.value.args == (2, position, 0, 9)
