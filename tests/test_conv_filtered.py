"""Convolution by Winograd's filtering, with dilation and without: its values, and when it is used."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import graphs
import onnx_wasm as ort
from graphs import FLOAT, model
from harness import Harness
from onnx_wasm import dtypes
from onnx_wasm.context import Context, Value
from onnx_wasm.model import Node
from onnx_wasm.ops import _winograd
from onnx_wasm.ops import conv as conv_module
from onnx_wasm.ops._convolution import Geometry
from onnx_wasm.ops.conv import conv
from test_conv import FILTERED, check, normal, reference


@st.composite
def filterable(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    r, group = draw(st.sampled_from([3, 5])), draw(st.integers(1, 3))
    if draw(st.integers(0, 4)) == 0:
        c, m, pads, q = (
            draw(st.integers(2, 20)),
            draw(st.integers(1, 40)),
            [draw(st.integers(0, 3))] * 2,
            draw(st.sampled_from([1, 2, 3, 11])),
        )
        x = (draw(st.integers(1, 2)), group * c, draw(st.integers((r - 1) * q + 1, 300)))
        return x, (group * m, c, r), {"pads": pads, "group": group, "dilations": [q]}
    kernel = draw(st.permutations([r, draw(st.sampled_from([r, 1, 2, 7]))]))
    pads = draw(st.lists(st.integers(0, 3), min_size=4, max_size=4))
    dilations = draw(st.sampled_from([[1, 1], [1, 1], [2, 1], [1, 2], [3, 2], [2, 5]]))
    size = [
        draw(st.integers(max(1, (k - 1) * q + 1 - pads[i] - pads[i + 2]), edge))
        for i, (k, q, edge) in enumerate(zip(kernel, dilations, draw(st.permutations([40, 150])), strict=True))
    ]
    c, m = draw(st.integers(2, 20)), draw(st.integers(1, 40))
    x = (draw(st.integers(1, 2)), group * c, *size)
    return x, (group * m, c, *kernel), {"pads": pads, "group": group, "dilations": dilations}


def forced(first: str) -> Callable[..., _winograd.Filtering]:
    """`_winograd._filtered`, but with what is asked for brought to the points first."""
    filtered = _winograd._filtered

    def choose(way: _winograd.Way, g: Geometry, *args: Any) -> _winograd.Filtering:
        how, (rows, cols), m = filtered(way, g, *args), way.tiles(g), args[3]
        if first == "inputs":
            how = how._replace(rows=rows, cols=cols, per_image=-(-m // 8))
        else:
            across = min(cols, 24)
            how = how._replace(rows=1, cols=across, per_image=rows * -(-cols // across))
        return how._replace(inputs_first=first == "inputs", weights_first=first == "weights")

    return choose


@pytest.mark.parametrize("first", ["inputs", "weights", "neither"])
@settings(max_examples=99, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=filterable(), bias=st.booleans(), constant=st.booleans())
def test_filtering(
    harness: Harness,
    first: str,
    case: tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]],
    bias: bool,
    constant: bool,
) -> None:
    """Shapes for which the plain product would be quicker, too, and all ways to the points."""
    used: list[str] = []
    call = harness.call

    def note(kernel: str, *args: Any, **kwargs: Any) -> None:
        used.append(kernel)
        call(kernel, *args, **kwargs)

    x, w, attributes = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_winograd, "GAIN", np.inf)
        patch.setattr(conv_module, "FEW_ROWS", 0)
        patch.setattr(conv_module, "within", lambda g: (g, ()))
        patch.setattr(_winograd, "_filtered", forced(first))
        patch.setattr(harness, "call", note)
        check(harness, x, w, bias=bias, constant=constant, error=FILTERED, **attributes)
    assert "winograd_f32" in used
    assert ("winograd_input_f32" in used) is (first == "inputs")
    assert any(kernel.startswith("winograd_weights") for kernel in used) is (first == "weights")


@pytest.mark.parametrize(
    ("x", "w", "first"),
    [
        ((1, 64, 56, 56), (64, 64, 3, 3), "winograd_weights3_f32"),
        ((2, 32, 30, 30), (64, 16, 5, 5), "winograd_weights5_f32"),
        ((1, 256, 14, 14), (256, 256, 3, 3), "winograd_input_f32"),
        ((1, 512, 28, 28), (512, 512, 3, 3), "winograd_input_f32"),
        ((1, 24, 74, 32), (24, 24, 1, 3), "winograd_weights3x1_f32"),
        ((1, 256, 1024), (256, 256, 3), "winograd_input_f32"),
        ((1, 256, 512, 1), (512, 256, 5, 1), "winograd_input_f32"),
        ((1, 8, 172, 264), (8, 8, 3, 39), "winograd_weights3x1_f32"),
        ((1, 3, 224, 224), (64, 3, 3, 3), "conv_f32"),
        ((1, 64, 5, 5), (64, 64, 3, 3), "conv_f32"),
    ],
)
def test_when_filtering_is_used_and_what_it_takes(x: tuple[int, ...], w: tuple[int, ...], first: str) -> None:
    cx = Context(weights=64 << 20)
    cx.node = Node("Conv", "c", index=0)
    value = Value(x, dtypes.F32)
    pads = [size // 2 for size in w[2:]] * 2
    y = conv(cx, value, Value(w, dtypes.F32, const=True), pads=pads, group=x[1] // w[1])
    assert cx.records[0].kernel == first
    *before, last = cx.records
    shared = [a for record in before for a in record.args.values() if isinstance(a, Value) and a in last.values()]
    made = sum(a.nbytes for a in shared if a.root not in (value, y) and not a.const)
    assert made <= 4.5 * min(math.prod(x), math.prod(w)) * 4


@pytest.mark.parametrize("shapes", [((1, 20, 96, 300), (200, 20, 96, 3)), ((1, 512, 28, 28), (512, 512, 3, 3))])
def test_filtering_takes_little_beside_what_there_is(
    harness: Harness, shapes: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    x, w = shapes
    cx = Context()
    cx.node = Node("Conv", "c", index=0)
    pads = [0, 1, 0, 1] if w[2] > 3 else [1, 1, 1, 1]
    y = conv(cx, Value(x, dtypes.F32), Value(w, dtypes.F32, const=True), pads=pads)
    (record,) = cx.records
    assert record.kernel == "winograd_f32"
    assert record.args["scratch"].nbytes <= max(3 << 20, (math.prod(x) + y.size) * 4)
    check(harness, x, w, error=FILTERED, pads=pads)


def test_an_infinity_does_not_reach_other_tiles(harness: Harness) -> None:
    x = normal(1, 32, 40, 40)
    x[0, 5, 0, 0] = np.inf
    w = normal(32, 32, 3, 3, seed=1)
    y = harness.op(conv, [x, w], weights=(1,), pads=[1, 1, 1, 1])
    assert np.isnan(y[..., :4, :4]).all()
    expected = reference(x, w, pads=[1, 1, 1, 1])
    np.testing.assert_allclose(y[..., 4:, :], expected[..., 4:, :], rtol=3e-5, atol=1e-4)
    np.testing.assert_allclose(y[..., :4, 4:], expected[..., :4, 4:], rtol=3e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("x", "w", "dilations", "filtered"),
    [
        ((1, 32, 498, 64), (64, 32, 3, 3), [2, 1], True),
        ((1, 32, 98, 64), (64, 32, 3, 3), [2, 2], True),
        ((1, 128, 7500), (128, 128, 3), [5], True),
        # Few columns of a cache line are of one phase; phases of less than a tile.
        ((1, 128, 7500), (128, 128, 3), [64], False),
        ((1, 256, 33, 33), (64, 256, 3, 3), [24, 24], False),
    ],
)
def test_dilated_convolutions_are_filtered_where_it_pays(
    x: tuple[int, ...], w: tuple[int, ...], dilations: list[int], filtered: bool
) -> None:
    cx = Context(weights=64 << 20)
    cx.node = Node("Conv", "c", index=0)
    conv(cx, Value(x, dtypes.F32), Value(w, dtypes.F32, const=True), pads=dilations * 2, dilations=dilations)
    assert (cx.records[-1].kernel == "winograd_f32") is filtered


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("planned", [True, False])
@pytest.mark.parametrize("dilations", [[2, 1], [1, 2], [3, 3]])
def test_dilated_layers_in_a_model(threads: int, planned: bool, dilations: list[int]) -> None:
    """With what is fused into them, or is not."""
    nodes = [
        graphs.node("Conv", ["x", "w", "b"], ["c"], dilations=dilations, pads=dilations * 2),
        graphs.node("Mul", ["c", "scale"], ["s"]),
        graphs.node("Add", ["s", "x"], ["a"]),
        graphs.node("LeakyRelu", ["a"], ["l"], alpha=0.1),
        graphs.node("Conv", ["l", "w", "b"], ["d"], dilations=dilations, pads=dilations * 2),
        graphs.node("Relu", ["d"], ["y"]),
    ]
    weights = {"w": normal(32, 32, 3, 3, seed=1), "b": normal(32, seed=2), "scale": normal(32, 1, 1, seed=3)}
    data = model(nodes, {"x": (FLOAT, [2, 32, 60, 70])}, ["y"], weights, opset=17, ir_version=8)
    x = normal(2, 32, 60, 70)
    expected = graphs.native(data, {"x": x})["y"]
    with (
        ort.Runtime(threads=threads) as runtime,
        ort.InferenceSession.create(data, runtime=runtime, enable_mem_pattern=planned) as session,
    ):
        for _ in range(2):
            y = session.run({"x": x})["y"].get_data(True)
            np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())
