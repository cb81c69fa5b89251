from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import onnx_nodes
from harness import Harness
from onnx_wasm.errors import ShapeError

RESIZE = onnx_nodes.node_cases("Resize", "Upsample")


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def run(
    harness: Harness,
    x: np.ndarray,
    *,
    scales: Any = None,
    sizes: Any = None,
    roi: Any = None,
    opset: int = 19,
    split: int = 1,
    **attributes: Any,
) -> np.ndarray:
    inputs = inputs_of(x, scales, sizes, roi)
    (y,) = onnx_nodes.run_node(harness, "Resize", inputs, opset, split=split, **attributes)
    return y


def inputs_of(x: np.ndarray, scales: Any, sizes: Any, roi: Any) -> list[np.ndarray | None]:
    given = [x, None if roi is None else np.array(roi, np.float32)]
    given.append(None if scales is None else np.array(scales, np.float32))
    if sizes is not None:
        given.append(np.array(sizes, np.int64))
    return given


def check(harness: Harness, x: np.ndarray, *, roi: Any = None, **options: Any) -> None:
    attributes = {k: v for k, v in options.items() if k not in ("scales", "sizes")}
    inputs = inputs_of(x, options.get("scales"), options.get("sizes"), roi)
    (expected,) = onnx_nodes.onnxruntime_node("Resize", inputs, 19, **attributes)
    y = run(harness, x, roi=roi, **options)
    assert y.shape == expected.shape
    assert y.dtype == expected.dtype
    np.testing.assert_allclose(y, expected, rtol=2e-5, atol=2e-5)
    assert run(harness, x, roi=roi, split=3, **options).tobytes() == y.tobytes()


@pytest.mark.parametrize("case", RESIZE, ids=[c.name for c in RESIZE])
def test_onnx_case(harness: Harness, case: onnx_nodes.Case) -> None:
    (y,) = case.run(harness)
    np.testing.assert_allclose(y, case.outputs[0], rtol=case.rtol, atol=1e-5)


SHAPES = [
    ((2, 3, 8, 8), (2, 3, 16, 16)),
    ((1, 3, 7, 9), (1, 3, 19, 21)),
    ((1, 2, 12, 13), (1, 2, 5, 30)),
    ((1, 2, 5, 13), (1, 2, 11, 6)),
    ((2, 2, 20, 17), (2, 2, 7, 5)),
    ((1, 1, 1, 1), (1, 1, 3, 4)),
    ((1, 1, 6, 6), (1, 1, 1, 1)),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("transform", ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_sizes_as_onnxruntime(harness: Harness, shape: Any, transform: str, mode: str) -> None:
    check(harness, normal(*shape[0]), sizes=shape[1], mode=mode, coordinate_transformation_mode=transform)


@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize("transform", ["half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric"])
@pytest.mark.parametrize("scale", [2.0, 3.0, 1.5, 0.5, 0.7])
def test_nearest_as_onnxruntime(harness: Harness, rounding: str, transform: str, scale: float) -> None:
    if transform == "align_corners" and scale in (1.5, 0.7):
        pytest.skip("onnxruntime goes by the rounded length")
    x = normal(1, 2, 10, 36)
    check(harness, x, scales=[1, 1, scale, scale], nearest_mode=rounding, coordinate_transformation_mode=transform)


@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil"])
@pytest.mark.parametrize(("before", "after"), [(7, 2), (7, 4), (7, 8), (10, 12), (13, 2), (5, 2)])
def test_a_place_that_rounding_has_moved_off_the_middle_is_the_middle(
    harness: Harness, before: int, after: int, rounding: str
) -> None:
    x = np.arange(before, dtype=np.float32).reshape(1, 1, 1, before)
    options = {"nearest_mode": rounding, "coordinate_transformation_mode": "asymmetric"}
    check(harness, x, sizes=[1, 1, 1, after], mode="nearest", **options)
    middle = [i * before / after for i in range(after)]
    expected = [np.ceil(p - 0.5) if rounding == "round_prefer_floor" else np.floor(p + 0.5) for p in middle]
    assert run(harness, x, sizes=[1, 1, 1, after], mode="nearest", **options).reshape(-1).tolist() == expected


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int8, np.uint8, np.int32, np.int64, np.bool_])
@pytest.mark.parametrize("width", [5, 16, 37])
def test_nearest_moves_every_type(harness: Harness, dtype: Any, width: int) -> None:
    x = (normal(1, 2, 3, width) * 50).astype(dtype)
    y = run(harness, x, scales=[1, 1, 2, 2], coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    np.testing.assert_array_equal(y, x.repeat(2, 2).repeat(2, 3))


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_other_floats_as_f32(harness: Harness, dtype: Any, mode: str) -> None:
    x = normal(1, 2, 5, 7).astype(dtype)
    y = run(harness, x, sizes=[1, 2, 9, 12], mode=mode)
    expected = run(harness, x.astype(np.float32), sizes=[1, 2, 9, 12], mode=mode)
    assert y.dtype == dtype
    np.testing.assert_allclose(y, expected.astype(dtype), rtol=1e-6, atol=1e-6)


def resized(x: np.ndarray, size: int, scale: float, mode: str, antialias: int, transform: str) -> np.ndarray:
    """The first axis resized, tap by tap, all in double."""
    n, out = x.shape[0], np.arange(size)
    length = scale * n
    half = (out + 0.5) / scale - 0.5
    places = {
        "half_pixel": half,
        "half_pixel_symmetric": n / 2 * (1 - size / length) + half,
        "align_corners": out * (n - 1) / (length - 1),
        "asymmetric": out / scale,
    }[transform]
    squeeze = min(scale, 1.0) if antialias else 1.0
    reach = math.ceil((1 if mode == "linear" else 2) / squeeze)
    rows = []
    for place in places:
        taps = math.floor(place) + np.arange(-reach, reach + 2)
        d = abs(taps - place) * squeeze
        if mode == "linear":
            weights = np.maximum(1 - d, 0)
        else:
            near, far = (1.25 * d - 2.25) * d**2 + 1, -0.75 * (((d - 5) * d + 8) * d - 4)
            weights = np.where(d <= 1, near, np.where(d < 2, far, 0))
        rows.append(weights / weights.sum() @ x[taps.clip(0, n - 1)])
    return np.array(rows)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("antialias", [0, 1])
@pytest.mark.parametrize(
    "given",
    [{"sizes": s} for s in ([7, 3], [2, 9], [9, 13], [13, 4])] + [{"scales": s} for s in ([0.7, 1.9], [1.3, 2.6])],
)
@pytest.mark.parametrize("transform", ["half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric"])
def test_doubles_are_computed_in_double(
    harness: Harness, mode: str, antialias: int, given: dict[str, Any], transform: str
) -> None:
    x = normal(5, 7, dtype=np.float64)
    y = run(harness, x, **given, mode=mode, antialias=antialias, coordinate_transformation_mode=transform)
    scales = [float(np.float32(s)) for s in given.get("scales", [])] or [
        s / n for s, n in zip(given["sizes"], x.shape, strict=True)
    ]
    expected = x
    for size, scale in zip(y.shape, scales, strict=True):
        expected = resized(expected, size, scale, mode, antialias, transform).T
    assert y.shape == tuple(given.get("sizes", [int(s * n) for s, n in zip(scales, x.shape, strict=True)]))
    np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-14)


