from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import graphs
import onnx_wasm as ort
from harness import Harness
from onnx_nodes import Case, node_cases, onnxruntime_node, run_node
from onnx_wasm import dtypes, registry
from onnx_wasm.context import Context, Value
from onnx_wasm.errors import ShapeError, UnsupportedModelError
from onnx_wasm.ops.fusion import Activation, fuse_activation, fuse_affine

DTYPES = [np.float32, np.float64]


def data(*shape: int, dtype: Any = np.float32, offset: float = 0.5) -> np.ndarray:
    return (np.random.default_rng(len(shape) + sum(shape)).standard_normal(shape) + offset).astype(dtype)


def check(y: np.ndarray, e: np.ndarray, dtype: Any = None) -> None:
    assert y.shape == e.shape
    assert y.dtype == (dtype or e.dtype)
    tolerance = 5e-6 if y.dtype == np.float32 else 1e-13
    np.testing.assert_allclose(y, e, rtol=tolerance, atol=tolerance)


def normalized(x: np.ndarray, axes: tuple[int, ...], epsilon: float = 1e-5) -> np.ndarray:
    # ONNX's attributes are f32, whatever the type of x.
    epsilon = float(np.float32(epsilon))
    wide = x.astype(np.float64)
    centered = wide - wide.mean(axes, keepdims=True)
    return centered / np.sqrt((centered * centered).mean(axes, keepdims=True) + epsilon)


def batchnorm_inputs(shape: tuple[int, ...], dtype: Any) -> list[np.ndarray]:
    c = shape[1]
    return [
        data(*shape, dtype=dtype),
        *(data(c, dtype=dtype, offset=o) for o in (1, 2, 3)),
        abs(data(c, 1, dtype=dtype))[:, 0],
    ]


def batchnorm(x: np.ndarray, scale: Any, bias: Any, mean: Any, var: Any, epsilon: float = 1e-5) -> np.ndarray:
    epsilon = float(np.float32(epsilon))
    x, scale, bias, mean, var = (a.astype(np.float64) for a in (x, scale, bias, mean, var))
    shape = (-1,) + (1,) * (x.ndim - 2)
    s = scale / np.sqrt(var + epsilon)
    return x * s.reshape(shape) + (bias - mean * s).reshape(shape)


@pytest.mark.parametrize("opset", [7, 9, 14, 15])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape", [(2, 3, 4, 5), (1, 5, 3, 3), (3, 7), (4, 1), (2, 3, 9), (1, 2, 2, 3, 4), (2, 3, 40, 17)]
)
def test_batchnorm(harness: Harness, opset: int, dtype: type, shape: tuple[int, ...]) -> None:
    inputs = batchnorm_inputs(shape, dtype)
    for weights in [(), (1, 2, 3, 4)]:
        (y,) = run_node(harness, "BatchNormalization", inputs, opset, weights=weights, split=3, epsilon=1e-3)
        check(y, batchnorm(*inputs, epsilon=1e-3), dtype)


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (5, 6)])
def test_batchnorm_as_onnxruntime(harness: Harness, shape: tuple[int, ...]) -> None:
    inputs = batchnorm_inputs(shape, np.float32)
    check(run_node(harness, "BatchNormalization", inputs, 15)[0], onnxruntime_node("BatchNormalization", inputs, 15)[0])


def test_batchnorm_of_rank_1(harness: Harness) -> None:
    x = data(5)
    one = [np.array([v], np.float32) for v in (2, 3, 0.5, 4)]
    (y,) = run_node(harness, "BatchNormalization", [x, *one])
    check(y, batchnorm(x.reshape(5, 1), *one).reshape(5), np.float32)


def test_batchnorm_errors(harness: Harness) -> None:
    inputs = batchnorm_inputs((2, 3, 4), np.float32)
    with pytest.raises(ShapeError, match=r"mean is 'x3' float32\[4\], must have shape \[3\]"):
        run_node(harness, "BatchNormalization", [*inputs[:3], data(4), inputs[4]], 15)


def chain(*steps: Any) -> Any:
    """An op that applies functions of (cx, value, constants) one after the other."""

    def function(cx: Context, x: Value, *constants: Value) -> Value:
        for step in steps:
            x = step(cx, x, constants)
        return x

    return function


