"""Helpers of the tests of elementwise ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from onnx_wasm import ops, registry

registry.load(ops)

SIGNED = [np.int8, np.int16, np.int32, np.int64]
UNSIGNED = [np.uint8, np.uint16, np.uint32, np.uint64]
INTEGERS = SIGNED + UNSIGNED
FLOATS = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]

# Pairs that broadcast, by how the kernels walk them: flat, scalar on either side, row vectors, columns, channels, both
# sides at once, several groups of rows, rank 0, nothing to do, rows across a unit's end.
SHAPES = [
    ((7,), (7,)),
    ((2, 3, 5), (2, 3, 5)),
    ((4099,), (1,)),
    ((), (33,)),
    ((), ()),
    ((1, 1), (1,)),
    ((3, 5, 19), (19,)),
    ((17,), (4, 17)),
    ((6, 9), (6, 1)),
    ((6, 1), (6, 9)),
    ((1, 5, 7, 9), (1, 5, 1, 1)),
    ((5, 1, 1), (2, 5, 7, 3)),
    ((4, 1), (1, 5)),
    ((2, 1, 3, 1, 5), (1, 4, 1, 6, 5)),
    ((2, 1, 3, 1, 2, 1, 3), (1, 2, 1, 3, 1, 2, 1)),
    ((2, 3, 1, 2, 1, 2, 2, 3), (2, 1, 2, 1, 2, 1, 2, 1)),
    ((3, 3000), (3, 1)),
    ((0, 3), (3,)),
    ((2, 0), (1, 1)),
    ((9000,), (9000,)),
]


def lower(name: str, opset: int = 21) -> Callable[..., Any]:
    """The function of an operator's form in an opset."""
    found = registry.find("", name, opset)
    assert found is not None, f"{name} is not registered for opset {opset}"
    return found.function


def fold(name: str, opset: int = 21) -> Callable[..., Any]:
    """Its fold."""
    found = registry.find("", name, opset)
    assert found is not None
    assert found.fold is not None
    return found.fold


def equal(got: np.ndarray, want: Any) -> None:
    """The same shape, type (of an array) and elements; NaNs are equal, and so are zeros."""
    want = np.asarray(want, got.dtype if isinstance(want, list) else None)
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    if got.dtype == ml_dtypes.bfloat16:
        # numpy's comparison does not take its NaNs for NaNs.
        got, want = got.astype(np.float32), want.astype(np.float32)
    np.testing.assert_array_equal(got, want)


def sample(shape: tuple[int, ...], dtype: Any, seed: int = 0, low: float = -60, high: float = 60) -> np.ndarray:
    """Random numbers in [low, high], or in the type's part of it."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(max(low, info.min), min(high, info.max), shape, dtype=dtype)
    return np.asarray(rng.uniform(low, high, shape)).astype(dtype)


def all_exponents(count: int = 200_000, seed: int = 0) -> np.ndarray:
    """float32 of every exponent (NaN and infinity among them), around the origin, and the special values."""
    rng = np.random.default_rng(seed)
    near = [rng.normal(0, s, count // 4).astype(np.float32) for s in (0.1, 1, 10, 60)]
    smallest, normal, largest = 1e-45, 1.17549435e-38, 3.4028235e38
    special = [0, 1, np.inf, smallest, normal, largest, 88.72, 88.73, 87.4, 103.9, 104.1, 0.625, 0.9, 4.0, np.sqrt(2)]
    bits = rng.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)
    bits[np.isnan(bits)] = np.nan  # numpy warns of the signalling ones
    return np.concatenate([np.float32(special), -np.float32(special), np.float32([np.nan]), *near, bits])


def ulp_error(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Distance in units of the last place at the exact value, rounded to got's type; a wrong NaN, infinity
    or sign of zero is infinitely far."""
    info = np.finfo(got.dtype)
    with np.errstate(all="ignore"):
        rounded = exact.astype(got.dtype)
        finite = np.isfinite(rounded) & np.isfinite(got)
        magnitude = np.maximum(np.abs(np.where(finite, exact, 1)), float(info.smallest_normal))
        unit = np.exp2(np.floor(np.log2(magnitude)) - info.nmant)
        distance = np.abs(got.astype(exact.dtype) - exact) / unit
        same = (np.isnan(rounded) & np.isnan(got)) | (rounded == got)
        wrong_zero = (exact == 0) & (got == 0) & (np.signbit(exact) != np.signbit(got))
        return np.where(finite & ~wrong_zero, distance, np.where(same & ~wrong_zero, 0, np.inf))
