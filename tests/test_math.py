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


FUNCTIONS = {
    "Exp": np.exp,
    "Log": np.log,
    "Tanh": np.tanh,
    "Sigmoid": sigmoid,
    "Erf": erf,
    "Sin": np.sin,
    "Cos": np.cos,
    "Tan": np.tan,
}
HYPERBOLIC = {
    "Sinh": np.sinh,
    "Cosh": np.cosh,
    "Asinh": np.arcsinh,
    "Acosh": np.arccosh,
    "Atanh": np.arctanh,
    "Asin": np.arcsin,
    "Acos": np.arccos,
    "Atan": np.arctan,
}
LONG = ["Exp", "Log", "Tanh", "Sigmoid", "Erf"]


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


@pytest.mark.parametrize("name", LONG)
def test_f64_within_a_few_ulp(either: Harness, name: str) -> None:
    rng = np.random.default_rng(2)
    special = [0, 1, np.inf, 5e-324, 2.3e-308, 1.7e308, 709.78, 709.79, 745.1, 745.2, 0.9, 2.35, 6, 0.55]
    bits = rng.integers(0, 2**64, 20_000, dtype=np.uint64).view(np.float64)
    near = [rng.normal(0, s, 20_000) for s in (0.1, 1, 10, 300)]
    x = np.concatenate([special, np.negative(special), [np.nan], *near, bits[~np.isnan(bits)]])
    if name == "Log":
        x = np.concatenate([x, 1 + rng.normal(0, 1e-8, 20_000)])
    wide = x.astype(np.longdouble)
    with np.errstate(all="ignore"):
        exact = FUNCTIONS[name](wide) if name != "Erf" else erf(x)
        error = ulp_error(either.op(lower(name), [x]), exact)
    worst = int(np.argmax(error))
    # math.erf is itself off by up to an ulp.
    assert error[worst] <= (3 if name == "Erf" else 2), f"{name}({x[worst]!r}): {error[worst]:.2f} ulp"


def test_pow_f64(either: Harness) -> None:
    rng = np.random.default_rng(3)
    special = np.array([0, 1, 2, 3, 0.5, 5e-324, 1.7e308, np.inf, np.nan, 1.5, 1023, 1024, 1074, 2.0**53, 2.0**54])
    special = np.concatenate([special, -special])
    x = np.concatenate(
        [np.repeat(special, special.size), np.exp(rng.normal(0, 30, 9999)), np.exp(rng.normal(0, 1e-3, 9999))]
    )
    y = np.concatenate([np.tile(special, special.size), rng.normal(0, 15, 9999), rng.normal(0, 3e5, 9999)])
    with np.errstate(all="ignore"):
        error = ulp_error(either.op(lower("Pow"), [x, y]), np.power(x.astype(np.longdouble), y.astype(np.longdouble)))
    worst = int(np.argmax(error))
    assert error[worst] <= 2, f"{x[worst]!r} ** {y[worst]!r}: {error[worst]:.2f} ulp"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_f16_is_f32_rounded(harness: Harness, name: str) -> None:
    x = np.arange(2**16, dtype=np.uint16).view(np.float16)
    with np.errstate(all="ignore"):
        error = ulp_error(harness.op(lower(name), [x]), FUNCTIONS[name](x.astype(np.float64)))
    assert error.max() <= 0.51


@pytest.mark.parametrize("name", HYPERBOLIC)
def test_hyperbolic_functions_and_inverses(either: Harness, name: str) -> None:
    rng = np.random.default_rng(1)
    x = np.concatenate([all_exponents(20_000), rng.uniform(-1, 1, 9999), rng.uniform(80, 90, 999)]).astype(np.float32)
    wide = np.concatenate([x, rng.normal(0, 300, 9999), 1 + rng.normal(0, 1e-7, 9999), [1e200, -1e200, 710.2]])
    with np.errstate(all="ignore"):
        error = ulp_error(either.op(lower(name), [x]), HYPERBOLIC[name](x.astype(np.float64)))
        error64 = ulp_error(either.op(lower(name), [wide]), HYPERBOLIC[name](wide.astype(np.longdouble)))
    assert error.max() <= 0.51, f"{name}({x[np.argmax(error)]!r}): {error.max():.2f} ulp"
    assert error64.max() <= 2, f"{name}({wide[np.argmax(error64)]!r}): {error64.max():.2f} ulp"


def test_trigonometry_f64(either: Harness) -> None:
    rng = np.random.default_rng(4)
    multiples = np.pi / 2 * np.concatenate([np.arange(-300, 300), rng.integers(1, 2**19, 300)])
    # The double that lies nearest to a multiple of pi / 2.
    nearest = [6381956970095103 * 2.0**797]
    spread = np.ldexp(rng.uniform(-1, 1, 9999), rng.integers(-1074, 1025, 9999))
    around = 2.0 ** rng.integers(18, 55, 2000) * rng.uniform(0.99, 1.01, 2000)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324, 1.7e308]
    usual = rng.normal(0, 9, 9999)
    x = np.concatenate([special, nearest, multiples, np.nextafter(multiples, 0), spread, around, usual])
    wide = x.astype(np.longdouble)
    for name, function in (("Sin", np.sin), ("Cos", np.cos), ("Tan", np.tan)):
        with np.errstate(all="ignore"):
            error = ulp_error(either.op(lower(name), [x]), function(wide))
        worst = int(np.argmax(error))
        assert error[worst] <= 1.5, f"{name}({x[worst]!r}): {error[worst]:.2f} ulp"