def _batchnorm(cx: Context, x: Value, c: tuple[Value, ...]) -> Value:
    definition = registry.find("", "BatchNormalization", 15)
    assert definition is not None
    result: Value = definition.function(cx, x, *c[:4])
    return result


@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (4, 3)])
@pytest.mark.parametrize("which", [(True, True), (True, False), (False, True)])
def test_an_affine_map_folds_into_batchnorm(harness: Harness, shape: tuple[int, ...], which: tuple[bool, bool]) -> None:
    inputs = batchnorm_inputs(shape, np.float32)
    scale, shift = data(3, offset=-1), data(3, offset=4)
    records = []

    def fold(cx: Context, x: Value, c: tuple[Value, ...]) -> Value:
        assert fuse_affine(cx, x, c[4] if which[0] else None, c[5] if which[1] else None)
        records.extend(cx.records)
        return x

    y = harness.op(chain(_batchnorm, fold), [*inputs, scale, shift], weights=range(1, 7), split=2)
    assert len(records) == 1
    column = (-1,) + (1,) * (len(shape) - 2)
    e = batchnorm(*inputs)
    e = e * scale.reshape(column) if which[0] else e
    check(y, e + shift.reshape(column) if which[1] else e, np.float32)


def test_batchnorm_folds_into_batchnorm(harness: Harness) -> None:
    inputs = batchnorm_inputs((2, 3, 5), np.float32)
    count = []

    def done(cx: Context, x: Value, c: tuple[Value, ...]) -> Value:
        count.append(len(cx.records))
        return x

    y = harness.op(chain(_batchnorm, _batchnorm, done), inputs, weights=range(1, 5))
    assert count == [1]
    check(y, batchnorm(batchnorm(*inputs), *inputs[1:]), np.float32)


@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (4, 3)])
def test_an_activation_folds_into_batchnorm(harness: Harness, shape: tuple[int, ...]) -> None:
    inputs = batchnorm_inputs(shape, np.float32)

    def clip(cx: Context, x: Value, c: tuple[Value, ...]) -> Value:
        assert fuse_activation(cx, x, Activation.CLIP, -0.5, 1.5)
        assert not fuse_affine(cx, x, c[0], c[1])
        return x

    y = harness.op(chain(_batchnorm, clip), inputs, weights=range(1, 5), split=2)
    check(y, batchnorm(*inputs).clip(-0.5, 1.5), np.float32)


def test_nothing_folds_into_batchnorm_of_computed_parameters(harness: Harness) -> None:
    inputs = batchnorm_inputs((2, 3, 5), np.float32)

    def fold(cx: Context, x: Value, c: tuple[Value, ...]) -> Value:
        assert not fuse_affine(cx, x, c[0], c[1])
        return x

    check(harness.op(chain(_batchnorm, fold), inputs), batchnorm(*inputs), np.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 4, 1, 1), (3, 2, 7), (2, 2, 3, 2, 3), (1, 2, 60, 61)])
