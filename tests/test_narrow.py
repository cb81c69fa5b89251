"""Types of 8 bits and fewer: casts between all number types, and what moves their elements."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import helper, numpy_helper

import narrow
from elementwise import lower
from harness import Harness
from onnx_wasm import dtypes
from onnx_wasm.ops._narrow import pack, unpack

NUMBERS = [d for d in dtypes.ALL if d.name not in ("string", "complex64", "complex128")]
SMALL = [d for d in NUMBERS if d.bits <= 8 and d.is_float]
FLOAT8 = [d for d in SMALL if d.name.startswith(("float8e4", "float8e5"))]
E8M0 = dtypes.from_name("float8e8m0")


def f64(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32).astype(np.float64) if array.dtype.itemsize == 1 else array.astype(np.float64)


def values(source: dtypes.DType, target: dtypes.DType) -> np.ndarray:
    """Values of the source that the target can hold."""
    exact = [1, 2, 1, 1, 2] if E8M0 in (source, target) else [0, 1, -1, 0.5, -2, 1.5, 3, -7, 96, 17.25]
    array = np.array(exact * 8)[:37]
    if not (source.is_signed and target.is_signed):
        array = np.abs(array)
    for d in (source, target):
        if d.bits < 8 and d.is_integer:
            high = 1 << (d.bits - d.is_signed)
            array = np.clip(array, -high if d.is_signed else 0, high // 2)
    return array.astype(np.float32).astype(narrow.scalar_type(source))


@pytest.mark.parametrize("source", NUMBERS, ids=str)
def test_cast_to_every_type(source: dtypes.DType) -> None:
    feeds = {f"x{i}": values(source, t) for i, t in enumerate(NUMBERS)}
    nodes = [helper.make_node("Cast", [f"x{i}"], [t.name], to=t.onnx) for i, t in enumerate(NUMBERS)]
    got = narrow.run(nodes, feeds)
    for i, target in enumerate(NUMBERS):
        x, y = f64(feeds[f"x{i}"]), got[target.name]
        assert y.dtype == narrow.scalar_type(target)
        if target.short == "bool":
            np.testing.assert_array_equal(y, x != 0, err_msg=str(target))
        elif target.is_integer:
            np.testing.assert_array_equal(f64(y), np.trunc(x), err_msg=str(target))
        elif target is E8M0:
            np.testing.assert_array_equal(f64(y), np.where(x > 0, x, 2.0**-127), err_msg=str(target))
        else:
            np.testing.assert_array_equal(f64(y), f64(np.clip(x, -448, 448).astype(y.dtype)), err_msg=str(target))


@pytest.mark.parametrize("dtype", SMALL, ids=str)
def test_every_code_to_f32(dtype: dtypes.DType) -> None:
    x = np.arange(1 << dtype.bits, dtype=np.uint8).view(narrow.scalar_type(dtype))
    got = narrow.run([helper.make_node("Cast", ["x"], ["y"], to=1)], {"x": x})["y"]
    np.testing.assert_array_equal(got, x.astype(np.float32))


def nearest(x: np.ndarray, scalar: np.dtype[Any], saturate: int) -> np.ndarray:
    """The values of an 8-bit float type nearest to x, the even code of two; what lies beyond as the standard says."""
    codes = f64(np.arange(128, dtype=np.uint8).view(scalar))
    codes = codes[np.isfinite(codes)]
    # One code more, as if the exponent went on.
    codes = np.append(codes, 2 * codes[-1] - codes[-2])
    high = np.clip(np.searchsorted(codes, np.abs(x)), 1, codes.size - 1)
    down, up = np.abs(x) - codes[high - 1], codes[high] - np.abs(x)
    code = np.where((up < down) | ((up == down) & (high % 2 == 0)), high, high - 1)
    beyond = codes[-2] if saturate else np.inf if scalar == ml_dtypes.float8_e5m2 else np.nan
    result = np.where(code == codes.size - 1, beyond, codes[code])
    return np.where(np.isnan(x), np.nan, np.copysign(result, x))


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("source", [np.float32, np.float64])
@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_rounding(harness: Harness, dtype: dtypes.DType, source: Any, saturate: int) -> None:
    scalar = narrow.scalar_type(dtype)
    codes = f64(np.arange(128, dtype=np.uint8).view(scalar))
    codes = codes[np.isfinite(codes)]
    middle = (codes[1:] + codes[:-1]) / 2
    beyond = codes[-1] + (codes[-1] - codes[-2]) * np.array([0.25, 0.5, 0.75, 1, 2, 1e6])
    x = np.concatenate([codes, middle, beyond, [np.inf]]).astype(source)
    x = np.concatenate([x, np.nextafter(x, source(np.inf)), np.nextafter(x, source(-np.inf))])
    x = np.concatenate([x, -x, np.array([np.nan, 0, -0.0], source)])
    got = harness.op(lower("Cast", 25), [x], to=dtype.onnx, saturate=saturate, split=2)
    np.testing.assert_array_equal(f64(got), nearest(x.astype(np.float64), scalar, saturate))
    assert not np.signbit(f64(got)[f64(got) == 0]).any() or "uz" not in dtype.name


def power(x: float, saturate: int, mode: str) -> float:
    """x as the power of two that the specification's table and ``mode`` give."""
    if np.isnan(x) or (not saturate and (np.isinf(x) or x < 2.0**-127) and not (mode == "up" and 0 < x < 1)):
        return np.nan
    if x < 2.0**-127:
        return 2.0**-127
    if np.isinf(x):
        return 2.0**127
    low = 2.0 ** np.floor(np.log2(x))
    up = {"up": x > low, "down": False, "nearest": x >= 1.5 * low}[mode]
    result = low * (2 if up else 1)
    return result if result <= 2.0**127 else (2.0**127 if saturate else np.nan)


