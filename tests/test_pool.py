from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from harness import Harness
from onnx_nodes import Case, node_cases, onnxruntime_node, run_node
from onnx_wasm.errors import ShapeError, UnsupportedModelError

AVERAGE, MAX, LP = "AveragePool", "MaxPool", "LpPool"


def data(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    rng = np.random.default_rng(sum(shape))
    if np.dtype(dtype).kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype, endpoint=True)


def against_onnxruntime(
    harness: Harness, op: str, x: np.ndarray, opset: int = 21, split: int = 1, **attributes: Any
) -> None:
    (y,) = run_node(harness, op, [x], opset, split=split, **attributes)
    (e,) = onnxruntime_node(op, [x], opset, **attributes)
    assert y.dtype == e.dtype
    assert y.shape == e.shape
    np.testing.assert_allclose(y, e, rtol=2e-6, atol=1e-6)


def reference(
    op: str, x: np.ndarray, k: int, s: int, begin: int, end: int, d: int = 1, include: bool = False
) -> np.ndarray:
    """Pooling of the last axis, window by window."""
    out = []
    size = x.shape[-1]
    for i in range((size + begin + end - (k - 1) * d - 1) // s + 1):
        taps = [i * s - begin + j * d for j in range(k)]
        inside = x[..., [t for t in taps if 0 <= t < size]]
        if op == MAX:
            out.append(inside.max(-1))
        else:
            out.append(inside.sum(-1, dtype=np.float64) / (k if include else inside.shape[-1]))
    return np.stack(out, -1).astype(x.dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.uint8])
@pytest.mark.parametrize(
    ("k", "s", "d"), [(2, 2, 1), (3, 2, 1), (3, 1, 1), (2, 1, 1), (5, 1, 1), (4, 3, 1), (3, 1, 2), (3, 2, 2)]
)
@pytest.mark.parametrize("op", [MAX, AVERAGE])
def test_every_width(harness: Harness, op: str, dtype: type, k: int, s: int, d: int) -> None:
    if op == AVERAGE and np.dtype(dtype).kind != "f":
        pytest.skip("averages are of floats")
    extent = (k - 1) * d + 1
    for width in [*range(extent, extent + 12), 40, 67]:
        for begin, end in [(0, 0), (1, 0), (1, 1)]:
            x = data(2, 3, width, dtype=dtype)
            attributes: dict[str, Any] = {"kernel_shape": [k], "strides": [s], "pads": [begin, end], "dilations": [d]}
            (y,) = run_node(harness, op, [x], split=2, **attributes)
            e = reference(op, x, k, s, begin, end, d)
            np.testing.assert_allclose(
                y, e, rtol=1e-6 if dtype is np.float32 else 1e-14, atol=1e-6 if dtype is np.float32 else 1e-14
            )
            assert y.dtype == x.dtype
            assert y.shape == e.shape


@pytest.mark.parametrize("op", [MAX, AVERAGE, LP])
@pytest.mark.parametrize("ceil_mode", [0, 1])
@pytest.mark.parametrize(
    ("shape", "kernel", "strides", "pads"),
    [
        ((1, 2, 9, 11), [3, 3], [2, 2], [1, 1, 1, 1]),
        ((2, 1, 8, 8), [2, 2], [2, 2], [0, 0, 0, 0]),
        ((1, 3, 14, 10), [3, 3], [1, 1], [1, 1, 1, 1]),
        ((1, 2, 13, 12), [3, 2], [2, 3], [0, 1, 2, 0]),
        ((1, 1, 20, 31), [5, 5], [1, 1], [2, 2, 2, 2]),
        ((1, 2, 7, 7), [7, 7], [1, 1], [0, 0, 0, 0]),
        ((1, 2, 9, 1), [3, 1], [2, 1], [1, 0, 1, 0]),
        ((3, 2, 17), [4], [3], [1, 2]),
        ((1, 2, 5, 6, 13), [2, 3, 3], [2, 1, 2], [0, 1, 1, 1, 1, 1]),
        ((2, 1, 4, 4, 4), [2, 2, 2], [2, 2, 2], [0] * 6),
    ],
)  # fmt: skip
def test_as_onnxruntime(
    harness: Harness,
    op: str,
    ceil_mode: int,
    shape: tuple[int, ...],
    kernel: list[int],
    strides: list[int],
    pads: list[int],
) -> None:
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "pads": pads, "ceil_mode": ceil_mode}
    against_onnxruntime(harness, op, data(*shape), split=3, **attributes)
    if op == AVERAGE:
        against_onnxruntime(harness, op, data(*shape), split=3, **attributes, count_include_pad=1)


