"""MatMulBnb4 against native onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphs
import onnx_wasm as ort
from harness import Harness
from onnx_wasm.errors import OnnxWasmError
from onnx_wasm.ops.microsoft_nbits import BNB4
from test_microsoft_transformer import build, chance, compare, normal, run
from test_quantize_microsoft import check, ours, uniform

SHAPES = [(16, 1, 16), (48, 5, 16), (48, 5, 32), (64, 70, 64), (160, 65, 128), (592, 131, 256), (20, 9, 16), (7, 5, 32)]


def weights(k: int, n: int, block: int) -> list[Any]:
    codes = chance.integers(0, 256, (n * k + 1) // 2).astype(np.uint8)
    return [codes, uniform(0.1, 1, (-(-n * k // block),))]


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize(("k", "n", "block"), SHAPES)
def test_products(harness: Harness, k: int, n: int, block: int, kind: int) -> None:
    attributes = {"K": k, "N": n, "block_size": block, "quant_type": kind}
    for shape in ((k,), (1, k), (3, k), (2, 2, k), (5, k), (2, 9, k), (131, k), (0, k)):
        inputs = [normal(*shape), *weights(k, n, block)]
        check(harness, "MatMulBnb4", inputs, rtol=1e-4, atol=2e-4, **attributes)


def test_strict_variant(strict_harness: Harness) -> None:
    for m in (1, 4, 9):
        check(
            strict_harness, "MatMulBnb4", [normal(m, 64), *weights(64, 9, 16)], rtol=1e-5, atol=1e-5,
            K=64, N=9, block_size=16, quant_type=1,
        )  # fmt: skip


@pytest.mark.parametrize("k", [32, 21])
@pytest.mark.parametrize("kind", [0, 1])
def test_every_code(harness: Harness, kind: int, k: int) -> None:
    codes, scales = weights(k, 16, 16)
    y = ours(
        harness, "MatMulBnb4", [np.eye(k, dtype=np.float32), codes, scales], K=k, N=16, block_size=16, quant_type=kind
    )
    table = np.array(BNB4[kind], np.float32)
    values = table[np.stack([codes >> 4, codes & 15], -1).reshape(-1)] * np.repeat(scales, 16)[: 16 * k]
    np.testing.assert_array_equal(y, values.reshape(16, k).T)


@pytest.mark.parametrize("constants", [(), (1, 2)])
def test_16_bit_floats(constants: tuple[int, ...]) -> None:
    codes, scales = weights(64, 12, 32)
    inputs = [normal(3, 64).astype(np.float16), codes, scales.astype(np.float16)]
    compare(
        "MatMulBnb4", inputs, constants=constants, K=64, N=12, block_size=32, quant_type=1, atol=1e-2, rtol=1e-2
    )  # fmt: skip


@pytest.mark.parametrize("rows", [2, 40])
def test_weights_stay_narrow_and_threads_share_the_columns(rows: int) -> None:
    k, n = 512, 640
    attributes = {"K": k, "N": n, "block_size": 64, "quant_type": 1}
    data, feeds = build("MatMulBnb4", [normal(rows, k), *weights(k, n, 64)], 1, (1, 2), **attributes)
    expected, results = graphs.native(data, feeds)["y0"], []
    for threads in (1, 2):
        for mem_pattern in (True, False):
            with ort.Runtime(threads=threads) as runtime:
                with ort.InferenceSession.create(data, runtime=runtime, enable_mem_pattern=mem_pattern) as session:
                    out = session.run(feeds)["y0"]
                    results.append(out.get_data(release_data=True))
                    assert runtime.memory().by_tag["weights"] < 1.02 * (k * n // 2 + k * n // 16)
                assert runtime.memory().used == 0
    np.testing.assert_allclose(results[0], expected, rtol=1e-4, atol=1e-4)
    assert len({r.tobytes() for r in results}) == 1


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"transB": 0}, "transB 0"),
        ({"quant_type": 2}, "quant_type 2"),
        ({"block_size": 24}, "power of two"),
        ({"block_size": 8}, "at least 16"),
        ({"K": 32}, "32 columns"),
        ({"K": 0}, "K 0"),
        ({"N": -1}, "N -1"),
        ({"N": 8}, r"must be uint8\[256\]"),
        ({"block_size": 32}, r"absmax .* must be \[24\]"),
    ],
)
def test_bad_attributes(attributes: dict[str, int], message: str) -> None:
    call = {"K": 64, "N": 12, "block_size": 16, "quant_type": 1} | attributes
    data, feeds = build("MatMulBnb4", [normal(2, 64), *weights(64, 12, 16)], 1, **call)
    with pytest.raises(OnnxWasmError, match=message):
        run(data, feeds)


@pytest.mark.parametrize(
    ("index", "dtype", "message"), [(0, np.float64, "no form"), (1, np.int8, "must be uint8"), (2, np.int32, "no form")]
)
def test_bad_types(index: int, dtype: Any, message: str) -> None:
    inputs = [normal(2, 64), *weights(64, 12, 16)]
    inputs[index] = inputs[index].astype(dtype)
    data, feeds = build("MatMulBnb4", inputs, 1, K=64, N=12, block_size=16, quant_type=1)
    with pytest.raises(OnnxWasmError, match=message):
        run(data, feeds)