@pytest.mark.parametrize("mode", ["up", "down", "nearest"])
@pytest.mark.parametrize("saturate", [0, 1])
def test_powers_of_two(harness: Harness, saturate: int, mode: str) -> None:
    low = 2.0 ** np.array([-149, -140, -128, -127, -126, -3, 0, 1, 126, 127])
    x = np.concatenate([low, low * 1.25, low * 1.5, low * 1.75, [0, np.inf, np.nan, 1 + 2**-23]]).astype(np.float32)
    got = harness.op(lower("Cast", 25), [x], to=E8M0.onnx, saturate=saturate, round_mode=mode)
    np.testing.assert_array_equal(f64(got), [power(float(v), saturate, mode) for v in x])


def test_a_double_rounds_once_to_a_power_of_two(harness: Harness) -> None:
    got = harness.op(lower("Cast", 25), [np.array([1 + 2.0**-50, 1.0])], to=E8M0.onnx)
    np.testing.assert_array_equal(f64(got), [2, 1])


def test_an_unknown_rounding_is_named(harness: Harness) -> None:
    with pytest.raises(ValueError, match="round_mode 'even' is none of up, down, nearest"):
        harness.op(lower("Cast", 25), [np.ones(1, np.float32)], to=E8M0.onnx, round_mode="even")


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5, 4095, 4097, 8193])
@pytest.mark.parametrize("name", ["int4", "uint2", "float6e2m3"])
def test_packing_by_units(harness: Harness, name: str, size: int) -> None:
    dtype = dtypes.from_name(name)
    x = np.random.default_rng(size).integers(-128, 128, size, dtype=np.int8)
    nbytes = dtype.nbytes(size)
    packed = harness.op(lambda cx, x: cx.alias(pack(cx, x, dtype), (nbytes,), dtypes.U8), [x], split=3)
    np.testing.assert_array_equal(packed, narrow.pack(x, dtype.bits))
    bytes_ = harness.op(lambda cx, p: unpack(cx, cx.alias(p, (size,), dtype)), [packed], split=3)
    np.testing.assert_array_equal(bytes_, narrow.unpack(packed, dtype, (size,)).view(bytes_.dtype))


def test_integers_keep_their_low_bits() -> None:
    x = np.array([200, -3, 7, 8, 15, 16, -9], np.int16)
    nodes = [
        helper.make_node("Cast", ["x"], [n], to=dtypes.from_name(n).onnx) for n in ("int4", "uint4", "int2", "uint2")
    ]
    nodes.append(helper.make_node("CastLike", ["int4", "uint4"], ["like"]))
    got = narrow.run(nodes, {"x": x})
    low = x & 15
    np.testing.assert_array_equal(got["uint4"].astype(int), low)
    np.testing.assert_array_equal(got["like"].astype(int), low)
    np.testing.assert_array_equal(got["int4"].astype(int), np.where(low > 7, low - 16, low))
    np.testing.assert_array_equal(got["uint2"].astype(int), x & 3)
    np.testing.assert_array_equal(got["int2"].astype(int), np.where(x & 2, (x & 3) - 4, x & 3))


