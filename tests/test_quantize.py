from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import graphs
import onnx_wasm as ort
from harness import Harness
from onnx_nodes import node_cases, onnxruntime_node
from onnx_wasm import dtypes
from onnx_wasm.context import Context, Value
from onnx_wasm.errors import OnnxWasmError, ShapeError
from onnx_wasm.ops.quantize import (
    decode,
    dequantize_linear,
    dynamic_quantize_linear,
    encode,
    pack,
    quantize_linear,
    unpack,
)

RNG = np.random.default_rng(0)
INTEGERS = [np.int8, np.uint8, np.int16, np.uint16]
SHAPES = [(), (1,), (5,), (16,), (37,), (3, 4, 5), (2, 3, 17), (2, 1, 1, 3), (4, 2, 2, 33)]


def sample(shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    """Numbers of which many are halfway between two integers, and some far out."""
    x = np.round(RNG.normal(0, 60, shape) * 2) / 2
    return np.asarray(np.where(RNG.random(shape) < 0.05, x * 100, x), np.float32).astype(dtype)


def integers(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max + 1, shape).astype(dtype)


@pytest.mark.parametrize("op", ["QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"])
def test_onnx_cases(harness: Harness, op: str) -> None:
    found = 0
    for case in node_cases(op):
        if any(a.dtype.name in ("int4", "uint4", "int2", "uint2", "float4_e2m1fn") for a in case.inputs):
            continue
        got = case.run(harness)
        for y, expected in zip(got, case.outputs, strict=True):
            assert y.dtype == expected.dtype
            np.testing.assert_array_equal(y.astype(np.float32), expected.astype(np.float32))
        found += 1
    assert found >= 3


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("shape", SHAPES)
def test_quantize_a_tensor(harness: Harness, shape: tuple[int, ...], dtype: type) -> None:
    x, zero = sample(shape), integers((), dtype)
    for inputs in ([x, np.array(0.5, np.float32), zero], [x, np.array(0.37, np.float32), zero]):
        y = harness.op(quantize_linear, inputs)
        assert y.dtype == dtype
        np.testing.assert_array_equal(y, onnxruntime_node("QuantizeLinear", inputs, 21)[0])
        assert harness.op(quantize_linear, inputs, split=3).tobytes() == y.tobytes()


@pytest.mark.parametrize("dtype", [np.int8, np.uint16])
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_quantize_along_an_axis(harness: Harness, axis: int, dtype: type) -> None:
    for shape in ((3, 4, 5), (2, 70, 65), (5, 1, 19)):
        x, n = sample(shape), shape[axis]
        inputs = [x, RNG.uniform(0.1, 1, n).astype(np.float32), integers((n,), dtype)]
        expected = onnxruntime_node("QuantizeLinear", inputs, 21, axis=axis)[0]
        np.testing.assert_array_equal(harness.op(quantize_linear, inputs, axis=axis, split=2), expected)
        np.testing.assert_array_equal(
            harness.op(dequantize_linear, [expected, *inputs[1:]], axis=axis, split=2),
            onnxruntime_node("DequantizeLinear", [expected, *inputs[1:]], 21, axis=axis)[0],
        )


@pytest.mark.parametrize(("axis", "block"), [(0, 2), (1, 3), (1, 4), (2, 2), (2, 32), (-1, 5)])
@pytest.mark.parametrize("dtype", [np.uint8, np.int16])
def test_blocks(harness: Harness, axis: int, block: int, dtype: type) -> None:
    shape = (4, 10, 69)
    scales = list(shape)
    scales[axis] = -(-scales[axis] // block)
    x, scale, zero = (
        sample(shape),
        RNG.uniform(0.1, 1, scales).astype(np.float32),
        integers(tuple(scales), dtype),
    )
    wide_scale, wide_zero = (
        np.take(np.repeat(v, block, axis), range(shape[axis]), axis).astype(np.float32) for v in (scale, zero)
    )
    info = np.iinfo(dtype)
    expected = np.clip(np.rint(x / wide_scale) + wide_zero, info.min, info.max).astype(dtype)
    y = harness.op(quantize_linear, [x, scale, zero], axis=axis, block_size=block, split=2)
    np.testing.assert_array_equal(y, expected)
    back = harness.op(dequantize_linear, [y, scale, zero], axis=axis, block_size=block, split=2)
    np.testing.assert_array_equal(back, (y.astype(np.float32) - wide_zero) * wide_scale)


def test_quantize_without_a_zero_point(harness: Harness) -> None:
    x, scale = sample((3, 5)), np.array(0.5, np.float32)
    np.testing.assert_array_equal(
        harness.op(quantize_linear, [x, scale]), onnxruntime_node("QuantizeLinear", [x, scale], 21)[0]
    )
    y = harness.op(quantize_linear, [x, scale], output_dtype=dtypes.I16.onnx)
    np.testing.assert_array_equal(y, np.clip(np.rint(x / scale), -32768, 32767).astype(np.int16))


def test_not_a_number_and_infinity(harness: Harness) -> None:
    x = np.tile(np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 0], np.float32), 5)
    for dtype in INTEGERS:
        inputs = [x, np.array(0.5, np.float32), np.array(3, dtype)]
        expected = onnxruntime_node("QuantizeLinear", inputs, 21)[0]
        np.testing.assert_array_equal(harness.op(quantize_linear, inputs), expected)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision(harness: Harness, dtype: Any) -> None:
    x, scale, zero = sample((3, 400), dtype), np.array(0.37, dtype), np.array(3, np.int8)
    wide = x.astype(np.float32) / scale.astype(np.float32)
    y = harness.op(quantize_linear, [x, scale, zero])
    np.testing.assert_array_equal(y, np.clip(np.rint(wide) + 3, -128, 127).astype(np.int8))
    if dtype is np.float16:
        np.testing.assert_array_equal(y, onnxruntime_node("QuantizeLinear", [x, scale, zero], 21)[0])
    narrow = wide.astype(dtype).astype(np.float32)
    assert (np.rint(narrow) != np.rint(wide)).any()
    precision = dtypes.from_numpy(np.dtype(dtype)).onnx
    y = harness.op(quantize_linear, [x, scale, zero], precision=precision)
    np.testing.assert_array_equal(y, np.clip(np.rint(narrow) + 3, -128, 127).astype(np.int8))
    back = harness.op(dequantize_linear, [y, scale, zero], split=3)
    expected = ((y.astype(np.float32) - 3) * scale.astype(np.float32)).astype(dtype)
    assert back.dtype == dtype
    np.testing.assert_array_equal(back.view(np.uint16), expected.view(np.uint16))
    wide_back = harness.op(dequantize_linear, [y, scale, zero], output_dtype=dtypes.F32.onnx)
    np.testing.assert_array_equal(wide_back, (y.astype(np.float32) - 3) * scale.astype(np.float32))


