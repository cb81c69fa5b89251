from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness import Harness
from onnx_wasm import dtypes
from onnx_wasm.context import Context, Value
from onnx_wasm.errors import ShapeError
from onnx_wasm.ops.pad import center_crop_pad, fold_pad, fold_trilu, pad, pad_2, pad_11, trilu

WIDTHS = [np.bool_, np.float16, np.float32, np.int64, np.complex128]


def numbered(shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(0, 100, shape).astype(dtype)


@pytest.mark.parametrize("split", [1, 3])
@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize(
    ("shape", "before", "after"),
    [
        ((5,), (2,), (3,)),
        ((1, 2, 6, 7), (0, 0, 1, 2), (0, 0, 2, 1)),
        ((1, 6, 7, 3), (0, 1, 1, 0), (0, 2, 1, 0)),
        ((2, 3, 4), (1, 0, 0), (0, 1, 0)),
        ((3, 30), (2, 20), (1, 29)),
        ((3, 2), (0, 0), (0, 1)),
        ((3, 4, 2, 2), (1, 2, 0, 0), (0, 0, 0, 0)),
    ],
)
def test_pad(harness: Harness, shape: Any, before: Any, after: Any, mode: str, dtype: Any, split: int) -> None:
    x, pads = numbered(shape, dtype), np.array(before + after)
    pairs = list(zip(before, after, strict=True))
    value = np.array(7, dtype) if mode == "constant" else None
    expected = np.pad(x, pairs, constant_values=7) if mode == "constant" else np.pad(x, pairs, mode)
    np.testing.assert_array_equal(harness.op(pad, [x, pads, value], host=(1,), mode=mode, split=split), expected)
    np.testing.assert_array_equal(fold_pad(x, pads, value, mode=mode), expected)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize("after", [(0, -1, 2), (1, 1, -3), (-1, -1, -1), (0, 0, 0)])
@pytest.mark.parametrize("before", [(1, -2, 0), (0, 1, -1), (-1, -1, -1), (0, 0, 0)])
def test_negative_amounts_cut_first(
    harness: Harness, before: tuple[int, ...], after: tuple[int, ...], mode: str
) -> None:
    x = numbered((4, 5, 6))
    kept = x[tuple(slice(max(0, -b), d - max(0, -a)) for d, b, a in zip(x.shape, before, after, strict=True))]
    pairs = [(max(0, b), max(0, a)) for b, a in zip(before, after, strict=True)]
    pads = np.array(before + after)
    y = harness.op(pad, [x, pads], host=(1,), mode=mode)
    np.testing.assert_array_equal(y, np.pad(kept, pairs, mode))
    np.testing.assert_array_equal(fold_pad(x, pads, mode=mode), y)


def test_forms(harness: Harness) -> None:
    x = numbered((2, 3))
    expected = np.pad(x, ((0, 0), (1, 2)), constant_values=2.5)
    np.testing.assert_array_equal(harness.op(pad_2, [x], pads=(0, 1, 0, 2), value=2.5), expected)
    value = np.array([2.5], np.float32)
    np.testing.assert_array_equal(harness.op(pad_11, [x, np.array([0, 1, 0, 2]), value], host=(1,)), expected)
    y = harness.op(pad, [x, np.array([1, 2]), value, np.array([-1])], host=(1, 3))
    np.testing.assert_array_equal(y, expected)
    y = harness.op(pad, [x, np.array([1, 2]), None, np.array([1])], host=(1, 3))
    np.testing.assert_array_equal(y, np.pad(x, ((0, 0), (1, 2))))


def test_empty_inputs(harness: Harness) -> None:
    x = np.empty((0, 3), np.float32)
    y = harness.op(pad, [x, np.array([1, 0, 1, 1]), np.array(3, np.float32)], host=(1,))
    np.testing.assert_array_equal(y, np.full((2, 4), 3, np.float32))
    assert harness.op(pad, [x, np.array([0, 1, 0, 1])], host=(1,)).shape == (0, 5)


def test_no_amounts_are_no_copy() -> None:
    cx, x = Context(), Value((4, 5), dtypes.F32)
    assert pad(cx, x, np.zeros(4, np.int64)).root is x
    y = pad(cx, x, np.array([-1, 0, -1, 0]))
    assert (y.root, y.offset, y.shape, cx.records) == (x, 20, (2, 5), [])


def test_errors() -> None:
    cx, x = Context(), Value((2, 3), dtypes.F32)
    with pytest.raises(ShapeError, match=r"shape \[2, -1\] must not be negative"):
        center_crop_pad(cx, x, np.array([2, -1]))
    with pytest.raises(ShapeError, match="must hold 2 amounts for each of 2 axes"):
        pad(cx, x, np.zeros(3, np.int64))
    with pytest.raises(ShapeError, match="'mirror' is none of constant, reflect, edge, wrap"):
        pad(cx, x, np.zeros(4, np.int64), mode="mirror")
    with pytest.raises(ShapeError, match=r"take 4 from an extent of 2"):
        pad(cx, x, np.array([-2, 0, -2, 1]))
    with pytest.raises(ShapeError, match="has nothing to repeat"):
        pad(cx, Value((2, 0), dtypes.F32), np.array([0, 1, 0, 1]), mode="edge")
    with pytest.raises(ShapeError, match="must be one element of type float32"):
        pad(cx, x, np.ones(4, np.int64), Value((), dtypes.F64))


@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("shape", [(5, 5), (2, 3, 7), (7, 3), (2, 0, 3)])
def test_trilu(harness: Harness, shape: tuple[int, ...], upper: int, dtype: Any) -> None:
    x = numbered(shape, dtype)
    for k in (None, -9, -2, 0, 1, 3, 9):
        offset = None if k is None else np.array(k)
        y = harness.op(trilu, [x, offset], host=(1,), upper=upper, split=2)
        np.testing.assert_array_equal(y, (np.triu if upper else np.tril)(x, k or 0))
        np.testing.assert_array_equal(fold_trilu(x, offset, upper=upper), y)