@pytest.mark.parametrize("name", narrow.PACKED)
def test_movement(name: str) -> None:
    dtype = dtypes.from_name(name)
    codes = np.random.default_rng(1).integers(0, 1 << dtype.bits, 3 * 5 * 7, dtype=np.uint8)
    x = narrow.unpack(narrow.pack(codes, dtype.bits), dtype, (3, 5, 7))
    weights = {
        "shape": [5, 21],
        "pads": [1, 0, 0, 0, 2, 1],
        "starts": [1, 6],
        "ends": [3, 0],
        "axes": [1, 2],
        "steps": [1, -2],
        "at": [4, 0],
        "all": [3, 5, 7],
        "wide": [2, 3, 5, 7],
    }
    constants = [
        helper.make_node("Constant", [], [n], value=numpy_helper.from_array(np.array(v, np.int64)))
        for n, v in weights.items()
    ]
    moves = [
        (["Identity", "x"], {}, x),
        (["Reshape", "x", "shape"], {}, x.reshape(5, 21)),
        (["Flatten", "x"], {}, x.reshape(3, 35)),
        (["Transpose", "x"], {"perm": [2, 0, 1]}, x.transpose(2, 0, 1)),
        (["Slice", "x", "starts", "ends", "axes", "steps"], {}, x[:, 1:3, 6:0:-2]),
        (["Concat", "x", "x"], {"axis": 2}, np.concatenate([x, x], 2)),
        (["Gather", "x", "at"], {"axis": 1}, x[:, [4, 0]]),
        (["Expand", "x", "wide"], {}, np.broadcast_to(x, (2, 3, 5, 7))),
        (["Pad", "x", "pads"], {}, np.pad(x.view(np.uint8), ((1, 0), (0, 2), (0, 1))).view(x.dtype)),
        (
            ["Pad", "x", "pads"],
            {"mode": "edge"},
            np.pad(x.view(np.uint8), ((1, 0), (0, 2), (0, 1)), "edge").view(x.dtype),
        ),
    ]
    nodes = [helper.make_node(n[0], n[1:], [f"y{i}"], **a) for i, (n, a, _) in enumerate(moves)]
    nodes.append(helper.make_node("Split", ["x"], ["s0", "s1"], axis=1, num_outputs=2))
    two = helper.make_tensor("two", dtype.onnx, [1], narrow.pack(x[0, 0, 1:2], dtype.bits).tobytes(), raw=True)
    nodes.append(helper.make_node("ConstantOfShape", ["all"], ["filled"], value=two))
    got = narrow.run([*constants, *nodes], {"x": x})
    assert (got["filled"].view(np.uint8) == x.view(np.uint8)[0, 0, 1]).all()
    for i, (n, _, want) in enumerate(moves):
        np.testing.assert_array_equal(
            got[f"y{i}"].view(np.uint8), np.ascontiguousarray(want).view(np.uint8), err_msg=n[0]
        )
    np.testing.assert_array_equal(got["s0"].view(np.uint8), x[:, :3].view(np.uint8))
    np.testing.assert_array_equal(got["s1"].view(np.uint8), x[:, 3:].view(np.uint8))


def test_bits_of_another_type() -> None:
    x = np.array([[1.5, -2], [np.inf, 0]], np.float32)
    nodes = [
        helper.make_node("BitCast", ["x"], ["i"], to=dtypes.I32.onnx),
        helper.make_node("BitCast", ["i"], ["f"], to=1),
    ]
    got = narrow.run(nodes, {"x": x}, opset=26)
    np.testing.assert_array_equal(got["i"], x.view(np.int32))
    np.testing.assert_array_equal(got["f"], x)
    with pytest.raises(ValueError, match="float32 has 32 bits, int64 has 64"):
        narrow.run([helper.make_node("BitCast", ["x"], ["i"], to=dtypes.I64.onnx)], {"x": x}, opset=26)