def test_quantize_int32(harness: Harness) -> None:
    x = RNG.integers(-300, 300, (2, 19)).astype(np.int32)
    y = harness.op(quantize_linear, [x, np.array(2, np.float32), np.array(5, np.int8)])
    np.testing.assert_array_equal(y, np.clip(np.rint(x / 2) + 5, -128, 127).astype(np.int8))


@pytest.mark.parametrize("dtype", [*INTEGERS, np.int32])
@pytest.mark.parametrize("shape", SHAPES)
def test_dequantize(harness: Harness, shape: tuple[int, ...], dtype: type) -> None:
    x, scale = integers(shape, dtype), np.array(0.37, np.float32)
    zero = np.array(0 if dtype is np.int32 else 7, dtype)
    for inputs in ([x, scale, zero], [x, scale]):
        y = harness.op(dequantize_linear, inputs, split=2)
        np.testing.assert_array_equal(y, onnxruntime_node("DequantizeLinear", inputs, 21)[0])


SMALL = {
    "f8e4m3fn": ml_dtypes.float8_e4m3fn,
    "f8e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "f8e5m2": ml_dtypes.float8_e5m2,
    "f8e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
}
BY_SHORT = {d.short: d for d in dtypes.ALL}


@pytest.mark.parametrize("short", SMALL)
def test_every_code_of_a_small_float(harness: Harness, short: str) -> None:
    codes = np.arange(256, dtype=np.uint8).view(SMALL[short])
    values = harness.op(decode, [codes])
    np.testing.assert_array_equal(values, codes.astype(np.float32))
    # A NaN keeps its sign where the type has two, so compare values.
    again = harness.op(encode, [values], dtype=BY_SHORT[short], saturate=False)
    np.testing.assert_array_equal(again.astype(np.float32), codes.astype(np.float32))


