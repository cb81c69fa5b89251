"""MatMulFpQ4 against native onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphs
import onnx_wasm as ort
from onnx_wasm.errors import OnnxWasmError
from test_microsoft_transformer import build, chance, compare, normal, run

Array = np.ndarray[Any, Any]


def blobs(k: int, n: int, kind: int) -> list[Array]:
    """The weights, one block after the other, and their shape."""
    made = []
    for _ in range(n * -(-k // 32)):
        scale = np.float32(chance.uniform(0.1, 1))
        zero = bytes(chance.integers(0, 16, 1).astype(np.uint8)) if kind else b""
        made.append(scale.tobytes() + zero + bytes(chance.integers(0, 256, 16).astype(np.uint8)))
    return [np.frombuffer(b"".join(made), np.uint8), np.array([k, n])]


@pytest.mark.parametrize("constants", [(), (1, 2), (2,)])
@pytest.mark.parametrize("kind", [0, 1, 2])
@pytest.mark.parametrize(("k", "n"), [(32, 1), (64, 5), (40, 9), (600, 131)])
def test_products(k: int, n: int, kind: int, constants: tuple[int, ...]) -> None:
    for shape in ((k,), (0, k), (1, k), (3, k), (2, 5, k)):
        inputs: list[Any] = [normal(*shape), *blobs(k, n, kind)]
        compare("MatMulFpQ4", inputs, constants=constants, blk_quant_type=kind, atol=5e-4, rtol=1e-4)


def test_weights_stay_narrow_and_threads_share_them() -> None:
    k, n = 512, 640
    data, feeds = build("MatMulFpQ4", [normal(9, k), *blobs(k, n, 1)], 1, (1, 2))
    expected, results = graphs.native(data, feeds)["y0"], []
    for threads in (1, 2):
        for mem_pattern in (True, False):
            with ort.Runtime(threads=threads) as runtime:
                with ort.InferenceSession.create(data, runtime=runtime, enable_mem_pattern=mem_pattern) as session:
                    results.append(session.run(feeds)["y0"].get_data(release_data=True))
                    assert runtime.memory().by_tag["weights"] < 1.02 * k * n * 24 // 32
                assert runtime.memory().used == 0
    np.testing.assert_allclose(results[0], expected, rtol=1e-4, atol=5e-4)
    assert len({r.tobytes() for r in results}) == 1


@pytest.mark.parametrize(
    ("index", "array", "message"),
    [
        (0, normal(2, 65), "must have 64 columns"),
        (1, np.zeros(7, np.uint8), r"must be uint8\[210\]"),
        (1, np.zeros(210, np.int8), r"must be uint8\[210\]"),
        (2, np.array([64, 0]), "must be K and N"),
        (2, np.array([64]), "must be K and N"),
        (2, np.array([[64, 5]]), "must be K and N"),
    ],
)
def test_bad_input(index: int, array: Array, message: str) -> None:
    inputs: list[Any] = [normal(2, 64), *blobs(64, 5, 1)]
    inputs[index] = array
    with pytest.raises(OnnxWasmError, match=message):
        run(*build("MatMulFpQ4", inputs, 1, (2,)))
