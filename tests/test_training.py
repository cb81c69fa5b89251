from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from harness import Harness, KernelStatus
from onnx_nodes import Case, node_cases, run_node
from onnx_wasm.context import Context, Value
from onnx_wasm.errors import ShapeError
from onnx_wasm.ops import training

FLOATS = [(np.float32, 2e-6), (np.float64, 1e-13), (np.float16, 2e-3), (ml_dtypes.bfloat16, 2e-2)]


def normal(*shape: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def cross_entropy(
    scores: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, ignored: int | None, reduction: str
) -> tuple[np.ndarray, np.ndarray]:
    wide = scores.astype(np.float64)
    logs = wide - np.log(np.exp(wide).sum(1, keepdims=True))
    kept = labels != (np.iinfo(np.int64).min if ignored is None else ignored)
    named = np.where(kept, labels, 0)
    weight = (np.ones(scores.shape[1]) if weights is None else weights.astype(np.float64))[named] * kept
    loss = -np.take_along_axis(logs, named[:, None], 1)[:, 0] * weight
    total = {"none": loss, "sum": loss.sum(), "mean": loss.sum() / weight.sum()}[reduction]
    return total, logs


@pytest.mark.parametrize(("dtype", "tolerance"), FLOATS)
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize(("weighted", "ignored"), [(False, None), (True, None), (True, 2), (False, -5)])
def test_losses(
    harness: Harness, dtype: Any, tolerance: float, reduction: str, weighted: bool, ignored: int | None
) -> None:
    for shape in [(5, 4), (3, 4, 6), (2, 4, 2, 3)]:
        scores = normal(*shape, dtype=dtype)
        labels = np.random.default_rng(1).integers(0, 4, (shape[0], *shape[2:])).astype(np.int32)
        if ignored is not None:
            labels.reshape(-1)[1] = ignored
        weights = np.array([1, 0.5, 2, 0.25], dtype) if weighted else None
        how: dict[str, Any] = {"reduction": reduction, "split": 2} | (
            {} if ignored is None else {"ignore_index": ignored}
        )
        inputs = [scores, labels, weights]
        names = ("loss", "logs")
        loss, logs = run_node(harness, "SoftmaxCrossEntropyLoss", inputs, 13, names, **how)
        expected = cross_entropy(scores, labels, weights, ignored, reduction)
        near = {"rtol": tolerance * 4, "atol": tolerance * 4}
        assert loss.dtype == logs.dtype == dtype
        assert loss.shape == expected[0].shape
        np.testing.assert_allclose(logs.astype(np.float64), expected[1], **near)
        np.testing.assert_allclose(loss.astype(np.float64), expected[0], **near)
        (nll,) = run_node(harness, "NegativeLogLikelihoodLoss", [logs, labels.astype(np.int64), weights], 13, **how)
        np.testing.assert_allclose(nll.astype(np.float64), loss.astype(np.float64), **near)


def test_labels_out_of_range(harness: Harness) -> None:
    x, labels = normal(2, 3), np.array([1, 3])
    with pytest.raises(KernelStatus) as caught:
        run_node(harness, "NegativeLogLikelihoodLoss", [x, labels], 13)
    assert caught.value.args == (2, 3, 0, 3)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [(((2,), (2,)), "batch, classes"), (((2, 3), (3,)), "the same without classes"), (((2, 3), (2,), (2,)), "weights")],
)
def test_bad_losses(harness: Harness, shapes: tuple[tuple[int, ...], ...], message: str) -> None:
    x, labels, *weights = (np.zeros(s, np.int64 if i == 1 else np.float32) for i, s in enumerate(shapes))
    with pytest.raises(ShapeError, match=message):
        run_node(harness, "NegativeLogLikelihoodLoss", [x, labels, *weights], 13)


@pytest.mark.parametrize(("dtype", "tolerance"), FLOATS)
@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 5), (2, 3, 4, 5)])
def test_statistics(harness: Harness, dtype: Any, tolerance: float, shape: tuple[int, ...]) -> None:
    x, mean, var = normal(*shape, dtype=dtype), normal(3, dtype=dtype), abs(normal(3, dtype=dtype))
    got = harness.op(training.batch_statistics, [x, mean, var], momentum=0.75, split=2)
    wide = x.astype(np.float64)
    axes = tuple(a for a in range(x.ndim) if a != 1)
    m, v = wide.mean(axes), wide.var(axes)
    expected = (m, v, 0.75 * mean.astype(np.float64) + 0.25 * m, 0.75 * var.astype(np.float64) + 0.25 * v)
    for g, e in zip(got, expected, strict=True):
        assert g.dtype == dtype
        np.testing.assert_allclose(g.astype(np.float64), e, rtol=tolerance, atol=tolerance)


