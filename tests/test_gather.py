"""Elements picked and placed by index."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness import Harness, KernelStatus
from onnx_wasm import dtypes
from onnx_wasm.context import Context, Value
from onnx_wasm.errors import NodeIndexError, ShapeError, UnsupportedModelError
from onnx_wasm.ops import gather as g
from onnx_wasm.ops import scatter as s
from onnx_wasm.ops.cumsum import cumsum, fold_cumsum

WIDTHS = [np.bool_, np.int16, np.float32, np.float64, np.complex128]
RNG = np.random.default_rng(5)


def numbered(shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    return RNG.integers(0, 100, shape).astype(dtype)


def places(shape: tuple[int, ...], extent: int, dtype: Any = np.int64) -> np.ndarray:
    return RNG.integers(-extent, extent, shape).astype(dtype)


@pytest.mark.parametrize("split", [1, 3])
@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize(
    ("shape", "axis", "index"),
    [
        ((9,), 0, ()),
        ((9,), 0, (4, 3)),
        ((9, 5), 0, (7,)),
        ((9, 300), 0, (2, 3)),
        ((9, 5), 1, (11,)),
        ((2, 9, 2), 1, (7,)),
        ((3, 9, 4, 5), -3, (2, 2)),
        ((3, 9, 0), 1, (2,)),
        ((3, 9), 1, (0,)),
    ],
)
def test_gather(harness: Harness, shape: Any, axis: int, index: Any, dtype: Any, kind: Any, split: int) -> None:
    x, i = numbered(shape, dtype), places(index, shape[axis], kind)
    y = harness.op(g.gather, [x, i], axis=axis, split=split)
    np.testing.assert_array_equal(y, np.take(x, i, axis))
    assert y.shape == np.take(x, i, axis).shape


@pytest.mark.parametrize("bad", [4, -5, 2**32, -(2**63)])
@pytest.mark.parametrize("inner", [1, 3])
def test_gather_out_of_range(harness: Harness, bad: int, inner: int) -> None:
    with pytest.raises(KernelStatus) as report:
        harness.op(g.gather, [numbered((4, inner)), np.array([0, bad, -4])])
    assert report.value.args == (2, bad, -4, 4)


def test_gather_of_one_known_index_is_a_slice() -> None:
    cx, x = Context(), Value((4, 6), dtypes.F32)
    y = g.gather(cx, x, cx.known(np.array(-1)))
    assert (y.root, y.offset, y.shape, cx.records) == (x, 72, (6,), [])
    assert g.gather(cx, x, cx.known(np.array([[2]])), axis=1).shape == (4, 1, 1)
    with pytest.raises(NodeIndexError, match=r"index 4 out of range \[-4, 4\) of axis 0"):
        g.gather(cx, x, cx.known(np.array(4)))


def test_indices_are_integers() -> None:
    with pytest.raises(UnsupportedModelError, match="float32"):
        g.gather(Context(), Value((4,), dtypes.F32), Value((2,), dtypes.F32))


ELEMENTS = [
    ((5,), (7,), 0),
    ((5, 6), (5, 9), 1),
    ((5, 6), (3, 4), 1),
    ((5, 6), (8, 4), 0),
    ((3, 4, 5), (3, 2, 5), 1),
    ((3, 4, 5), (2, 4, 1), -1),
    ((3, 4, 5), (0, 4, 5), 0),
]


@pytest.mark.parametrize("split", [1, 3])
@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize(("shape", "index", "axis"), ELEMENTS)
def test_gather_elements(
    harness: Harness, shape: Any, index: Any, axis: int, dtype: Any, kind: Any, split: int
) -> None:
    x, i = numbered(shape, dtype), places(index, shape[axis], kind)
    expected = np.empty(index, dtype)
    for at in np.ndindex(*index):
        source = list(at)
        source[axis] = i[at]
        expected[at] = x[tuple(source)]
    np.testing.assert_array_equal(harness.op(g.gather_elements, [x, i], axis=axis, split=split), expected)
    np.testing.assert_array_equal(g.fold_gather_elements(x, i, axis=axis), expected)


def test_gather_elements_errors(harness: Harness) -> None:
    with pytest.raises(ShapeError, match="no axis but 1 larger"):
        g.gather_elements(Context(), Value((2, 3), dtypes.F32), Value((3, 3), dtypes.I64), axis=1)
    with pytest.raises(KernelStatus) as report:
        harness.op(g.gather_elements, [numbered((2, 3)), np.array([[0, -3, 3]])], axis=1)
    assert report.value.args == (2, 3, -3, 3)


TUPLES = [
    ((4, 5, 6), (7, 1), 0),
    ((4, 5, 6), (2, 3, 2), 0),
    ((4, 5, 6), (3, 3), 0),
    ((4, 5, 6), (4, 2), 1),
    ((4, 5, 6), (4, 3, 1), 1),
    ((4, 5, 6), (4, 5, 1), 2),
    ((4, 5, 40), (9, 2), 0),
]


@pytest.mark.parametrize("split", [1, 3])
@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize(("shape", "index", "batch"), TUPLES)
def test_gather_nd(harness: Harness, shape: Any, index: Any, batch: int, dtype: Any, split: int) -> None:
    x = numbered(shape, dtype)
    i = np.stack([places(index[:-1], d) for d in shape[batch : batch + index[-1]]], -1)
    expected = np.empty((*index[:-1], *shape[batch + index[-1] :]), dtype)
    for at in np.ndindex(*index[:-1]):
        expected[at] = x[(*at[:batch], *i[at])]
    np.testing.assert_array_equal(harness.op(g.gather_nd, [x, i], batch_dims=batch, split=split), expected)
    np.testing.assert_array_equal(g.fold_gather_nd(x, i, batch_dims=batch), expected)


def test_gather_nd_errors(harness: Harness) -> None:
    with pytest.raises(KernelStatus) as report:
        harness.op(g.gather_nd, [numbered((2, 3)), np.array([[1, 3]])])
    assert report.value.args == (2, 3, -3, 3)
    with pytest.raises(ShapeError, match="tuples of"):
        g.gather_nd(Context(), Value((2, 3), dtypes.F32), Value((1, 3), dtypes.I64))


REDUCED = [
    np.float16,
    np.float32,
    np.float64,
    np.int8,
    np.uint8,
    np.int16,
    np.uint16,
    np.int32,
    np.uint32,
    np.int64,
    np.uint64,
]
UFUNCS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize(("shape", "index", "axis"), ELEMENTS)
def test_scatter_elements(harness: Harness, shape: Any, index: Any, axis: int, dtype: Any) -> None:
    x, i, updates = numbered(shape, dtype), places(index, shape[axis]), numbered(index, dtype)
    expected = x.copy()
    for at in np.ndindex(*index):
        target = list(at)
        target[axis] = i[at]
        expected[tuple(target)] = updates[at]
    np.testing.assert_array_equal(harness.op(s.scatter_elements, [x, i, updates], axis=axis, split=2), expected)


@pytest.mark.parametrize("reduction", UFUNCS)
@pytest.mark.parametrize("dtype", REDUCED)
def test_scatter_reduces(harness: Harness, dtype: Any, reduction: str) -> None:
    x, updates = RNG.integers(-3, 5, (4, 3)).astype(dtype), RNG.integers(-3, 5, (9, 3)).astype(dtype)
    i = places((9, 3), 4, np.int32)
    expected = s.fold_scatter_elements(x, i, updates, axis=0, reduction=reduction)
    slow = x.copy()
    for row, col in np.ndindex(9, 3):
        slow[i[row, col], col] = UFUNCS[reduction](slow[i[row, col], col], updates[row, col])
    np.testing.assert_array_equal(expected, slow)
    y = harness.op(s.scatter_elements, [x, i, updates], axis=0, reduction=reduction)
    np.testing.assert_array_equal(y, expected)
    rows = places((9, 1), 4)
    y = harness.op(s.scatter_nd, [x, rows, updates], reduction=reduction)
    np.testing.assert_array_equal(y, s.fold_scatter_nd(x, rows, updates, reduction=reduction))


@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize(("shape", "index", "batch"), [t for t in TUPLES if t[2] == 0])
def test_scatter_nd(harness: Harness, shape: Any, index: Any, batch: int, dtype: Any) -> None:
    x, i = numbered(shape, dtype), np.stack([places(index[:-1], d) for d in shape[: index[-1]]], -1)
    updates = numbered((*index[:-1], *shape[index[-1] :]), dtype)
    expected = x.copy()
    for at in np.ndindex(*index[:-1]):
        expected[tuple(i[at])] = updates[at]
    np.testing.assert_array_equal(harness.op(s.scatter_nd, [x, i, updates], split=2), expected)


def test_scatter_errors(harness: Harness) -> None:
    x, i = numbered((2, 3)), np.array([[0, 5, 0]])
    with pytest.raises(KernelStatus) as report:
        harness.op(s.scatter_elements, [x, i, x[:1]], axis=0)
    assert report.value.args == (2, 5, -2, 2)
    data, index = Value((2, 3), dtypes.BOOL), Value((2, 3), dtypes.I64)
    with pytest.raises(UnsupportedModelError, match="'add' of type bool"):
        s.scatter_elements(Context(), data, index, data, reduction="add")
    with pytest.raises(ShapeError, match="'mean' is none of none, add"):
        s.scatter_elements(Context(), data, index, data, reduction="mean")
    with pytest.raises(ShapeError, match="do not fit"):
        s.scatter_nd(Context(), data, index, data)


def test_tensor_scatter(harness: Harness) -> None:
    cache, update, first = numbered((2, 3, 5, 4)), numbered((2, 3, 2, 4)), np.array([3, 4])
    expected = cache.copy()
    expected[0, :, 3:5], expected[1, :, 4], expected[1, :, 0] = update[0], update[1, :, 0], update[1, :, 1]
    y = harness.op(s.tensor_scatter, [cache, update, first], mode="circular", split=3)
    np.testing.assert_array_equal(y, expected)
    for bad, at in [([3, 4], 5), ([-1, 0], -1)]:
        with pytest.raises(KernelStatus) as report:
            harness.op(s.tensor_scatter, [cache, update, np.array(bad)])
        assert report.value.args == (2, at, 0, 5)
    with pytest.raises(ShapeError, match="does not fit"):
        s.tensor_scatter(Context(), Value((2, 3), dtypes.F32), Value((2, 4), dtypes.F32), axis=1)


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_compress(harness: Harness, axis: int | None) -> None:
    x, condition = numbered((3, 4, 5)), np.array([True, False, True])
    y = harness.op(g.compress, [x, condition], host=(1,), axis=axis)
    np.testing.assert_array_equal(y, np.compress(condition, x, axis))


@pytest.mark.parametrize("split", [1, 3])
@pytest.mark.parametrize("time_axis", [0, 1])
@pytest.mark.parametrize("inner", [(), (3, 2), (100,)])
def test_reverse_sequence(harness: Harness, inner: tuple[int, ...], time_axis: int, split: int) -> None:
    x, lengths = numbered((5, 5, *inner)), np.array([0, 1, 5, 3, 4])
    expected = x.copy()
    for b, n in enumerate(lengths):
        sequence = np.moveaxis(expected, time_axis, 0)[:, b]
        sequence[:n] = sequence[:n][::-1].copy()
    y = harness.op(g.reverse_sequence, [x, lengths], batch_axis=1 - time_axis, time_axis=time_axis, split=split)
    np.testing.assert_array_equal(y, expected)
    with pytest.raises(KernelStatus) as report:
        harness.op(g.reverse_sequence, [x, lengths + 2], batch_axis=1 - time_axis, time_axis=time_axis)
    assert report.value.args == (3, 7, 0, 6)


def test_reverse_sequence_along_other_axes(harness: Harness) -> None:
    x, lengths = numbered((2, 2, 2)), np.array([1, 2])
    for batch, time in ((-100, 0), (-1, 0), (0, -1), (1, 1), (2, 1), (1, 2)):
        with pytest.raises(ShapeError, match=f"batch_axis {batch} and time_axis {time} must be 0 and 1"):
            harness.op(g.reverse_sequence, [x, lengths], batch_axis=batch, time_axis=time)
    for shape in ((2, 3), (2,)):
        with pytest.raises(ShapeError, match="must have one length for each place"):
            harness.op(g.reverse_sequence, [numbered(shape), lengths])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.uint32, np.int64, np.uint64])
@pytest.mark.parametrize(("exclusive", "reverse"), [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_cumsum(harness: Harness, axis: int, exclusive: int, reverse: int, dtype: Any) -> None:
    x, at = numbered((3, 5, 4), dtype), np.array(axis)
    y = harness.op(cumsum, [x, at], host=(1,), exclusive=exclusive, reverse=reverse, split=3)
    lanes = np.moveaxis(x, axis, 0)
    expected = np.zeros_like(lanes)
    for i in range(len(lanes)):
        j = len(lanes) - 1 - i if reverse else i
        part = lanes[j + exclusive :] if reverse else lanes[: j + 1 - exclusive]
        expected[j] = part.sum(0)
    np.testing.assert_array_equal(y, np.moveaxis(expected, 0, axis))
    np.testing.assert_array_equal(fold_cumsum(x, at, exclusive=exclusive, reverse=reverse), y)
