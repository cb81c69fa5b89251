from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import onnx_nodes
from harness import Harness, KernelStatus
from onnx_wasm.errors import ShapeError

CASES = onnx_nodes.node_cases("GridSample", "AffineGrid", "DeformConv", "RoiAlign")


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def run(harness: Harness, op_type: str, inputs: Any, opset: int = 22, **attributes: Any) -> np.ndarray:
    """What the op gives, split or not."""
    (y,) = onnx_nodes.run_node(harness, op_type, inputs, opset, **attributes)
    (split,) = onnx_nodes.run_node(harness, op_type, inputs, opset, split=3, **attributes)
    assert split.tobytes() == y.tobytes()
    return y


@pytest.mark.parametrize("case", CASES, ids=[c.name for c in CASES])
def test_onnx_case(harness: Harness, case: onnx_nodes.Case) -> None:
    (y,) = case.run(harness)
    np.testing.assert_allclose(y, case.outputs[0], rtol=case.rtol, atol=1e-6)


@pytest.mark.parametrize("align_corners", [0, 1])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize(
    ("mode", "x_shape", "grid_shape"),
    [
        ("nearest", (2, 3, 5, 7), (2, 6, 4, 2)),
        ("linear", (2, 3, 5, 7), (2, 6, 4, 2)),
        ("cubic", (2, 3, 5, 7), (2, 6, 4, 2)),
        ("linear", (1, 2, 2, 1), (1, 3, 5, 2)),
        # more places than wait together
        ("linear", (2, 3, 9, 8), (2, 13, 11, 2)),
        ("nearest", (2, 2, 3, 4, 5), (2, 2, 3, 4, 3)),
        ("linear", (2, 2, 3, 4, 5), (2, 2, 3, 4, 3)),
    ],
)
def test_grid_sample(
    harness: Harness, mode: str, x_shape: Any, grid_shape: Any, padding_mode: str, align_corners: int
) -> None:
    x, grid = normal(*x_shape), np.random.default_rng(1).uniform(-2.7, 2.7, grid_shape).astype(np.float32)
    if align_corners and padding_mode == "reflection":
        # Where an axis of one pixel has nothing between its ends, onnxruntime divides by zero.
        x = x.repeat(2, -1) if x.shape[-1] == 1 else x
    attributes = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
    (expected,) = onnx_nodes.onnxruntime_node("GridSample", [x, grid], 20, **attributes)
    np.testing.assert_allclose(run(harness, "GridSample", [x, grid], **attributes), expected, rtol=1e-4, atol=2e-5)
    wide = run(harness, "GridSample", [x.astype(np.float64), grid.astype(np.float64)], **attributes)
    if mode != "nearest":
        np.testing.assert_allclose(wide, expected, rtol=1e-4, atol=1e-4)


def test_grid_sample_old_names(harness: Harness) -> None:
    x, grid = normal(1, 2, 4, 4), np.random.default_rng(1).uniform(-1.2, 1.2, (1, 3, 3, 2)).astype(np.float32)
    for mode in ("bilinear", "nearest", "bicubic"):
        (expected,) = onnx_nodes.onnxruntime_node("GridSample", [x, grid], 16, mode=mode)
        np.testing.assert_allclose(run(harness, "GridSample", [x, grid], 16, mode=mode), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(run(harness, "GridSample", [x, grid]), run(harness, "GridSample", [x, grid], 16))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.int8, np.uint8, np.int32, np.bool_])
def test_grid_sample_types(harness: Harness, dtype: Any) -> None:
    x = (normal(1, 2, 4, 4) * 20).astype(dtype)
    grid = np.random.default_rng(1).uniform(-1, 1, (1, 3, 3, 2)).astype(np.float32)
    y = run(harness, "GridSample", [x, grid], mode="nearest")
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, run(harness, "GridSample", [x.astype(np.float32), grid], mode="nearest"))


def test_what_lies_outside_has_no_part(harness: Harness) -> None:
    x = np.full((1, 1, 3, 3), np.nan, np.float32)
    grid = np.full((1, 1, 1, 2), 5, np.float32)
    assert run(harness, "GridSample", [x, grid]).item() == 0