def test_instance_normalization(harness: Harness, dtype: type, shape: tuple[int, ...]) -> None:
    x, scale, bias = data(*shape, dtype=dtype), data(shape[1], dtype=dtype), data(shape[1], dtype=dtype, offset=2)
    (y,) = run_node(harness, "InstanceNormalization", [x, scale, bias], split=3, epsilon=1e-3)
    axes = tuple(range(2, len(shape)))
    column = (-1,) + (1,) * len(axes)
    check(y, normalized(x, axes, 1e-3) * scale.reshape(column) + bias.reshape(column), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("opset", [18, 21])
@pytest.mark.parametrize("shape", [(2, 6, 4, 5), (1, 6, 3), (3, 6)])
@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_group_normalization(harness: Harness, dtype: type, opset: int, shape: tuple[int, ...], groups: int) -> None:
    x = data(*shape, dtype=dtype)
    scale, bias = (data(groups if opset == 18 else 6, dtype=dtype, offset=o) for o in (1, 2))
    (y,) = run_node(harness, "GroupNormalization", [x, scale, bias], opset, split=2, num_groups=groups)
    if opset == 18:
        scale, bias = (np.repeat(a, 6 // groups) for a in (scale, bias))
    column = (-1,) + (1,) * (len(shape) - 2)
    e = normalized(x.reshape(shape[0], groups, -1), (2,)).reshape(shape)
    check(y, e * scale.reshape(column) + bias.reshape(column), dtype)


def test_group_normalization_errors(harness: Harness) -> None:
    with pytest.raises(ShapeError, match="num_groups 4 must divide the 6 channels"):
        run_node(harness, "GroupNormalization", [data(2, 6, 3), data(6), data(6)], num_groups=4)
    with pytest.raises(ShapeError, match=r"must have shape \[3\]"):
        run_node(harness, "GroupNormalization", [data(2, 6, 3), data(6), data(6)], 18, num_groups=3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 9, 17, 64, 384, 2051])
@pytest.mark.parametrize("with_bias", [True, False])
def test_layer_normalization(harness: Harness, dtype: type, n: int, with_bias: bool) -> None:
    x, scale, bias = data(3, 5, n, dtype=dtype), data(n, dtype=dtype), data(n, dtype=dtype, offset=2)
    inputs = [x, scale, bias] if with_bias else [x, scale]
    y, mean, factor = run_node(harness, "LayerNormalization", inputs, outputs=("y", "m", "f"), split=2)
    check(y, normalized(x, (2,)) * scale + (bias if with_bias else 0), dtype)
    check(mean, x.mean(2, keepdims=True, dtype=np.float64), np.float32)
    check(factor, 1 / np.sqrt(x.var(2, keepdims=True, dtype=np.float64) + float(np.float32(1e-5))), np.float32)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2])
def test_layer_normalization_over_axes(harness: Harness, axis: int) -> None:
    x = data(3, 4, 5)
    axis_ = axis % 3
    scale, bias = data(*x.shape[axis_:]), data(*x.shape[axis_:], offset=1)
    results = run_node(harness, "LayerNormalization", [x, scale, bias], axis=axis, outputs=("y", "m", "f"), epsilon=0.1)
    expected = onnxruntime_node("LayerNormalization", [x, scale, bias], 17, 3, axis=axis, epsilon=0.1)
    for y, e in zip(results, expected, strict=True):
        check(y, e)
    (y, factor) = run_node(harness, "LayerNormalization", [x, scale], axis=axis, outputs=("y", "", "f"))
    check(factor, 1 / np.sqrt(x.var(tuple(range(axis_, 3)), keepdims=True) + 1e-5), np.float32)


def test_layer_normalization_far_from_zero(harness: Harness) -> None:
    x = data(2, 1000) + np.float32(4096)
    (y,) = run_node(harness, "LayerNormalization", [x, np.ones(1000, np.float32)])
    np.testing.assert_allclose(y, normalized(x, (1,)), atol=3e-4)


def test_layer_normalization_errors(harness: Harness) -> None:
    with pytest.raises(ShapeError, match="axis 2 out of range"):
        run_node(harness, "LayerNormalization", [data(2, 3), data(3)], axis=2)
    for shape in ((2,), (3, 1), (1, 2, 3), (1, 1, 3)):
        with pytest.raises(ShapeError, match=r"scale is .*, must have shape \[3\] or broadcast to"):
            run_node(harness, "LayerNormalization", [data(2, 3), data(*shape)])


@pytest.mark.parametrize("shape", [(), (1,), (5,), (4, 1), (3, 4, 5), (3, 1, 1), (1, 4, 5)])
def test_scale_and_bias_broadcast(harness: Harness, shape: tuple[int, ...]) -> None:
    x, scale, bias = data(3, 4, 5), data(*shape), data(5, offset=1)
    (y,) = run_node(harness, "LayerNormalization", [x, scale, bias], axis=1)
    check(y, normalized(x, (1, 2)) * scale + bias, np.float32)
    (y,) = run_node(harness, "RMSNormalization", [x, scale], 23, axis=1)
    check(y, x / np.sqrt((x * x).mean((1, 2), keepdims=True) + 1e-5) * scale, np.float32)


