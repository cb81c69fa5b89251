"""GatherBlockQuantized against native onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphs
import onnx_wasm as ort
from onnx_wasm.errors import OnnxWasmError
from test_microsoft_transformer import chance, run
from test_quantize_microsoft import pack, uniform

Array = np.ndarray[Any, Any]
NARROW = {TensorProto.INT4: 4, TensorProto.UINT4: 4, TensorProto.FLOAT4E2M1: 4}


def narrow(kind: int, shape: tuple[int, ...]) -> onnx.TensorProto:
    """A tensor of random bits."""
    count = -(-int(np.prod(shape)) * NARROW.get(kind, 8) // 8)
    data = chance.integers(0, 256, count).astype(np.uint8)
    if kind in NARROW and np.prod(shape) % 2:
        data[-1] &= 15
    return helper.make_tensor("data", kind, shape, data.tobytes(), raw=True)


def build(
    data: Array | onnx.TensorProto,
    indices: Array,
    scales: Array,
    zeros: Any = None,
    *,
    fed: bool = False,
    **attributes: Any,
) -> tuple[bytes, dict[str, Array]]:
    arrays = {"data": data, "scales": scales, "zeros": zeros}
    weights = []
    for name, x in arrays.items():
        if isinstance(x, np.ndarray) and not fed:
            weights.append(numpy_helper.from_array(x, name))
        elif isinstance(x, onnx.TensorProto):
            x.name = name
            weights.append(x)
    feeds = {"i": indices, **({n: x for n, x in arrays.items() if isinstance(x, np.ndarray)} if fed else {})}
    names = ["data", "i", "scales", *(["zeros"] if zeros is not None else [])]
    made = graphs.node("GatherBlockQuantized", names, ["y"], domain="com.microsoft", **attributes)
    kinds = {n: (helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in feeds.items()}
    proto = onnx.load_from_string(graphs.model([made], kinds, ["y"], domains={"com.microsoft": 1}))
    proto.graph.initializer.extend(weights)
    proto.graph.output[0].ClearField("type")
    return proto.SerializeToString(), feeds


def compare(*args: Any, **attributes: Any) -> Array:
    data, feeds = build(*args, **attributes)
    got, expected = run(data, feeds)["y"], graphs.native(data, feeds)["y"]
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)
    return got


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("shape", [(9, 64), (9, 40), (5, 3, 36), (4, 1, 2, 16)])
@pytest.mark.parametrize("block", [16, 32])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_bytes(bits: int, block: int, shape: tuple[int, ...], zeros: bool, dtype: Any) -> None:
    data = chance.integers(0, 256, (*shape[:-1], shape[-1] * bits // 8)).astype(np.uint8)
    blocks = (*shape[:-1], -(-shape[-1] // block))
    zero = None
    if zeros:
        codes = chance.integers(0, 1 << bits, blocks).astype(np.uint8).reshape(-1, blocks[-1])
        zero = pack(codes, bits).reshape(*blocks[:-1], -1)
    for kind in (np.int32, np.int64):
        indices = chance.integers(-shape[0], shape[0], (2, 3)).astype(kind)
        scales = uniform(0.01, 0.2, blocks).astype(dtype)
        for fed in (False, True):
            compare(
                data, indices, scales, zero, fed=fed, bits=bits, block_size=block, quantize_axis=len(shape) - 1
            )  # fmt: skip


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("gather_axis", [0, 1, -1])
@pytest.mark.parametrize("quantize_axis", [0, 1, -1])
@pytest.mark.parametrize("shape", [(5, 7, 3), (20, 4, 18), (3, 40, 33), (2, 3, 48)])
@pytest.mark.parametrize("kind", [TensorProto.INT4, TensorProto.UINT4])
def test_narrow_types(kind: int, shape: tuple[int, ...], quantize_axis: int, gather_axis: int, zeros: bool) -> None:
    blocks = list(shape)
    blocks[quantize_axis] = -(-shape[quantize_axis] // 16)
    indices = chance.integers(0, shape[gather_axis], (2, 5))
    zero = narrow(kind, tuple(blocks)) if zeros else None
    compare(
        narrow(kind, shape), indices, uniform(0.01, 0.2, tuple(blocks)), zero,
        block_size=16, gather_axis=gather_axis, quantize_axis=quantize_axis,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(
    ("block", "scales"),
    [(0, (1, 1)), (0, (6, 1)), (16, (6, 3)), (16, (1, 3))],
    ids=["one", "rows", "blocks", "columns"],
)
@pytest.mark.parametrize(
    "kind",
    [
        TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E4M3FNUZ, TensorProto.FLOAT8E5M2, TensorProto.FLOAT8E5M2FNUZ,
        TensorProto.FLOAT4E2M1,
    ],
)  # fmt: skip
def test_small_floats(kind: int, block: int, scales: tuple[int, ...], dtype: Any) -> None:
    indices = chance.integers(-6, 6, (2, 3))
    compare(narrow(kind, (6, 37)), indices, uniform(0.1, 2, scales).astype(dtype), block_size=block)


@pytest.mark.parametrize(
    "indices", [np.array([5, 0, -6, 1 << 40, -(1 << 40)]), np.array(3), np.zeros((0, 2), np.int64)]
)
def test_indices_out_of_range_pick_zeros(indices: Array) -> None:
    data = chance.integers(0, 256, (5, 32)).astype(np.uint8)
    compare(data, indices, uniform(0.1, 1, (5, 2)), bits=8, block_size=16)


def test_narrow_data_stays_narrow_and_threads_share_the_rows() -> None:
    data = chance.integers(0, 256, (1000, 256)).astype(np.uint8)
    indices = chance.integers(0, 1000, (4, 100))
    model, feeds = build(data, indices, uniform(0.1, 1, (1000, 16)), bits=4, block_size=32)
    expected = graphs.native(model, feeds)["y"]
    for threads in (1, 2):
        for mem_pattern in (True, False):
            with ort.Runtime(threads=threads) as runtime:
                with ort.InferenceSession.create(model, runtime=runtime, enable_mem_pattern=mem_pattern) as session:
                    out = session.run(feeds)["y"]
                    np.testing.assert_array_equal(out.data, expected)
                    assert runtime.memory().by_tag["weights"] < 1.02 * (data.nbytes + 64000)
                    out.dispose()
                assert runtime.memory().used == 0


BYTES, SCALES = np.zeros((5, 20), np.uint8), np.ones((5, 3), np.float32)


@pytest.mark.parametrize(
    ("data", "scales", "zeros", "attributes", "message"),
    [
        (BYTES, SCALES, None, {"block_size": 24}, "block_size 24 must be a power of two"),
        (BYTES, SCALES, None, {"block_size": 8}, "block_size 8 must be"),
        (BYTES, SCALES, None, {"block_size": 0}, "block_size 0 must be"),
        (BYTES, SCALES, None, {"block_size": -16}, "block_size -16 must be"),
        (BYTES, SCALES, None, {"bits": 3}, "bits 3"),
        (BYTES, SCALES, None, {"bits": 8}, r"\[5, 2\] expected"),
        (BYTES, SCALES, None, {"gather_axis": 1}, "must be 0 and 1"),
        (BYTES, SCALES, None, {"quantize_axis": 0}, "must be 0 and 1"),
        (BYTES, SCALES, None, {"quantize_axis": 2}, "axis 2 out of range"),
        (BYTES[0], SCALES[0], None, {}, "at least two axes"),
        (BYTES, SCALES[:, :1], None, {}, r"\[5, 3\] expected"),
        (BYTES, SCALES[:1], None, {}, r"\[5, 3\] expected"),
        (BYTES, SCALES[0], None, {}, r"\[5, 3\] expected"),
        (BYTES, SCALES, BYTES[:, :3], {}, r"\[5, 2\] expected"),
        (BYTES, SCALES, SCALES[:, :2], {}, "do not fit"),
        (BYTES.astype(np.int8), SCALES, None, {}, "no form for data of int8"),
        (BYTES, SCALES.astype(np.float64), None, {}, "no form for scales of float64"),
        (narrow(TensorProto.INT4, (5, 40)), SCALES, None, {"bits": 8}, "bits 8"),
        (narrow(TensorProto.FLOAT8E5M2, (5, 40)), SCALES, BYTES[:, :2], {}, "do not fit"),
    ],
)
def test_bad_input(data: Any, scales: Array, zeros: Any, attributes: dict[str, int], message: str) -> None:
    model, feeds = build(data, np.zeros(2, np.int64), scales, zeros, **({"block_size": 16} | attributes))
    with pytest.raises(OnnxWasmError, match=message):
        run(model, feeds)


@pytest.mark.parametrize("shape", [(0, 20), (5, 0)])
def test_empty_data(shape: tuple[int, int]) -> None:
    scales = np.ones((shape[0], -(-shape[1] // 16)), np.float32)
    model, feeds = build(np.zeros(shape, np.uint8), np.zeros(3, np.int64), scales, bits=8, block_size=16)
    np.testing.assert_array_equal(run(model, feeds)["y"], np.zeros((3, shape[1])))
