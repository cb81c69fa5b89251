"""Convolutions of 8-bit integers by Winograd's filtering: to the bit what the plain product makes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
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
from onnx_wasm.ops import qlinear_conv as module
from onnx_wasm.ops.conv import conv
from onnx_wasm.ops.qlinear_conv import MOST_CHANNELS, conv_integer, qlinear_conv
from test_quantize_conv import TYPES


def integers(shape: tuple[int, ...], dtype: Any, seed: int) -> np.ndarray:
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max + 1, shape).astype(dtype)


def kernels(harness: Harness, patch: pytest.MonkeyPatch) -> list[str]:
    """Those that are called from now on."""
    used: list[str] = []
    call = harness.call

    def note(kernel: str, *args: Any, **kwargs: Any) -> None:
        used.append(kernel)
        call(kernel, *args, **kwargs)

    patch.setattr(harness, "call", note)
    return used


@settings(max_examples=99, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    types=st.sampled_from(TYPES),
    sizes=st.tuples(st.integers(1, 40), st.integers(1, 70)),
    pads=st.lists(st.integers(1, 3), min_size=4, max_size=4),
    counts=st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 12), st.integers(1, 20)),
    tiles=st.sampled_from([16, 256]),
    zeros=st.booleans(),
)
def test_sums(
    harness: Harness,
    types: tuple[Any, Any],
    sizes: tuple[int, int],
    pads: list[int],
    counts: tuple[int, int, int, int],
    tiles: int,
    zeros: bool,
) -> None:
    batch, group, half, m = counts
    x, w = integers((batch, group * half * 2, *sizes), types[0], 1), integers((group * m, half * 2, 3, 3), types[1], 2)
    x_zero, w_zero = integers((), types[0], 3), integers((group * m,), types[1], 4)
    how: dict[str, Any] = {"pads": pads, "group": group}
    wide = w.astype(np.float64) - (w_zero.reshape(-1, 1, 1, 1) if zeros else 0)
    expected = harness.op(conv, [x.astype(np.float64) - (x_zero if zeros else 0.0), wide], **how)
    inputs = [x, w, x_zero, w_zero] if zeros else [x, w, None, None]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST_TILES", tiles)
        patch.setattr(module, "_pays", lambda *_: True)
        used = kernels(harness, patch)
        y = harness.op(conv_integer, inputs, **how)
        split = harness.op(conv_integer, inputs, weights=(1, 3) if zeros else (1,), split=3, **how)
    assert f"qwinograd_{'u8' if types[0] is np.uint8 else 'i8'}" in used
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(split, y)


@pytest.mark.parametrize("extremes", [(255, 0, -128, 127), (0, 255, -128, 127), (255, 0, 127, -128), (255, 0, 127, 0)])
def test_the_largest_sums_fit(harness: Harness, extremes: tuple[int, int, int, int]) -> None:
    value, x_zero, weight, w_zero = extremes
    x = np.full((1, MOST_CHANNELS, 5, 6), value, np.uint8)
    w = np.full((5, MOST_CHANNELS, 3, 3), weight, np.int8)
    with pytest.MonkeyPatch.context() as patch:
        used = kernels(harness, patch)
        y = harness.op(conv_integer, [x, w, np.uint8(x_zero), np.full(5, w_zero, np.int8)], pads=[1, 1, 1, 1])
    assert "qwinograd_u8" in used
    taps = np.pad(np.ones((5, 6), int), 1)
    taps = sum(taps[i : i + 5, j : j + 6] for i in range(3) for j in range(3))
    np.testing.assert_array_equal(
        y, np.broadcast_to(taps * MOST_CHANNELS * (value - x_zero) * (weight - w_zero), y.shape)
    )


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("out", [np.uint8, np.int8])
@pytest.mark.parametrize("bias", [False, True])
def test_rounded(harness: Harness, types: tuple[Any, Any], out: Any, bias: bool) -> None:
    x, w = integers((2, 24, 13, 17), types[0], 1), integers((11, 24, 3, 3), types[1], 2)
    scales = np.random.default_rng(5).uniform(0.001, 0.003, 11).astype(np.float32)
    b = np.arange(-5, 6, dtype=np.int32) * 100 if bias else None
    x_zero, w_zero = integers((), types[0], 3), integers((11,), types[1], 4)
    inputs = [x, np.float32(0.02), x_zero, w, scales, w_zero, np.float32(0.2), out(7), b]
    made = []
    for filtered in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "_is_filtered", lambda *_, way=filtered: way)
            made.append(harness.op(qlinear_conv, inputs, pads=[1, 1, 1, 1]))
    np.testing.assert_array_equal(*made)
    assert len(np.unique(made[0])) > 100


def test_strict(strict_harness: Harness) -> None:
    x, w = integers((1, 16, 20, 20), np.uint8, 1), integers((8, 16, 3, 3), np.int8, 2)
    expected = strict_harness.op(conv, [x.astype(np.float64), w.astype(np.float64)], pads=[1, 1, 1, 1])
    np.testing.assert_array_equal(strict_harness.op(conv_integer, [x, w], pads=[1, 1, 1, 1]), expected)


@pytest.mark.parametrize(
    ("x", "w", "filtered"),
    [
        ((1, 64, 56, 56), (64, 64, 3, 3), True),
        ((1, 256, 14, 14), (256, 256, 3, 3), True),
        ((1, MOST_CHANNELS, 7, 7), (32, MOST_CHANNELS, 3, 3), True),
        ((1, MOST_CHANNELS + 2, 7, 7), (32, MOST_CHANNELS + 2, 3, 3), False),
        ((1, 3, 112, 112), (32, 3, 3, 3), False),
        ((1, 2, 56, 56), (32, 2, 3, 3), False),
        ((1, 64, 56, 56), (64, 64, 1, 3), False),
        ((1, 256, 3, 3), (256, 256, 3, 3), False),
    ],
)
def test_when_it_is_used_and_what_it_takes(x: tuple[int, ...], w: tuple[int, ...], filtered: bool) -> None:
    cx = Context(weights=64 << 20)
    cx.node = Node("ConvInteger", "c", index=0)
    pads = [size // 2 for size in w[2:]] * 2
    conv_integer(cx, Value(x, dtypes.U8), Value(w, dtypes.I8, const=True), pads=pads)
    assert (cx.records[-1].kernel == "qwinograd_u8") is filtered
    assert cx.records[-1].args["scratch"].nbytes < 2 << 20


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("planned", [True, False])
def test_in_a_model(threads: int, planned: bool) -> None:
    nodes = [
        graphs.node("ConvInteger", ["x", "w", "zero"], ["s"], pads=[1, 1, 1, 1]),
        graphs.node("Cast", ["s"], ["y"], to=FLOAT),
    ]
    weights = {"w": integers((30, 32, 3, 3), np.int8, 1), "zero": np.array(9, np.uint8)}
    data = model(nodes, {"x": (onnx.TensorProto.UINT8, ["n", 32, "h", "w"])}, ["y"], weights, opset=17, ir_version=8)
    with ort.Runtime(threads=threads) as runtime:
        session = ort.InferenceSession.create(data, runtime=runtime, enable_mem_pattern=planned)
        for shape in ((1, 32, 40, 41), (3, 32, 9, 7), (0, 32, 9, 9), (1, 32, 1, 1)):
            x = integers(shape, np.uint8, 2)
            y = session.run({"x": x})["y"].get_data(True)
            assert y.shape == (shape[0], 30, *shape[2:])
            if x.size:
                np.testing.assert_array_equal(y, graphs.native(data, {"x": x})["y"])
        session.dispose()
        runtime.heap_check()
        assert runtime.memory().used == 0