@pytest.mark.parametrize("stash", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_statistics_have_the_type_that_is_asked_for(harness: Harness, dtype: type, stash: type) -> None:
    x, scale = data(3, 8).astype(dtype), data(8).astype(dtype)
    number = {np.float32: 1, ml_dtypes.bfloat16: 16}[stash]
    y, mean, _ = run_node(harness, "LayerNormalization", [x, scale], outputs=("y", "m", "f"), stash_type=number)
    wide = x.astype(np.float32)
    assert (y.dtype, mean.dtype) == (dtype, stash)
    np.testing.assert_array_equal(mean, wide.mean(1, keepdims=True, dtype=np.float64).astype(stash))
    want = normalized(wide, (1,)) * scale.astype(np.float32)
    np.testing.assert_allclose(y.astype(np.float64), want, rtol=2**-7, atol=1e-3)


@pytest.mark.parametrize("narrow", [np.float16, ml_dtypes.bfloat16])
def test_parameters_of_other_types(harness: Harness, narrow: type) -> None:
    x, wide = data(2, 3, 4).astype(narrow), data(2, 3, 4).astype(narrow).astype(np.float32)
    scale, bias, mean, var = data(3), data(3, offset=1), data(3), np.abs(data(3)) + np.float32(0.5)
    want = (wide - mean[:, None]) / np.sqrt(var[:, None] + 1e-5) * scale[:, None] + bias[:, None]
    for weights in ((), (1, 2, 3, 4)):
        (y,) = run_node(harness, "BatchNormalization", [x, scale, bias, mean, var], weights=weights)
        assert y.dtype == narrow
        np.testing.assert_allclose(y.astype(np.float64), want, rtol=2**-7, atol=1e-3)
    half = [v.astype(narrow) for v in (scale, bias)]
    (y,) = run_node(harness, "BatchNormalization", [wide, *half, mean, var])
    want = (wide - mean[:, None]) / np.sqrt(var[:, None] + 1e-5) * half[0].astype(np.float32)[:, None]
    check(y, want + half[1].astype(np.float32)[:, None], np.float32)
    (y,) = run_node(harness, "RMSNormalization", [wide, data(4).astype(narrow)], 23)
    assert y.dtype == narrow


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 3, 4, 9, 384])
def test_rms_normalization(harness: Harness, dtype: type, n: int) -> None:
    x, scale = data(3, 5, n, dtype=dtype), data(n, dtype=dtype)
    (y,) = run_node(harness, "RMSNormalization", [x, scale], 23, split=2)
    wide = x.astype(np.float64)
    check(y, wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + float(np.float32(1e-5))) * scale, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axes", [c for k in range(1, 5) for c in itertools.combinations(range(4), k)])
def test_mean_variance_normalization(harness: Harness, dtype: type, axes: tuple[int, ...]) -> None:
    x = data(2, 3, 4, 5, dtype=dtype)
    (y,) = run_node(harness, "MeanVarianceNormalization", [x], axes=list(axes), split=2)
    deviation = x.std(axes, keepdims=True, dtype=np.float64)
    check(y, normalized(x, axes, 0) * deviation / (deviation + 1e-9), dtype)