@pytest.mark.parametrize("op", [MAX, AVERAGE, LP])
@pytest.mark.parametrize("seed", range(40))
def test_any_window_as_onnxruntime(harness: Harness, op: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 4))
    kernel = rng.integers(1, 5, rank)
    dilations = rng.integers(1, 3, rank)
    extent = (kernel - 1) * dilations + 1
    attributes: dict[str, Any] = {
        "kernel_shape": kernel.tolist(),
        "strides": rng.integers(1, 4, rank).tolist(),
        "dilations": dilations.tolist(),
        "pads": np.concatenate([rng.integers(0, kernel), rng.integers(0, kernel)]).tolist(),
        "ceil_mode": int(rng.integers(0, 2)),
    }
    if op == AVERAGE:
        attributes["count_include_pad"] = int(rng.integers(0, 2))
    shape = (2, 3, *(extent + rng.integers(0, 12, rank)).tolist())
    against_onnxruntime(harness, op, data(*shape), split=2, **attributes)


@pytest.mark.parametrize("op", [MAX, AVERAGE, LP])
@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("kernel", [[2, 2], [3, 3], [4, 3]])
@pytest.mark.parametrize("strides", [[1, 1], [2, 2], [3, 1]])
def test_auto_pad(harness: Harness, op: str, auto_pad: str, kernel: list[int], strides: list[int]) -> None:
    for shape in [(1, 2, 8, 9), (1, 1, 7, 13)]:
        against_onnxruntime(harness, op, data(*shape), kernel_shape=kernel, strides=strides, auto_pad=auto_pad)
    if op == AVERAGE:
        against_onnxruntime(
            harness, op, data(1, 2, 8, 9), kernel_shape=kernel, strides=strides, auto_pad=auto_pad, count_include_pad=1
        )


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.uint8])
@pytest.mark.parametrize("storage_order", [0, 1])
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("pad", [0, 1])
def test_indices(harness: Harness, dtype: type, storage_order: int, rank: int, pad: int) -> None:
    x = data(2, 3, *(9, 8, 7)[:rank], dtype=dtype)
    attributes: dict[str, Any] = {
        "kernel_shape": [3] * rank, "strides": [2] * rank, "pads": [pad] * 2 * rank, "storage_order": storage_order,
    }  # fmt: skip
    y, indices = run_node(harness, MAX, [x], outputs=("y", "i"), split=3, **attributes)
    e, expected = onnxruntime_node(MAX, [x], 21, 2, **attributes)
    np.testing.assert_array_equal(y, e)
    np.testing.assert_array_equal(indices, expected)
    assert indices.dtype == np.int64
    if storage_order == 0:
        np.testing.assert_array_equal(x.reshape(-1)[indices], y)


def test_indices_of_equal_elements_are_the_first(harness: Harness) -> None:
    for value in (0, -np.inf, np.nan):
        x = np.full((1, 1, 4, 4), value, np.float32)
        _, indices = run_node(harness, MAX, [x], outputs=("y", "i"), kernel_shape=[2, 2], strides=[2, 2])
        assert indices.reshape(-1).tolist() == [0, 2, 8, 10]


def test_indices_with_an_axis_of_one(harness: Harness) -> None:
    x = data(2, 2, 6, 1)
    for order in (0, 1):
        attributes: dict[str, Any] = {"kernel_shape": [2, 1], "strides": [2, 1], "storage_order": order}
        _, indices = run_node(harness, MAX, [x], outputs=("y", "i"), **attributes)
        np.testing.assert_array_equal(indices, onnxruntime_node(MAX, [x], 21, 2, **attributes)[1])


@pytest.mark.parametrize("width", [3, 16])
def test_max_passes_over_nan_and_keeps_infinities(harness: Harness, width: int) -> None:
    x = data(1, 1, 6, 2 * width)
    x[0, 0, 1, 1], x[0, 0, 2, 2], x[0, 0, 4:, :2] = np.nan, np.inf, -np.inf
    (y,) = run_node(harness, MAX, [x], kernel_shape=[2, 2], strides=[2, 2])
    np.testing.assert_array_equal(y[0, 0], np.fmax.reduce(x.reshape(3, 2, width, 2), (1, 3)))


def test_average_shows_nan(harness: Harness) -> None:
    x = data(1, 1, 6, 32)
    x[0, 0, 1, 9] = np.nan
    (y,) = run_node(harness, AVERAGE, [x], kernel_shape=[2, 2], strides=[2, 2])
    assert np.argwhere(np.isnan(y)).tolist() == [[0, 0, 0, 4]]


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("GlobalAveragePool", {}),
        ("GlobalMaxPool", {}),
        ("GlobalLpPool", {}),
        ("GlobalLpPool", {"p": 1}),
        ("GlobalLpPool", {"p": 3}),
    ],
)
@pytest.mark.parametrize("shape", [(2, 3, 7, 7), (1, 5, 9), (2, 2, 3, 4, 5), (1, 1, 1, 1)])
def test_global(harness: Harness, op: str, attributes: dict[str, Any], shape: tuple[int, ...]) -> None:
    against_onnxruntime(harness, op, data(*shape), split=2, **attributes)


