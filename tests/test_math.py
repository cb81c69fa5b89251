from __future__ import annotations

import math

import numpy as np
import pytest
from elementwise import all_exponents, lower, ulp_error
from harness import Harness

erf = np.vectorize(math.erf, otypes=[np.float64])


def sigmoid(x: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1) / (1 + e)


FUNCTIONS = {"Exp": np.exp, "Log": np.log, "Tanh": np.tanh, "Sigmoid": sigmoid, "Erf": erf}


@pytest.fixture(params=["relaxed", "strict"])
def either(request: pytest.FixtureRequest, harness: Harness, strict_harness: Harness) -> Harness:
    return harness if request.param == "relaxed" else strict_harness


@pytest.mark.parametrize("name", FUNCTIONS)
def test_f32_within_two_ulp_over_the_whole_range(either: Harness, name: str) -> None:
    x = all_exponents()
    got = either.op(lower(name), [x])
    with np.errstate(all="ignore"):
        error = ulp_error(got, FUNCTIONS[name](x.astype(np.float64)))
    worst = int(np.argmax(error))
    assert error[worst] <= 2, f"{name}({x[worst]!r}) = {got[worst]!r}: {error[worst]:.2f} ulp"


def test_softplus_f32_keeps_its_relative_accuracy_far_below_zero(either: Harness) -> None:
    x = all_exponents(20_000)
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        error = ulp_error(either.op(lower("Softplus"), [x]), np.maximum(wide, 0) + np.log1p(np.exp(-np.abs(wide))))
    assert error.max() <= 3


def test_pow_f32_within_one_ulp_over_the_whole_range(either: Harness) -> None:
    special = np.float32([0, 1, 2, 3, 0.5, 1e-45, 3.4e38, np.inf, np.nan, 1.5, 127, 128, 149, 151, 2**24, 2**25])
    special = np.concatenate([special, -special])
    rng = np.random.default_rng(1)
    x = np.concatenate([np.repeat(special, special.size), all_exponents(40_000), rng.uniform(0, 3, 40_000)])
    y = np.concatenate([np.tile(special, special.size), all_exponents(40_000, 2), rng.uniform(-90, 90, 40_000)])
    size = min(x.size, y.size)
    x, y = x[:size].astype(np.float32), y[:size].astype(np.float32)
    got = either.op(lower("Pow"), [x, y])
    with np.errstate(all="ignore"):
        error = ulp_error(got, np.power(x.astype(np.float64), y.astype(np.float64)))
    worst = int(np.argmax(error))
    assert error[worst] <= 1, f"{x[worst]!r} ** {y[worst]!r} = {got[worst]!r}: {error[worst]:.2f} ulp"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_f16_is_f32_rounded(harness: Harness, name: str) -> None:
    x = np.arange(2**16, dtype=np.uint16).view(np.float16)
    with np.errstate(all="ignore"):
        error = ulp_error(harness.op(lower(name), [x]), FUNCTIONS[name](x.astype(np.float64)))
    assert error.max() <= 0.51
