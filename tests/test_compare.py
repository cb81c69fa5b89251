from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest

from elementwise import FLOATS, INTEGERS, SHAPES, equal, fold, lower, sample
from harness import Harness

COMPARISONS = {
    "Equal": operator.eq,
    "Less": operator.lt,
    "LessOrEqual": operator.le,
    "Greater": operator.gt,
    "GreaterOrEqual": operator.ge,
}


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, np.bool_], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons(harness: Harness, name: str, dtype: Any) -> None:
    a, b = sample((6, 67), dtype, 0, -3, 3), sample((6, 67), dtype, 1, -3, 3)
    if np.dtype(dtype).kind not in "iub":
        a[0, :4] = [np.nan, np.inf, 0.0, 1]
        b[0, :4] = [np.nan, np.inf, -0.0, np.nan]
    if np.dtype(dtype).kind == "u":
        a[0, 0] = np.iinfo(dtype).max
    for x, y in ((a, b), (a, b[0]), (a, b[:, :1]), (a[:, :1], b), (a, b[0, 0])):
        x, y = np.asarray(x), np.asarray(y)
        got = harness.op(lower(name), [x, y], split=2)
        assert got.dtype == np.bool_
        equal(got, COMPARISONS[name](x, y))
    equal(fold(name)(a, b), COMPARISONS[name](a, b))


@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_comparisons_broadcast(strict_harness: Harness, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    for dtype in (np.float32, np.uint8, np.int64):
        x, y = sample(a, dtype, 0, 0, 3), sample(b, dtype, 1, 0, 3)
        equal(strict_harness.op(lower("GreaterOrEqual"), [x, y], split=3), x >= y)


WIDTHS = [np.int8, np.bool_, np.float16, np.float32, np.int64]


@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_where(harness: Harness, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    for dtype in WIDTHS:
        for condition in (a, b, np.broadcast_shapes(a, b), ()):
            c, x, y = sample(condition, np.bool_, 3), sample(a, dtype), sample(b, dtype, 1)
            for args in ([c, x, y], [c, y, x]):
                equal(harness.op(lower("Where"), args, split=2), np.where(*args))
    equal(fold("Where")(c, x, y), np.where(c, x, y))


def test_where_wants_one_type(harness: Harness) -> None:
    with pytest.raises(ValueError, match="different types"):
        harness.op(lower("Where"), [np.ones(2, np.bool_), np.zeros(2, np.float32), np.zeros(2, np.int32)])
