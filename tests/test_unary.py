from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from elementwise import FLOATS, INTEGERS, SIGNED, equal, fold, lower, sample
from harness import Harness

SPECIAL = [0.0, -0.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, np.inf, -np.inf, np.nan, 3.7, -3.7]

EXACT: dict[str, Any] = {
    "Abs": np.abs,
    "Neg": np.negative,
    "Sqrt": np.sqrt,
    "Reciprocal": np.reciprocal,
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Round": np.rint,
    "Sign": np.sign,
}


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("name", EXACT)
def test_exact_functions_of_floats(harness: Harness, name: str, dtype: Any) -> None:
    x = np.concatenate([np.array(SPECIAL), np.linspace(-9, 9, 4200)]).astype(dtype)
    with np.errstate(all="ignore"):
        want = EXACT[name](x.astype(np.float64 if dtype is np.float64 else np.float32)).astype(dtype)
    got = harness.op(lower(name), [x], split=2)
    equal(got, want)
    keep = ~np.isnan(want.astype(np.float64))
    equal(np.signbit(got[keep]), np.signbit(want[keep]))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(n, d) for n in ("Abs", "Neg", "Sign", "BitwiseNot") for d in (SIGNED if n == "Neg" else INTEGERS)],
)
def test_integers(harness: Harness, name: str, dtype: Any) -> None:
    info = np.iinfo(dtype)
    x = np.concatenate([np.array([info.min, info.max, 0, 1], dtype), sample((37,), dtype)])
    want = (EXACT | {"BitwiseNot": np.invert})[name](x)
    equal(harness.op(lower(name), [x], split=3), want)
    equal(fold(name)(x), want)


@pytest.mark.parametrize("size", [*range(1, 18), 4095, 4096, 4097, 8192])
def test_any_size_in_any_split(harness: Harness, size: int) -> None:
    x = sample((size,), np.float32)
    for split in (1, 2):
        equal(harness.op(lower("Neg"), [x], split=split), -x)


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1, 2, 1, 2, 1, 2, 1, 3)])
def test_shapes_are_kept(harness: Harness, shape: tuple[int, ...]) -> None:
    x = sample(shape, np.float32)
    got = harness.op(lower("Exp"), [x])
    assert got.shape == shape
    np.testing.assert_allclose(got, np.exp(x), rtol=1e-6)


def test_not(harness: Harness) -> None:
    x = sample((77,), np.bool_)
    equal(harness.op(lower("Not"), [x]), ~x)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
def test_isnan_and_isinf(harness: Harness, dtype: Any) -> None:
    x = np.array(SPECIAL, dtype)
    equal(harness.op(lower("IsNaN"), [x]), np.isnan(x))
    equal(harness.op(lower("IsInf"), [x]), np.isinf(x))
    equal(harness.op(lower("IsInf"), [x], detect_negative=0), np.isposinf(x))
    equal(harness.op(lower("IsInf"), [x], detect_positive=0), np.isneginf(x))


def test_a_type_that_the_op_lacks_is_named(harness: Harness) -> None:
    with pytest.raises(NotImplementedError, match=r"Test .*type int32 of x0 is not supported"):
        harness.op(lower("Exp"), [np.arange(3, dtype=np.int32)])