@pytest.mark.parametrize("short", SMALL)
def test_encoding_rounds_to_even_and_saturates(harness: Harness, short: str) -> None:
    info = ml_dtypes.finfo(SMALL[short])
    top = float(info.max)
    every = np.sort(np.arange(256, dtype=np.uint8).view(SMALL[short]).astype(np.float32))
    every = every[np.isfinite(every)]
    halves = (every[1:] + every[:-1]) / 2
    x = np.concatenate([halves, np.nextafter(halves, np.float32(np.inf)), np.nextafter(halves, np.float32(-np.inf))])
    x = np.concatenate([x, RNG.normal(0, top / 3, 500)]).astype(np.float32)
    inside = x[np.abs(x) <= top]
    y = harness.op(encode, [inside], dtype=BY_SHORT[short], saturate=True, split=2)
    np.testing.assert_array_equal(y.view(np.uint8), inside.astype(SMALL[short]).view(np.uint8))
    beyond = np.array([top * 1.5, -top * 1.5, np.inf, -np.inf], np.float32)
    y = harness.op(encode, [beyond], dtype=BY_SHORT[short], saturate=True)
    np.testing.assert_array_equal(y.astype(np.float32), np.sign(beyond) * top)
    y = harness.op(encode, [beyond], dtype=BY_SHORT[short], saturate=False).astype(np.float32)
    if short == "f8e5m2":
        np.testing.assert_array_equal(y, np.sign(beyond) * np.float32(np.inf))
    else:
        assert np.isnan(y).all()


@pytest.mark.parametrize("short", ["f8e4m3fn", "f8e5m2"])
def test_quantize_to_small_floats(harness: Harness, short: str) -> None:
    x = np.append(RNG.normal(0, 100, 99), [1e9, -1e9]).astype(np.float32)
    inputs = [x, np.array(0.7, np.float32)]
    for saturate in (0, 1):
        y = harness.op(quantize_linear, inputs, output_dtype=BY_SHORT[short].onnx, saturate=saturate)
        expected = encode_all(x / np.float32(0.7), SMALL[short], bool(saturate))
        np.testing.assert_array_equal(y.astype(np.float32), expected.astype(np.float32))
    back = harness.op(dequantize_linear, [y, inputs[1]])
    np.testing.assert_array_equal(back, y.astype(np.float32) * np.float32(0.7))


def encode_all(x: np.ndarray, dtype: Any, saturate: bool) -> np.ndarray:
    top = float(ml_dtypes.finfo(dtype).max)
    return (np.clip(x, -top, top) if saturate else x).astype(dtype)


def test_power_of_two_scales(harness: Harness) -> None:
    codes = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu)
    np.testing.assert_array_equal(harness.op(decode, [codes]), codes.astype(np.float32))


@pytest.mark.parametrize("short", ["i4", "u4", "i2", "u2"])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 9, 8193])
def test_elements_narrower_than_a_byte(harness: Harness, short: str, n: int) -> None:
    bits, dtype = int(short[1]), BY_SHORT[short]
    low = -(1 << (bits - 1)) if short[0] == "i" else 0
    values = RNG.integers(low, low + (1 << bits), n).astype(np.int8 if short[0] == "i" else np.uint8)

    def there_and_back(cx: Context, x: Value) -> tuple[Value, Value]:
        packed = pack(cx, x, dtype)
        return cx.alias(packed, (packed.nbytes,), dtypes.U8), unpack(cx, packed)

    packed, back = harness.op(there_and_back, [values])
    np.testing.assert_array_equal(back, values)
    per = 8 // bits
    padded = np.append(values, np.zeros(-n % per, values.dtype)).view(np.uint8).reshape(-1, per) & ((1 << bits) - 1)
    np.testing.assert_array_equal(packed, (padded << np.arange(0, 8, bits)).sum(1).astype(np.uint8))


@pytest.mark.parametrize("short", ["i4", "u4", "i2", "u2", "f4e2m1"])
def test_narrow_quantization(harness: Harness, short: str) -> None:
    dtype = BY_SHORT[short]
    x, scale = RNG.normal(0, 4, (5, 7)).astype(np.float32), RNG.uniform(0.5, 2, 5).astype(np.float32)

    def there_and_back(cx: Context, x: Value, scale: Value) -> Value:
        y = quantize_linear(cx, x, scale, axis=0, output_dtype=dtype.onnx)
        assert y.dtype is dtype
        return dequantize_linear(cx, y, scale, axis=0)

    wide = scale[:, None]
    if short == "f4e2m1":
        expected = np.clip(x / wide, -6, 6).astype(ml_dtypes.float4_e2m1fn).astype(np.float32) * wide
    else:
        low = -(1 << (dtype.bits - 1)) if short[0] == "i" else 0
        expected = np.clip(np.rint(x / wide), low, low + (1 << dtype.bits) - 1) * wide
    np.testing.assert_array_equal(harness.op(there_and_back, [x, scale]), expected)


@pytest.mark.parametrize("n", [0, 1, 3, 5, 64, 16384, 16387, 40001])
def test_dynamic(harness: Harness, n: int) -> None:
    for shift in (0, 50, -50):
        x = (RNG.normal(0, 10, n) + shift).astype(np.float32)
        got = harness.op(dynamic_quantize_linear, [x], split=2)
        if n:
            expected = onnxruntime_node("DynamicQuantizeLinear", [x], 21, outputs=3)
        else:
            expected = [np.zeros(0, np.uint8), np.array(1, np.float32), np.array(0, np.uint8)]
        for y, e in zip(got, expected, strict=True):
            assert (y.dtype, y.shape) == (e.dtype, e.shape)
            np.testing.assert_array_equal(y, e)


