from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from harness import Harness
from onnx_nodes import Case, node_cases, onnxruntime_node, run_node
from onnx_wasm.errors import ShapeError

LENGTHS = [1, 2, 3, 4, 5, 7, 8, 12, 16, 31, 32, 45, 64, 100, 128, 400]


def signal(*shape: int, dtype: Any = np.float64) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(dtype)


def pairs(z: np.ndarray) -> np.ndarray:
    return np.stack([z.real, z.imag], -1)


def dft(harness: Harness, x: np.ndarray, axis: int, n: int | None = None, **how: Any) -> np.ndarray:
    length = None if n is None else np.array(n)
    (y,) = run_node(harness, "DFT", [x, length, np.array(axis)], 20, **how)
    return y


@pytest.mark.parametrize("n", LENGTHS)
def test_lengths(harness: Harness, n: int) -> None:
    x = signal(3, n, 2)
    z = x[..., 0] + 1j * x[..., 1]
    near = {"rtol": 0, "atol": 1e-12 * max(n, 8)}
    np.testing.assert_allclose(dft(harness, x, 1, split=3), pairs(np.fft.fft(z)), **near)
    np.testing.assert_allclose(dft(harness, x, 1, inverse=1), pairs(np.fft.ifft(z)), **near)
    real = x[..., :1]
    np.testing.assert_allclose(dft(harness, real, 1), pairs(np.fft.fft(real[..., 0])), **near)
    half = dft(harness, real, 1, onesided=1)
    np.testing.assert_allclose(half, pairs(np.fft.rfft(real[..., 0])), **near)
    np.testing.assert_allclose(dft(harness, half, 1, n, onesided=1, inverse=1), real, **near)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("how", [{}, {"onesided": 1}, {"inverse": 1}], ids=str)
def test_the_sum_and_the_alternating_sum_of_reals_are_real(harness: Harness, n: int, how: dict[str, int]) -> None:
    """Exactly, so that their angles are 0 or pi."""
    found = dft(harness, signal(3, n, 1, dtype=np.float32), 1, **how)
    for k in {0, n // 2} if n % 2 == 0 else {0}:
        assert not found[:, k, 1].view(np.uint32).any()
    if n % 2 and n > 1:
        assert found[:, n // 2, 1].all()


@pytest.mark.parametrize("axis", [0, 1, 2, -2, -3])
@pytest.mark.parametrize("n", [None, 4, 9])
def test_axes_and_lengths(harness: Harness, axis: int, n: int | None) -> None:
    x = signal(5, 6, 7, 2)
    z = x[..., 0] + 1j * x[..., 1]
    at = axis if axis >= 0 else axis + 1
    got = dft(harness, x, axis, n, split=2)
    np.testing.assert_allclose(got, pairs(np.fft.fft(z, n, at)), rtol=0, atol=1e-12)
    got = dft(harness, x, axis, n, inverse=1, onesided=1)
    n = 2 * (x.shape[:-1][at] - 1) if n is None else n
    np.testing.assert_allclose(got[..., 0], np.fft.irfft(z, n, at), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 2e-6), (np.float16, 1e-3), (ml_dtypes.bfloat16, 1e-2)])
def test_types(strict_harness: Harness, dtype: Any, tolerance: float) -> None:
    x = signal(2, 20, 1, dtype=dtype)
    expected = pairs(np.fft.fft(x[..., 0].astype(np.float64)))
    got = dft(strict_harness, x, 1)
    assert got.dtype == x.dtype
    np.testing.assert_allclose(got.astype(np.float64), expected, rtol=tolerance, atol=tolerance * 4)


def test_older_form_and_nothing(harness: Harness) -> None:
    x = signal(2, 6, 1)
    (y,) = run_node(harness, "DFT", [x], 17, onesided=1)
    np.testing.assert_allclose(y, pairs(np.fft.rfft(x[..., 0])), rtol=0, atol=1e-14)
    assert dft(harness, signal(0, 6, 1), 1).shape == (0, 6, 2)


@pytest.mark.parametrize(
    ("shape", "axis", "message"),
    [((2, 6, 3), 1, "real and imaginary"), ((2, 6, 1), 2, "is not transformed"), ((2, 0, 1), 1, "must be positive")],
)
def test_bad_signals(harness: Harness, shape: tuple[int, ...], axis: int, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        dft(harness, signal(*shape), axis)


@pytest.mark.parametrize("n", [4, 5, 16, 25])
@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("windowed", [False, True])
def test_stft(harness: Harness, n: int, onesided: int, windowed: bool) -> None:
    x, window = signal(2, 61, 1, dtype=np.float32), np.hanning(n).astype(np.float32) if windowed else None
    inputs = [x, np.array(3), window, np.array(n)]
    (y,) = run_node(harness, "STFT", inputs, 17, onesided=onesided, split=3)
    (expected,) = onnxruntime_node("STFT", inputs, 17, onesided=onesided)
    assert y.shape == expected.shape
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=2e-5)


def test_stft_of_complex_and_of_a_short_signal(harness: Harness) -> None:
    x = signal(2, 20, 2)
    (y,) = run_node(harness, "STFT", [x, np.array(6), None, np.array(8)], 17, onesided=0)
    z = x[..., 0] + 1j * x[..., 1]
    frames = np.stack([z[:, s : s + 8] for s in (0, 6, 12)], 1)
    np.testing.assert_allclose(y, pairs(np.fft.fft(frames)), rtol=0, atol=1e-13)
    (y,) = run_node(harness, "STFT", [x, np.array(6), None, np.array(21)], 17)
    assert y.shape == (2, 0, 11, 2)


@pytest.mark.parametrize("name", ["HannWindow", "HammingWindow", "BlackmanWindow"])
@pytest.mark.parametrize("periodic", [0, 1])
def test_windows(harness: Harness, name: str, periodic: int) -> None:
    for n in (0, 2, 3, 10, 400):
        (y,) = run_node(harness, name, [np.array(n)], 17, periodic=periodic, split=2)
        t = 2 * np.pi * np.arange(n) / (n if periodic else n - 1)
        expected = {
            "HannWindow": 0.5 - 0.5 * np.cos(t),
            "HammingWindow": 25 / 46 - 21 / 46 * np.cos(t),
            "BlackmanWindow": 0.42 - 0.5 * np.cos(t) + 0.08 * np.cos(2 * t),
        }[name]
        assert y.dtype == np.float32
        np.testing.assert_allclose(y, expected, rtol=0, atol=1e-7)
    (y,) = run_node(harness, name, [np.array(9)], 17, output_datatype=11)
    assert y.dtype == np.float64


@pytest.mark.parametrize(
    ("bins", "dft_length", "rate", "low", "high"), [(8, 16, 8192, 0, 4096), (80, 400, 16000, 20, 7600)]
)
def test_mel(harness: Harness, bins: int, dft_length: int, rate: int, low: float, high: float) -> None:
    inputs = [
        *(np.array(v, np.int64) for v in (bins, dft_length, rate)),
        *(np.array(v, np.float32) for v in (low, high)),
    ]
    (y,) = run_node(harness, "MelWeightMatrix", inputs, 17, split=2)
    (expected,) = onnxruntime_node("MelWeightMatrix", inputs, 17)
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "case",
    node_cases("DFT", "STFT", "HannWindow", "HammingWindow", "BlackmanWindow", "MelWeightMatrix"),
    ids=lambda c: c.name,
)
def test_onnx_cases(harness: Harness, case: Case) -> None:
    for got, expected in zip(case.run(harness), case.outputs, strict=True):
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol=case.rtol, atol=max(case.atol, 1e-5))
