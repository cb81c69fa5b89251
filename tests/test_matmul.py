from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from harness import Harness
from onnx_wasm import dtypes
from onnx_wasm.context import Context, Value
from onnx_wasm.errors import OnnxWasmError, ShapeError
from onnx_wasm.model import Node
from onnx_wasm.ops.binary import add
from onnx_wasm.ops.fusion import Activation, fuse_activation, fuse_affine, fuse_bias, fuse_residual
from onnx_wasm.ops.matmul import gemm, matmul


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def close(y: np.ndarray, expected: np.ndarray, k: int) -> None:
    assert y.shape == expected.shape
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, expected, rtol=2e-5, atol=3e-6 * max(1, k) ** 0.5)


SHAPES = [
    ((5, 7), (7, 9)),
    ((1, 7), (7, 9)),
    ((1, 300), (300, 70)),
    ((1, 1030), (1030, 3)),
    ((2, 259), (259, 33)),
    ((130, 600), (600, 270)),
    ((129, 31), (31, 1)),
    ((70, 3), (3, 1100)),
    ((7,), (7, 3)),
    ((4, 7), (7,)),
    ((7,), (7,)),
    ((3, 4, 5), (5, 6)),
    ((3, 4, 5), (3, 5, 6)),
    ((1, 4, 5), (3, 5, 6)),
    ((4, 5), (9, 5, 6)),
    ((2, 1, 4, 5), (3, 5, 6)),
    ((2, 3, 1, 2, 4, 5), (1, 3, 2, 1, 5, 6)),
    ((2, 12, 17, 32), (2, 12, 32, 17)),
    ((2, 3, 1, 9), (2, 3, 9, 10)),
    ((5,), (2, 5, 3)),
]


@pytest.mark.parametrize("weights", [(), (1,)], ids=["computed", "constant"])
@pytest.mark.parametrize(("a_shape", "b_shape"), SHAPES)
def test_matmul(harness: Harness, a_shape: tuple[int, ...], b_shape: tuple[int, ...], weights: tuple[int, ...]) -> None:
    a, b = normal(*a_shape), normal(*b_shape, seed=1)
    y = harness.op(matmul, [a, b], weights=weights)
    close(y, np.matmul(a.astype(np.float64), b).astype(np.float32), a.shape[-1])
    split = harness.op(matmul, [a, b], weights=weights, split=3)
    assert y.tobytes() == split.tobytes()


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 255, 256, 257, 513])
@pytest.mark.parametrize("n", [1, 3, 4, 7, 8, 15])
@pytest.mark.parametrize("m", [1, 2, 4, 5])
def test_tails(harness: Harness, m: int, n: int, k: int) -> None:
    a, b = normal(m, k), normal(k, n, seed=1)
    for weights in ((), (1,)):
        close(harness.op(matmul, [a, b], weights=weights), a @ b, k)


@pytest.mark.parametrize("weights", [(), (1,)], ids=["computed", "constant"])
@pytest.mark.parametrize("m", [1, 6, 65])
def test_strict_variant(strict_harness: Harness, m: int, weights: tuple[int, ...]) -> None:
    a, b = normal(m, 300), normal(300, 21, seed=1)
    close(strict_harness.op(matmul, [a, b], weights=weights), a @ b, 300)


@pytest.mark.parametrize("weights", [(), (1,), (1, 2)], ids=["computed", "constant B", "constant B, C"])
@pytest.mark.parametrize("transposed", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("c_shape", [None, (), (1,), ("n",), (1, "n"), ("m", 1), ("m", "n")])
def test_gemm(
    harness: Harness, transposed: tuple[int, int], c_shape: tuple[int, ...] | None, weights: tuple[int, ...]
) -> None:
    for m, n in ((1, 21), (6, 21), (70, 21), (70, 1)):
        a, b = normal(m, 267), normal(267, n, seed=1)
        c = None if c_shape is None else normal(*({"m": m, "n": n}.get(d, d) for d in c_shape), seed=2)
        expected = np.float32(0.5) * (a.astype(np.float64) @ b) + np.float32(0.25) * (0 if c is None else c)
        inputs = [a.T.copy() if transposed[0] else a, b.T.copy() if transposed[1] else b, c]
        attributes = {"transA": transposed[0], "transB": transposed[1], "alpha": 0.5, "beta": 0.25}
        y = harness.op(gemm, inputs, weights=weights, **attributes)
        close(y, expected.astype(np.float32), 267)
        assert harness.op(gemm, inputs, weights=weights, split=4, **attributes).tobytes() == y.tobytes()


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("n", [8, 21])
def test_constant_batch_transposed_in_pieces(harness: Harness, batch: int, n: int) -> None:
    a, b = normal(batch, 4, 19), normal(batch, 19, n, seed=1)
    close(harness.op(matmul, [a, b], weights=(1,), split=5), a @ b, 19)


@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.uint32, np.int64, np.uint64])
def test_other_types(harness: Harness, dtype: type) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 1 << 40, s).astype(dtype) for s in ((2, 1, 5, 7), (3, 7, 4)))
    y = harness.op(matmul, [a, b], split=3)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, a @ b) if dtype != np.float64 else np.testing.assert_allclose(y, a @ b, rtol=1e-14)
    c = rng.integers(0, 9, (4,)).astype(dtype)
    y = harness.op(gemm, [a[0, 0].T.copy(), b[0].T.copy(), c], transA=1, transB=1)
    np.testing.assert_allclose(y, a[0, 0] @ b[0] + c, rtol=1e-14)


