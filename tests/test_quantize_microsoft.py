from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import graphs
from harness import Harness
from onnx_nodes import registry
from onnx_wasm.context import Context
from onnx_wasm.errors import OnnxWasmError

DOMAIN = "com.microsoft"
RNG = np.random.default_rng(0)
Inputs = Sequence[np.ndarray | None]


def native(op_type: str, inputs: Inputs, **attributes: Any) -> np.ndarray:
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    feeds = {n: x for n, x in zip(names, inputs, strict=True) if x is not None}
    data = graphs.model(
        [graphs.node(op_type, names, ["y"], domain=DOMAIN, **attributes)],
        {n: (helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in feeds.items()},
        [],
        domains={DOMAIN: 1},
    )
    model = onnx.load_from_string(data)
    model.graph.output.append(onnx.ValueInfoProto(name="y"))
    return graphs.native(model.SerializeToString(), feeds)["y"]


def ours(
    harness: Harness, op_type: str, inputs: Inputs, *, weights: Sequence[int] = (), split: int = 1, **attributes: Any
) -> np.ndarray:
    form = registry.find(DOMAIN, op_type, 1)
    assert form is not None

    def function(cx: Context, *args: Any) -> Any:
        cx.node = replace(cx.node, op_type=op_type, outputs=("y",))
        return form.function(cx, *args, **attributes)

    return harness.op(function, inputs, weights=weights, split=split)


def check(
    harness: Harness,
    op_type: str,
    inputs: Inputs,
    *,
    weights: Sequence[int] = (),
    steps: int = 0,
    rtol: float = 0.0,
    atol: float = 0.0,
    **attributes: Any,
) -> None:
    """The same as onnxruntime: a quantized result up to ``steps``, a float one up to the tolerances."""
    expected = native(op_type, inputs, **attributes)
    y = ours(harness, op_type, inputs, split=2, **attributes)
    assert (y.dtype, y.shape) == (expected.dtype, expected.shape)
    if y.dtype.kind == "f":
        np.testing.assert_allclose(y, expected, rtol, atol)
    else:
        difference = np.abs(y.astype(int) - expected.astype(int))
        assert difference.max(initial=0) <= steps
        assert (difference != 0).mean() <= 0.02
    constant = ours(harness, op_type, inputs, weights=weights or range(1, len(inputs)), **attributes)
    assert constant.tobytes() == y.tobytes()


def integers(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max + 1, shape).astype(dtype)


def scalar(value: float) -> np.ndarray:
    return np.array(value, np.float32)


def uniform(low: float, high: float, shape: tuple[int, ...]) -> np.ndarray:
    return np.asarray(RNG.uniform(low, high, shape), np.float32)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16])
def test_quantize_and_dequantize(harness: Harness, dtype: Any) -> None:
    x = RNG.normal(0, 50, (3, 4, 9)).astype(np.float32)
    for scale, zero, attributes in (
        (scalar(0.37), integers((), dtype), {}),
        (uniform(0.2, 1, (4,)), integers((4,), dtype), {"axis": 1}),
        (uniform(0.2, 1, (9,)), integers((9,), dtype), {"axis": -1}),
    ):
        check(harness, "QuantizeLinear", [x, scale, zero], **attributes)
        check(harness, "DequantizeLinear", [integers(x.shape, dtype), scale, zero], **attributes)


