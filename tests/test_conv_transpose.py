from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import onnx_nodes
from harness import Harness
from onnx_wasm.context import Context, Value
from onnx_wasm.errors import ShapeError, UnsupportedModelError
from onnx_wasm.ops import conv_transpose as module
from onnx_wasm.ops.conv_transpose import conv_transpose
from onnx_wasm.ops.fusion import Activation, fuse_activation, fuse_affine, fuse_residual

CASES = onnx_nodes.node_cases("ConvTranspose", "Col2Im")


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@pytest.mark.parametrize("case", CASES, ids=[c.name for c in CASES])
def test_onnx_case(harness: Harness, case: onnx_nodes.Case) -> None:
    (y,) = case.run(harness)
    np.testing.assert_allclose(y, case.outputs[0], rtol=1e-5, atol=1e-5)


CONFIGURATIONS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 4, 5, 7), (4, 3, 2, 2), {"strides": [2, 2]}),
    ((2, 24, 9, 8), (24, 8, 2, 2), {"strides": [2, 2]}),
    ((1, 3, 5, 6), (3, 2, 2, 2), {"strides": [2, 2], "output_padding": [1, 1]}),
    ((1, 3, 5, 6), (3, 2, 1, 2), {"strides": [2, 2]}),
    ((1, 3, 5, 6), (3, 2, 2, 2), {"strides": [2, 2], "pads": [0, 1, 1, 0]}),
    ((1, 8, 6, 6), (8, 4, 4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((1, 8, 6, 5), (8, 4, 5, 5), {"strides": [2, 2], "pads": [2, 2, 2, 2], "output_padding": [1, 1]}),
    ((2, 8, 6, 6), (8, 4, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((1, 8, 6, 6), (8, 4, 3, 3), {"strides": [3, 3]}),
    ((1, 8, 4, 11), (8, 4, 3, 4), {"strides": [1, 3], "dilations": [2, 2], "pads": [1, 2, 0, 3]}),
    ((1, 8, 4, 6), (8, 4, 3, 3), {"strides": [2, 1], "dilations": [1, 3]}),
    ((1, 8, 4, 6), (8, 4, 2, 2), {"strides": [4, 5]}),
    ((1, 6, 5, 5), (6, 2, 3, 3), {"group": 3, "strides": [2, 2]}),
    ((2, 6, 5, 5), (6, 1, 4, 4), {"group": 6, "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((1, 6, 19), (6, 4, 5), {"strides": [2]}),
    ((1, 6, 1), (6, 4, 1), {}),
    ((1, 4, 3, 4, 5), (4, 3, 2, 3, 2), {"strides": [2, 1, 2]}),
    ((1, 4, 3, 4, 5), (4, 3, 3, 3, 3), {"strides": [1, 2, 2], "pads": [1, 0, 1, 0, 1, 1], "dilations": [2, 1, 1]}),
    ((1, 3, 5, 6), (3, 2, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ((1, 3, 5, 6), (3, 2, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    ((1, 3, 5, 6), (3, 2, 3, 3), {"strides": [2, 2], "auto_pad": "VALID"}),
    ((1, 3, 5, 6), (3, 2, 3, 3), {"strides": [2, 2], "output_shape": [10, 12]}),
    ((1, 3, 5, 6), (3, 2, 3, 3), {"strides": [2, 2], "output_shape": [10, 13], "auto_pad": "SAME_UPPER"}),
]


@pytest.mark.parametrize(("x_shape", "w_shape", "attributes"), CONFIGURATIONS)
def test_as_onnxruntime(harness: Harness, x_shape: Any, w_shape: Any, attributes: dict[str, Any]) -> None:
    outputs = w_shape[1] * attributes.get("group", 1)
    x, w, b = normal(*x_shape), normal(*w_shape, seed=1), normal(outputs, seed=2)
    for bias in (b, None):
        (expected,) = onnx_nodes.onnxruntime_node("ConvTranspose", [x, w, bias], 11, **attributes)
        for weights in ((1, 2), ()):
            y = harness.op(conv_transpose, [x, w, bias], weights=weights, split=3, **attributes)
            assert y.shape == expected.shape
            np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    y = harness.op(conv_transpose, [x, w, b], **attributes)
    assert harness.op(conv_transpose, [x, w, b], split=3, **attributes).tobytes() == y.tobytes()
    wide = harness.op(conv_transpose, [v.astype(np.float64) for v in (x, w, b)], split=2, **attributes)
    np.testing.assert_allclose(wide, y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("weights", [(), (1, 2)])
def test_narrow_floats(harness: Harness, dtype: Any, weights: tuple[int, ...]) -> None:
    values = [
        normal(1, 8, 4, 5).astype(dtype),
        normal(8, 3, 3, 3, seed=1).astype(dtype),
        normal(3, seed=2).astype(dtype),
    ]
    y = harness.op(conv_transpose, values, weights=weights, strides=[2, 2])
    expected = harness.op(conv_transpose, [v.astype(np.float32) for v in values], strides=[2, 2])
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, expected.astype(dtype))


def test_strict(strict_harness: Harness) -> None:
    x, w = normal(1, 8, 6, 6), normal(8, 4, 4, 4, seed=1)
    (expected,) = onnx_nodes.onnxruntime_node("ConvTranspose", [x, w], 11, strides=[2, 2])
    np.testing.assert_allclose(
        strict_harness.op(conv_transpose, [x, w], strides=[2, 2]), expected, rtol=1e-4, atol=1e-5
    )


def test_a_large_batch_goes_in_parts(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w, b = normal(5, 4, 3, 6), normal(4, 3, 3, 2, seed=1), normal(3, seed=2)
    whole = harness.op(conv_transpose, [x, w, b], strides=[2, 2])
    monkeypatch.setattr(module, "_COLUMN_BYTES", 2 * 18 * 18 * 4)
    assert harness.op(conv_transpose, [x, w, b], strides=[2, 2]).tobytes() == whole.tobytes()


def test_four_axes(harness: Harness) -> None:
    x, w = normal(1, 3, 2, 3, 2, 4), normal(3, 2, 1, 2, 2, 1, seed=1)
    y = harness.op(conv_transpose, [x, w], strides=[1, 2, 1, 2])
    expected = np.zeros((1, 2, 2, 6, 3, 7), np.float32)
    for a, i, j, k, p, q in np.ndindex(2, 3, 2, 4, 2, 2):
        expected[0, :, a, 2 * i + p, j + q, 2 * k] += x[0, :, a, i, j, k] @ w[:, :, 0, p, q, 0]
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("strides", [[1, 1], [2, 2], [3, 3]])
def test_fusion(harness: Harness, bias: bool, strides: list[int]) -> None:
    x, w = normal(2, 4, 5, 6), normal(4, 3, 2, 2, seed=1)
    b = normal(3, seed=2) if bias else None
    scale, shift = normal(3, seed=3), normal(3, seed=4)
    plain = harness.op(conv_transpose, [x, w, b], strides=strides)
    other = normal(*plain.shape, seed=5)

    def fused(cx: Context, x: Value, w: Value, b: Value | None, s: Value, t: Value, r: Value) -> Value:
        y = conv_transpose(cx, x, w, b, strides=strides)
        assert fuse_affine(cx, y, s, None)
        assert fuse_affine(cx, y, s, t)
        assert fuse_residual(cx, y, r)
        assert fuse_activation(cx, y, Activation.RELU)
        return y

    y = harness.op(fused, [x, w, b, scale, shift, other], weights=(1, 2, 3, 4), split=2)
    s, t = (v[:, None, None] for v in (scale, shift))
    np.testing.assert_allclose(y, np.maximum(plain * s * s + t + other, 0), rtol=1e-4, atol=1e-5)


def blocks(x: np.ndarray, image: list[int], block: list[int], **attributes: Any) -> np.ndarray:
    """Col2Im by numpy."""
    rank = len(image)
    steps, holes = attributes.get("strides", [1] * rank), attributes.get("dilations", [1] * rank)
    pads = attributes.get("pads", [0] * 2 * rank)
    padded = [n + pads[i] + pads[rank + i] for i, n in enumerate(image)]
    count = [(n - h * (b - 1) - 1) // s + 1 for n, b, s, h in zip(padded, block, steps, holes, strict=True)]
    columns = x.reshape(x.shape[0], -1, *block, *count)
    y = np.zeros((*columns.shape[:2], *padded), x.dtype)
    for tap in np.ndindex(*block):
        places = [slice(t * h, t * h + s * (c - 1) + 1, s) for t, h, s, c in zip(tap, holes, steps, count, strict=True)]
        y[(slice(None), slice(None), *places)] += columns[(slice(None), slice(None), *tap)]
    return y[(slice(None), slice(None), *(slice(pads[i], pads[i] + n) for i, n in enumerate(image)))]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.uint16, np.int32, np.uint64, np.float16])
@pytest.mark.parametrize(
    ("image", "block", "count", "attributes"),
    [
        ([9], [3], 7, {}),
        ([6, 7], [2, 3], 25, {}),
        ([6, 7], [3, 3], 12, {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ([8, 9], [2, 2], 20, {"strides": [2, 2], "pads": [1, 0, 1, 0]}),
        ([4, 4, 5], [2, 2, 2], 18, {"strides": [1, 1, 3]}),
        ([2, 3, 4, 3], [1, 2, 2, 2], 2 * 2 * 3 * 2, {}),
    ],
)
def test_col2im(harness: Harness, dtype: Any, image: Any, block: Any, count: int, attributes: dict[str, Any]) -> None:
    x = np.random.default_rng(0).integers(0, 9, (2, 3 * int(np.prod(block)), count)).astype(dtype)
    shapes = [np.array(image, np.int64), np.array(block, np.int64)]
    (y,) = onnx_nodes.run_node(harness, "Col2Im", [x, *shapes], 18, split=2, **attributes)
    np.testing.assert_array_equal(y, blocks(x, image, block, **attributes))


def test_no_elements(harness: Harness) -> None:
    assert harness.op(conv_transpose, [normal(0, 3, 4), normal(3, 2, 2)]).shape == (0, 2, 5)


def test_errors(harness: Harness) -> None:
    x, w = normal(1, 4, 5, 5), normal(4, 3, 2, 2)
    for inputs, attributes, message in (
        ([x, normal(5, 3, 2, 2)], {}, "do not fit 1 groups"),
        ([x, w, normal(4)], {}, "B must have shape"),
        ([x, w], {"strides": [2]}, "must fit 2 spatial"),
        ([x, w], {"auto_pad": "SOME"}, "none of NOTSET"),
        ([x, w], {"pads": [9, 9, 9, 9]}, "smaller than its padding"),
        ([x, w], {"pads": [1, 0, -1, 0]}, "pads .* must not be negative"),
        ([x, w], {"output_padding": [-1, 0]}, "output_padding .* must not be negative"),
        ([x, w], {"kernel_shape": [3, 3]}, "kernel_shape"),
    ):
        with pytest.raises(ShapeError, match=message):
            harness.op(conv_transpose, inputs, **attributes)
    with pytest.raises(UnsupportedModelError, match="int8"):
        harness.op(conv_transpose, [x.astype(np.int8), w.astype(np.int8)])
    shapes = [np.array([6, 7], np.int64), np.array([2, 3], np.int64)]
    with pytest.raises(ShapeError, match=r"must be \[N, C \* 6, 25\]"):
        onnx_nodes.run_node(harness, "Col2Im", [normal(1, 6, 24), *shapes], 18)