def test_gemm_f64_scales(harness: Harness) -> None:
    a, b, c = (normal(*s).astype(np.float64) for s in ((3, 4), (4, 5), (3, 1)))
    y = harness.op(gemm, [a, b, c], alpha=0.5, beta=2.0)
    np.testing.assert_allclose(y, 0.5 * (a @ b) + 2 * c, rtol=1e-14)


@pytest.mark.parametrize("weights", [(), (1,)])
def test_nothing_to_sum_and_nothing_to_write(harness: Harness, weights: tuple[int, ...]) -> None:
    assert not harness.op(matmul, [normal(3, 0), normal(0, 5)], weights=weights).any()
    c = normal(5)
    np.testing.assert_array_equal(
        harness.op(gemm, [normal(3, 0), normal(0, 5), c], weights=weights), np.tile(c, (3, 1))
    )
    assert harness.op(matmul, [normal(0, 4), normal(4, 5)], weights=weights).shape == (0, 5)
    assert harness.op(matmul, [normal(2, 3, 4), normal(4, 0)], weights=weights).shape == (2, 3, 0)
    assert harness.op(matmul, [normal(0, 3, 4), normal(0, 4, 2)], weights=weights).shape == (0, 3, 2)


def test_beta_0_ignores_c(harness: Harness) -> None:
    a, b = normal(2, 3), normal(3, 4)
    close(harness.op(gemm, [a, b, np.full(4, np.nan, np.float32)], beta=0.0), a @ b, 3)


@pytest.mark.parametrize("weights", [(), (1,)])
def test_nan_stays_in_its_row_and_column(harness: Harness, weights: tuple[int, ...]) -> None:
    a, b = normal(9, 20), normal(20, 19)
    a[4, 3], b[7, 18] = np.nan, np.inf
    y = harness.op(matmul, [a, b], weights=weights)
    assert np.isnan(y[4]).all()
    assert np.isinf(np.delete(y, 4, 0)[:, 18]).all()
    assert np.isfinite(np.delete(y, 4, 0)[:, :18]).all()


@pytest.mark.parametrize("m", [1, 2, 3, 5, 6, 7])
@pytest.mark.parametrize("n", [5, 8, 19])
@pytest.mark.parametrize("k", [20, 600])
def test_nan_stays_behind_an_activation(harness: Harness, m: int, n: int, k: int) -> None:
    """In whole tiles and in rows and columns beyond them; so does a limit."""
    a, b = normal(m, k), normal(k, n, seed=1)
    a[m - 1, 3] = np.nan

    def block(cx: Context, a: Value, b: Value) -> Value:
        y = matmul(cx, a, b)
        assert fuse_activation(cx, y, Activation.CLIP, -0.5, 1.5)
        return y

    y = harness.op(block, [a, b], weights=(1,))
    assert np.isnan(y[m - 1]).all()
    close(y[: m - 1], np.clip(a[: m - 1] @ b, -0.5, 1.5), k)
    a[m - 1, 3] = 1
    close(harness.op(block, [a, b], weights=(1,)), np.clip(a @ b, -0.5, 1.5), k)


@pytest.mark.parametrize("m", [1, 70])
@pytest.mark.parametrize("n", [1, 8, 21])
def test_fusion(harness: Harness, m: int, n: int) -> None:
    a, b, residual, bias = normal(m, 300), normal(300, n), normal(m, n, seed=2), normal(n, seed=3)

    def block(cx: Context, residual: Value, bias: Value, a: Value, b: Value) -> Value:
        y = matmul(cx, a, b)
        assert fuse_bias(cx, y, bias)
        assert not fuse_bias(cx, y, bias)
        assert fuse_residual(cx, y, residual)
        assert fuse_activation(cx, y, Activation.CLIP, -0.5, 1.5)
        return y

    for split in (1, 3):
        y = harness.op(block, [residual, bias, a, b], weights=(1, 3), split=split)
        close(y, np.clip(a @ b + bias + residual, -0.5, 1.5), 300)