@pytest.mark.parametrize("axis", [0, 1])
def test_lp_normalization_of_the_smallest_numbers(harness: Harness, axis: int) -> None:
    x = np.array([[1e-45, -3e-45], [0, 1e-45]], np.float32)
    (y,) = run_node(harness, "LpNormalization", [x], axis=axis, p=1)
    expected = x / np.maximum(np.abs(x).sum(axis, keepdims=True), np.float32(1e-45))
    np.testing.assert_allclose(y, expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_lp_normalization(harness: Harness, dtype: type, p: int, axis: int) -> None:
    x = data(4, 5, 7, dtype=dtype)
    x[1], x[:, 2], x[:, :, 3] = 0, 0, 0
    (y,) = run_node(harness, "LpNormalization", [x], axis=axis, p=p, split=2)
    norm = np.linalg.norm(x.astype(np.float64), p, axis, keepdims=True)
    check(y, np.divide(x, norm, out=np.zeros(x.shape), where=norm != 0), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("beta", [0.75, 0.5, 1.0, 0.6])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("shape", [(2, 6, 3, 3), (1, 3, 17)])
def test_lrn(harness: Harness, dtype: type, beta: float, size: int, shape: tuple[int, ...]) -> None:
    x = data(*shape, dtype=dtype) * 5
    (y,) = run_node(harness, "LRN", [x], size=size, beta=beta, alpha=0.25, bias=2.0, split=3)
    wide = x.astype(np.float64)
    total = np.zeros(x.shape)
    for c in range(shape[1]):
        low, high = max(0, c - (size - 1) // 2), min(shape[1], c + size // 2 + 1)
        total[:, c] = (wide[:, low:high] ** 2).sum(1)
    beta = float(np.float32(beta))
    check(y, wide / (2 + 0.25 / size * total) ** beta, dtype)


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("LRN", {"size": 5}),
        ("LpNormalization", {"p": 1, "axis": 1}),
        ("LpNormalization", {"p": 2, "axis": 2}),
        ("MeanVarianceNormalization", {"axes": [0, 2, 3]}),
    ],
)
def test_as_onnxruntime(harness: Harness, op: str, attributes: dict[str, Any]) -> None:
    x = data(2, 7, 5, 6)
    check(run_node(harness, op, [x], 13, **attributes)[0], onnxruntime_node(op, [x], 13, **attributes)[0])


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 3, 0)])
def test_no_elements(harness: Harness, shape: tuple[int, ...]) -> None:
    x, c = np.zeros(shape, np.float32), np.ones(3, np.float32)
    for op, inputs in [
        ("BatchNormalization", [x, c, c, c, c]),
        ("InstanceNormalization", [x, c, c]),
        ("LayerNormalization", [x, np.ones(shape[2], np.float32)]),
        ("LpNormalization", [x]),
    ]:
        assert run_node(harness, op, inputs)[0].shape == shape


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("weights", [(), (1, 2, 3, 4)])
def test_16_bit_floats_are_computed_as_f32(harness: Harness, weights: tuple[int, ...], dtype: type) -> None:
    inputs = [a.astype(dtype) for a in batchnorm_inputs((2, 3, 5), np.float32)]
    (y,) = run_node(harness, "BatchNormalization", inputs, weights=weights)
    (e,) = run_node(harness, "BatchNormalization", [a.astype(np.float32) for a in inputs])
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, e.astype(dtype))


def test_strict(strict_harness: Harness) -> None:
    x = data(2, 6, 5, 3)
    inputs = batchnorm_inputs(x.shape, np.float32)
    check(run_node(strict_harness, "BatchNormalization", inputs)[0], batchnorm(*inputs), np.float32)
    (y,) = run_node(strict_harness, "LayerNormalization", [x, np.ones(3, np.float32)])
    check(y, normalized(x, (3,)), np.float32)
    check(run_node(strict_harness, "LRN", [x], size=3)[0], onnxruntime_node("LRN", [x], 13, size=3)[0])


def test_types_without_a_form(harness: Harness) -> None:
    with pytest.raises(UnsupportedModelError, match="int32"):
        run_node(harness, "LpNormalization", [np.zeros((2, 3), np.int32)])
    assert dtypes.F32.short == "f32"


NODES = (
    "BatchNormalization",
    "InstanceNormalization",
    "GroupNormalization",
    "LayerNormalization",
    "RMSNormalization",
    "MeanVarianceNormalization",
    "LpNormalization",
    "LRN",
)
CASES = [c for c in node_cases(*NODES) if "training" not in c.name]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_onnx_case(harness: Harness, case: Case) -> None:
    for y, e in zip(case.run(harness), case.outputs, strict=True):
        np.testing.assert_allclose(y, e, rtol=max(case.rtol, 1e-5), atol=1e-5)


def test_onnx_cases_are_there() -> None:
    assert len(CASES) > 50


@pytest.mark.parametrize("opset", [11, 16])
def test_layer_normalization_in_opsets_that_have_none(opset: int) -> None:
    """Native onnxruntime saves optimised models with it whatever their opset."""
    feeds = {"x": data(2, 3, 8), "scale": data(8), "bias": data(8)}
    layer = graphs.node("LayerNormalization", list(feeds), ["y"], axis=-1, epsilon=0.1)
    proto = graphs.model([layer], {n: (graphs.FLOAT, a.shape) for n, a in feeds.items()}, ["y"], opset=opset)
    with ort.InferenceSession.create(proto) as session:
        y = session.run(feeds)["y"]
        np.testing.assert_allclose(y.data, graphs.native(proto, feeds)["y"], rtol=1e-5, atol=1e-6)
        y.dispose()
