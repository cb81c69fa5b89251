"""Transformer operators of com.microsoft against native onnxruntime."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import pytest

import graphs
import onnx_wasm as ort
from graphs import node

chance = np.random.default_rng(7)
Arrays = dict[str, np.ndarray[Any, Any]]


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return chance.normal(0, 1, shape).astype(np.float32)


def build(
    op: str,
    inputs: list[np.ndarray[Any, Any] | None],
    outputs: int | list[str],
    constants: tuple[int, ...] = (),
    domain: str = "com.microsoft",
    **attributes: Any,
) -> tuple[bytes, Arrays]:
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(inputs)]
    outs = [f"y{i}" for i in range(outputs)] if isinstance(outputs, int) else outputs
    arrays = {n: x for n, x in zip(names, inputs, strict=True) if x is not None}
    weights = {f"x{i}": arrays.pop(f"x{i}") for i in constants}
    kinds = {n: (graphs.helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in arrays.items()}
    made = graphs.node(op, names, outs, domain=domain, **attributes)
    data = graphs.model([made], kinds, [o for o in outs if o], weights, domains={"com.microsoft": 1})
    proto = onnx.ModelProto.FromString(data)
    for output in proto.graph.output:
        output.ClearField("type")
    return proto.SerializeToString(), arrays


def run(data: bytes, feeds: Arrays, variant: Any = "relaxed") -> Arrays:
    with ort.Runtime(variant=variant) as runtime:
        with ort.InferenceSession.create(data, runtime=runtime) as session:
            outputs = session.run(feeds)
            arrays = {n: t.get_data(release_data=True) for n, t in outputs.items()}
        runtime.heap_check()
        assert runtime.memory().used == 0
    return arrays


def compare(
    op: str,
    inputs: list[np.ndarray[Any, Any] | None],
    outputs: int | list[str] = 1,
    *,
    atol: float = 2e-6,
    rtol: float = 2e-5,
    variant: Any = "relaxed",
    **rest: Any,
) -> Arrays:
    """Every output as native onnxruntime has it."""
    data, feeds = build(op, inputs, outputs, **rest)
    got, expected = run(data, feeds, variant), graphs.native(data, feeds)
    for name, e in expected.items():
        assert got[name].dtype == e.dtype, name
        np.testing.assert_allclose(
            got[name].astype(np.float64), e.astype(np.float64), rtol=rtol, atol=atol, err_msg=f"{op} {name}"
        )
    return got


@pytest.mark.parametrize("op", ["Gelu", "FastGelu", "QuickGelu"])
@pytest.mark.parametrize("shape", [(0,), (7,), (3, 33)])
def test_gelu(op: str, shape: tuple[int, ...]) -> None:
    compare(op, [normal(*shape)])


def test_gelu_with_bias() -> None:
    compare("BiasGelu", [normal(2, 3, 9), normal(9)])
    compare("FastGelu", [normal(2, 3, 9), normal(9)])
    compare("QuickGelu", [normal(2, 3, 9)], alpha=0.7)


@pytest.mark.parametrize("constant", [(), (1,)])
@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("batches", [((), ()), ((3,), ()), ((2, 3), (2, 3)), ((2, 1), (3,)), ((), (2,))])
def test_fused_matmul(batches: Any, trans_a: int, trans_b: int, constant: tuple[int, ...]) -> None:
    m, k, n = 5, 13, 9
    a = normal(*batches[0], *((k, m) if trans_a else (m, k)))
    b = normal(*batches[1], *((n, k) if trans_b else (k, n)))
    compare("FusedMatMul", [a, b], constants=constant, transA=trans_a, transB=trans_b, alpha=0.5, atol=1e-5)


def test_fused_matmul_moves_the_first_axis() -> None:
    a, b = normal(5, 2, 3, 7), normal(7, 2, 3, 4)
    compare("FusedMatMul", [a, b], transBatchA=1, transBatchB=1, atol=1e-5)
    compare("FusedMatMul", [normal(7, 2, 5), normal(2, 4, 7)], transBatchA=1, transA=1, transB=1, atol=1e-5)


@pytest.mark.parametrize(
    ("activation", "extra"),
    [
        ("Relu", {}),
        ("LeakyRelu", {"activation_alpha": 0.3}),
        ("Sigmoid", {}),
        ("Tanh", {}),
        ("HardSigmoid", {"activation_alpha": 0.3, "activation_beta": 0.4}),
    ],
)
def test_fused_gemm(activation: str, extra: dict[str, float]) -> None:
    a, b, c = normal(4, 6), normal(9, 6), normal(9)
    compare("FusedGemm", [a, b, c], activation=activation, transB=1, alpha=0.7, beta=0.5, atol=1e-5, **extra)


@pytest.mark.parametrize(
    ("activation", "params"),
    [
        ("Relu", []),
        ("LeakyRelu", [0.3]),
        ("Sigmoid", []),
        ("Tanh", []),
        ("HardSigmoid", [0.3, 0.4]),
        ("Clip", [-0.5, 0.7]),
    ],
)
@pytest.mark.parametrize("added", [False, True])
def test_fused_conv(activation: str, params: list[float], added: bool) -> None:
    x, w, b = normal(2, 4, 7, 6), normal(8, 2, 3, 3), normal(8)
    z = normal(2, 8, 7, 6) if added else None
    extra = {"activation_params": params} if params else {}
    inputs = [x, w, b, z] if added else [x, w, b]
    compare("FusedConv", inputs, activation=activation, group=2, pads=[1, 1, 1, 1], atol=1e-5, **extra)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("skip", [(2, 3, 12), (1, 3, 12), (3, 12)])
def test_skip_layer_normalization(skip: tuple[int, ...], bias: bool) -> None:
    x, gamma, beta = normal(2, 3, 12), normal(12), normal(12)
    outputs = ["y", "", "", "sum"]
    inputs = [x, normal(*skip), gamma, beta, *([normal(12)] if bias else [])]
    compare("SkipLayerNormalization", inputs, outputs, epsilon=1e-5, atol=1e-5)
    inputs = [x, normal(*skip), gamma, *([normal(12)] if bias else [])]
    compare("SkipSimplifiedLayerNormalization", inputs, outputs, epsilon=1e-5, atol=1e-5)


def test_what_follows_a_sum_does_not_change_it() -> None:
    data = graphs.model(
        [
            node("SkipLayerNormalization", ["x", "s", "g"], ["y", "", "", "sum"], domain="com.microsoft"),
            node("Relu", ["sum"], ["r"]),
        ],
        {n: (graphs.FLOAT, [2, 3, 8]) for n in "xs"} | {"g": (graphs.FLOAT, [8])},
        ["y", "r"],
        domains={"com.microsoft": 1},
    )
    feeds = {"x": normal(2, 3, 8), "s": normal(2, 3, 8), "g": normal(8)}
    got, expected = run(data, feeds), graphs.native(data, feeds)
    for name in expected:
        np.testing.assert_allclose(got[name], expected[name], atol=1e-5)


@pytest.mark.parametrize("axis", [-1, 1])
def test_simplified_layer_normalization(axis: int) -> None:
    shape = (4,) if axis == -1 else (3, 4)
    compare("SimplifiedLayerNormalization", [normal(2, 3, 4), normal(*shape)], domain="", axis=axis, atol=1e-5)
    x, scale = normal(2, 3, 4), normal(*shape)
    data, feeds = build("SimplifiedLayerNormalization", [x, scale], 2, domain="", axis=axis, epsilon=1e-3)
    axes = (2,) if axis == -1 else (1, 2)
    expected = 1 / np.sqrt((x.astype(np.float64) ** 2).mean(axes, keepdims=True) + 1e-3)
    np.testing.assert_allclose(run(data, feeds)["y1"], expected, rtol=1e-5)


@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("positions", [False, True])
def test_embed_layer_normalization(segments: bool, mask: bool, positions: bool) -> None:
    ids = chance.integers(0, 20, (2, 5)).astype(np.int32)
    inputs = [
        ids,
        chance.integers(0, 2, (2, 5)).astype(np.int32) if segments else None,
        normal(20, 8),
        normal(6, 8),
        normal(2, 8) if segments else None,
        normal(8),
        normal(8),
        chance.integers(0, 2, (2, 5)).astype(np.int32) if mask else None,
        chance.integers(0, 6, (2, 5)).astype(np.int32) if positions else None,
    ]
    while inputs[-1] is None:
        inputs.pop()
    compare("EmbedLayerNormalization", inputs, 3 if segments else ["y", "count"], epsilon=1e-6, atol=1e-5)


def test_small_operators() -> None:
    x = normal(3, 5)
    compare("ExpandDims", [x, np.array(1, np.int32)])
    compare("Trilu", [x, np.array(1, np.int64)], upper=0)
    compare("Range", [np.array(2, np.int64), np.array(11, np.int64), np.array(3, np.int64)])
    compare("Range", [np.array(2, np.float32), np.array(6, np.float32)])
    compare("Pad", [x, np.array([1, 0, 0, 2], np.int64), np.array(7, np.float32)])
    compare("GatherND", [x, np.array([[0, 1], [2, 4]], np.int64)])
    compare("CDist", [x, normal(4, 5)], atol=1e-4)
    compare("CDist", [x, normal(4, 5)], metric="euclidean", atol=1e-4)
    compare("CDist", [x.astype(np.float64), normal(4, 5).astype(np.float64)], metric="euclidean")
    compare("Unique", [np.array([3, 1, 3, 2, 1, 3], np.float32)], 3)
    image, grid = normal(1, 2, 4, 5), normal(1, 3, 3, 2)
    compare("GridSample", [image, grid], mode="bilinear", padding_mode="border", atol=1e-5)
    compare("GridSample", [image, grid], mode="bicubic", align_corners=1, atol=1e-5)


def test_bias_add_and_split_gelu() -> None:
    x, bias, skip = normal(2, 3, 8), normal(8), normal(2, 3, 8)
    data, feeds = build("BiasAdd", [x, bias, skip], 1)
    np.testing.assert_allclose(run(data, feeds)["y0"], x + bias + skip, rtol=1e-6)
    data, feeds = build("BiasSplitGelu", [x, bias], 1)
    left, right = np.split((x + bias).astype(np.float64), 2, -1)
    expected = left * right * 0.5 * (1 + np.vectorize(math.erf)(right / np.sqrt(2)))
    np.testing.assert_allclose(run(data, feeds)["y0"], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("size", [16, 6])
@pytest.mark.parametrize("each", [False, True])
def test_rotary_embedding(interleaved: int, rank: int, size: int, each: bool) -> None:
    b, n, s = 2, 3, 5
    x = normal(b, n, s, size) if rank == 4 else normal(b, s, n * size)
    cos, sin = normal(9, size // 2), normal(9, size // 2)
    positions = chance.integers(0, 9, (b, s)) if each else np.array([3], np.int64)
    compare("RotaryEmbedding", [x, positions, cos, sin], interleaved=interleaved)


def test_rotary_embedding_of_a_part() -> None:
    x, cos, sin = normal(2, 4, 3 * 16), normal(9, 4), normal(9, 4)
    compare("RotaryEmbedding", [x, np.array([2], np.int64), cos, sin], rotary_embedding_dim=8, num_heads=3)


def test_a_position_outside_the_caches_is_an_error() -> None:
    data, feeds = build(
        "RotaryEmbedding", [normal(1, 2, 8), np.array([[0, 9]], np.int64), normal(9, 4), normal(9, 4)], 1, num_heads=1
    )
    with pytest.raises(ort.OnnxWasmError, match=r"\b9\b"):
        run(data, feeds)