@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("b_type", [np.int8, np.uint8])
@pytest.mark.parametrize("shapes", [((5, 33), (33, 20)), ((2, 3, 40), (40, 9)), ((2, 3, 8), (2, 8, 5))])
def test_products_to_float(harness: Harness, shapes: Any, b_type: Any, per_column: bool) -> None:
    n = shapes[1][-1]
    columns = (n,) if per_column else ()
    if per_column and len(shapes[1]) == 3:
        columns = (shapes[1][0], 1, n)
    b, b_scale, b_zero = integers(shapes[1], b_type), uniform(0.01, 0.03, columns), integers(columns, b_type)
    bias = RNG.normal(0, 1, n).astype(np.float32)
    # onnxruntime has no int8 times uint8.
    for a_type in (np.uint8, np.int8)[: 2 if b_type is np.int8 else 1]:
        inputs = [integers(shapes[0], a_type), b, scalar(0.02), b_scale, integers((), a_type), b_zero]
        check(harness, "MatMulIntegerToFloat", inputs, rtol=1e-6, atol=1e-6)
        check(harness, "MatMulIntegerToFloat", [*inputs, bias], rtol=1e-6, atol=1e-5)
    a = RNG.normal(0, 2, shapes[0]).astype(np.float32)
    check(harness, "DynamicQuantizeMatMul", [a, b, b_scale, b_zero], rtol=1e-6, atol=1e-5)
    check(harness, "DynamicQuantizeMatMul", [a, b, b_scale, b_zero, bias], rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("transposed", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("types", [(np.uint8, np.int8), (np.uint8, np.uint8), (np.int8, np.int8)])
def test_qgemm(harness: Harness, types: tuple[Any, Any], transposed: tuple[int, int]) -> None:
    m, k, n = 6, 37, 19
    a, b = integers((m, k), types[0]), integers((k, n), types[1])
    a, b = a.T.copy() if transposed[0] else a, b.T.copy() if transposed[1] else b
    attributes = {"transA": transposed[0], "transB": transposed[1], "alpha": 0.75}
    per_column = (n,) if types[1] is np.int8 else ()
    inputs: list[Any] = [a, scalar(0.02), integers((), types[0]), b, uniform(0.01, 0.02, per_column)]
    inputs.append(integers(per_column, types[1]))
    check(harness, "QGemm", [*inputs, None], rtol=1e-6, atol=1e-5, **attributes)
    for shape in ((), (n,), (1, n), (m, 1), (m, n)):
        c = RNG.integers(-9999, 9999, shape).astype(np.int32)
        check(harness, "QGemm", [*inputs, c], rtol=1e-6, atol=1e-5, **attributes)
        check(harness, "QGemm", [*inputs, c, scalar(0.3), integers((), types[0])], steps=1, **attributes)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
def test_binary(harness: Harness, op: str, dtype: Any) -> None:
    for a, b in (((5, 67), (5, 67)), ((3, 1, 9), (4, 1)), ((40,), ()), ((), (7, 3))):
        inputs = [
            integers(a, dtype), scalar(0.0317), integers((), dtype), integers(b, dtype), scalar(0.0511),
            integers((), dtype), scalar(0.0723), integers((), dtype),
        ]  # fmt: skip
        check(harness, op, inputs, steps=1)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_tables(harness: Harness, dtype: Any) -> None:
    x = integers((3, 4, 100), dtype)
    inputs = [x, scalar(0.05), integers((), dtype), scalar(1 / 256), integers((), dtype)]
    check(harness, "QLinearSigmoid", inputs, steps=1)
    inputs[3] = scalar(0.06)
    check(harness, "QLinearLeakyRelu", inputs, steps=1, alpha=0.1)
    check(harness, "QLinearLeakyRelu", [*inputs[:2], None, *inputs[3:]], steps=1)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_concat_and_where(harness: Harness, dtype: Any) -> None:
    target = [scalar(0.05), np.array(9, dtype)]
    inputs: list[Any] = [*target]
    for extent, scale in ((3, 0.05), (1, 0.03), (5, 0.09)):
        inputs += [integers((2, extent, 7), dtype), scalar(scale), integers((), dtype)]
    check(harness, "QLinearConcat", inputs, steps=1, axis=1)
    chosen = RNG.integers(0, 2, (2, 3, 7)).astype(bool)
    inputs = [chosen, *inputs[2:5], integers((3, 1), dtype), scalar(0.04), np.array(3, dtype), *target]
    check(harness, "QLinearWhere", inputs, steps=1)


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_pooling(harness: Harness, dtype: Any, last: int) -> None:
    shape = (2, 9, 10, 5) if last else (2, 5, 9, 10)
    inputs = [integers(shape, dtype), scalar(0.0511), integers((), dtype), scalar(0.0413), integers((), dtype)]
    check(harness, "QLinearGlobalAveragePool", inputs, steps=1, channels_last=last)
    for more in ({}, {"strides": [2, 2], "pads": [1, 0, 1, 1]}, {"pads": [1, 1, 1, 1], "count_include_pad": 1}):
        check(harness, "QLinearAveragePool", inputs, steps=1, channels_last=last, kernel_shape=[3, 2], **more)
    if last:
        check(harness, "NhwcMaxPool", inputs[:1], kernel_shape=[3, 2], strides=[2, 1], pads=[1, 1, 1, 0])


@pytest.mark.parametrize("last", [0, 1])
def test_convolution_with_channels_last(harness: Harness, last: int) -> None:
    x, w = integers((2, 4, 9, 10), np.uint8), integers((6, 4, 3, 3), np.int8)
    x = np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if last else x
    inputs = [
        x, scalar(0.02), integers((), np.uint8), w, uniform(0.01, 0.02, (6,)), np.zeros(6, np.int8), scalar(0.1),
        integers((), np.uint8), RNG.integers(-999, 999, 6).astype(np.int32),
    ]  # fmt: skip
    check(harness, "QLinearConv", inputs, channels_last=last, pads=[1, 1, 1, 1], kernel_shape=[3, 3])


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize(("axis", "opset"), [(-1, 13), (1, 13), (1, 12)])
def test_softmax(harness: Harness, axis: int, opset: int, dtype: Any) -> None:
    zero = np.array(0 if dtype is np.uint8 else -128, dtype)
    inputs = [integers((3, 5, 8), dtype), scalar(0.05), integers((), dtype), scalar(1 / 256), zero]
    check(harness, "QLinearSoftmax", inputs, steps=1, axis=axis, opset=opset)


@pytest.mark.parametrize("keepdims", [0, 1])
def test_mean(harness: Harness, keepdims: int) -> None:
    x = integers((2, 3, 4, 5), np.uint8)
    scale, zero = scalar(0.05), integers((), np.uint8)
    y = ours(harness, "QLinearReduceMean", [x, scale, zero, scale, zero], axes=[1, -1], keepdims=keepdims)
    expected = np.rint((x.astype(float) - zero).mean((1, 3), keepdims=bool(keepdims))) + zero
    assert y.shape == expected.shape
    assert np.abs(y.astype(int) - expected).max() <= 1


NBITS = [
    (4, 16, 64, 24),
    (4, 32, 100, 9),
    (4, 128, 300, 5),
    (8, 16, 50, 9),
    (8, 32, 64, 7),
    (2, 16, 48, 6),
    (2, 64, 200, 5),
]


def nbits(bits: int, block: int, k: int, n: int, zeros: str) -> tuple[list[Any], np.ndarray]:
    """B, scales and zero points of one kind, and the weights [k, n] that they stand for."""
    blocks = -(-k // block)
    codes = RNG.integers(0, 1 << bits, (n, blocks * block)).astype(np.uint8)
    scale = uniform(0.05, 0.2, (n, blocks))
    packed = pack(codes, bits).reshape(n, blocks, block * bits // 8)
    zero: Any = None
    middle = np.full((n, blocks), 1 << (bits - 1), np.float32)
    if zeros == "packed":
        values = RNG.integers(0, 1 << bits, (n, blocks)).astype(np.uint8)
        middle, zero = values.astype(np.float32), pack(values, bits)
    elif zeros == "float":
        middle = zero = uniform(0, 1 << bits, (n, blocks))
    weights = (codes.astype(np.float32) - np.repeat(middle, block, 1)) * np.repeat(scale, block, 1)
    return [packed, scale, zero], weights[:, :k].T


def pack(codes: np.ndarray, bits: int) -> np.ndarray:
    per = 8 // bits
    padded = np.pad(codes, ((0, 0), (0, -codes.shape[1] % per))).reshape(codes.shape[0], -1, per)
    return (padded << np.arange(0, 8, bits, dtype=np.uint8)).sum(2).astype(np.uint8)


@pytest.mark.parametrize("zeros", ["none", "packed", "float"])
@pytest.mark.parametrize(("bits", "block", "k", "n"), NBITS)
def test_narrow_weights(harness: Harness, bits: int, block: int, k: int, n: int, zeros: str) -> None:
    inputs, weights = nbits(bits, block, k, n, zeros)
    attributes = {"K": k, "N": n, "bits": bits, "block_size": block}
    bias = RNG.normal(0, 1, n).astype(np.float32)
    for shape in ((1, k), (3, k), (2, 5, k), (17, k)):
        a = RNG.normal(0, 1, shape).astype(np.float32)
        y = ours(harness, "MatMulNBits", [a, *inputs], split=2, **attributes)
        np.testing.assert_allclose(y, a.astype(np.float64) @ weights, rtol=1e-4, atol=1e-4)
        y = ours(harness, "MatMulNBits", [a, *inputs, None, bias], weights=range(1, 6), **attributes)
        np.testing.assert_allclose(y, a.astype(np.float64) @ weights + bias, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("zeros", ["none", "packed"])
def test_narrow_weights_as_onnxruntime(harness: Harness, zeros: str) -> None:
    inputs, _ = nbits(4, 32, 96, 12, zeros)
    a = RNG.normal(0, 1, (3, 96)).astype(np.float32)
    attributes = {"K": 96, "N": 12, "bits": 4, "block_size": 32}
    check(harness, "MatMulNBits", [a, *inputs], rtol=1e-4, atol=1e-4, **attributes)


def test_narrow_weights_of_half_precision(harness: Harness) -> None:
    inputs, weights = nbits(4, 32, 64, 12, "none")
    a = RNG.normal(0, 1, (3, 64)).astype(np.float16)
    inputs[1] = inputs[1].astype(np.float16)
    y = ours(harness, "MatMulNBits", [a, *inputs], K=64, N=12, bits=4, block_size=32)
    assert y.dtype == np.float16
    np.testing.assert_allclose(y.astype(np.float32), a.astype(np.float32) @ weights, rtol=2e-2, atol=2e-2)


def test_groups_of_narrow_weights(harness: Harness) -> None:
    n, k, block = 6, 40, 16
    inputs, _ = nbits(4, block, k, n, "packed")
    packed, scale, zero = inputs
    groups = RNG.integers(0, 3, k).astype(np.int32)
    codes = np.stack([packed & 15, packed >> 4], -1).reshape(n, -1)[:, :k].astype(np.float32)
    zeros = np.stack([zero & 15, zero >> 4], -1).reshape(n, -1).astype(np.float32)
    weights = (codes - zeros[:, groups]) * scale[:, groups]
    a = RNG.normal(0, 1, (2, 3, k)).astype(np.float32)
    attributes = {"K": k, "N": n, "bits": 4, "block_size": block}
    for constants in ((), (1, 2, 3, 4)):
        y = ours(harness, "MatMulNBits", [a, *inputs, groups], weights=constants, **attributes)
        np.testing.assert_allclose(y, a @ weights.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("zeros", ["none", "packed", "float"])
@pytest.mark.parametrize(
    ("bits", "block", "k", "n", "m"),
    [(4, 32, 600, 131, 5), (8, 16, 520, 70, 9), (2, 512, 900, 64, 6), (4, 64, 64, 65, 259)],
)
def test_narrow_weights_in_tiles(harness: Harness, bits: int, block: int, k: int, n: int, m: int, zeros: str) -> None:
    """Several parts of k, blocks within a part and across parts, and a last unit of few columns."""
    inputs, weights = nbits(bits, block, k, n, zeros)
    attributes = {"K": k, "N": n, "bits": bits, "block_size": block}
    bias = RNG.normal(0, 1, n).astype(np.float32)
    a = RNG.normal(0, 1, (m, k)).astype(np.float32)
    expected = a.astype(np.float64) @ weights + bias
    whole = ours(harness, "MatMulNBits", [a, *inputs, None, bias], **attributes)
    np.testing.assert_allclose(whole, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())
    np.testing.assert_array_equal(ours(harness, "MatMulNBits", [a, *inputs, None, bias], split=3, **attributes), whole)


def test_strict_variant(strict_harness: Harness) -> None:
    inputs, weights = nbits(4, 32, 100, 9, "packed")
    a = RNG.normal(0, 1, (9, 100)).astype(np.float32)
    y = ours(strict_harness, "MatMulNBits", [a, *inputs], K=100, N=9, bits=4, block_size=32)
    np.testing.assert_allclose(y, a.astype(np.float64) @ weights, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"bits": 3}, "bits 3"),
        ({"block_size": 24}, "power of two"),
        ({"K": 32}, "32 columns"),
        ({"N": 8}, "must be uint8"),
    ],
)
def test_bad_narrow_weights(harness: Harness, attributes: dict[str, int], message: str) -> None:
    inputs, _ = nbits(4, 32, 64, 12, "none")
    call = {"K": 64, "N": 12, "bits": 4, "block_size": 32} | attributes
    with pytest.raises(OnnxWasmError, match=message):
        ours(harness, "MatMulNBits", [np.zeros((2, 64), np.float32), *inputs], **call)