def test_batchnorm_in_training(harness: Harness) -> None:
    x, scale, bias, mean = normal(4, 3, 5), normal(3), normal(3, seed=2), normal(3, seed=3)
    var = abs(normal(3, seed=4))
    inputs = [x, scale, bias, mean, var]
    y, new_mean, new_var = run_node(
        harness, "BatchNormalization", inputs, 15, ("y", "m", "v"), training_mode=1, momentum=0.8
    )
    m, v = x.mean((0, 2)), x.var((0, 2))
    expected = (x - m[:, None]) / np.sqrt(v + 1e-5)[:, None] * scale[:, None] + bias[:, None]
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(new_mean, 0.8 * mean + 0.2 * m, rtol=1e-5)
    np.testing.assert_allclose(new_var, 0.8 * var + 0.2 * v, rtol=1e-5)


def optimize(harness: Harness, function: Any, tensors: list[np.ndarray], count: int, split: int = 1, **how: Any) -> Any:
    def call(cx: Context, *args: Value) -> Any:
        cx.node = replace(cx.node, domain="ai.onnx.preview.training")
        return function(cx, *args, **how)

    return harness.op(call, [np.array(0.1, np.float32), np.array(count), *tensors], split=split)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count", [0, 1, 7])
def test_optimizers(harness: Harness, dtype: Any, count: int) -> None:
    tolerance = {"rtol": 1e-6, "atol": 1e-7}
    sizes = [(3, 2), (5000,)]
    x, g, m, h = ([normal(*s, dtype=dtype, seed=i) for s in sizes] for i in range(4))
    h = [abs(a) for a in h]
    got = optimize(harness, training.adagrad, [*x, *g, *h], count, 2, decay_factor=0.3, norm_coefficient=0.01)
    for i in range(2):
        grad = 0.01 * x[i] + g[i]
        total = h[i] + grad * grad
        np.testing.assert_allclose(got[2 + i], total, **tolerance)
        step = 0.1 / (1 + 0.3 * count) * grad / (np.sqrt(total) + 1e-6)
        np.testing.assert_allclose(got[i], x[i] - step, **tolerance)
    for mode in ("standard", "nesterov"):
        how = {"alpha": 0.9, "beta": 0.5, "norm_coefficient": 0.02, "mode": mode}
        got = optimize(harness, training.momentum, [*x, *g, *m], count, 2, **how)
        for i in range(2):
            grad = 0.02 * x[i] + g[i]
            v = 0.9 * m[i] + (0.5 if count else 1) * grad
            np.testing.assert_allclose(got[2 + i], v, **tolerance)
            step = 0.1 * (grad + 0.9 * v if mode == "nesterov" else v)
            np.testing.assert_allclose(got[i], x[i] - step, **tolerance)
    got = optimize(harness, training.adam, [*x, *g, *m, *h], count, 2, norm_coefficient=0.1, norm_coefficient_post=0.2)
    for i in range(2):
        grad = 0.1 * x[i] + g[i]
        v, s = 0.9 * m[i] + 0.1 * grad, 0.999 * h[i] + 0.001 * grad * grad
        rate = 0.1 * np.sqrt(1 - 0.999**count) / (1 - 0.9**count) if count else 0.1
        np.testing.assert_allclose(got[2 + i], v, **tolerance)
        np.testing.assert_allclose(got[4 + i], s, **tolerance)
        np.testing.assert_allclose(got[i], 0.8 * (x[i] - rate * v / (np.sqrt(s) + 1e-6)), rtol=1e-5, atol=1e-6)


def test_bad_optimizers(harness: Harness) -> None:
    with pytest.raises(ShapeError, match="2 tensors, needs 3"):
        optimize(harness, training.adagrad, [normal(2), normal(2)], 0)
    with pytest.raises(ShapeError, match="one shape"):
        optimize(harness, training.adagrad, [normal(2), normal(3), normal(2)], 0)


@pytest.mark.parametrize(
    "case", node_cases("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"), ids=lambda c: c.name
)
def test_onnx_cases(harness: Harness, case: Case) -> None:
    for got, expected in zip(case.run(harness), case.outputs, strict=False):
        np.testing.assert_allclose(got, expected, rtol=case.rtol, atol=1e-6)
