"""Strided copies: slice, concat, split, expand and tile."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness import Harness
from onnx_wasm import dtypes
from onnx_wasm.context import Context, Value
from onnx_wasm.errors import ShapeError
from onnx_wasm.ops.concat import concat, split, split_2, split_13
from onnx_wasm.ops.expand import expand, fold_expand, fold_tile, tile
from onnx_wasm.ops.slice import fold_slice, slice_, slice_1

WIDTHS = [np.bool_, np.int16, np.float32, np.float64, np.complex128]
FEW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def numbered(shape: Sequence[int], dtype: type = np.float32) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(0, 250, shape).astype(dtype)


def sliced(harness: Harness, x: np.ndarray, *bounds: Sequence[int] | None, split: int = 1) -> np.ndarray:
    arrays = [None if b is None else np.array(b, np.int64) for b in bounds]
    np.testing.assert_array_equal(
        fold_slice(x, *arrays), result := harness.op(slice_, [x, *arrays], host=range(1, len(arrays) + 1), split=split)
    )
    return result


BIG = 2**63 - 1


@pytest.mark.parametrize("split", [1, 3])
@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize(
    ("shape", "index"),
    [
        ((40,), (slice(None, None, -1),)),
        ((41, 37), (slice(None), slice(None, None, -1))),
        ((41, 37), (slice(None, None, 2), slice(1, None, 2))),
        ((41, 37), (slice(None), slice(3, 30, 3))),
        ((41, 37), (slice(None), slice(30, 3, -3))),
        ((41, 37), (slice(None), slice(5, 6))),
        ((41, 37), (slice(None), slice(5, 9))),
        ((3, 5, 7), (slice(1, 3), slice(1, 4), slice(2, 7))),
        ((3, 5, 7), (slice(2, 0, -1), slice(None, None, -2), slice(None))),
        ((2, 3, 2, 3, 2, 3, 2, 3), (slice(None), slice(1, None)) * 4),
        ((70000,), (slice(1, None, 2),)),
    ],
)
def test_slice(harness: Harness, shape: tuple[int, ...], index: tuple[slice, ...], dtype: type, split: int) -> None:
    x = numbered(shape, dtype)
    steps = [1 if s.step is None else s.step for s in index]
    starts = [(0 if t > 0 else BIG) if s.start is None else s.start for s, t in zip(index, steps, strict=True)]
    ends = [(BIG if t > 0 else -BIG - 1) if s.stop is None else s.stop for s, t in zip(index, steps, strict=True)]
    y = sliced(harness, x, starts, ends, range(len(shape)), steps, split=split)
    np.testing.assert_array_equal(y, x[index])


@FEW
@given(
    extent=st.integers(0, 9),
    start=st.integers(-12, 12),
    end=st.integers(-12, 12),
    step=st.integers(-4, 4).filter(bool),
    inner=st.sampled_from([1, 2, 5]),
)
def test_slice_clamps(harness: Harness, extent: int, start: int, end: int, step: int, inner: int) -> None:
    x = numbered((2, extent, inner), np.int32)
    # The specification's words: add the extent to what is negative, then clamp.
    low, high = (0, extent) if step > 0 else (-1, extent - 1)
    first = min(max(start + extent if start < 0 else start, 0), high)
    last = min(max(end + extent if end < 0 else end, low), high)
    places = [i for i in range(first, last, step) if i < extent]
    y = sliced(harness, x, [start], [end], [1], [step])
    np.testing.assert_array_equal(y, x[:, places])


def test_slice_by_attributes(harness: Harness) -> None:
    x = numbered((4, 6))
    np.testing.assert_array_equal(harness.op(slice_1, [x], starts=(1, -4), ends=(1000, -1)), x[1:, -4:-1])
    np.testing.assert_array_equal(harness.op(slice_1, [x], starts=(1,), ends=(3,), axes=(-1,)), x[:, 1:3])


def test_slice_of_leading_axes_is_no_copy() -> None:
    x = Value((1, 6, 5), dtypes.F32)
    cx = Context()
    y = slice_1(cx, x, starts=(2,), ends=(4,), axes=(1,))
    assert (y.root, y.offset, y.shape, cx.records) == (x, 40, (1, 2, 5), [])


def test_slice_errors() -> None:
    x, one = Value((4, 6), dtypes.F32), np.array([1])
    with pytest.raises(ShapeError, match=r"steps \[0\] hold a 0"):
        slice_(Context(), x, one, one, one, np.array([0]))
    with pytest.raises(ShapeError, match=r"axis 2 out of range \[-2, 2\)"):
        slice_(Context(), x, one, one, np.array([2]))
    with pytest.raises(ShapeError, match="name an axis twice"):
        slice_(Context(), x, np.array([0, 0]), np.array([1, 1]), np.array([1, -1]))
    with pytest.raises(ShapeError, match="has 1 starts, 2 ends"):
        slice_(Context(), x, one, np.array([1, 2]))
    names = ("starts", "ends", "axes", "steps")
    for wrong in (np.array(1), np.array([[1]])):
        for i, name in enumerate(names):
            bounds = [wrong if i == j else one for j in range(len(names))]
            with pytest.raises(ShapeError, match=f"{name} must have one dimension, got shape"):
                slice_(Context(), x, *bounds)


@pytest.mark.parametrize("split", [1, 3])
@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize(
    ("shapes", "axis"),
    [
        ([(2, 3), (5, 3)], 0),
        ([(7, 3), (7, 4), (7, 1)], -1),
        ([(7, 1), (7, 1)], 1),
        ([(2, 3, 4, 5), (2, 1, 4, 5), (2, 0, 4, 5), (2, 2, 4, 5)], 1),
        ([(3,), (0,), (4,)], 0),
        ([(40000,), (40001,)], 0),
    ],
)
def test_concat(harness: Harness, shapes: list[tuple[int, ...]], axis: int, dtype: type, split: int) -> None:
    xs = [numbered(s, dtype) for s in shapes]
    y = harness.op(concat, xs, axis=axis, split=split)
    np.testing.assert_array_equal(y, np.concatenate(xs, axis))


def test_concat_of_one_is_no_copy() -> None:
    cx, x = Context(), Value((2, 3), dtypes.F32)
    y = concat(cx, Value((0, 3), dtypes.F32), x, axis=0)
    assert (y.root, y.shape, cx.records) == (x, (2, 3), [])


@pytest.mark.parametrize("scalar", ["starts", "ends", "axes", "steps"])
def test_slice_takes_no_scalars(scalar: str) -> None:
    x = Value((4, 6), dtypes.F32)
    given = {"starts": np.array([0]), "ends": np.array([2]), "axes": np.array([0]), "steps": np.array([1])}
    given[scalar] = given[scalar][0]
    with pytest.raises(ShapeError, match=rf"{scalar} must have one dimension, got shape \[\]"):
        slice_(Context(), x, **given)
    with pytest.raises((TypeError, ValueError)):
        fold_slice(np.arange(24).reshape(4, 6), **given)


@pytest.mark.parametrize(
    ("count", "axes", "steps"), [(1, [0, 1], [1]), (1, [0], [1, 1]), (2, [0, 0], [1, 1]), (2, [0, -2], [1, 1])]
)
def test_slice_folds_nothing_that_does_not_fit(count: int, axes: list[int], steps: list[int]) -> None:
    bounds = np.zeros(count, np.int64)
    with pytest.raises(ValueError, match=r"axes do not fit|zip\(\)"):
        fold_slice(np.arange(24).reshape(4, 6), bounds, bounds, np.array(axes), np.array(steps))


def test_concat_errors() -> None:
    x = Value((2, 3), dtypes.F32, name="left")
    with pytest.raises(ShapeError, match="left"):
        concat(Context(), x, Value((2, 4), dtypes.F32), axis=0)
    with pytest.raises(ShapeError, match="cannot be joined"):
        concat(Context(), x, Value((2, 3), dtypes.F64), axis=0)
    with pytest.raises(ShapeError, match=r"axis 2 out of range \[-2, 2\)"):
        concat(Context(), x, x, axis=2)


def outputs(count: int, *unwanted: int) -> tuple[str, ...]:
    return tuple("" if i in unwanted else f"y{i}" for i in range(count))


def describe_split(names: tuple[str, ...], function: object) -> object:
    def described(cx: Context, *args: object, **attributes: object) -> object:
        cx.node.outputs = names
        return function(cx, *args, **attributes)

    return described


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize(
    ("shape", "axis", "extents"),
    [((6, 5), 0, (2, 4)), ((6, 5), 1, (1, 4)), ((2, 7, 3), -2, (3, 0, 4)), ((1, 8, 2), 1, (4, 4)), ((8, 2), 1, (2,))],
)
def test_split(harness: Harness, shape: tuple[int, ...], axis: int, extents: tuple[int, ...], parts: int) -> None:
    x = numbered(shape)
    function = describe_split(outputs(len(extents)), split)
    ys = harness.op(function, [x, np.array(extents)], host=(1,), axis=axis, split=parts)
    for y, expected in zip(ys, np.split(x, np.cumsum(extents)[:-1], axis), strict=True):
        np.testing.assert_array_equal(y, expected)


def test_split_forms(harness: Harness) -> None:
    x = numbered((3, 7))
    pieces = harness.op(describe_split(outputs(3), split), [x], axis=1, num_outputs=3)
    assert [p.shape for p in pieces] == [(3, 3), (3, 3), (3, 1)]
    np.testing.assert_array_equal(np.concatenate(pieces, 1), x)
    thirds = harness.op(describe_split(outputs(3, 1), split_13), [x.T.copy(), None], axis=1)
    assert thirds[1] is None
    np.testing.assert_array_equal(thirds[2], x.T[:, 2:])
    by_attribute = functools.partial(split_2, split=(2, 5))
    first, second = harness.op(describe_split(outputs(2), by_attribute), [x], axis=1)
    np.testing.assert_array_equal(np.concatenate([first, second], 1), x)


def test_split_errors() -> None:
    cx, x = Context(), Value((4, 6), dtypes.F32)
    cx.node.outputs = ("a", "b", "c")
    with pytest.raises(ShapeError, match=r"axis 0 of .* does not divide into 3"):
        split_2(cx, x)
    with pytest.raises(ShapeError, match=r"\[2, 3\] do not add up to the 4"):
        split_13(cx, x, np.array([2, 3]))


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize(
    ("shape", "target"),
    [
        ((), (3, 5)),
        ((1,), (70000,)),
        ((3, 1), (3, 50)),
        ((3, 1), (2, 1, 6)),
        ((50, 1), (50, 2)),
        ((1, 7), (5, 7)),
        ((2, 1, 3, 1), (2, 4, 1, 5)),
        ((3,), (0, 3)),
        ((2, 3), (1, 1)),
    ],
)
def test_expand(harness: Harness, shape: tuple[int, ...], target: tuple[int, ...], dtype: type, parts: int) -> None:
    x, to = numbered(shape, dtype), np.array(target, np.int64)
    y = harness.op(expand, [x, to], host=(1,), split=parts)
    np.testing.assert_array_equal(y, x * np.ones(target, dtype))
    np.testing.assert_array_equal(fold_expand(x, to), y)


def test_expand_errors() -> None:
    with pytest.raises(ShapeError, match="axis 1 has 3 elements, not 1 or 4"):
        expand(Context(), Value((2, 3), dtypes.F32), np.array([2, 4]))


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize(
    ("shape", "repeats"),
    [
        ((3,), (4,)),
        ((3, 1), (1, 6)),
        ((2, 3), (3, 2)),
        ((2, 3, 4), (1, 2, 1)),
        ((5, 2), (2, 0)),
        ((2, 1, 2), (2, 3, 4)),
    ],
)
def test_tile(harness: Harness, shape: tuple[int, ...], repeats: tuple[int, ...], parts: int) -> None:
    x, counts = numbered(shape), np.array(repeats, np.int64)
    y = harness.op(tile, [x, counts], host=(1,), split=parts)
    np.testing.assert_array_equal(y, np.tile(x, repeats))
    np.testing.assert_array_equal(fold_tile(x, counts), y)


def test_tile_errors() -> None:
    with pytest.raises(ShapeError, match=r"repeats \[2\] do not fit"):
        tile(Context(), Value((2, 3), dtypes.F32), np.array([2]))
