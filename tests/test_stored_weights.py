"""Weights that a model stores in 8 bits stay in 8 bits in the heap, and give what their f32 form gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnx_wasm as ort

RNG = np.random.default_rng(0)


def quantized(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max + 1, shape).astype(dtype)


def dequantize(
    form: str, shape: tuple[int, ...], dtype: Any, axis: int | None
) -> tuple[list[Any], dict[str, np.ndarray]]:
    """Nodes that make "w" of stored values: by DequantizeLinear, with a zero point or without, or by Cast and Mul."""
    scale = RNG.uniform(0.5, 1.5, () if axis is None else shape[axis]).astype(np.float32) / 64
    weights = {"q": quantized(shape, dtype), "s": scale}
    if form == "cast":
        if axis is not None:
            weights["s"] = scale.reshape([-1 if i == axis else 1 for i in range(len(shape))])
        nodes = [
            helper.make_node("Cast", ["q"], ["f"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["s", "f"] if axis == 0 else ["f", "s"], ["w"]),
        ]
        return nodes, weights
    names = ["q", "s"]
    if form == "zero":
        weights["z"] = quantized(scale.shape, dtype)
        names.append("z")
    attributes = {} if axis is None else {"axis": axis}
    return [helper.make_node("DequantizeLinear", names, ["w"], **attributes)], weights


def check(nodes: list[Any], weights: dict[str, np.ndarray], feeds: dict[str, np.ndarray], *, most: int) -> None:
    """The same as native onnxruntime, with at most so many bytes of weights in the heap."""
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "stored",
            [
                helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
                for n, a in feeds.items()
            ],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(a, n) for n, a in weights.items()],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    ).SerializeToString()
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    (expected,) = onnxruntime.InferenceSession(model, options).run(None, feeds)
    for planned in (True, False):
        with (
            ort.Runtime() as runtime,
            ort.InferenceSession.create(model, runtime=runtime, enable_mem_pattern=planned) as session,
        ):
            for _ in range(2):
                y = session.run(feeds)["y"].get_data(release_data=True)
                assert y.shape == expected.shape
                np.testing.assert_allclose(y, expected, rtol=2e-5, atol=2e-5 * np.abs(expected).max())
            held = sum(b.nbytes for b in runtime.blocks() if b.tag == "weights")
            assert held <= most, runtime.blocks()
            del y


FORMS = ["plain", "zero", "cast"]
TYPES = [np.int8, np.uint8]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("axis", [None, 1])
@pytest.mark.parametrize(("m", "k", "n"), [(1, 300, 37), (5, 64, 8), (70, 515, 200), (3, 1, 9)])
def test_matmul(form: str, dtype: Any, axis: int | None, m: int, k: int, n: int) -> None:
    nodes, weights = dequantize(form, (k, n), dtype, axis)
    feeds = {"x": RNG.standard_normal((2, m, k)).astype(np.float32)}
    nodes.append(helper.make_node("MatMul", ["x", "w"], ["y"]))
    check(nodes, weights, feeds, most=(k + 8) * (n + 7) + 64)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize("how", ["Gemm", "Transpose"])
def test_transposed(form: str, dtype: Any, axis: int | None, how: str) -> None:
    m, k, n = 9, 70, 33
    nodes, weights = dequantize(form, (n, k), dtype, axis)
    weights["b"] = RNG.standard_normal(n).astype(np.float32)
    if how == "Gemm":
        nodes.append(helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=1))
    else:
        nodes.append(helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]))
        nodes.append(helper.make_node("MatMul", ["x", "t"], ["p"]))
        nodes.append(helper.make_node("Add", ["p", "b"], ["y"]))
    feeds = {"x": RNG.standard_normal((m, k)).astype(np.float32)}
    check(nodes, weights, feeds, most=(k + 8) * (n + 7) + 4 * n + 64)


@pytest.mark.parametrize("scale", [(), (6,), (1, 6), (4, 1)])
@pytest.mark.parametrize("square", [False, True])
@pytest.mark.parametrize("reader", ["MatMul", "Gather"])
def test_transposed_before_it_is_scaled(scale: tuple[int, ...], square: bool, reader: str) -> None:
    rows = 6 if square else 4
    weights = {"q": quantized((6, rows), np.int8), "s": RNG.uniform(1, 2, scale).astype(np.float32)}
    if square:
        weights["s"] = weights["s"].reshape([6 if d == 4 else d for d in scale]) if 4 not in scale else np.float32(0.5)
        weights["s"] = np.asarray(weights["s"], np.float32)
    nodes = [
        helper.make_node("Cast", ["q"], ["c"], to=TensorProto.FLOAT),
        helper.make_node("Transpose", ["c"], ["t"], perm=[1, 0]),
        helper.make_node("Mul", ["t", "s"], ["w"]),
    ]
    if reader == "MatMul":
        nodes.append(helper.make_node("MatMul", ["x", "w"], ["y"]))
        feeds = {"x": RNG.standard_normal((3, rows)).astype(np.float32)}
    else:
        nodes.append(helper.make_node("Gather", ["w", "x"], ["y"]))
        feeds = {"x": np.array([0, -1, 2], np.int64)}
    check(nodes, weights, feeds, most=1000)


@pytest.mark.parametrize("form", FORMS)
def test_one_element_has_no_axes_if_its_index_has_none(form: str) -> None:
    nodes, weights = dequantize(form, (5,), np.int8, None)
    for name in weights.keys() - {"q"}:
        weights[name] = weights[name].reshape(1)
    nodes.append(helper.make_node("Gather", ["w", "i"], ["y"]))
    check(nodes, weights, {"i": np.array(3, np.int64)}, most=100)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("axis", "along"), [(None, 0), (None, 1), (0, 0), (1, 1)])
def test_gather(form: str, dtype: Any, axis: int | None, along: int) -> None:
    shape = (100, 24, 3)
    nodes, weights = dequantize(form, shape, dtype, axis)
    nodes.append(helper.make_node("Gather", ["w", "i"], ["y"], axis=along))
    feeds = {"i": RNG.integers(-shape[along], shape[along], (2, 5)).astype(np.int64)}
    check(nodes, weights, feeds, most=100 * 24 * 3 + 6 * 100 + 64)


CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 24, 9, 11), (13, 24, 1, 1), {}),
    ((2, 16, 9, 11), (14, 8, 3, 3), {"group": 2, "pads": [1, 1, 1, 1], "strides": [2, 1]}),
    ((1, 64, 14, 14), (256, 64, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((1, 20, 1, 1), (8, 20, 1, 1), {}),
    ((1, 7, 50), (6, 7, 3), {}),
]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize(("x", "w", "attributes"), CONVOLUTIONS)
def test_conv(
    form: str, dtype: Any, axis: int | None, x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    nodes, weights = dequantize(form, w, dtype, axis)
    weights["b"] = RNG.standard_normal(w[0]).astype(np.float32)
    nodes.append(helper.make_node("Conv", ["x", "w", "b"], ["c"], **attributes))
    nodes.append(helper.make_node("Relu", ["c"], ["y"]))
    feeds = {"x": RNG.standard_normal(x).astype(np.float32)}
    rows = -(-w[0] // 4) * 4 + 8
    check(nodes, weights, feeds, most=rows * int(np.prod(w[1:])) + 8 * rows + 4 * w[0] + 64)


def test_batch_normalization_after_a_stored_convolution() -> None:
    nodes, weights = dequantize("plain", (12, 8, 3, 3), np.int8, 0)
    for name in ("scale", "shift", "mean"):
        weights[name] = RNG.standard_normal(12).astype(np.float32)
    weights["variance"] = RNG.uniform(0.5, 2, 12).astype(np.float32)
    nodes.append(helper.make_node("Conv", ["x", "w"], ["c"]))
    nodes.append(helper.make_node("BatchNormalization", ["c", "scale", "shift", "mean", "variance"], ["y"]))
    feeds = {"x": RNG.standard_normal((1, 8, 9, 9)).astype(np.float32)}
    check(nodes, weights, feeds, most=12 * 72 + 12 * 4 * 8)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("form", FORMS)
def test_scales_along_the_other_axis(form: str, axis: int) -> None:
    """A scale for each row of a product's second operand cannot stay outside: the f32 form is used."""
    nodes, weights = dequantize(form, (40, 24), np.int8, axis)
    if axis == 0:
        nodes.append(helper.make_node("MatMul", ["x", "w"], ["y"]))
        feeds = {"x": RNG.standard_normal((3, 40)).astype(np.float32)}
    else:
        nodes.append(helper.make_node("Gather", ["w", "x"], ["y"]))
        feeds = {"x": np.array([3, -1, 39], np.int64)}
    check(nodes, weights, feeds, most=40 * 24 * 4 + 64)


def test_two_readers_of_which_one_needs_f32() -> None:
    nodes, weights = dequantize("plain", (16, 16), np.int8, None)
    nodes.append(helper.make_node("MatMul", ["x", "w"], ["p"]))
    nodes.append(helper.make_node("Add", ["p", "w"], ["y"]))
    check(nodes, weights, {"x": RNG.standard_normal((16, 16)).astype(np.float32)}, most=16 * 16 * 5 + 256)
