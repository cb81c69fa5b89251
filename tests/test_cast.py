from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from elementwise import FLOATS, INTEGERS, equal, fold, lower, sample
from harness import Harness
from onnx_wasm import dtypes

TYPES = [*FLOATS, *INTEGERS, np.bool_]


def number(dtype: Any) -> int:
    return dtypes.from_numpy(np.dtype(dtype)).onnx


@pytest.mark.parametrize("source", TYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("target", TYPES, ids=lambda d: np.dtype(d).name)
def test_in_range(harness: Harness, source: Any, target: Any) -> None:
    low = 0 if np.dtype(target).kind == "u" else -100
    for size in (0, 1, 2, 3, 5, 4101):
        x = sample((size,), source, size, low, 100)
        got = harness.op(lower("Cast"), [x], to=number(target), split=2)
        assert got.dtype == target
        equal(got, x.astype(target))
    got = harness.op(lower("CastLike"), [x, np.zeros(1, target)])
    equal(got, x.astype(target))


@pytest.mark.parametrize("source", INTEGERS)
@pytest.mark.parametrize("target", INTEGERS)
def test_integers_wrap(harness: Harness, source: Any, target: Any) -> None:
    info = np.iinfo(source)
    x = np.array([info.min, info.max, info.max // 3], source)
    equal(harness.op(lower("Cast"), [x], to=number(target)), x.astype(target))
    equal(fold("Cast")(x, to=number(target)), x.astype(target))


@pytest.mark.parametrize("source", INTEGERS)
@pytest.mark.parametrize("target", [np.float32, np.float64])
def test_large_integers_round_once(harness: Harness, source: Any, target: Any) -> None:
    info = np.iinfo(source)
    x = sample((999,), source, 1, info.min, info.max)
    equal(harness.op(lower("Cast"), [x], to=number(target)), x.astype(target))


def test_floats_out_of_range_never_trap(harness: Harness) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 2.0**31, 2.0**63])
    for source in (np.float32, np.float64):
        got = harness.op(lower("Cast"), [x.astype(source)], to=number(np.int32))
        least, most = -(2**31), 2**31 - 1
        equal(got, [0, most, least, most, least, most, most])
        for target in INTEGERS:
            assert harness.op(lower("Cast"), [x.astype(source)], to=number(target))[0] == 0
    wrapped = harness.op(lower("Cast"), [np.float32([-1, 300, -129])], to=number(np.uint8))
    equal(wrapped, [255, 44, 127])


def test_truth_of_numbers(harness: Harness) -> None:
    x = np.float32([0, -0.0, 1e-45, np.nan, -3])
    equal(harness.op(lower("Cast"), [x], to=number(np.bool_)), [0, 0, 1, 1, 1])
    wide = np.int64([0, 2**40, 256])
    equal(harness.op(lower("Cast"), [wide], to=number(np.bool_)), [0, 1, 1])


@pytest.mark.parametrize("half", [np.float16, ml_dtypes.bfloat16], ids=lambda d: np.dtype(d).name)
def test_every_16_bit_float_both_ways(harness: Harness, half: Any) -> None:
    x = np.arange(2**16, dtype=np.uint16).view(half)
    wide = harness.op(lower("Cast"), [x], to=number(np.float32))
    equal(wide, x.astype(np.float32))
    back = harness.op(lower("Cast"), [wide], to=number(half))
    number_like = wide == wide
    equal(back != back, ~number_like)
    equal(back.view(np.uint16)[number_like], x.view(np.uint16)[number_like])


@pytest.mark.parametrize("half", [np.float16, ml_dtypes.bfloat16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("source", [np.float32, np.float64])
def test_rounding_to_16_bits_is_to_nearest_even(harness: Harness, half: Any, source: Any) -> None:
    values = np.arange(0x7F00 if half is ml_dtypes.bfloat16 else 0x7C00, dtype=np.uint16).view(half).astype(np.float64)
    middle = (values[1:] + values[:-1]) / 2
    x = (
        np.concatenate([middle, np.nextafter(middle, 1e300), np.nextafter(middle, 0)])
        if source is np.float64
        else middle
    )
    if source is np.float32:
        x = middle.astype(np.float32)
        x = np.concatenate([x, np.nextafter(x, np.float32(3e38)), np.nextafter(x, np.float32(0))])
    x = np.concatenate([x, -x, np.array([65519, 65520, 7e4, np.inf], x.dtype)])
    with np.errstate(all="ignore"):
        nearest = np.searchsorted(values, np.abs(x.astype(np.float64)))
        low, high = values[np.maximum(nearest - 1, 0)], values[np.minimum(nearest, values.size - 1)]
    got = harness.op(lower("Cast"), [x], to=number(half)).astype(np.float64)
    inside = np.abs(x) <= values[-1]
    exact, got, low, high = (v[inside].astype(np.float64) for v in (x, got, low, high))
    equal(np.abs(got - exact), np.minimum(np.abs(np.abs(exact) - low), np.abs(np.abs(exact) - high)))
    ties = harness.op(lower("Cast"), [middle.astype(source)], to=number(half)).view(np.uint16)
    assert not (ties & 1).any()


def test_folds_are_for_integers_and_bools_only() -> None:
    assert fold("Cast")(np.int64([1]), to=number(np.float32)) is NotImplemented
    assert fold("Cast")(np.float32([1]), to=number(np.int32)) is NotImplemented


def test_a_type_without_a_cast_is_named(harness: Harness) -> None:
    with pytest.raises(NotImplementedError, match="a cast from float32 to complex64 is not supported"):
        harness.op(lower("Cast"), [np.zeros(2, np.float32)], to=14)
    with pytest.raises(NotImplementedError, match="unknown ONNX element type 77"):
        harness.op(lower("Cast"), [np.zeros(2, np.float32)], to=77)
