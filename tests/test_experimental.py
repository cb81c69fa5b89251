"""Operators that only ONNX Runtime still knows, up to opset 9."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import graphs
import microsoft_nodes
import onnx_wasm as ort

chance = np.random.default_rng(29)
POINTWISE: list[tuple[str, dict[str, Any]]] = [
    ("Affine", {}),
    ("Affine", {"alpha": 1.75, "beta": -0.3}),
    ("Scale", {}),
    ("Scale", {"scale": -0.3}),
    ("ScaledTanh", {"alpha": 1.7159, "beta": 2 / 3}),
    ("ParametricSoftplus", {"alpha": 2.5, "beta": -1.5}),
]


def normal(*shape: int) -> np.ndarray:
    return chance.normal(0, 4, shape).astype(np.float32)


def check(op: str, inputs: list[np.ndarray], *args: Any, opset: int = 7, **attributes: Any) -> list[np.ndarray]:
    return microsoft_nodes.check(op, inputs, *args, domain="", opset=opset, **attributes)


def fails(op: str, inputs: list[np.ndarray], message: str, **attributes: Any) -> None:
    microsoft_nodes.fails(op, inputs, message, domain="", opset=7, **attributes)


@pytest.mark.parametrize(("op", "attributes"), POINTWISE)
@pytest.mark.parametrize("shape", [(), (0, 3), (14,), (3, 4, 5), (2, 3, 50, 61)])
def test_pointwise(op: str, attributes: dict[str, Any], shape: tuple[int, ...]) -> None:
    x = np.asarray(normal(*shape))
    if shape == (14,):
        x[:] = [-200, -60, -20, -1, -0.0, 0, 1e-30, 5, 20, 60, 200, np.nan, np.inf, -np.inf]
    for opset in (1, 9):
        for constants in ((), (0,)):
            check(op, [x], constants, 2e-6, opset=opset, **attributes)
    check(op, [x.astype(np.float16)], (), 2e-3, kinds=[np.float16], **attributes)
    wide = microsoft_nodes.ours(op, [x.astype(np.float64)], (), [np.float64], "", 7, **attributes)[0]
    narrow = microsoft_nodes.ours(op, [x], (), [np.float32], "", 7, **attributes)[0]
    np.testing.assert_allclose(narrow, wide, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("op", ["ScaledTanh", "ParametricSoftplus"])
def test_what_has_no_default(op: str) -> None:
    for attributes in ({}, {"alpha": 1.0}, {"beta": 1.0}):
        fails(op, [normal(3)], "missing attributes", **attributes)


@pytest.mark.parametrize("shape", [(1, 3, 5, 6), (2, 3, 40, 41), (0, 3, 2, 2), (2, 3, 1, 1), (1, 3, 0, 4)])
def test_image_scaler(shape: tuple[int, ...]) -> None:
    for attributes in ({"bias": [1.5, -2.0, 0.0]}, {"bias": [-0.1, 0.2, 0.3], "scale": 1 / 255}):
        check("ImageScaler", [normal(*shape)], (), 2e-6, **attributes)
        check("ImageScaler", [normal(*shape).astype(np.float16)], (), 2e-3, kinds=[np.float16], **attributes)


def test_images_that_do_not_fit() -> None:
    fails("ImageScaler", [normal(1, 3, 4, 4)], "bias has 2 elements", bias=[1.0, 2.0])
    fails("ImageScaler", [normal(3, 4, 4)], r"must be \[N, C, H, W\]", bias=[1.0, 2.0, 3.0])
    fails("ImageScaler", [normal(1, 3, 4, 4)], r"missing attributes \['bias'\]")


@pytest.mark.parametrize(
    "attributes",
    [
        {"border": [0, 0, 0, 0]},
        {"border": [1, 0, 1, 1]},
        {"border": [2, 1, 2, 1]},
        {"border": [1, 0, 1, 1], "scale": [2, 2]},
        {"border": [3, 0, 2, 0], "scale": [2, 1]},
        {"border": [0, 3, 0, 0], "scale": [0, 4]},
    ],
)
def test_crop(attributes: dict[str, Any]) -> None:
    for dtype in (np.float32, np.float16):
        for batch in (0, 2):
            for constants in ((), (0,)):
                x = normal(batch, 3, 3, 4).astype(dtype)
                check("Crop", [x], constants, kinds=[dtype], **attributes)


def test_crops_that_do_not_fit() -> None:
    x = normal(1, 2, 3, 4)
    for attributes in ({"border": [1, 1, 1]}, {"border": [-1, 0, 1, 1]}, {"border": [0, 0, 0, 0], "scale": [2]}):
        fails("Crop", [x], "must be four sizes", **attributes)
    fails("Crop", [x], "must be four sizes", border=[1, 0, 1, 1], scale=[-1, 2])
    fails("Crop", [x], "columns 3 to 2 are not in", border=[3, 0, 2, 0])
    fails("Crop", [x], "rows 2 to 4 and columns 0 to 1 are not in", border=[0, 2, 0, 0], scale=[2, 1])
    fails("Crop", [x[0]], r"must be \[N, C, H, W\]", border=[0, 0, 0, 0])


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_dynamic_slice(index: Any) -> None:
    def bounds(*values: list[int]) -> list[np.ndarray]:
        return [np.array(v, index) for v in values]

    for dtype in (np.float32, np.int8, np.bool_, np.int64):
        x = chance.integers(-9, 9, (4, 6)).astype(dtype)
        for given in (
            bounds([1, 0], [3, 3]),
            bounds([-3], [1000], [-1]),
            bounds([2, 1], [-1, 1 << 30], [1, 0]),
            bounds([3], [1]),
        ):
            for constants in ((), range(1, len(given) + 1)):
                check("DynamicSlice", [x, *given], constants, kinds=[dtype], opset=9)
    words = np.array([["a", "b"], ["c", "d"]], object)
    check("DynamicSlice", [words, *bounds([1], [2])], kinds=[object])
    fails("DynamicSlice", [normal(2, 3), *bounds([1, 1, 1], [2, 2, 2])], "axis 2 out of range")


def test_scaling_is_folded_into_a_convolution() -> None:
    """As in the models of CoreML's exporter, where an ImageScaler comes first, and others anywhere."""
    nodes = [
        graphs.node("ImageScaler", ["x"], ["s"], bias=[-0.4, 0.1, 0.2], scale=0.02),
        graphs.node("Conv", ["s", "w"], ["c"]),
        graphs.node("ImageScaler", ["c"], ["d"], bias=[1.0, 2.0, 3.0, 4.0], scale=0.5),
        graphs.node("Affine", ["d"], ["a"], alpha=3.0, beta=1.0),
        graphs.node("ScaledTanh", ["a"], ["t"], alpha=2.0, beta=0.1),
        graphs.node("Crop", ["t"], ["y"], border=[1, 1, 0, 0]),
    ]
    weights = {"w": normal(4, 3, 3, 3)}
    data = graphs.model(nodes, {"x": (graphs.FLOAT, [None, 3, None, None])}, ["y"], weights, opset=9, ir_version=3)
    proto = onnx.load_from_string(data)
    for name in weights:
        proto.graph.input.append(onnx.helper.make_tensor_value_info(name, graphs.FLOAT, weights[name].shape))
    data = proto.SerializeToString()
    with ort.Runtime() as runtime:
        with ort.InferenceSession.create(data, runtime=runtime) as session:
            for size in (8, 31, 8, 9):
                x = normal(2, 3, size, size + 1)
                with session.run({"x": x})["y"] as y:
                    np.testing.assert_allclose(y.data, graphs.native(data, {"x": x})["y"], rtol=1e-5, atol=1e-5)
        assert runtime.memory().used == 0