@pytest.mark.parametrize("p", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_lp_pool(harness: Harness, p: int, dtype: type) -> None:
    x = data(1, 2, 9, 10, dtype=dtype)
    (y,) = run_node(harness, LP, [x], kernel_shape=[3, 2], strides=[2, 2], p=p)
    windows = np.lib.stride_tricks.sliding_window_view(abs(x.astype(np.float64)), (3, 2), (2, 3))[:, :, ::2, ::2]
    np.testing.assert_allclose(y, (windows**p).sum((-1, -2)) ** (1 / p), rtol=1e-6 if dtype is np.float32 else 1e-13)


@pytest.mark.parametrize("op", [MAX, AVERAGE, LP])
@pytest.mark.parametrize("opset", [7, 10, 11])
def test_older_forms(harness: Harness, op: str, opset: int) -> None:
    against_onnxruntime(harness, op, data(1, 2, 9, 9), opset, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])


@pytest.mark.parametrize("op", [MAX, AVERAGE])
def test_strict(strict_harness: Harness, op: str) -> None:
    against_onnxruntime(strict_harness, op, data(1, 2, 9, 30), kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])


def test_many_dimensions_of_one(harness: Harness) -> None:
    x = data(2, 3, 1, 6, 1, 8, 1)
    (y,) = run_node(harness, MAX, [x], kernel_shape=[1, 2, 1, 2, 1], strides=[1, 2, 1, 2, 1])
    np.testing.assert_array_equal(y, x.reshape(2, 3, 1, 3, 2, 1, 4, 2, 1).max((4, 7)))


def test_no_elements(harness: Harness) -> None:
    (y,) = run_node(harness, MAX, [np.zeros((0, 3, 8, 8), np.float32)], kernel_shape=[2, 2])
    assert y.shape == (0, 3, 7, 7)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("op", [MAX, AVERAGE, LP])
def test_16_bit_floats_are_computed_as_f32(harness: Harness, op: str, dtype: type) -> None:
    x = data(1, 2, 7, 9).astype(dtype)
    (y, *_) = run_node(harness, op, [x], kernel_shape=[3, 3])
    (e, *_) = run_node(harness, op, [x.astype(np.float32)], kernel_shape=[3, 3])
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, e.astype(dtype))


def test_errors(harness: Harness) -> None:
    x = data(1, 2, 5, 5)
    with pytest.raises(ShapeError, match=r"a window of 7 does not fit in spatial dimension 1 .* padded to 6"):
        run_node(harness, MAX, [x], kernel_shape=[2, 7], pads=[0, 1, 0, 0])
    with pytest.raises(ShapeError, match=r"kernel_shape \[2\] does not fit the 2 spatial dimensions"):
        run_node(harness, MAX, [x], kernel_shape=[2])
    with pytest.raises(ShapeError, match=r"strides \[0, 1\]"):
        run_node(harness, MAX, [x], kernel_shape=[2, 2], strides=[0, 1])
    with pytest.raises(ShapeError, match="auto_pad is 'FULL'"):
        run_node(harness, MAX, [x], kernel_shape=[2, 2], auto_pad="FULL")
    with pytest.raises(UnsupportedModelError, match="int32"):
        run_node(harness, MAX, [x.astype(np.int32)], kernel_shape=[2, 2])


@pytest.mark.parametrize(
    ("op", "attributes"),
    [("GlobalMaxPool", {}), ("GlobalAveragePool", {}), *(("GlobalLpPool", {"p": p}) for p in (1, 2, 3))],
)
def test_global_pools_want_a_spatial_dimension(harness: Harness, op: str, attributes: dict[str, int]) -> None:
    for shape in ((2, 3), (3,), ()):
        with pytest.raises(ShapeError, match="must have a batch, a channel and a spatial dimension"):
            run_node(harness, op, [np.ones(shape, np.float32)], **attributes)
    (y,) = run_node(harness, op, [np.ones((2, 3, 1), np.float32)], **attributes)
    np.testing.assert_array_equal(y, np.ones((2, 3, 1), np.float32))


CASES = node_cases(MAX, AVERAGE, LP, "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_onnx_case(harness: Harness, case: Case) -> None:
    for y, e in itertools.zip_longest(case.run(harness), case.outputs):
        np.testing.assert_allclose(y, e, rtol=max(case.rtol, 1e-6), atol=1e-6)


def test_onnx_cases_are_there() -> None:
    assert len(CASES) > 50
