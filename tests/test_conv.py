from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from onnx import helper

import onnx_wasm as ort
from graphs import FLOAT, model
from harness import Harness
from onnx_nodes import Case, node_cases
from onnx_wasm import dtypes
from onnx_wasm.context import Context, Value
from onnx_wasm.errors import ShapeError, UnsupportedModelError
from onnx_wasm.model import Node
from onnx_wasm.ops.conv import conv
from onnx_wasm.ops.fusion import Activation, fuse_activation, fuse_affine, fuse_residual


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def reference(x: np.ndarray, w: np.ndarray, b: np.ndarray | None = None, **attributes: Any) -> np.ndarray:
    names = ["x", "w"] + (["b"] if b is not None else [])
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        [helper.make_node("Conv", names, ["y"], **attributes)],
        "conv",
        [helper.make_tensor_value_info(n, kind, None) for n in names],
        [helper.make_tensor_value_info("y", kind, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x, "w": w} if b is None else {"x": x, "w": w, "b": b})[0]


def check(
    harness: Harness,
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    *,
    bias: bool = True,
    constant: bool = True,
    error: float = 4e-6,
    **attributes: Any,
) -> None:
    x, w, b = normal(*x_shape), normal(*w_shape, seed=1), normal(w_shape[0], seed=2) if bias else None
    expected = reference(x, w, b, **attributes)
    weights = (1, 2) if constant else ()
    y = harness.op(conv, [x, w, b], weights=weights, **attributes)
    assert y.shape == expected.shape
    np.testing.assert_allclose(y, expected, rtol=3e-5, atol=error * np.prod(w_shape[1:]) ** 0.5)
    split = harness.op(conv, [x, w, b], weights=weights, split=3, **attributes)
    assert y.tobytes() == split.tobytes()