def test_dynamic_of_zeros(harness: Harness) -> None:
    y, scale, zero = harness.op(dynamic_quantize_linear, [np.zeros(9, np.float32)])
    assert not y.any()
    assert (float(scale), int(zero)) == (1.0, 0)


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2)])
def test_nothing_to_do(harness: Harness, shape: tuple[int, ...]) -> None:
    scale = np.array(0.5, np.float32)
    assert harness.op(quantize_linear, [np.zeros(shape, np.float32), scale]).shape == shape
    assert harness.op(dequantize_linear, [np.zeros(shape, np.int8), scale]).shape == shape


def test_strict_variant(strict_harness: Harness) -> None:
    inputs = [sample((3, 40)), RNG.uniform(0.1, 1, 3).astype(np.float32), integers((3,), np.int8)]
    y = strict_harness.op(quantize_linear, inputs, axis=0)
    np.testing.assert_array_equal(y, onnxruntime_node("QuantizeLinear", inputs, 21, axis=0)[0])


@pytest.mark.parametrize(
    ("scale", "attributes", "message"),
    [
        ((4,), {"axis": 0}, "must be a scalar or have 3 elements"),
        ((4,), {"axis": 2}, "out of range"),
        ((3, 3), {"axis": 1, "block_size": 3}, "in blocks of 3"),
        ((), {"output_dtype": 99}, "99"),
        ((), {"output_dtype": 7}, "int64"),
    ],
)
def test_bad_calls(harness: Harness, scale: tuple[int, ...], attributes: dict[str, int], message: str) -> None:
    with pytest.raises(OnnxWasmError, match=message):
        harness.op(quantize_linear, [sample((3, 4)), np.ones(scale, np.float32)], **attributes)


def test_a_block_that_is_longer_than_the_axis(harness: Harness) -> None:
    x, scale = np.arange(6, dtype=np.uint8).reshape(3, 2), np.float32([[2, 3]])
    y = harness.op(dequantize_linear, [x, scale], axis=0, block_size=1 << 40)
    np.testing.assert_array_equal(y, x * scale)


def test_zero_points_of_another_shape(harness: Harness) -> None:
    x, scale = np.array([[3, 4]], np.uint8), np.float32([1, 2])
    with pytest.raises(ShapeError, match=r"differ in shape"):
        harness.op(dequantize_linear, [x, scale, np.array([[1, 2]], np.uint8)], axis=1)
    with pytest.raises(ShapeError, match=r"differ in shape"):
        harness.op(quantize_linear, [x.astype(np.float32), scale, np.array([[1, 2]], np.uint8)], axis=1)


def test_zero_point_of_another_type(harness: Harness) -> None:
    x, scale = integers((3,), np.int8), np.array(1, np.float32)
    with pytest.raises(ShapeError, match="zero point is uint8"):
        harness.op(dequantize_linear, [x, scale, np.array(1, np.uint8)])


@pytest.mark.parametrize("n", [0, 3])
def test_scale_of_integers(harness: Harness, n: int) -> None:
    with pytest.raises(ShapeError, match="must be float32 or a shorter float type"):
        harness.op(dequantize_linear, [integers((n,), np.int8), np.array(1, np.int64)])


def test_models_with_quantized_weights_and_activations() -> None:
    weights = {
        "w": RNG.integers(-8, 8, (32, 16)).astype(ml_dtypes.int4),
        "ws": RNG.uniform(0.1, 0.2, (2, 16)).astype(np.float32),
        "s": np.array(0.05, np.float32),
        "z": np.array(7, np.uint8),
    }
    nodes = [
        graphs.node("DequantizeLinear", ["w", "ws"], ["wf"], axis=0, block_size=16),
        graphs.node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        graphs.node("DequantizeLinear", ["xq", "s", "z"], ["xf"]),
        graphs.node("MatMul", ["xf", "wf"], ["m"]),
        graphs.node("Relu", ["m"], ["y"]),
    ]
    data = graphs.model(nodes, {"x": (graphs.FLOAT, ["b", 32])}, ["y"], weights)
    with ort.Runtime() as runtime, ort.InferenceSession.create(data, runtime=runtime) as session:
        for rows in (5, 2):
            x = RNG.normal(0, 3, (rows, 32)).astype(np.float32)
            outputs = session.run({"x": x})
            y = np.array(outputs["y"].data)
            outputs["y"].dispose()
            np.testing.assert_allclose(y, graphs.native(data, {"x": x})["y"], rtol=1e-5, atol=1e-4)
