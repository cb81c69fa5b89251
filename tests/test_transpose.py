from __future__ import annotations

import itertools

import numpy as np
import pytest

from harness import Harness
from onnx_wasm import dtypes
from onnx_wasm.context import Context, Value
from onnx_wasm.errors import ShapeError
from onnx_wasm.ops.transpose import depth_to_space, space_to_depth, transpose

WIDTHS = [np.uint8, np.float16, np.float32, np.int64, np.complex128]


def numbered(shape: tuple[int, ...], dtype: type = np.float32) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(0, 250, shape).astype(dtype)


@pytest.mark.parametrize("split", [1, 3])
@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize(
    ("shape", "perm"),
    [
        ((64, 197), None),
        ((300, 70), (1, 0)),
        ((3, 1000), (1, 0)),
        ((1000, 3), (1, 0)),
        ((2, 1), (1, 0)),
        ((1, 7, 12, 32), (0, 2, 1, 3)),
        ((2, 7, 12, 33), (0, 2, 3, 1)),
        ((2, 9, 11, 3), (0, 3, 1, 2)),
        ((3, 4, 5, 6), (3, 2, 1, 0)),
        ((17, 9, 2), (1, 0, 2)),
        ((3, 4, 5, 2), (2, 1, 0, 3)),
        ((2, 2, 2, 2, 2, 2, 2, 2), (1, 0, 3, 2, 5, 4, 7, 6)),
        ((2, 3, 1, 2, 3, 1, 2, 3), (7, 6, 5, 4, 3, 2, 1, 0)),
    ],
)
def test_values(
    harness: Harness, shape: tuple[int, ...], perm: tuple[int, ...] | None, dtype: type, split: int
) -> None:
    x = numbered(shape, dtype)
    y = harness.op(transpose, [x], perm=perm, split=split)
    np.testing.assert_array_equal(y, x.transpose(perm))
    assert y.dtype == x.dtype


@pytest.mark.parametrize("dtype", WIDTHS)
def test_every_small_matrix(harness: Harness, dtype: type) -> None:
    for rows, cols in itertools.product(range(1, 20), range(1, 20)):
        x = numbered((rows, cols), dtype)
        np.testing.assert_array_equal(harness.op(transpose, [x]), x.T)


def test_every_order_of_four_axes(strict_harness: Harness) -> None:
    x = numbered((3, 4, 5, 6))
    for perm in itertools.permutations(range(4)):
        np.testing.assert_array_equal(strict_harness.op(transpose, [x], perm=perm), x.transpose(perm))


def test_bits_of_nans_are_kept(harness: Harness) -> None:
    bits = np.array([[0x7F800001, 0xFFC12345], [0x7FFFFFFF, 0x80000000], [0x7FA00000, 1]], np.uint32)
    y = harness.op(transpose, [bits.view(np.float32)])
    np.testing.assert_array_equal(y.view(np.uint32), bits.T)


@pytest.mark.parametrize(
    ("shape", "perm"),
    [((), None), ((0, 3), None), ((5,), None), ((1, 6, 1), (2, 0, 1)), ((2, 3), (0, 1)), ((4, 1, 3), (0, 2, 1))],
)
def test_nothing_is_copied(shape: tuple[int, ...], perm: tuple[int, ...] | None) -> None:
    cx, x = Context(), Value(shape, dtypes.F32)
    y = transpose(cx, x, perm=perm)
    assert not cx.records
    assert y.root is x
    assert y.shape == np.empty(shape).transpose(perm).shape


@pytest.mark.parametrize("perm", [(0,), (0, 0), (1, 2), (0, 1, 2), (-1, 0)])
def test_perm_must_be_an_order(perm: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"perm \[.*\] is not an order of the 2 axes"):
        transpose(Context(), Value((2, 3), dtypes.F32), perm=perm)


@pytest.mark.parametrize("block", [1, 2, 3])
@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_to_space_and_back(harness: Harness, block: int, mode: str) -> None:
    x = numbered((2, 2 * block * block, 3, 5))
    n, c, h, w = x.shape
    y = harness.op(depth_to_space, [x], blocksize=block, mode=mode)
    if mode == "DCR":
        expected = x.reshape(n, block, block, c // block**2, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        expected = x.reshape(n, c // block**2, block, block, h, w).transpose(0, 1, 4, 2, 5, 3)
    np.testing.assert_array_equal(y, expected.reshape(n, c // block**2, h * block, w * block))
    np.testing.assert_array_equal(harness.op(space_to_depth, [y], blocksize=block, mode=mode), x)


def test_blocks_must_divide() -> None:
    with pytest.raises(ShapeError, match="6 channels"):
        depth_to_space(Context(), Value((1, 6, 2, 2), dtypes.F32), blocksize=2)
    with pytest.raises(ShapeError, match="3 x 4 pixels"):
        space_to_depth(Context(), Value((1, 1, 3, 4), dtypes.F32), blocksize=2)
    with pytest.raises(ShapeError, match="'RDC'"):
        depth_to_space(Context(), Value((1, 4, 2, 2), dtypes.F32), blocksize=2, mode="RDC")