@pytest.mark.parametrize("align_corners", [0, 1])
@pytest.mark.parametrize("size", [(2, 1, 4, 5), (1, 1, 1, 3), (2, 3, 3, 4, 5)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_affine_grid(harness: Harness, size: tuple[int, ...], align_corners: int, dtype: Any) -> None:
    axes = len(size) - 2
    theta = normal(size[0], axes, axes + 1).astype(dtype)
    inputs = [theta, np.array(size, np.int64)]
    y = run(harness, "AffineGrid", inputs, align_corners=align_corners)
    inputs[0] = theta.astype(np.float32)
    (expected,) = onnx_nodes.onnxruntime_node("AffineGrid", inputs, 20, align_corners=align_corners)
    assert y.dtype == dtype
    tolerance = 4e-3 if dtype == np.float16 else 1e-5
    np.testing.assert_allclose(y.astype(np.float32), expected, rtol=tolerance, atol=tolerance)


def reference(op_type: str, inputs: Any, opset: int, **attributes: Any) -> np.ndarray:
    model = onnx_nodes.single_node(op_type, inputs, opset, **attributes)
    return ReferenceEvaluator(model).run(None, {f"x{i}": x for i, x in enumerate(inputs) if x is not None})[0]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("shape", "w_shape", "groups", "offset_groups", "attributes"),
    [
        ((2, 2, 5, 6), (3, 2, 2, 3), 1, 1, {}),
        ((1, 4, 6, 6), (4, 2, 3, 3), 2, 2, {"pads": [1, 0, 1, 2], "strides": [2, 1]}),
        ((1, 2, 7, 7), (2, 2, 2, 2), 1, 2, {"dilations": [2, 3]}),
        ((1, 2, 11, 10), (1, 2, 2, 2), 1, 1, {}),
    ],
)
def test_deform_conv(
    harness: Harness,
    shape: Any,
    w_shape: Any,
    groups: int,
    offset_groups: int,
    attributes: Any,
    masked: bool,
    bias: bool,
) -> None:
    x, w = normal(*shape), normal(*w_shape, seed=1)
    pads, strides = attributes.get("pads", [0] * 4), attributes.get("strides", [1, 1])
    holes = attributes.get("dilations", [1, 1])
    out = [
        (shape[2 + i] + pads[i] + pads[2 + i] - holes[i] * (w_shape[2 + i] - 1) - 1) // strides[i] + 1 for i in (0, 1)
    ]
    taps = offset_groups * w_shape[2] * w_shape[3]
    inputs = [x, w, normal(shape[0], 2 * taps, *out, seed=2), normal(w_shape[0], seed=3) if bias else None]
    if masked:
        inputs.append(normal(shape[0], taps, *out, seed=4))
    attributes = {**attributes, "group": groups, "offset_group": offset_groups}
    expected = reference("DeformConv", inputs, 19, **attributes)
    y = run(harness, "DeformConv", inputs, **attributes)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
    wide = run(harness, "DeformConv", [None if v is None else v.astype(np.float64) for v in inputs], **attributes)
    np.testing.assert_allclose(wide, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("transform", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("ratio", [0, 1, 2])
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_roi_align(harness: Harness, mode: str, transform: str, ratio: int, scale: float) -> None:
    x = normal(2, 3, 9, 11)
    corners = np.random.default_rng(3).uniform(-3, 14, (6, 2, 2)).astype(np.float32) / scale
    rois = np.sort(corners, 1).reshape(6, 4).astype(np.float32)
    rois[0] = [2, 2, 2, 2]
    batch = np.array([0, 1, 1, 0, 1, 0], np.int64)
    attributes = {
        "mode": mode,
        "coordinate_transformation_mode": transform,
        "sampling_ratio": ratio,
        "spatial_scale": scale,
        "output_height": 3,
        "output_width": 4,
    }
    expected = reference("RoiAlign", [x, rois, batch], 16, **attributes)
    y = run(harness, "RoiAlign", [x, rois, batch], **attributes)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
    if mode == "avg":
        (expected,) = onnx_nodes.onnxruntime_node("RoiAlign", [x, rois, batch], 16, **attributes)
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
    if transform == "output_half_pixel":
        del attributes["coordinate_transformation_mode"]
        assert run(harness, "RoiAlign", [x, rois, batch], 10, **attributes).tobytes() == y.tobytes()


def test_roi_align_other_types(harness: Harness) -> None:
    x, rois, batch = normal(1, 2, 6, 6), np.array([[0, 1, 4, 5]], np.float32), np.zeros(1, np.int64)
    expected = run(harness, "RoiAlign", [x, rois, batch], output_height=2, output_width=2)
    for dtype, tolerance in ((np.float64, 1e-5), (np.float16, 4e-3), (ml_dtypes.bfloat16, 4e-2)):
        y = run(harness, "RoiAlign", [x.astype(dtype), rois.astype(dtype), batch], output_height=2, output_width=2)
        assert y.dtype == dtype
        np.testing.assert_allclose(y.astype(np.float32), expected, rtol=tolerance, atol=tolerance)


def test_roi_of_no_image(harness: Harness) -> None:
    with pytest.raises(KernelStatus) as status:
        run(harness, "RoiAlign", [normal(2, 1, 4, 4), np.zeros((1, 4), np.float32), np.array([2])])
    assert status.value.args == (2, 2, 0, 2)
    with pytest.raises(KernelStatus) as status:
        run(harness, "MaxRoiPool", [normal(2, 1, 4, 4), np.full((1, 5), -1, np.float32)], pooled_shape=[1, 1])
    assert status.value.args == (2, -1, 0, 2)


@pytest.mark.parametrize("scale", [1.0, 0.4])
def test_max_roi_pool(harness: Harness, scale: float) -> None:
    x = normal(2, 3, 9, 11)
    corners = np.sort(np.random.default_rng(3).uniform(-2, 12, (7, 2, 2)) / scale, 1).reshape(7, 4)
    rois = np.concatenate([np.arange(7).reshape(7, 1) % 2, corners], 1).astype(np.float32)
    (expected,) = onnx_nodes.onnxruntime_node("MaxRoiPool", [x, rois], 13, pooled_shape=[3, 2], spatial_scale=scale)
    y = run(harness, "MaxRoiPool", [x, rois], pooled_shape=[3, 2], spatial_scale=scale)
    np.testing.assert_array_equal(y, expected)
    wide = [v.astype(np.float64) for v in (x, rois)]
    np.testing.assert_array_equal(run(harness, "MaxRoiPool", wide, pooled_shape=[3, 2], spatial_scale=scale), expected)


def test_no_elements(harness: Harness) -> None:
    grid = np.zeros((2, 0, 3, 2), np.float32)
    assert run(harness, "GridSample", [normal(2, 3, 4, 4), grid]).shape == (2, 3, 0, 3)
    inputs = [normal(2, 3, 4, 4), np.zeros((0, 4), np.float32), np.zeros(0, np.int64)]
    assert run(harness, "RoiAlign", inputs).shape == (0, 3, 1, 1)


def test_errors(harness: Harness) -> None:
    x, grid = normal(1, 2, 4, 4), np.zeros((1, 3, 3, 2), np.float32)
    for op_type, inputs, attributes, message in (
        ("GridSample", [x, grid[..., :1]], {}, "grid must|and grid"),
        ("GridSample", [x, grid], {"mode": "area"}, "'area' is none of"),
        ("GridSample", [x, grid], {"padding_mode": "wrap"}, "'wrap' is none of"),
        ("AffineGrid", [normal(1, 2, 2), np.array([1, 1, 2, 2])], {}, "theta must be"),
        ("DeformConv", [x, normal(1, 2, 2, 2), normal(1, 7, 3, 3)], {}, "offset must have shape"),
        ("DeformConv", [x, normal(1, 2, 2, 2), normal(1, 8, 3, 3)], {"offset_group": 3}, "do not divide"),
        ("RoiAlign", [x, normal(2, 4), np.zeros(1, np.int64)], {}, "rois"),
    ):
        with pytest.raises(ShapeError, match=message):
            run(harness, op_type, inputs, **attributes)