CASES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 3, 8, 8), (5, 3, 3, 3), {}),
    ((2, 3, 9, 11), (5, 3, 3, 3), {"pads": [1, 2, 0, 1], "strides": [2, 1]}),
    ((1, 3, 24, 25), (16, 3, 7, 7), {"pads": [3, 3, 3, 3], "strides": [2, 2]}),
    ((1, 3, 40, 41), (6, 3, 11, 11), {"strides": [4, 4]}),
    ((1, 2, 19, 40), (6, 2, 5, 5), {"strides": [1, 3], "pads": [2, 1, 2, 1]}),
    ((1, 8, 7, 19), (8, 8, 3, 39), {"pads": [1, 19, 1, 19]}),
    ((1, 8, 40, 40), (8, 8, 3, 3), {"pads": [2, 2, 2, 2], "dilations": [2, 2]}),
    ((1, 8, 9, 12), (8, 8, 3, 2), {"pads": [0, 3, 5, 1], "dilations": [2, 3], "strides": [2, 3]}),
    ((1, 8, 20, 20), (8, 8, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ((1, 8, 21, 20), (8, 8, 4, 4), {"auto_pad": "SAME_LOWER", "strides": [2, 3]}),
    ((1, 8, 21, 20), (8, 8, 4, 4), {"auto_pad": "VALID", "strides": [2, 3]}),
    ((1, 4, 3, 3), (9, 4, 3, 3), {}),
    ((1, 4, 1, 1), (9, 4, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((1, 3, 3), (5, 3, 3), {"strides": [2], "pads": [0, 2], "dilations": [2]}),
    # one position, many channels
    ((2, 64, 1, 1), (10, 64, 1, 1), {}),
    ((1, 63, 1, 1), (70, 63, 1, 1), {}),
    # pointwise
    ((1, 300, 7, 7), (40, 300, 1, 1), {}),
    ((2, 24, 13, 13), (130, 24, 1, 1), {}),
    ((1, 64, 28, 28), (48, 64, 1, 1), {}),
    ((1, 30, 17, 15), (33, 30, 1, 1), {"strides": [2, 2]}),
    ((1, 5, 6, 6), (3, 5, 1, 1), {"pads": [1, 0, 0, 2]}),
    # groups
    ((1, 8, 14, 14), (12, 2, 3, 3), {"pads": [1, 1, 1, 1], "group": 4}),
    ((2, 8, 14, 14), (10, 4, 3, 3), {"pads": [1, 1, 1, 1], "group": 2}),
    ((1, 24, 28, 28), (112, 6, 1, 1), {"group": 4}),
    ((1, 6, 9, 9), (24, 1, 3, 3), {"group": 6}),
    # one and three dimensions
    ((1, 8, 33), (8, 8, 5), {"pads": [2, 1], "strides": [3]}),
    ((1, 1, 700), (37, 1, 256), {"strides": [64]}),
    ((2, 6, 50), (6, 1, 9), {"group": 6, "pads": [4, 4]}),
    ((1, 3, 5, 6, 7), (4, 3, 2, 3, 3), {"pads": [1, 1, 1, 0, 1, 1], "strides": [1, 2, 1], "dilations": [2, 1, 1]}),
    ((2, 4, 4, 5, 6), (4, 2, 3, 3, 3), {"pads": [1] * 6, "group": 2}),
    ((1, 2, 2, 9, 7), (4, 2, 1, 3, 3), {"strides": [4, 1, 1]}),
    ((1, 2, 2, 9, 7), (4, 2, 1, 3, 3), {"strides": [4, 1, 1], "pads": [2, 0, 0, 0, 0, 0]}),
    ((1, 2, 1, 9, 7), (4, 2, 1, 3, 3), {"strides": [4, 1, 1], "pads": [1, 0, 0, 0, 0, 0]}),
]


@pytest.mark.parametrize(("x", "w", "attributes"), CASES)
def test_conv(harness: Harness, x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, Any]) -> None:
    check(harness, x, w, **attributes)
    check(harness, x, w, bias=False, constant=False, **attributes)


@pytest.mark.parametrize(("x", "w", "attributes"), CASES[::4])
def test_strict_variant(
    strict_harness: Harness, x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    check(strict_harness, x, w, **attributes)


# The largest error of Winograd's filtering, where the sum of so many products has a deviation of 1.
FILTERED = 2e-5


@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        # resnet50, squeezenet and shufflenet, fewer rows of the large images
        ((1, 3, 20, 224), (64, 3, 7, 7), {"strides": [2, 2], "pads": [3, 3, 3, 3]}),
        ((1, 64, 8, 56), (64, 64, 3, 3), {"pads": [1, 1, 1, 1]}),
        ((1, 256, 6, 56), (128, 256, 1, 1), {}),
        ((1, 128, 9, 56), (128, 128, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ((1, 256, 14, 14), (64, 256, 3, 3), {"pads": [1, 1, 1, 1]}),
        ((1, 48, 27, 27), (128, 48, 5, 5), {"pads": [2, 2, 2, 2]}),
        ((2, 192, 13, 13), (192, 96, 3, 3), {"pads": [1, 1, 1, 1], "group": 2}),
        ((1, 64, 8, 300), (32, 64, 3, 3), {"pads": [1, 1, 1, 1]}),
        ((1, 20, 96, 100), (50, 20, 96, 3), {"pads": [0, 1, 0, 1]}),
        ((1, 512, 7, 7), (64, 512, 3, 3), {"pads": [1, 1, 1, 1]}),
        ((1, 1024, 7, 7), (256, 1024, 1, 1), {}),
        ((1, 64, 9, 55), (16, 64, 1, 1), {}),
        ((1, 512, 13, 13), (100, 512, 1, 1), {}),
        ((1, 272, 14, 14), (68, 68, 1, 1), {"group": 4}),
        ((1, 136, 28, 28), (136, 1, 3, 3), {"group": 136, "pads": [1, 1, 1, 1]}),
        ((1, 136, 14, 14), (136, 1, 3, 3), {"group": 136, "pads": [1, 1, 1, 1], "strides": [2, 2]}),
    ],
)
def test_layers_of_networks(
    harness: Harness, x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    error = FILTERED if set(w[2:]) & {3, 5} else 4e-6
    check(harness, x, w, error=error, **attributes)


@pytest.mark.parametrize("kernel", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_depthwise(harness: Harness, kernel: int, stride: int) -> None:
    for width in (1, 2, 3, 4, 5, 7, 8, 9, 14, 33):
        if width + kernel // 2 * 2 >= kernel:
            check(
                harness, (2, 3, width, width), (3, 1, kernel, kernel),
                group=3, strides=[stride, stride], pads=[kernel // 2] * 4, bias=bool(width % 2),
            )  # fmt: skip


@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((2, 3, 20, 30), (6, 1, 3, 5), {"group": 3, "strides": [2, 3], "pads": [1, 0, 2, 1], "dilations": [2, 3]}),
        ((1, 3, 20, 30), (6, 1, 3, 3), {"group": 3, "dilations": [2, 1]}),
        ((1, 3, 20, 30), (3, 1, 3, 3), {"group": 3, "strides": [1, 2], "pads": [2, 2, 2, 2]}),
        ((1, 1, 20, 300), (1, 1, 1, 64), {"strides": [1, 2]}),
        ((1, 2, 200, 300), (2, 1, 3, 3), {"group": 2, "pads": [1, 1, 1, 1]}),
        ((1, 2, 201, 300), (2, 1, 5, 5), {"group": 2, "pads": [2, 2, 2, 2], "strides": [2, 2]}),
        ((1, 2, 4, 9000), (2, 1, 3, 3), {"group": 2, "pads": [1, 1, 1, 1]}),
    ],
)
def test_depthwise_shapes(
    harness: Harness, strict_harness: Harness, x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    check(harness, x, w, **attributes)
    check(strict_harness, x, w, **attributes)


@pytest.mark.parametrize(
    ("x_shape", "w_shape", "attributes"),
    [
        ((1, 3, 6, 7), (4, 3, 3, 3), {"pads": [1, 0, 1, 2], "strides": [2, 1]}),
        ((2, 4, 6, 7), (6, 2, 3, 3), {"pads": [2, 2, 2, 2], "dilations": [2, 1], "group": 2}),
    ],
)
def test_f64(harness: Harness, x_shape: tuple[int, ...], w_shape: tuple[int, ...], attributes: dict[str, Any]) -> None:
    x, w, b = (normal(*s).astype(np.float64) for s in (x_shape, w_shape, w_shape[:1]))
    y = harness.op(conv, [x, w, b], split=3, **attributes)
    expected = reference(*(a.astype(np.float32) for a in (x, w, b)), **attributes)
    assert y.dtype == np.float64
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)


def test_four_spatial_dimensions_are_the_outer_product_of_two_twos(harness: Harness) -> None:
    x, v = normal(1, 1, 5, 6), normal(1, 1, 4, 5, seed=3)
    w, u = normal(1, 1, 3, 2, seed=1), normal(1, 1, 2, 3, seed=2)
    outer = np.multiply.outer(x[0, 0], v[0, 0])[None, None]
    kernel = np.multiply.outer(w[0, 0], u[0, 0])[None, None]
    y = harness.op(conv, [outer, kernel, None], pads=[1, 0, 0, 1, 0, 1, 1, 0], strides=[1, 2, 1, 1])
    a = reference(x, w, pads=[1, 0, 0, 1], strides=[1, 2])
    b = reference(v, u, pads=[0, 1, 1, 0])
    np.testing.assert_allclose(y, np.multiply.outer(a[0, 0], b[0, 0])[None, None], rtol=1e-4, atol=1e-5)


def test_nothing_to_do(harness: Harness) -> None:
    assert harness.op(conv, [normal(0, 3, 8, 8), normal(5, 3, 3, 3)]).shape == (0, 5, 6, 6)
    assert harness.op(conv, [normal(1, 3, 8, 8), normal(0, 3, 3, 3)]).shape == (1, 0, 6, 6)


ACTIVATIONS = [
    (Activation.NONE, 0.0, 0.0, lambda v: v),
    (Activation.RELU, 0.0, 0.0, lambda v: np.maximum(v, 0)),
    (Activation.LEAKY_RELU, 0.1, 0.0, lambda v: np.where(v < 0, v * np.float32(0.1), v)),
    (Activation.CLIP, -0.5, 0.75, lambda v: np.clip(v, -0.5, 0.75)),
    (Activation.HARD_SIGMOID, 0.2, 0.5, lambda v: np.clip(v * np.float32(0.2) + np.float32(0.5), 0, 1)),
    (Activation.HARD_SWISH, 1 / 6, 0.5, lambda v: v * np.clip(v * np.float32(1 / 6) + np.float32(0.5), 0, 1)),
    (Activation.SIGMOID, 0.0, 0.0, lambda v: 1 / (1 + np.exp(-v))),
    (Activation.TANH, 0.0, 0.0, np.tanh),
    (Activation.SILU, 0.0, 0.0, lambda v: v / (1 + np.exp(-v))),
]
SHAPES = [
    ((2, 6, 5, 5), (8, 6, 3, 3), {}),
    ((2, 6, 5, 5), (9, 2, 3, 3), {"group": 3, "pads": [1, 1, 1, 1]}),
    ((2, 6, 5, 5), (9, 6, 1, 1), {}),
    ((2, 6, 1, 1), (9, 6, 1, 1), {}),
    ((1, 300, 17, 16), (9, 300, 1, 1), {}),
    ((2, 6, 9, 11), (6, 1, 3, 3), {"group": 6}),
    ((2, 6, 9, 11), (12, 1, 3, 2), {"group": 6}),
    # by filtering: the weights first, the inputs first
    ((2, 32, 50, 51), (33, 32, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((1, 64, 11, 14), (130, 64, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((2, 32, 51, 50), (33, 32, 3, 3), {"pads": [2, 1, 2, 1], "dilations": [2, 1]}),
    ((1, 64, 35, 14), (130, 64, 3, 3), {"pads": [3, 1, 3, 1], "dilations": [3, 1]}),
    ((2, 3, 9, 21), (2, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((1, 9, 5, 6), (1, 9, 1, 1), {}),
    ((2, 40, 5), (38, 40, 3), {}),
    ((1, 8, 2), (6, 8, 1), {}),
]


@pytest.mark.parametrize(("x_shape", "w_shape", "attributes"), SHAPES)
@pytest.mark.parametrize("code", ACTIVATIONS, ids=lambda a: a[0].name)
def test_residual_and_activation(
    harness: Harness, x_shape: tuple[int, ...], w_shape: tuple[int, ...], attributes: dict[str, Any], code: Any
) -> None:
    act, alpha, beta, function = code
    x, w = normal(*x_shape), normal(*w_shape, seed=1)
    plain = reference(x, w, **attributes)
    residual = normal(*plain.shape, seed=3)

    def block(cx: Context, residual: Value, x: Value, w: Value) -> Value:
        y = conv(cx, x, w, **attributes)
        assert fuse_residual(cx, y, residual)
        assert act == Activation.NONE or fuse_activation(cx, y, act, alpha, beta)
        return y

    for split in (1, 3):
        y = harness.op(block, [residual, x, w], weights=(2,), split=split)
        np.testing.assert_allclose(y, function(plain + residual), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("act", [Activation.RELU, Activation.CLIP, Activation.LEAKY_RELU, Activation.HARD_SWISH])
def test_activation_keeps_nan(harness: Harness, act: Activation) -> None:
    x = normal(1, 2, 5, 5)
    x[0, 1, 2, 2] = np.nan

    def block(cx: Context, x: Value, w: Value) -> Value:
        y = conv(cx, x, w)
        assert fuse_activation(cx, y, act, 0.5, 0.5)
        return y

    y = harness.op(block, [x, normal(3, 2, 1, 1)])
    assert np.isnan(y[0, :, 2, 2]).all()
    assert np.isnan(y).sum() == 3


@pytest.mark.parametrize(("x_shape", "w_shape", "attributes"), SHAPES)
@pytest.mark.parametrize("bias", [False, True])
def test_affine_maps_of_channels_are_folded_into_the_weights(
    harness: Harness, x_shape: tuple[int, ...], w_shape: tuple[int, ...], attributes: dict[str, Any], bias: bool
) -> None:
    m = w_shape[0]
    x, w, b = normal(*x_shape), normal(*w_shape, seed=1), normal(m, seed=2) if bias else None
    scale, shift, scale2, shift2 = (normal(m, seed=s) for s in (3, 4, 5, 6))

    def block(cx: Context, x: Value, w: Value, b: Value | None, *maps: Value) -> Value:
        y = conv(cx, x, w, b, **attributes)
        assert fuse_affine(cx, y, maps[0], maps[1])
        assert fuse_affine(cx, y, maps[2], None)
        assert fuse_affine(cx, y, None, maps[3])
        assert cx.records[-1] is y.producer
        return y

    y = harness.op(block, [x, w, b, scale, shift, scale2, shift2], weights=range(1, 7), split=2)
    one = (1, m) + (1,) * (x.ndim - 2)
    plain = reference(x, w, b, **attributes)
    expected = (plain * scale.reshape(one) + shift.reshape(one)) * scale2.reshape(one) + shift2.reshape(one)
    np.testing.assert_allclose(y, expected, rtol=1e-3, atol=1e-3)


def test_computed_weights_take_no_affine_map(harness: Harness) -> None:
    def block(cx: Context, scale: Value, x: Value, w: Value) -> Value:
        y = conv(cx, x, w)
        assert not fuse_affine(cx, y, scale, None)
        return y

    harness.op(block, [normal(4), normal(1, 3, 5, 5), normal(4, 3, 3, 3)], weights=(0,))


@pytest.mark.parametrize(("m", "group", "unit"), [(10, 1, 4), (16, 2, 4), (10, 2, 5)])
def test_weights_can_be_streamed(m: int, group: int, unit: int) -> None:
    cx = Context()
    cx.node = Node("Conv", "c", index=0)
    w = Value((m, 6, 3, 3), dtypes.F32, const=True)
    record = conv(cx, Value((1, 6 * group, 8, 8), dtypes.F32), w, group=group).producer
    assert record is not None
    (pack,) = record.args["w"].recipe.records
    assert pack.stream == ("src", unit * 6 * 9 * 4)
    assert (pack.units - 1) * pack.stream[1] < w.nbytes <= pack.units * pack.stream[1]


def test_scratch_is_small() -> None:
    cx = Context()
    cx.node = Node("Conv", "c", index=0)
    for x, w, group in (((1, 512, 512, 512), (512, 512, 3, 3), 1), ((1, 512, 512, 512), (512, 1, 5, 5), 512)):
        record = conv(cx, Value(x, dtypes.F32), Value(w, dtypes.F32, const=True), group=group).producer
        assert record is not None
        # Filtering: 36 points of 16 tiles of 512 channels, and of their products with 32 rows.
        most = 36 * 4 * 16 * (512 + 32) if group == 1 else 350_000
        assert record.args["scratch"].nbytes <= most + 50_000


@pytest.mark.parametrize(
    ("shapes", "attributes", "message"),
    [
        (((1, 3, 8, 8), (5, 4, 3, 3)), {}, "do not fit 1 groups"),
        (((1, 4, 8, 8), (5, 2, 3, 3)), {"group": 2}, "do not fit 2 groups"),
        (((1, 3, 8, 8), (5, 3, 3)), {}, "X must be"),
        (((1, 3), (5, 3)), {}, "X must be"),
        (((1, 3, 8, 8), (5, 3, 3, 3), (4,)), {}, "B must have shape"),
        (((1, 3, 8, 8), (5, 3, 3, 3)), {"kernel_shape": [3, 2]}, "kernel_shape"),
        (((1, 3, 8, 8), (5, 3, 3, 3)), {"strides": [1]}, "must fit 2 spatial dimensions"),
        (((1, 3, 8, 8), (5, 3, 3, 3)), {"strides": [0, 1]}, "at least 1"),
        (((1, 3, 8, 8), (5, 3, 3, 3)), {"pads": [1, -1, 1, 1]}, r"pads \[1, -1, 1, 1\] must not be negative"),
        (((1, 3, 2, 8), (5, 3, 3, 3)), {}, "spans 3 does not fit a size of 2"),
        (((1, 3, 8, 8), (5, 3, 3, 3)), {"auto_pad": "SAME"}, "auto_pad 'SAME'"),
    ],
)
def test_shape_errors(
    harness: Harness, shapes: tuple[tuple[int, ...], ...], attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ShapeError, match=message):
        harness.op(conv, [normal(*s) for s in shapes], **attributes)


def test_unsupported_type(harness: Harness) -> None:
    with pytest.raises(UnsupportedModelError, match="no convolution of type int32"):
        harness.op(conv, [np.zeros((1, 1, 3, 3), np.int32)] * 2)


@pytest.mark.parametrize("case", node_cases("Conv", "Gemm", "MatMul"), ids=lambda case: case.name)
def test_cases_of_the_onnx_package(harness: Harness, case: Case) -> None:
    (y,) = case.run(harness)
    np.testing.assert_allclose(y, case.outputs[0], rtol=case.rtol, atol=max(case.atol, 1e-6))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("group", [1, 4])
def test_16_bit_floats_are_computed_in_32(harness: Harness, dtype: Any, group: int) -> None:
    rng = np.random.default_rng(0)
    x, w, b = (rng.normal(size=s).astype(dtype) for s in ((1, 4, 7, 6), (8, 4 // group, 3, 3), (8,)))
    got = harness.op(conv, [x, w, b], weights=(1, 2), group=group)
    want = harness.op(conv, [v.astype(np.float32) for v in (x, w, b)], group=group)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, want.astype(dtype))


@pytest.mark.parametrize(("op", "factor"), [("Div", 0.0), ("Div", 1e-39), ("Mul", np.inf), ("Mul", 3e38)])
def test_a_factor_that_is_not_ordinary_is_not_folded_into_weights(op: str, factor: float) -> None:
    """-2 * inf + inf would be NaN where (-2 + 1) * inf is -inf."""
    graph = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], kernel_shape=[1]),
        helper.make_node(op, ["c", "f"], ["y"]),
    ]
    weights = {
        "w": np.ones((1, 1, 1), np.float32),
        "b": np.ones(1, np.float32),
        "f": np.array([[factor]], np.float32),
    }
    data = model(graph, {"x": (FLOAT, [1, 1, 3])}, ["y"], weights)
    x = np.array([[[-2, 1, 0.5]]], np.float32)
    with np.errstate(all="ignore"):
        wanted = (x + 1) / weights["f"] if op == "Div" else (x + 1) * weights["f"]
    with ort.Runtime() as runtime, ort.InferenceSession.create(data, runtime=runtime) as session:
        np.testing.assert_array_equal(session.run({"x": x})["y"].get_data(release_data=True), wanted)
