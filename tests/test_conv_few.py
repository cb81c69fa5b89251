"""Convolutions to few channels or few positions, and channels that are not where the convolution made them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import graphs
import onnx_wasm as ort
from graphs import FLOAT, model
from harness import Harness
from onnx_wasm import dtypes
from onnx_wasm.context import Context, Value
from onnx_wasm.ops.conv import conv
from test_conv import check, normal

# To one or two channels.
FEW: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 3, 20, 21), (1, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((2, 3, 20, 21), (2, 3, 5, 5), {"pads": [2, 0, 1, 3]}),
    ((1, 6, 34, 35), (2, 6, 3, 2), {"dilations": [2, 3], "pads": [0, 4, 3, 0]}),
    ((1, 4, 40, 19), (1, 4, 4, 3), {"strides": [3, 1], "pads": [1, 1, 1, 1]}),
    ((1, 4, 9, 40), (1, 4, 1, 7), {"pads": [0, 3, 0, 3]}),
    ((1, 4, 3, 1500), (2, 4, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((2, 3, 2500), (1, 3, 7), {"pads": [3, 3]}),
    ((1, 5, 130), (2, 5, 3), {"pads": [4, 0], "dilations": [4]}),
    ((2, 7, 13, 11), (1, 7, 1, 1), {}),
    ((2, 7, 50, 51), (2, 7, 1, 1), {}),
    ((1, 6, 3, 7, 9), (1, 6, 1, 1, 1), {}),
    ((2, 6, 14, 15), (6, 2, 3, 3), {"group": 3, "pads": [1, 1, 1, 1]}),
    ((2, 6, 14, 15), (3, 2, 3, 3), {"group": 3}),
    ((2, 8, 14, 15), (4, 2, 1, 1), {"group": 4}),
    ((1, 3, 4, 4), (1, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((1, 3, 4, 4), (1, 3, 9, 9), {"pads": [4, 4, 4, 4]}),
]


def kernels_of(x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, Any]) -> list[str]:
    cx = Context()
    conv(cx, Value(x, dtypes.F32), Value(w, dtypes.F32, const=True), **attributes)
    return [r.kernel for r in cx.records]


@pytest.mark.parametrize(("x", "w", "attributes"), FEW)
def test_few_channels(harness: Harness, x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, Any]) -> None:
    assert kernels_of(x, w, attributes) == ["conv_few_f32"]
    check(harness, x, w, **attributes)
    check(harness, x, w, constant=False, **attributes)


@pytest.mark.parametrize("positions", [1, 2, 3, 4])
@pytest.mark.parametrize(("channels", "m"), [(5, 3), (5, 6), (40, 38), (500, 33)])
@pytest.mark.parametrize("group", [1, 2])
def test_few_positions(harness: Harness, positions: int, channels: int, m: int, group: int) -> None:
    """Fewer than the columns of a tile; of 1,500 weights in blocks."""
    check(harness, (2, channels * group, positions + 2), (m * group, channels, 3), group=group)
    check(harness, (2, channels * group, positions), (m * group, channels, 3), group=group, pads=[1, 1], bias=False)


@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((1, 3, 20, 21), (3, 3, 2, 2), {}),
        ((1, 3, 20, 21), (1, 3, 2, 2), {"strides": [1, 2]}),
        ((1, 3, 3, 3), (1, 3, 2, 2), {}),
        ((1, 2, 2, 9, 7), (1, 2, 1, 3, 3), {"strides": [4, 1, 1]}),
        ((1, 2, 90, 90), (1, 2, 23, 23), {}),
    ],
    ids=["3 channels", "strides", "4 positions", "depth", "many taps"],
)
def test_few_channels_otherwise(
    harness: Harness, x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    assert "conv_few_f32" not in kernels_of(x, w, attributes)
    check(harness, x, w, **attributes)


CHANNELS_MOVED: list[tuple[str, list[Any], tuple[int, ...]]] = [
    ("heads", [("Reshape", [1, 2, 3, 16])], ()),
    ("heads", [("Reshape", [1, 2, 3, 16])], (1, 2, 1, 1)),
    ("before", [("Unsqueeze", [0])], (1, 6, 1, 1)),
    ("none", [("Squeeze", [0])], (4, 1)),
    ("flat", [("Reshape", [1, 24, 4])], (24, 1)),
]


@pytest.mark.parametrize(("name", "move", "shape"), CHANNELS_MOVED)
@pytest.mark.parametrize("op", ["Mul", "Add", "Div", "Sub"])
@pytest.mark.parametrize("made_by", ["Conv", "ConvTranspose", "MatMul"])
def test_channels_of_another_shape_are_no_channels(
    name: str, move: list[Any], shape: tuple[int, ...], op: str, made_by: str
) -> None:
    """What goes into the weights must go along the axis that they make."""
    x, w = normal(1, 5, 4, 4), normal(6, 5, 1, 1, seed=1)
    c = np.abs(normal(*shape, seed=2)).astype(np.float32) + 0.5
    kind, values = move[0]
    weights = {"w": w, "moved": np.array(values), "c": np.asarray(c, np.float32), "flat": np.array([16, 5])}
    if made_by == "ConvTranspose":
        weights["w"] = w.transpose(1, 0, 2, 3).copy()
    nodes = [helper.make_node(made_by, ["x", "w"], ["a"])]
    if made_by == "MatMul":
        weights["w"], weights["back"] = w[:, :, 0, 0].T.copy(), np.array([1, 6, 4, 4])
        nodes = [
            helper.make_node("Reshape", ["x", "flat"], ["f"]),
            helper.make_node("MatMul", ["f", "w"], ["p"]),
            helper.make_node("Reshape", ["p", "back"], ["a"]),
        ]
    nodes += [helper.make_node(kind, ["a", "moved"], ["b"]), helper.make_node(op, ["b", "c"], ["y"])]
    data = model(nodes, {"x": (FLOAT, x.shape)}, ["y"], weights)
    (wanted,) = graphs.native(data, {"x": x}).values()
    with ort.InferenceSession.create(data) as session:
        np.testing.assert_allclose(session.run({"x": x})["y"].get_data(release_data=True), wanted, rtol=1e-4, atol=1e-5)
