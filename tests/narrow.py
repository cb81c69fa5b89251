"""Tensors of types below 8 bits in tests: ml_dtypes' arrays outside, packed bytes in the heap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper

import onnx_wasm as ort
from onnx_wasm import dtypes

Array = np.ndarray[Any, Any]
PACKED = {
    "int4": ml_dtypes.int4,
    "uint4": ml_dtypes.uint4,
    "int2": ml_dtypes.int2,
    "uint2": ml_dtypes.uint2,
    "float4e2m1": ml_dtypes.float4_e2m1fn,
    "float6e2m3": ml_dtypes.float6_e2m3fn,
    "float6e3m2": ml_dtypes.float6_e3m2fn,
}


def type_of(array: Array) -> dtypes.DType:
    """The element type of an array, ml_dtypes' narrow ones among them."""
    name = next((n for n, t in PACKED.items() if array.dtype == t), None)
    return dtypes.from_numpy(array.dtype) if name is None else dtypes.from_name(name)


def scalar_type(dtype: dtypes.DType) -> np.dtype[Any]:
    """The type of arrays that stand for tensors of an element type."""
    found = np.dtype(PACKED[dtype.name]) if dtype.name in PACKED else dtype.numpy
    assert found is not None
    return found


def pack(array: Array, bits: int) -> Array:
    """Bytes of elements, the first in the low bits."""
    codes = np.ascontiguousarray(array).reshape(-1, 1).view(np.uint8)
    return np.packbits(np.unpackbits(codes, axis=1, bitorder="little")[:, :bits], bitorder="little")


def unpack(data: Array, dtype: dtypes.DType, shape: Sequence[int]) -> Array:
    """The reverse of `pack`."""
    count = int(np.prod(shape))
    stream = np.unpackbits(data.reshape(-1), bitorder="little")
    assert not stream[count * dtype.bits :].any(), "bits behind the last element are set"
    codes = np.packbits(stream[: count * dtype.bits].reshape(-1, dtype.bits), axis=1, bitorder="little").reshape(-1)
    if dtype.short[0] == "i":
        codes = (codes << (8 - dtype.bits)).astype(np.int8) >> (8 - dtype.bits)
    return codes.view(scalar_type(dtype)).reshape(shape)


def run(
    nodes: Sequence[onnx.NodeProto],
    feeds: Mapping[str, Array],
    opset: int = 25,
    runtime: ort.Runtime | None = None,
    fetches: Sequence[str] | None = None,
) -> dict[str, Array]:
    """What a session answers for a graph whose outputs are ``fetches``, or those of all nodes."""
    if runtime is None:
        with ort.Runtime() as own:
            return run(nodes, feeds, opset, own, fetches)
    graph = helper.make_graph(
        nodes,
        "narrow",
        [helper.make_tensor_value_info(n, type_of(a).onnx, a.shape) for n, a in feeds.items()],
        [onnx.ValueInfoProto(name=o) for o in fetches or [o for node in nodes for o in node.output if o]],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=13)
    fed: dict[str, Any] = dict(feeds)
    outputs: Mapping[str, Any] = {}
    with ort.InferenceSession.create(model.SerializeToString(), runtime=runtime) as session:
        try:
            for name, array in feeds.items():
                dtype = type_of(array)
                if 0 < dtype.bits < 8:
                    fed[name] = ort.Tensor(dtype.name, pack(array, dtype.bits), array.shape, runtime=runtime)
            outputs = session.run(fed)
            results = {}
            for name, tensor in outputs.items():
                dtype = dtypes.from_name(tensor.type)
                data = np.array(tensor.data)
                results[name] = unpack(data, dtype, tensor.dims) if 0 < dtype.bits < 8 else data
            return results
        finally:
            for tensor in [*outputs.values(), *fed.values()]:
                if isinstance(tensor, ort.Tensor):
                    tensor.dispose()
