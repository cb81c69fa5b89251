"""Models of one node of ai.onnx.ml: what a session makes of them, and what native onnxruntime does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

import graphs
import onnx_wasm as ort

Arrays = dict[str, Any]


def one_node(
    op_type: str, x: np.ndarray | Sequence[np.ndarray], outputs: Sequence[str], opset: int = 3, **attributes: Any
) -> bytes:
    """A model with the inputs x0, x1, ..."""
    xs = [x] if isinstance(x, np.ndarray) else list(x)
    names = [f"x{i}" for i in range(len(xs))]
    node = helper.make_node(op_type, names, outputs, domain="ai.onnx.ml", **attributes)
    graph = helper.make_graph(
        [node],
        "node",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), [None] * a.ndim)
            for n, a in zip(names, xs, strict=True)
        ],
        [onnx.ValueInfoProto(name=o) for o in outputs],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def ours(model: bytes, x: np.ndarray | Sequence[np.ndarray]) -> Arrays:
    """What a session answers, as arrays, or lists of dictionaries."""
    xs = [x] if isinstance(x, np.ndarray) else list(x)
    with ort.InferenceSession.create(model) as session:
        results = session.run({f"x{i}": a for i, a in enumerate(xs)})
        return {n: r if isinstance(r, list) else np.array(r.get_data(release_data=True)) for n, r in results.items()}


def check(
    op_type: str,
    x: np.ndarray | Sequence[np.ndarray],
    outputs: Sequence[str],
    opset: int = 3,
    tolerance: float = 2e-5,
    **attributes: Any,
) -> Arrays:
    """Both answers must agree; ours is returned."""
    model = one_node(op_type, x, outputs, opset, **attributes)
    xs = [x] if isinstance(x, np.ndarray) else list(x)
    got = ours(model, xs)
    expected = graphs.native(model, {f"x{i}": a for i, a in enumerate(xs)}, outputs)
    for name in outputs:
        g, e = got[name], expected[name]
        assert g.shape == e.shape
        if e.dtype.kind in "iUO":
            assert (g == e).all(), name
        else:
            assert g.dtype == e.dtype
            np.testing.assert_allclose(g, e, rtol=tolerance, atol=tolerance)
    return got