@pytest.mark.parametrize("bias_shape", [(6,), (1, 6), (1, 1, 6)])
@pytest.mark.parametrize("swapped", [False, True])
def test_add_of_a_row_is_fused(harness: Harness, bias_shape: tuple[int, ...], swapped: bool) -> None:
    a, b, bias = normal(2, 3, 5), normal(5, 6, seed=1), normal(*bias_shape, seed=2)

    def block(cx: Context, a: Value, b: Value, bias: Value) -> Value:
        y = matmul(cx, a, b)
        y = add(cx, bias, y) if swapped else add(cx, y, bias)
        assert len(cx.records) == 1
        return y

    close(harness.op(block, [a, b, bias], weights=(1, 2)), a @ b + bias, 5)


@pytest.mark.parametrize("bias_shape", [(3, 1), (1,), (1, 1, 1, 6), (2, 3, 1)])
def test_add_of_anything_else_is_right(harness: Harness, bias_shape: tuple[int, ...]) -> None:
    a, b, bias = normal(2, 3, 5), normal(5, 6, seed=1), normal(*bias_shape, seed=2)
    y = harness.op(lambda cx, a, b, c: add(cx, matmul(cx, a, b), c), [a, b, bias], weights=(1, 2))
    close(y, a @ b + bias, 5)


def test_shift_of_channels_is_folded_into_gemm(harness: Harness) -> None:
    a, b, shift = normal(6, 30), normal(30, 9), normal(9, seed=3)

    def block(cx: Context, a: Value, b: Value, shift: Value) -> Value:
        y = gemm(cx, a, b)
        assert not fuse_affine(cx, y, shift, None)
        assert fuse_affine(cx, y, None, shift)
        return y

    close(harness.op(block, [a, b, shift], weights=(1, 2)), a @ b + shift, 30)


@pytest.mark.parametrize(
    ("function", "shapes", "message"),
    [
        (matmul, ((3, 4), (5, 6)), "4 columns and 5 rows"),
        (matmul, ((2, 3, 4), (3, 4, 5)), "do not broadcast: 2 and 3"),
        (matmul, ((), (3,)), "at least one dimension"),
        (gemm, ((3, 4), (5, 6)), "4 columns and 5 rows"),
        (gemm, ((3, 4, 1), (4, 6)), "must be matrices"),
        (gemm, ((3, 4), (4, 6), (4, 6)), "does not broadcast to"),
        (gemm, ((3, 4), (4, 6), (1, 3, 6)), "does not broadcast to"),
    ],
)
def test_shape_errors(harness: Harness, function: object, shapes: tuple[tuple[int, ...], ...], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        harness.op(function, [normal(*s) for s in shapes])  # type: ignore[arg-type]


def test_unsupported_types(harness: Harness) -> None:
    with pytest.raises(OnnxWasmError, match="no matrix product of type int8"):
        harness.op(matmul, [np.zeros((2, 2), np.int8)] * 2)
    with pytest.raises(OnnxWasmError, match="alpha and beta must be 1"):
        harness.op(gemm, [np.zeros((2, 2), np.int32)] * 2, alpha=0.5)


def test_constant_operand_is_packed_once_and_can_be_streamed() -> None:
    cx = Context()
    cx.node = Node("MatMul", "m", index=0)
    b = Value((300, 21), dtypes.F32, const=True)
    first, second = (matmul(cx, Value((m, 300), dtypes.F32), b).producer for m in (1, 70))
    assert first is not None
    assert second is not None
    packed = first.args["b"]
    assert packed is second.args["b"]
    (pack,) = packed.recipe.records
    assert pack.stream == ("src", 21 * 4)
    assert pack.stream[1] * pack.units == b.nbytes


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_16_bit_floats_are_computed_in_32(harness: Harness, dtype: Any) -> None:
    a, b, c = normal(2, 5, 33).astype(dtype), normal(33, 9).astype(dtype), normal(9).astype(dtype)
    wide = a.astype(np.float32) @ b.astype(np.float32)
    for weights in ((), (1,)):
        got = harness.op(matmul, [a, b], weights=weights, split=2)
        assert got.dtype == dtype
        np.testing.assert_allclose(got.astype(np.float32), wide, rtol=2**-8, atol=1e-3)
    got = harness.op(gemm, [a[0], b, c], alpha=0.5, beta=2.0)
    want = 0.5 * wide[0] + 2 * c.astype(np.float32)
    np.testing.assert_allclose(got.astype(np.float32), want, rtol=2**-8, atol=1e-3)


def test_a_16_bit_weight_is_converted_once() -> None:
    cx = Context()
    cx.node = Node("MatMul", "m", index=0)
    b = Value((30, 21), dtypes.F16, const=True)
    for rows in (1, 70):
        matmul(cx, Value((rows, 30), dtypes.F16), b)
    assert [r.kernel for r in cx.records] == 2 * ["cast_f16_f32", "gemm_f32", "cast_f32_f16"]
    packed = {r.args["b"] for r in cx.records if r.kernel == "gemm_f32"}
    assert len(packed) == 1