def test_doubles_between_two_elements(harness: Harness) -> None:
    x = np.array([[1.0, 2.25]])
    y = run(harness, x, sizes=[1, 9], mode="linear")
    places = np.clip((np.arange(9) + 0.5) * 2 / 9 - 0.5, 0, 1)
    np.testing.assert_allclose(y, [1 + 1.25 * places], rtol=1e-14)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_halves_are_rounded_up(harness: Harness, policy: str) -> None:
    # 0.7 * 5 is 3.5, which is less in float32.
    x = normal(10, 5)
    sizes = [7, 5] if policy == "not_larger" else [7, 2]
    assert run(harness, x, sizes=sizes, keep_aspect_ratio_policy=policy).shape == (7, 4)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.int32, np.uint32, np.int64])
def test_integers_are_truncated(harness: Harness, dtype: Any) -> None:
    x = np.random.default_rng(1).integers(0, 100, (1, 2, 5, 7)).astype(dtype)
    y = run(harness, x, sizes=[1, 2, 9, 12], mode="linear")
    np.testing.assert_array_equal(y, np.trunc(run(harness, x.astype(np.float64), sizes=[1, 2, 9, 12], mode="linear")))


def test_a_surface_of_one_integer_stays_one(harness: Harness) -> None:
    x = np.full((1, 1, 9, 11), 255, np.uint8)
    assert (run(harness, x, sizes=[1, 1, 31, 47], mode="linear") == 255).all()


def test_an_integer_between_others_is_exact(harness: Harness) -> None:
    x = np.array([[-4, -4, -4, -4, -4], [2, 2, 2, -1, -1]], np.int32)
    assert run(harness, x, sizes=[1, 3], mode="linear").tolist() == [[-1, -1, -2]]


def test_cubic_saturates(harness: Harness) -> None:
    x = np.array([[0, 0, 255, 255, 0, 0, 255, 255]], np.uint8)
    y = run(harness, x, scales=[1, 4], mode="cubic")
    exact = run(harness, x.astype(np.float64), scales=[1, 4], mode="cubic")
    assert exact.max() > 256
    assert exact.min() < -1
    np.testing.assert_array_equal(y, np.trunc(exact.clip(0, 255)))


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("exclude_outside", [0, 1])
@pytest.mark.parametrize("shape", SHAPES[1:5])
def test_antialias(harness: Harness, mode: str, exclude_outside: int, shape: Any) -> None:
    check(harness, normal(*shape[0]), sizes=shape[1], mode=mode, antialias=1, exclude_outside=exclude_outside)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("roi", [[0, 0, 0.2, 0.3, 1, 1, 0.9, 0.6], [0, 0, -0.3, 0.5, 1, 1, 0.7, 1.4]])
