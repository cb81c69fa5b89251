"""Quantized operators of com.microsoft for transformers against native onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import graphs
import onnx_wasm as ort
from onnx_wasm.errors import OnnxWasmError
from test_microsoft_attention import mask_of
from test_microsoft_transformer import build, compare, normal, run
from test_quantize_microsoft import integers, scalar, uniform

B, S, D, N, H = 2, 5, 20, 3, 8
Inputs = list[Any]


def inputs_of(
    *,
    weights: Any = np.int8,
    per_column: bool = False,
    zeros: bool = True,
    mask: np.ndarray[Any, Any] | None = None,
    past: np.ndarray[Any, Any] | None = None,
    shape: tuple[int, int] = (B, S),
) -> Inputs:
    columns = (3 * N * H,) if per_column else ()
    return [
        integers((*shape, D), np.uint8),
        integers((D, 3 * N * H), weights),
        normal(3 * N * H),
        scalar(0.01),
        uniform(0.004, 0.008, columns),
        mask,
        integers((), np.uint8) if zeros else None,
        np.asarray(integers(columns, weights) // 8, weights) if zeros else None,
        past,
    ]


@pytest.mark.parametrize("kind", ["none", "ends", "ends-starts", "keys", "rows"])
@pytest.mark.parametrize("past", [0, 4])
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_attention(kind: str, past: int, unidirectional: int) -> None:
    inputs = inputs_of(mask=mask_of(kind, past + S), past=normal(2, B, N, past, H) if past else None)
    compare("QAttention", inputs, 2, constants=(1, 2), num_heads=N, unidirectional=unidirectional, atol=2e-5)


@pytest.mark.parametrize("constants", [(), (1, 2, 4, 7)])
@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("weights", [np.int8, np.uint8])
def test_weights(weights: Any, per_column: bool, constants: tuple[int, ...]) -> None:
    inputs = inputs_of(weights=weights, per_column=per_column, shape=(1, 70))
    compare("QAttention", inputs, constants=constants, num_heads=N, scale=0.2, mask_filter_value=-5.0, atol=2e-5)


def test_without_zero_points() -> None:
    compare("QAttention", inputs_of(zeros=False), num_heads=N, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("shape", [(B, 1), (1, 1)])
@pytest.mark.parametrize("op", ["QAttention", "Attention"])
def test_a_mask_of_one_column_is_a_placeholder(op: str, shape: tuple[int, int]) -> None:
    mask = np.zeros(shape, np.int32)
    inputs = inputs_of(mask=mask) if op == "QAttention" else [normal(B, S, D), normal(D, 72), normal(72), mask]
    compare(op, inputs, num_heads=N, unidirectional=1, atol=2e-5)


def test_16_bit_floats() -> None:
    inputs = inputs_of(per_column=True)
    inputs = [x if x is None or x.dtype != np.float32 else x.astype(np.float16) for x in inputs]
    compare("QAttention", inputs, constants=(1, 2, 4), num_heads=N, atol=2e-2, rtol=1e-2)


def test_input_of_signed_bytes_is_that_of_unsigned_ones_moved_by_128() -> None:
    unsigned = inputs_of(per_column=True)
    signed = list(unsigned)
    signed[0], signed[6] = ((unsigned[i].astype(int) - 128).astype(np.int8) for i in (0, 6))
    results = [run(*build("QAttention", x, 1, (1,), num_heads=N))["y0"] for x in (unsigned, signed)]
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("shape", [(0, S), (B, 0)])
def test_empty_inputs(shape: tuple[int, int]) -> None:
    got = run(*build("QAttention", inputs_of(shape=shape), 2, (1,), num_heads=N))
    assert got["y0"].shape == (*shape, N * H)
    assert got["y1"].shape == (2, shape[0], N, shape[1], H)


@pytest.mark.parametrize(
    ("index", "array", "message"),
    [
        (0, np.zeros((S, D), np.uint8), "must have rank 3"),
        (1, np.zeros((D, 3 * N * H + 3), np.int8), "do not divide into 3 times 3 heads"),
        (1, np.zeros((D + 1, 3 * N * H), np.int8), "do not fit"),
        (2, np.zeros(9, np.float32), "must have 72 elements"),
        (3, np.zeros(2, np.float32), "scale of A must be a scalar"),
        (4, np.zeros(5, np.float32), "one element for each of 72 columns"),
        (5, np.zeros(7, np.int32), "a mask like"),
        (5, np.zeros((B, S + 1), np.int32), "does not fit"),
        (6, np.zeros(S, np.uint8), "must be a scalar"),
        (7, np.zeros(5, np.int8), "one element for each of 72 columns"),
        (7, np.zeros(72, np.uint8), "the zero point is uint8"),
        (8, np.zeros((2, B, N, 4, H + 1), np.float32), "does not fit"),
        (1, np.zeros((D, 3 * N * H), np.float32), "no product of type float32"),
        (5, np.zeros((B, S), np.int64), "must be int32"),
    ],
)
def test_bad_inputs(index: int, array: np.ndarray[Any, Any], message: str) -> None:
    inputs = inputs_of()
    inputs[index] = array
    data, feeds = build("QAttention", inputs, 1, (1,), num_heads=N)
    with pytest.raises(OnnxWasmError, match=message):
        run(data, feeds)


@pytest.mark.parametrize("mem_pattern", [True, False])
@pytest.mark.parametrize("per_channel", [False, True])
def test_as_quantize_dynamic_writes_it(tmp_path: Path, per_channel: bool, mem_pattern: bool) -> None:
    """Attention becomes QAttention behind DynamicQuantizeLinear; its weights stay in 8 bits in the heap."""
    quantization = pytest.importorskip("onnxruntime.quantization")
    d, heads = 256, 4
    weights = {"w": normal(d, 3 * d) / 8, "b": normal(3 * d)}
    made = graphs.node("Attention", ["x", "w", "b", "mask"], ["y"], domain="com.microsoft", num_heads=heads)
    kinds: Any = {"x": (graphs.FLOAT, ["batch", "rows", d]), "mask": (graphs.INT32, ["batch", "rows"])}
    proto = onnx.load_from_string(graphs.model([made], kinds, ["y"], weights, opset=17, domains={"com.microsoft": 1}))
    onnx.save(proto, tmp_path / "model.onnx")
    quantization.quantize_dynamic(tmp_path / "model.onnx", tmp_path / "q.onnx", per_channel=per_channel)
    data = (tmp_path / "q.onnx").read_bytes()
    assert "QAttention" in [n.op_type for n in onnx.load_from_string(data).graph.node]
    feeds = {"x": normal(2, 11, d), "mask": (np.arange(11) < np.array([[11], [7]])).astype(np.int32)}
    expected = graphs.native(data, feeds)["y"]
    for threads in (1, 2):
        with ort.Runtime(threads=threads) as runtime:
            with ort.InferenceSession.create(data, runtime=runtime, enable_mem_pattern=mem_pattern) as session:
                out = session.run(feeds)["y"]
                np.testing.assert_allclose(out.data, expected, atol=1e-4, rtol=1e-4)
                assert runtime.memory().by_tag["weights"] < 1.1 * 3 * d * d
                out.dispose()
            assert runtime.memory().used == 0


def embedding(
    dtype: Any, *, segments: bool = True, mask: bool = True, shape: tuple[int, int] = (B, S), scalars: Any = ()
) -> Inputs:
    hidden = 40
    ids = integers(shape, np.uint8).astype(np.int32) % 20
    marks = integers(shape, np.int8).astype(np.int32) % 3
    tables = [integers((count, hidden), dtype) for count in (20, 9, 3)]
    scales = [uniform(0.01, 0.05, scalars) for _ in range(5)]
    zeros = [np.asarray(integers(scalars, dtype) // 8, dtype) for _ in range(5)]
    inputs: Inputs = [ids, ids % 3, *tables, integers((hidden,), dtype), integers((hidden,), dtype)]
    inputs += [marks if mask else None, *scales, *zeros]
    for i in () if segments else (1, 4, 10, 15):
        inputs[i] = None
    return inputs


@pytest.mark.parametrize("constants", [(), (2, 3, 4, *range(8, 18), 5, 6)])
@pytest.mark.parametrize("scalars", [(), (1,)])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_embeddings(dtype: Any, scalars: Any, constants: tuple[int, ...]) -> None:
    inputs = embedding(dtype, scalars=scalars)
    compare("QEmbedLayerNormalization", inputs, 2, constants=constants, epsilon=1e-6, atol=1e-5)


@pytest.mark.parametrize("shape", [(B, S), (3, 9), (0, S), (B, 0)])
@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("mask", [False, True])
def test_embeddings_without_optional_inputs(mask: bool, segments: bool, shape: tuple[int, int]) -> None:
    inputs = embedding(np.uint8, segments=segments, mask=mask, shape=shape)
    compare("QEmbedLayerNormalization", inputs, 2, atol=1e-5)


def test_only_ones_of_a_mask_count() -> None:
    mask = np.array([[1, 1, 0, 1], [2, 3, 1, -1]], np.int32)
    ids, table, row = np.zeros((2, 4), np.int32), normal(5, 8), normal(8)
    compare("EmbedLayerNormalization", [ids, None, table, table, None, row, row, mask], 2, atol=1e-5)


def test_embeddings_stay_in_bytes() -> None:
    inputs = embedding(np.int8)
    inputs[2:5] = [integers((count, 64), np.int8) for count in (4000, 9, 3)]
    inputs[5:7] = [integers((64,), np.int8) for _ in range(2)]
    data, feeds = build("QEmbedLayerNormalization", inputs, 2, (2, 3, 4, 5, 6, *range(8, 18)))
    with ort.Runtime() as runtime, ort.InferenceSession.create(data, runtime=runtime) as session:
        for out in session.run(feeds).values():
            out.dispose()
        assert runtime.memory().by_tag["weights"] < 4100 * 64


@pytest.mark.parametrize(
    ("index", "array", "message"),
    [
        (0, np.zeros(S, np.int32), "must have rank 2"),
        (0, np.full((B, S), 20, np.int32), "index 20 out of range"),
        (0, np.zeros((B, 10), np.int32), "must have rank 2, and segment_ids"),
        (1, None, "all be given, or none"),
        (1, np.full((B, S), 3, np.int32), "index 3 out of range"),
        (2, np.zeros((20, 41), np.uint8), "the same columns"),
        (2, np.zeros((20, 40), np.float32), "float32"),
        (3, np.zeros((4, 40), np.uint8), "fewer than 5 positions"),
        (5, np.zeros(9, np.uint8), "the same columns"),
        (7, np.zeros((B, S + 1), np.int32), "must have the shape"),
        (8, np.zeros(2, np.float32), "must be scalars"),
        (13, np.zeros((), np.int8), "the zero point is int8"),
    ],
)
def test_bad_embeddings(index: int, array: Any, message: str) -> None:
    inputs = embedding(np.uint8)
    inputs[index] = array
    data, feeds = build("QEmbedLayerNormalization", inputs, 2)
    with pytest.raises(OnnxWasmError, match=message):
        run(data, feeds)


@pytest.mark.parametrize("per_channel", [False, True])
def test_layers_as_quantize_dynamic_writes_them(tmp_path: Path, per_channel: bool) -> None:
    """An embedding and two layers of attention, whose mask is the count of words that the embedding gives."""
    quantization = pytest.importorskip("onnxruntime.quantization")
    d, words = 64, 300
    shapes: dict[str, tuple[int, ...]] = {"words": (words, d), "places": (32, d), "kinds": (2, d), "g": (d,), "b": (d,)}
    names = ["ids", "kind", "words", "places", "kinds", "g", "b", "mask"]
    nodes = [graphs.node("EmbedLayerNormalization", names, ["y0", "count"], domain="com.microsoft")]
    for i in range(2):
        shapes |= {f"w{i}": (d, 3 * d), f"b{i}": (3 * d,), f"o{i}": (d, d), f"g{i}": (d,), f"s{i}": (d,)}
        inputs = [f"y{i}", f"w{i}", f"b{i}", "count"]
        nodes.append(graphs.node("Attention", inputs, [f"a{i}"], domain="com.microsoft", num_heads=4))
        nodes.append(graphs.node("MatMul", [f"a{i}", f"o{i}"], [f"m{i}"]))
        inputs = [f"m{i}", f"y{i}", f"g{i}", f"s{i}"]
        nodes.append(graphs.node("SkipLayerNormalization", inputs, [f"y{i + 1}"], domain="com.microsoft"))
    weights = {n: normal(*s) / np.float32(np.sqrt(s[0])) for n, s in shapes.items()}
    kinds: Any = {n: (graphs.INT32, ["batch", "rows"]) for n in ("ids", "kind", "mask")}
    proto = onnx.load_from_string(graphs.model(nodes, kinds, ["y2"], weights, opset=17, domains={"com.microsoft": 1}))
    onnx.save(proto, tmp_path / "model.onnx")
    quantization.quantize_dynamic(
        tmp_path / "model.onnx", tmp_path / "q.onnx", per_channel=per_channel,
        extra_options={"DefaultTensorType": graphs.FLOAT},
    )  # fmt: skip
    data = (tmp_path / "q.onnx").read_bytes()
    made = {n.op_type for n in onnx.load_from_string(data).graph.node}
    assert {"QAttention", "QEmbedLayerNormalization"} <= made
    feeds = {
        "ids": integers((2, 9), np.uint8).astype(np.int32),
        "kind": np.zeros((2, 9), np.int32),
        "mask": (np.arange(9) < np.array([[9], [5]])).astype(np.int32),
    }
    np.testing.assert_allclose(run(data, feeds)["y2"], graphs.native(data, feeds)["y2"], atol=1e-4, rtol=1e-4)
