from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness import Harness
from onnx_nodes import node_cases, onnxruntime_node
from onnx_wasm.errors import OnnxWasmError
from onnx_wasm.ops.conv import conv
from onnx_wasm.ops.qlinear_conv import conv_integer, qlinear_conv

RNG = np.random.default_rng(0)
TYPES = [(np.uint8, np.int8), (np.uint8, np.uint8), (np.int8, np.int8), (np.int8, np.uint8)]


def integers(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max + 1, shape).astype(dtype)


@pytest.mark.parametrize("op", ["ConvInteger", "QLinearConv"])
def test_onnx_cases(harness: Harness, op: str) -> None:
    cases = node_cases(op)
    assert cases
    for case in cases:
        (y,) = case.run(harness)
        assert y.dtype == case.outputs[0].dtype
        np.testing.assert_array_equal(y, case.outputs[0])


# (x, w, attributes)
CASES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 1, 1, 1), (1, 1, 1, 1), {}),
    ((1, 3, 9, 11), (5, 3, 3, 3), {}),
    ((2, 3, 9, 11), (6, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((1, 5, 20, 23), (7, 5, 3, 3), {"pads": [1, 2, 0, 1], "strides": [2, 2]}),
    ((1, 3, 30, 31), (4, 3, 7, 7), {"pads": [3, 3, 3, 3], "strides": [2, 2]}),
    ((1, 4, 17, 19), (4, 4, 3, 2), {"dilations": [2, 3], "pads": [2, 3, 2, 3]}),
    ((1, 2, 10, 13), (3, 2, 2, 3), {"strides": [1, 3], "auto_pad": "SAME_UPPER"}),
    ((1, 2, 9, 40), (3, 2, 1, 5), {"strides": [1, 4], "auto_pad": "SAME_LOWER"}),
    ((2, 16, 7, 7), (9, 16, 1, 1), {}),
    ((1, 16, 8, 8), (9, 16, 1, 1), {"strides": [2, 2]}),
    ((1, 6, 12, 12), (9, 2, 3, 3), {"group": 3, "pads": [1, 1, 1, 1]}),
    ((2, 8, 10, 10), (8, 1, 3, 3), {"group": 8, "pads": [1, 1, 1, 1]}),
    ((1, 3, 9, 35), (6, 1, 3, 4), {"group": 3, "pads": [1, 2, 2, 1], "strides": [2, 3], "dilations": [1, 2]}),
    ((1, 3, 20, 41), (3, 1, 5, 5), {"group": 3, "auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ((2, 3, 33), (3, 1, 4), {"group": 3, "pads": [7, 0]}),
    ((1, 4, 33), (5, 4, 5), {"pads": [2, 2]}),
    ((1, 2, 5, 6, 7), (3, 2, 2, 3, 2), {"pads": [1, 1, 0, 0, 1, 1], "strides": [1, 2, 1]}),
    ((1, 300, 6, 6), (10, 300, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((1, 2, 3, 3), (2, 2, 3, 3), {"pads": [6, 6, 6, 6]}),
]


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize(("x_shape", "w_shape", "attributes"), CASES)
def test_conv_integer(
    harness: Harness, x_shape: Any, w_shape: Any, attributes: dict[str, Any], types: tuple[Any, Any]
) -> None:
    x, w = integers(x_shape, types[0]), integers(w_shape, types[1])
    x_zero, w_zero = integers((), types[0]), integers((w_shape[0],), types[1])
    wide = w.astype(np.float64) - w_zero.reshape(-1, *(1,) * (w.ndim - 1))
    expected = harness.op(conv, [x.astype(np.float64) - x_zero, wide], **attributes)
    y = harness.op(conv_integer, [x, w, x_zero, w_zero], **attributes)
    assert y.dtype == np.int32
    np.testing.assert_array_equal(y, expected)
    split = harness.op(conv_integer, [x, w, x_zero, w_zero], weights=(1, 3), split=3, **attributes)
    np.testing.assert_array_equal(split, y)
    expected = harness.op(conv, [x.astype(np.float64), w.astype(np.float64)], **attributes)
    np.testing.assert_array_equal(harness.op(conv_integer, [x, w], **attributes), expected)


@pytest.mark.parametrize("weights", [(), range(1, 9)], ids=["computed", "constant"])
@pytest.mark.parametrize("types", [TYPES[0], TYPES[1], TYPES[2]])
@pytest.mark.parametrize(("x_shape", "w_shape", "attributes"), CASES)
def test_qlinear_conv(
    harness: Harness, x_shape: Any, w_shape: Any, attributes: dict[str, Any], types: tuple[Any, Any], weights: Any
) -> None:
    x, w, outputs = integers(x_shape, types[0]), integers(w_shape, types[1]), w_shape[0]
    per_channel = (outputs,) if outputs % 2 and types[1] is np.int8 else ()
    bias = RNG.integers(-2000, 2000, outputs).astype(np.int32)
    scale = np.asarray(RNG.uniform(0.005, 0.02, per_channel), np.float32)
    w_zero = np.zeros(per_channel, np.int8) if types[1] is np.int8 else integers((), np.uint8)
    y_scale = np.array(0.03 * np.prod(w_shape[1:]) ** 0.5, np.float32)
    inputs = [
        x, np.array(0.02, np.float32), integers((), types[0]), w, scale, w_zero, y_scale, integers((), types[0]), bias,
    ]  # fmt: skip
    expected = onnxruntime_node("QLinearConv", inputs, 21, **attributes)[0]
    y = harness.op(qlinear_conv, inputs, weights=weights, split=2, **attributes)
    np.testing.assert_array_equal(y, expected)
    expected = onnxruntime_node("QLinearConv", inputs[:-1], 21, **attributes)[0]
    np.testing.assert_array_equal(harness.op(qlinear_conv, inputs[:-1], **attributes), expected)


def test_strict_variant(strict_harness: Harness) -> None:
    x, w = integers((1, 3, 9, 11), np.uint8), integers((5, 3, 3, 3), np.int8)
    y = strict_harness.op(conv_integer, [x, w], pads=[1, 1, 1, 1])
    expected = strict_harness.op(conv, [x.astype(np.float64), w.astype(np.float64)], pads=[1, 1, 1, 1])
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize(
    ("shapes", "attributes", "message"),
    [
        (((1, 3, 5, 5), (2, 2, 3, 3), (), ()), {}, "do not fit 1 groups"),
        (((1, 3, 5, 5), (2, 3, 3, 3), (2,), ()), {}, "zero point of x"),
        (((1, 3, 5, 5), (2, 3, 3, 3), (), (3,)), {}, "each of 2 channels"),
        (((1, 3, 5, 5), (2, 3, 3, 3), (), ()), {"kernel_shape": [2, 2]}, "kernel_shape"),
        (((1, 3, 5, 5), (2, 3, 3, 3), (), ()), {"pads": [0, 0, 0, -1]}, "must not be negative"),
        (((1, 1, 2, 2, 2, 2), (1, 1, 1, 1, 1, 1), (), ()), {}, "at most 3"),
    ],
)
def test_bad_calls(harness: Harness, shapes: Any, attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(OnnxWasmError, match=message):
        harness.op(conv_integer, [integers(s, np.int8) for s in shapes], **attributes)
