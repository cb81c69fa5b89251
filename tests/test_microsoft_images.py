"""com.microsoft's operators on images, windows and paths, against native onnxruntime."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import microsoft_nodes
import onnx_wasm as ort
from microsoft_nodes import check, fails

chance = np.random.default_rng(23)


def normal(*shape: int) -> np.ndarray:
    return chance.normal(size=shape).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


@pytest.mark.parametrize("sizes", [(4,), (5, 4), (3, 4, 2)])
@pytest.mark.parametrize(
    "attributes", [{}, {"group": 2}, {"auto_pad": "SAME_UPPER"}, {"strides": 2, "output_padding": 1}]
)
def test_transposed_convolutions_with_pads_as_input(sizes: tuple[int, ...], attributes: dict[str, Any]) -> None:
    axes = len(sizes)
    given = {k: [v] * axes if k in ("strides", "output_padding") else v for k, v in attributes.items()}
    pads = np.array([1, 0, 2, 1, 0, 1][: 2 * axes], np.int64)
    outputs = 2 * given.get("group", 1)
    for batch in (0, 2):
        inputs = [normal(batch, 4, *sizes), normal(4, 2, *(3,) * axes), pads, normal(outputs)]
        for constants in ((), (2,), (1, 2, 3)):
            check("ConvTransposeWithDynamicPads", inputs, constants, tolerance=1e-5, **given)
        check("ConvTransposeWithDynamicPads", inputs[:3], tolerance=1e-5, **given)


def test_pads_that_do_not_fit() -> None:
    x, w = normal(1, 3, 5, 4), normal(3, 2, 3, 3)
    fails("ConvTransposeWithDynamicPads", [x, w], "Pads is not given")
    fails("ConvTransposeWithDynamicPads", [x, w, np.array([1, 1])], "must fit 2 spatial dimensions")
    fails("ConvTransposeWithDynamicPads", [x, w, np.array([1, 1, -1, 0])], "must not be negative")
    fails("ConvTransposeWithDynamicPads", [x, w, np.array([[1, 1, 1, 0]])], "Pads")


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("size", [(4, 3), (1, 1), (2, 5), (9, 1)])
def test_crops(mode: str, size: tuple[int, int]) -> None:
    regions = np.array([[0, 0, 1, 1], [0.1, 0.2, 0.7, 0.9], [-0.1, 0, 1.2, 1], [0.9, 0.8, 0.1, 0.2]], np.float32)
    regions = np.concatenate([regions, chance.uniform(-0.2, 1.2, (9, 4)).astype(np.float32)])
    regions[-1, 0], regions[-2, 3], regions[-3, 2] = np.nan, np.inf, -np.inf
    images = chance.integers(0, 2, 13).astype(np.int32)
    for shape in ((2, 3, 5, 6), (2, 1, 1, 1), (2, 17, 8, 3)):
        inputs = [normal(*shape), regions, images, ints(*size)]
        for constants in ((), (3,)):
            check("CropAndResize", inputs, constants, tolerance=2e-6, mode=mode, extrapolation_value=2.5)
        none = [inputs[0], regions[:0], images[:0], inputs[3]]
        assert check("CropAndResize", none, mode=mode)[0].shape == (0, shape[1], *size)
        halves = [a.astype(np.float16) for a in inputs[:2]]
        check("CropAndResize", [*halves, *inputs[2:]], kinds=[np.float16], tolerance=2e-3, mode=mode)


def test_crops_of_doubles() -> None:
    regions = chance.uniform(-0.2, 1.2, (9, 4))
    images = ints(0, 1, 0, 1, 0, 1, 0, 1, 1)
    x = chance.normal(size=(2, 3, 5, 6))
    wide = microsoft_nodes.ours("CropAndResize", [x, regions, images, ints(4, 3)], (), [np.float64])[0]
    narrow = [x.astype(np.float32), regions.astype(np.float32), images, ints(4, 3)]
    np.testing.assert_allclose(wide, microsoft_nodes.ours("CropAndResize", narrow)[0], atol=1e-5)


def test_crops_that_do_not_fit() -> None:
    x, regions, images, size = normal(2, 3, 5, 6), normal(4, 4), ints(0, 1, 1, 0), ints(4, 3)
    fails("CropAndResize", [x, regions, images + 1, size], r"index 2 out of range \[0, 2\)")
    fails("CropAndResize", [x, regions, images - 1, size], r"index -1 out of range \[0, 2\)")
    fails("CropAndResize", [x, regions, images, ints(0, 3)], r"crop_size is \[0, 3\]")
    fails("CropAndResize", [x, regions, images, ints(4)], r"crop_size is \[4\]")
    fails("CropAndResize", [x, regions[:3], images, size], r"rois \[n, 4\]")
    fails("CropAndResize", [x[0], regions, images, size], r"X must be \[N, C, H, W\]")
    fails("CropAndResize", [x, regions, images, size], "'cubic' is none of bilinear, nearest", mode="cubic")


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
def test_unfolding(dtype: Any) -> None:
    for shape, attributes in [
        ((10,), {"size": 3}),
        ((10,), {"size": 10}),
        ((10,), {"size": 1, "step": 4}),
        ((3, 7), {"size": 2, "step": 3}),
        ((2, 9, 5), {"size": 4, "step": 2, "dim": 1}),
        ((9, 5, 2), {"size": 4, "step": 20, "dim": -3}),
        ((0, 5), {"size": 2}),
    ]:
        x = chance.integers(-99, 99, shape).astype(dtype)
        for constants in ((), (0,)):
            check("UnfoldTensor", [x], constants, kinds=[dtype], **attributes)


@pytest.mark.parametrize("dtype", [np.int8, np.bool_, np.float16, np.complex64, ml_dtypes.bfloat16])
def test_unfolding_of_other_types(dtype: Any) -> None:
    x = chance.integers(-7, 7, (3, 9)).astype(dtype)
    expected = np.stack([x[:, at : at + 4] for at in (0, 2, 4)], 1)
    (y,) = microsoft_nodes.ours("UnfoldTensor", [x], (), [dtype], size=4, step=2)
    np.testing.assert_array_equal(y.reshape(expected.shape), expected)


def test_what_cannot_be_unfolded() -> None:
    x = normal(10)
    for attributes in ({"size": 0}, {"size": 11}, {"size": 3, "step": 0}, {"size": -1}):
        fails("UnfoldTensor", [x], "do not fit axis -1", **attributes)
    fails("UnfoldTensor", [x], "axis 1 out of range", size=3, dim=1)
    fails("UnfoldTensor", [normal()], "axis -1 out of range", size=1)


@pytest.mark.parametrize("sizes", [(7,), (5, 6), (6, 1), (3, 4, 5), (2, 3, 1)])
@pytest.mark.parametrize("masks", [(2, 3), (1, 3), (2, 1), (1, 1), (3, 4)])
def test_masked_pooling(sizes: tuple[int, ...], masks: tuple[int, int]) -> None:
    axes = len(sizes)
    x = normal(2, 3, *sizes)
    x.reshape(-1)[:5] = [np.nan, -np.inf, np.inf, np.nan, -0.0]
    mask = (chance.random((*masks, *sizes)) < 0.7).astype(np.int32) * 3
    kernel = [min(n, 3) for n in sizes]
    for attributes in (
        {},
        {"strides": [2] * axes},
        {"pads": [k // 2 for k in kernel] * 2, "strides": [2, 1, 2][:axes]},
        {"auto_pad": "SAME_UPPER"},
        {"auto_pad": "SAME_LOWER", "storage_order": 1},
    ):
        check("MaxpoolWithMask", [x, mask], kernel_shape=kernel, **attributes)
    check("MaxpoolWithMask", [x[:0], mask], kernel_shape=kernel)


def test_masks_that_do_not_fit() -> None:
    x, mask = normal(2, 3, 7), np.ones((2, 3, 7), np.int32)
    fails("MaxpoolWithMask", [x, mask[:, :, :5]], "must have the spatial dimensions of", kernel_shape=[3])
    fails("MaxpoolWithMask", [x, mask[0]], "must have the spatial dimensions of", kernel_shape=[3])
    fails("MaxpoolWithMask", [x, mask[:0]], "has no planes", kernel_shape=[3])
    fails("MaxpoolWithMask", [x, mask], "kernel_shape .* does not fit", kernel_shape=[3, 3])
    fails("MaxpoolWithMask", [x, mask], "a window of 9 does not fit", kernel_shape=[9])
    many = normal(1, 1, 2, 2, 2, 2)
    fails("MaxpoolWithMask", [many, many.astype(np.int32)], "pooling over 4 dimensions", kernel_shape=[1, 1, 1, 1])


@pytest.mark.parametrize("shape", [(1, 1), (4, 6), (1, 5), (5, 1), (40, 23), (0, 3), (3, 0)])
def test_warping(shape: tuple[int, int]) -> None:
    for cost in (chance.random(shape), chance.integers(0, 3, shape), -chance.random(shape), np.zeros(shape)):
        for x in (cost, cost[None]):
            for constants in ((), (0,)):
                check("DynamicTimeWarping", [x.astype(np.float32)], constants, kinds=[np.int32])
    for wrong in (np.nan, np.inf, -np.inf):
        cost = np.where(chance.random(shape) < 0.3, wrong, chance.random(shape))
        check("DynamicTimeWarping", [cost.astype(np.float32)], kinds=[np.int32])


def test_costs_that_are_no_matrix() -> None:
    for shape in ((3,), (2, 3, 4), (1, 1, 2, 2)):
        fails("DynamicTimeWarping", [normal(*shape)], r"must be float32 \[M, N\]", kinds=[np.int32])
    with pytest.raises(ort.OnnxWasmError, match="must be float32"):
        microsoft_nodes.ours("DynamicTimeWarping", [np.zeros((2, 2))], (), [np.int32])
