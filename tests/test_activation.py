from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from elementwise import FLOATS, INTEGERS, SIGNED, equal, fold, lower, sample
from harness import Harness
from onnx_wasm import dtypes
from onnx_wasm.context import Context, Record, Value
from onnx_wasm.model import Node
from onnx_wasm.ops.fusion import Activation

erf = np.vectorize(math.erf, otypes=[np.float64])


def elu(x: np.ndarray, alpha: float = 1.0, beta: float = 1.0, gamma: float = 1.0) -> np.ndarray:
    return np.where(x < 0, alpha * np.expm1(np.minimum(x, 0) * beta), gamma * x)


SELU = 1.67326319217681884765625, 1.05070102214813232421875
CASES: list[tuple[str, int, dict[str, Any], Any]] = [
    ("Relu", 6, {}, lambda x: np.maximum(x, 0)),
    ("LeakyRelu", 6, {}, lambda x: np.where(x < 0, 0.01 * x, x)),
    ("LeakyRelu", 16, {"alpha": 0.3}, lambda x: np.where(x < 0, 0.3 * x, x)),
    ("HardSigmoid", 6, {}, lambda x: np.clip(0.2 * x + 0.5, 0, 1)),
    ("HardSigmoid", 6, {"alpha": 0.5, "beta": 0.6}, lambda x: np.clip(0.5 * x + 0.6, 0, 1)),
    ("HardSwish", 14, {}, lambda x: x * np.clip(float(np.float32(1 / 6)) * x + 0.5, 0, 1)),
    ("Elu", 6, {"alpha": 2.0}, lambda x: elu(x, 2)),
    ("Selu", 6, {}, lambda x: elu(x, SELU[0] * SELU[1], 1, SELU[1])),
    ("Celu", 12, {"alpha": 2.0}, lambda x: elu(x, 2, 0.5)),
    ("Softplus", 1, {}, lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))),
    ("Softsign", 1, {}, lambda x: x / (1 + np.abs(x))),
    ("ThresholdedRelu", 10, {}, lambda x: np.where(x > 1, x, 0)),
    ("ThresholdedRelu", 10, {"alpha": -0.5}, lambda x: np.where(x > -0.5, x, 0)),
    ("Shrink", 9, {}, lambda x: np.where(np.abs(x) > 0.5, x, 0)),
    ("Shrink", 9, {"lambd": 1.5, "bias": 1.5}, lambda x: np.where(x < -1.5, x + 1.5, np.where(x > 1.5, x - 1.5, 0))),
    ("Gelu", 20, {}, lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2)))),
    (
        "Gelu",
        20,
        {"approximate": "tanh"},
        lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    ),
    ("Mish", 18, {}, lambda x: x * np.tanh(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))))),
    ("Swish", 24, {}, lambda x: x / (1 + np.exp(-x))),
    ("Swish", 24, {"alpha": 1.7}, lambda x: x / (1 + np.exp(-1.7 * x))),
]


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize(("name", "opset", "attributes", "exact"), CASES, ids=lambda v: str(v)[:24])
def test_values(harness: Harness, name: str, opset: int, attributes: dict[str, Any], exact: Any, dtype: Any) -> None:
    x = np.concatenate([np.linspace(-30, 30, 4099), [0, 1, -0.5]]).astype(dtype)
    got = harness.op(lower(name, opset), [x], split=2, **attributes)
    unit = float(np.finfo(dtype).eps) if dtype in (np.float32, np.float64, np.float16) else 2**-7
    if dtype is not np.float64:
        unit = max(unit, 2.0**-23)
    np.testing.assert_allclose(got.astype(np.float64), exact(x.astype(np.float64)), rtol=4 * unit, atol=4 * unit)


@pytest.mark.parametrize(("name", "opset", "attributes", "exact"), CASES, ids=lambda v: str(v)[:24])
def test_nan_stays_nan(strict_harness: Harness, name: str, opset: int, attributes: Any, exact: Any) -> None:
    got = strict_harness.op(lower(name, opset), [np.float32([1, np.nan, 2, -np.nan, 3])], **attributes)
    # A NaN is not above the threshold: 0.
    stays = name not in ("ThresholdedRelu", "Shrink")
    equal(np.isnan(got), [False, stays, False, stays, False])


@pytest.mark.parametrize("dtype", SIGNED)
def test_relu_of_integers(harness: Harness, dtype: Any) -> None:
    x = sample((67,), dtype)
    equal(harness.op(lower("Relu"), [x]), np.maximum(x, 0))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=lambda d: np.dtype(d).name)
def test_clip_by_tensors(harness: Harness, dtype: Any) -> None:
    x = sample((4111,), dtype)
    low, high = np.array(5, dtype), np.array([40], dtype)
    clip = lower("Clip")
    equal(harness.op(clip, [x, low, high], split=2), np.minimum(np.maximum(x, low), high))
    equal(harness.op(clip, [x, None, high]), np.minimum(x, high))
    equal(harness.op(clip, [x, low]), np.maximum(x, low))
    equal(harness.op(clip, [x]), x)
    equal(fold("Clip")(x, low, high), np.minimum(np.maximum(x, low), high))


def test_clip_by_attributes_and_of_nan(harness: Harness) -> None:
    x = np.float32([-3, np.nan, 0, 7, np.inf, -np.inf])
    equal(harness.op(lower("Clip", 10), [x], min=-1.0, max=6.0), np.clip(x, -1, 6))
    largest = np.finfo(np.float32).max
    equal(harness.op(lower("Clip", 6), [x]), np.clip(x, -largest, largest))


