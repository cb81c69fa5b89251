"""MatMulInteger16 against native onnxruntime, which has it for int16 alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import onnx_wasm as ort
from onnx_wasm.errors import OnnxWasmError
from test_microsoft_transformer import build, compare, run
from test_quantize_microsoft import integers

Array = np.ndarray[Any, Any]

SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((3,), (3,)), ((3,), (3, 2)), ((2, 3), (3,)), ((7, 40), (40, 9)), ((2, 1, 5, 33), (4, 33, 6)), ((0, 3), (3, 2)),
    ((2, 0), (0, 3)), ((2, 3), (3, 0)),
]  # fmt: skip


@pytest.mark.parametrize("constants", [(), (1,), (0,)])
@pytest.mark.parametrize("shapes", SHAPES)
def test_products(shapes: Any, constants: tuple[int, ...]) -> None:
    """Sums of so many large numbers wrap around."""
    a, b = (integers(shape, np.int16) for shape in shapes)
    compare("MatMulInteger16", [a, b], constants=constants, atol=0, rtol=0)


def test_unsigned_products() -> None:
    a, b = integers((7, 40), np.uint16), integers((40, 9), np.uint16)
    y = run(*build("MatMulInteger16", [a, b], 1))["y0"]
    assert y.dtype == np.uint32
    np.testing.assert_array_equal(y, (a.astype(np.uint64) @ b.astype(np.uint64)).astype(np.uint32))


def test_threads() -> None:
    data, feeds = build("MatMulInteger16", [integers((90, 70), np.int16), integers((70, 80), np.int16)], 1, (1,))
    expected = run(data, feeds)["y0"]
    with ort.Runtime(threads=2) as runtime:
        with ort.InferenceSession.create(data, runtime=runtime, enable_mem_pattern=False) as session:
            np.testing.assert_array_equal(session.run(feeds)["y0"].get_data(release_data=True), expected)
        assert runtime.memory().used == 0


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (np.zeros((2, 3), np.int16), np.zeros((3, 2), np.uint16), "both be int16 or both uint16"),
        (np.zeros((2, 3), np.int32), np.zeros((3, 2), np.int32), "both be int16 or both uint16"),
        (np.zeros((2, 3), np.int16), np.zeros((4, 2), np.int16), "3 columns"),
        (np.zeros((), np.int16), np.zeros((4, 2), np.int16), "at least one dimension"),
    ],
)
def test_bad_input(a: Array, b: Array, message: str) -> None:
    with pytest.raises(OnnxWasmError, match=message):
        run(*build("MatMulInteger16", [a, b], 1))
