from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from harness import Harness
from onnx_nodes import run_node
from onnx_wasm.errors import ShapeError, UnsupportedModelError

NUMBERS = {1: np.float32, 11: np.float64, 10: np.float16, 16: ml_dtypes.bfloat16}
N = 20000


@pytest.mark.parametrize("dtype", NUMBERS)
def test_uniform(harness: Harness, dtype: int) -> None:
    (x,) = run_node(harness, "RandomUniform", [], 22, shape=[100, 200], dtype=dtype, low=-2.0, high=6.0, seed=1.0)
    assert x.dtype == NUMBERS[dtype]
    assert x.shape == (100, 200)
    x = np.sort(x.reshape(-1).astype(np.float64))
    assert x[0] >= -2
    assert x[-1] <= 6
    # Kolmogorov and Smirnov: the largest deviation from the distribution, here at a probability below 1e-6.
    assert abs((x + 2) / 8 - np.arange(N) / N).max() < 2.7 / np.sqrt(N) + (0.004 if dtype == 16 else 0)


@pytest.mark.parametrize("dtype", NUMBERS)
def test_normal(harness: Harness, dtype: int) -> None:
    (x,) = run_node(harness, "RandomNormal", [], 22, shape=[N], dtype=dtype, mean=3.0, scale=2.0, seed=1.0)
    assert x.dtype == NUMBERS[dtype]
    z = (x.astype(np.float64) - 3) / 2
    assert abs(z.mean()) < 5 / np.sqrt(N)
    assert abs(z.var() - 1) < 5 * np.sqrt(2 / N)
    assert abs((z**3).mean()) < 5 * np.sqrt(15 / N)
    assert abs((z**4).mean() - 3) < 5 * np.sqrt(96 / N)
    assert abs(np.corrcoef(z[:-1], z[1:])[0, 1]) < 5 / np.sqrt(N)


def test_seeds(harness: Harness) -> None:
    def draw(split: int = 1, **how: Any) -> np.ndarray:
        return run_node(harness, "RandomUniform", [], 22, shape=[9000], split=split, **how)[0]

    assert (draw(seed=3.0) == draw(3, seed=3.0)).all()
    assert (draw(seed=3.0) != draw(seed=4.0)).mean() > 0.99
    assert (draw() != draw()).mean() > 0.99
    assert abs(np.corrcoef(draw(seed=1.0), draw(seed=2.0))[0, 1]) < 5 / np.sqrt(9000)


@pytest.mark.parametrize("name", ["RandomUniformLike", "RandomNormalLike"])
def test_like(harness: Harness, name: str) -> None:
    (y,) = run_node(harness, name, [np.zeros((2, 0, 3), np.float64)], 22)
    assert y.shape == (2, 0, 3)
    assert y.dtype == np.float64
    (y,) = run_node(harness, name, [np.zeros((2, 3), np.int8)], 22, dtype=1)
    assert y.dtype == np.float32
    with pytest.raises(UnsupportedModelError, match="int8"):
        run_node(harness, name, [np.zeros((2, 3), np.int8)], 22)


@pytest.mark.parametrize("dtype", [None, 1, 3, 9, 7])
def test_bernoulli(harness: Harness, dtype: int | None) -> None:
    p = np.repeat([0, 0.25, 0.5, 1], N // 4).astype(np.float64)
    attributes = {} if dtype is None else {"dtype": dtype}
    (y,) = run_node(harness, "Bernoulli", [p], 22, seed=2.0, split=2, **attributes)
    assert y.dtype == {None: np.float64, 1: np.float32, 3: np.int8, 9: np.bool_, 7: np.int64}[dtype]
    assert set(np.unique(y)) == {0, 1}
    means = y.reshape(4, -1).astype(np.float64).mean(1)
    np.testing.assert_allclose(means, [0, 0.25, 0.5, 1], rtol=0, atol=5 * 0.5 / np.sqrt(N / 4))
    assert means[0] == 0
    assert means[3] == 1


@pytest.mark.parametrize("dtype", [6, 7])
def test_multinomial(harness: Harness, dtype: int) -> None:
    p = np.array([[0.1, 0.2, 0.7, 0], [0.25, 0.25, 0.25, 0.25]])
    with np.errstate(divide="ignore"):
        x = (np.log(p) + 50).astype(np.float32)
    (y,) = run_node(harness, "Multinomial", [x], 22, sample_size=N, dtype=dtype, seed=5.0, split=2)
    assert y.dtype == {6: np.int32, 7: np.int64}[dtype]
    counts = np.array([np.bincount(row, minlength=4) for row in y]) / N
    np.testing.assert_allclose(counts, p, rtol=0, atol=5 * 0.5 / np.sqrt(N))
    assert counts[0, 3] == 0


@pytest.mark.parametrize("dtype", NUMBERS.values())
def test_dropout_in_training(harness: Harness, dtype: Any) -> None:
    x = np.random.default_rng(0).uniform(1, 2, N).astype(dtype)
    inputs = [x, np.array(0.75, np.float32), np.array(True)]
    y, mask = run_node(harness, "Dropout", inputs, 22, outputs=("y", "mask"), seed=1, split=3)
    assert mask.dtype == np.bool_
    assert abs(mask.mean() - 0.25) < 5 * 0.5 / np.sqrt(N)
    assert (y == np.where(mask, x * dtype(4), dtype(0))).all()
    (alone,) = run_node(harness, "Dropout", inputs, 22, seed=1)
    assert (alone == y).all()


def test_dropout_that_drops_nothing(harness: Harness) -> None:
    x = np.arange(5, dtype=np.float32)
    y, mask = run_node(harness, "Dropout", [x, np.array(0.0, np.float32), np.array(True)], 22, outputs=("y", "mask"))
    assert (y == x).all()
    assert mask.all()
    with pytest.raises(ShapeError, match=r"ratio is 1.0, must be in \[0, 1\)"):
        run_node(harness, "Dropout", [x, np.array(1.0, np.float32), np.array(True)], 22)