def test_clip_bounds_of_another_type_are_refused(harness: Harness) -> None:
    with pytest.raises(ValueError, match=r"min must be a float32 scalar, got 'x1' int32\[\]"):
        harness.op(lower("Clip"), [np.zeros(3, np.float32), np.int32(1).reshape(())])


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("slope", [(), (1,), (5, 1, 1), (7,), (2, 5, 3, 7)])
def test_prelu(harness: Harness, slope: tuple[int, ...], dtype: Any) -> None:
    x, s = sample((2, 5, 3, 7), dtype), sample(slope, dtype, 1, -1, 1)
    got = harness.op(lower("PRelu"), [x, s])
    equal(got, np.where(x < 0, x * s, x))


def test_prelu_slope_must_broadcast_to_x(harness: Harness) -> None:
    with pytest.raises(ValueError, match=r"slope \[2, 3\] does not broadcast to \[3\]"):
        harness.op(lower("PRelu"), [np.zeros(3, np.float32), np.zeros((2, 3), np.float32)])


def produced(cx: Context, **args: Any) -> tuple[Value, Record]:
    """A tensor written by a record that takes activations."""
    x = cx.out((2, 3), dtypes.F32)
    record = cx.emit("copy_bytes", x=x, y=x, n=24, act=0, alpha=0.0, beta=0.0, **args)
    x.producer = record
    return x, record


@pytest.mark.parametrize(
    ("name", "attributes", "act", "alpha", "beta"),
    [
        ("Relu", {}, Activation.RELU, 0, 0),
        ("LeakyRelu", {"alpha": 0.2}, Activation.LEAKY_RELU, 0.2, 0),
        ("HardSigmoid", {}, Activation.HARD_SIGMOID, 0.2, 0.5),
        ("HardSwish", {}, Activation.HARD_SWISH, 1 / 6, 0.5),
        ("Sigmoid", {}, Activation.SIGMOID, 0, 0),
        ("Tanh", {}, Activation.TANH, 0, 0),
    ],
)
def test_activations_fold_into_the_record_before(
    name: str, attributes: Any, act: int, alpha: float, beta: float
) -> None:
    cx = Context()
    cx.node = Node(name, "test", index=0)
    x, record = produced(cx)
    assert lower(name)(cx, x, **attributes) is x
    assert (record.args["act"], record.args["alpha"], record.args["beta"]) == (act, alpha, beta)
    assert lower(name)(cx, x, **attributes) is not x, "a second activation needs a record of its own"
    x, record = produced(cx)
    x.uses = 2
    assert lower(name)(cx, x, **attributes) is not x
    assert record.args["act"] == 0


def test_clip_folds_only_bounds_that_the_model_fixes() -> None:
    cx = Context()
    x, record = produced(cx)
    assert lower("Clip")(cx, x, cx.known(np.float32(0)), cx.known(np.float32(6))) is x
    assert (record.args["act"], record.args["alpha"], record.args["beta"]) == (Activation.CLIP, 0, 6)
    x, record = produced(cx)
    assert lower("Clip")(cx, x, Value((), dtypes.F32)) is not x
    assert record.args["act"] == 0


@pytest.mark.parametrize("dtype", INTEGERS)
def test_shrink_of_integers(harness: Harness, dtype: Any) -> None:
    x = sample((99,), dtype)
    got = harness.op(lower("Shrink"), [x], bias=2.0, lambd=5.0)
    wide = x.astype(np.int64)
    equal(got, np.where(wide < -5, wide + 2, np.where(wide > 5, wide - 2, 0)).astype(dtype))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_shrink_of_integers_wraps_and_truncates(harness: Harness, dtype: Any) -> None:
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    x = np.array([low, 0, 1, 2, 3, high - 1, high], dtype)
    for bias, lambd in ((0.0, 0.5), (3.0, 1.5), (-1.0, 0.0)):
        whole = int(bias)
        exact = [v + whole if v < -lambd else v - whole if v > lambd else 0 for v in x.tolist()]
        wrapped = [(v - low) % (high - low + 1) + low for v in exact]
        equal(harness.op(lower("Shrink"), [x], bias=bias, lambd=lambd), np.array(wrapped, dtype))
    small = np.array([0, 1, 2, 3, 100], dtype)
    equal(harness.op(lower("Shrink"), [small], bias=1.5, lambd=1.0), np.array([0, 0, 0, 1, 98], dtype))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_clip_without_bounds_keeps_to_finite_numbers(harness: Harness, dtype: Any) -> None:
    """ONNX: the bounds default to the lowest and highest number of the type."""
    x = np.array([np.inf, -np.inf, np.nan, 1], dtype)
    most = np.finfo(dtype).max
    clip = lower("Clip")
    equal(harness.op(clip, [x]), np.array([most, -most, np.nan, 1], dtype))
    equal(harness.op(clip, [x, np.array(0, dtype)]), np.array([most, 0, np.nan, 1], dtype))


def test_clip_6_of_16_bits_has_the_bounds_of_the_type(harness: Harness) -> None:
    x = np.array([np.inf, -np.inf, np.nan, 1], np.float16)
    equal(harness.op(lower("Clip", 6), [x], opset=6), np.array([65504, -65504, np.nan, 1], np.float16))
    equal(harness.op(lower("Clip", 6), [x], opset=6, min=0.5), np.array([65504, 0.5, np.nan, 1], np.float16))
