"""Models of one node of com.microsoft, or another domain: what sessions make of them, and native onnxruntime does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphs
import onnx_wasm as ort

Arrays = dict[str, np.ndarray]


def element_type(array: np.ndarray) -> int:
    return int(TensorProto.STRING if array.dtype == object else helper.np_dtype_to_tensor_dtype(array.dtype))


def one_node(
    op_type: str,
    inputs: Sequence[np.ndarray | None],
    constants: Sequence[int] = (),
    kinds: Sequence[Any] = (np.float32,),
    domain: str = "com.microsoft",
    opset: int = 17,
    static: bool = False,
    **attributes: Any,
) -> tuple[bytes, Arrays]:
    """A model with the inputs x0, x1, ... and the outputs y0, y1, ... of these types, and what to feed it."""
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    arrays = {n: x for n, x in zip(names, inputs, strict=True) if x is not None}
    weights = [numpy_helper.from_array(arrays.pop(f"x{i}"), f"x{i}") for i in constants]
    outputs = [f"y{i}" for i in range(len(kinds))]
    graph = helper.make_graph(
        [helper.make_node(op_type, names, outputs, name="node", domain=domain, **attributes)],
        "test",
        [
            helper.make_tensor_value_info(n, element_type(x), x.shape if static else [None] * x.ndim)
            for n, x in arrays.items()
        ],
        [onnx.ValueInfoProto(name=o) for o in outputs],
        weights,
    )
    opsets = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return proto.SerializeToString(), arrays


def run(data: bytes, feeds: Arrays, planned: bool = True, threads: int = 1) -> list[np.ndarray]:
    """What a session answers twice; it must leave nothing behind."""
    answers = []
    with ort.Runtime(threads=threads) as runtime:
        with ort.InferenceSession.create(data, runtime=runtime, enable_mem_pattern=planned) as session:
            for _ in range(2):
                outputs = session.run(feeds)
                answers.append([np.array(t.get_data(release_data=True)) for t in outputs.values()])
        assert runtime.memory().used == 0
    for first, second in zip(*answers, strict=True):
        np.testing.assert_array_equal(first, second)
    return answers[0]


def ours(op_type: str, inputs: Sequence[np.ndarray | None], *args: Any, **attributes: Any) -> list[np.ndarray]:
    return run(*one_node(op_type, inputs, *args, **attributes))


def check(
    op_type: str,
    inputs: Sequence[np.ndarray | None],
    constants: Sequence[int] = (),
    tolerance: float = 0,
    **attributes: Any,
) -> list[np.ndarray]:
    """All answers must agree: of both ways to have memory, of two threads, and native onnxruntime's."""
    data, feeds = one_node(op_type, inputs, constants, **attributes)
    got = run(data, feeds)
    for planned, threads in ((False, 1), (True, 2)):
        for g, other in zip(got, run(data, feeds, planned, threads), strict=True):
            np.testing.assert_array_equal(g, other)
    for g, e in zip(got, graphs.native(data, feeds).values(), strict=True):
        assert (g.dtype, g.shape) == (e.dtype, e.shape)
        if tolerance:
            np.testing.assert_allclose(g, e, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(g, e)
    return got


def fails(op_type: str, inputs: Sequence[np.ndarray | None], message: str, *args: Any, **attributes: Any) -> None:
    """It must be refused so, wherever its inputs come from, and by native onnxruntime too."""
    constants = [(), tuple(i for i, x in enumerate(inputs) if x is not None)]
    for given in constants:
        data, feeds = one_node(op_type, inputs, given, *args, **attributes)
        with pytest.raises(ort.OnnxWasmError, match=message):
            run(data, feeds)
    with pytest.raises(Exception, match=r"ONNXRuntimeError"):
        graphs.native(*one_node(op_type, inputs, (), *args, static=True, **attributes))