def test_crop(harness: Harness, mode: str, roi: list[float]) -> None:
    check(
        harness, normal(1, 2, 8, 9), sizes=[1, 2, 5, 12], mode=mode, roi=roi,
        coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=7.5,
    )  # fmt: skip


def test_extrapolation_by_not_a_number_stays_outside(harness: Harness) -> None:
    y = run(
        harness, normal(1, 1, 8, 9), sizes=[1, 1, 5, 12], mode="linear", roi=[0, 0, -0.3, 0.5, 1, 1, 0.7, 1.4],
        coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=float("nan"),
    )  # fmt: skip
    assert np.isfinite(y).sum() == 3 * 7


@pytest.mark.parametrize(
    ("shape", "scales"),
    [
        ((5,), [2.5]),
        ((3, 4), [2, 1]),
        ((2, 3, 4, 5, 6), [1, 1, 2, 1.5, 2]),
        ((2, 3, 4, 5), [1, 2, 1.5, 1]),
        ((3, 4, 2, 5), [2, 1, 1, 2]),
        ((2, 3, 2, 2, 3, 2), [2, 1, 2, 1, 0.5, 3]),
    ],
)
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_any_axes(harness: Harness, shape: Any, scales: Any, mode: str) -> None:
    """Against one axis after the other, each of which is the last of two."""
    x = normal(*shape)
    y = run(harness, x, scales=scales, mode=mode, split=2)
    expected = x
    for axis, scale in enumerate(scales):
        moved = np.moveaxis(expected, axis, -1)
        rows = run(harness, moved.reshape(-1, moved.shape[-1]), scales=[1, scale], mode=mode)
        expected = np.moveaxis(rows.reshape(*moved.shape[:-1], -1), -1, axis)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op_type", ["Upsample", "Resize"])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scales", [[1, 1, 2, 2], [1, 1, 1.5, 3], [1, 1, 0.6, 0.6]])
def test_old_forms(harness: Harness, op_type: str, mode: str, scales: list[float]) -> None:
    opset = {"Upsample": 9, "Resize": 10}[op_type]
    inputs = [normal(1, 2, 5, 6), np.array(scales, np.float32)]
    if op_type == "Upsample" and min(scales) < 1:
        pytest.skip("onnxruntime does not shrink by Upsample")
    (expected,) = onnx_nodes.onnxruntime_node(op_type, inputs, opset, mode=mode)
    (y,) = onnx_nodes.run_node(harness, op_type, inputs, opset, mode=mode)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
    if op_type == "Upsample":
        (y,) = onnx_nodes.run_node(harness, "Upsample", inputs[:1], 7, mode=mode, scales=scales)
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def test_axes_and_policies(harness: Harness) -> None:
    x = normal(1, 2, 6, 8)
    for policy, shape in (("stretch", (1, 2, 9, 8)), ("not_larger", (1, 2, 6, 8)), ("not_smaller", (1, 2, 9, 12))):
        y = run(harness, x, sizes=[8, 9], axes=[-1, 2], keep_aspect_ratio_policy=policy, mode="linear")
        assert y.shape == shape


def test_strict(strict_harness: Harness) -> None:
    for mode in ("linear", "cubic"):
        check(strict_harness, normal(2, 2, 7, 9), sizes=[2, 2, 15, 20], mode=mode)


def test_no_elements(harness: Harness) -> None:
    assert run(harness, normal(0, 3, 4), scales=[1, 1, 2]).shape == (0, 3, 8)
    assert run(harness, normal(2, 3), sizes=[0, 3]).shape == (0, 3)


def test_errors(harness: Harness) -> None:
    x = normal(1, 1, 4, 4)
    for options, message in (
        ({"scales": [1, 1, 2]}, "scales of shape"),
        ({"scales": [1, 1, 0, 2]}, "not a positive number"),
        ({"scales": [1, 1, 2, 2], "sizes": [1, 1, 2, 2]}, "exactly one"),
        ({}, "exactly one"),
        ({"sizes": [1, 1, -2, 2]}, "none of them negative"),
        ({"sizes": [1, 1, 2, 2], "mode": "area"}, "mode 'area' is none of"),
        ({"sizes": [2], "axes": [4]}, "axis 4 out of range"),
        ({"scales": [1, 1, 2, 2], "coordinate_transformation_mode": "tf_crop_and_resize"}, "roi must have 8"),
    ):
        with pytest.raises(ShapeError, match=message):
            run(harness, x, **options)
    with pytest.raises(ShapeError, match="no elements"):
        run(harness, normal(1, 0), sizes=[1, 3])
