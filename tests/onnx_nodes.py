"""Single nodes: what onnxruntime makes of one, what this package makes of it, and the onnx package's own cases."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import onnx.backend.test.loader
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from harness import Harness
from onnx_wasm import model, ops, registry
from onnx_wasm.context import Context

registry.load(ops)

Inputs = Sequence[np.ndarray | None]


def single_node(op_type: str, inputs: Inputs, opset: int, outputs: int = 1, **attributes: Any) -> onnx.ModelProto:
    """A model of one node with inputs x0, x1, ... and outputs y0, y1, ..."""
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    node = helper.make_node(op_type, names, [f"y{i}" for i in range(outputs)], **attributes)
    graph = helper.make_graph(
        [node],
        "node",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for n, x in zip(names, inputs, strict=True)
            if x is not None
        ],
        [onnx.ValueInfoProto(name=n) for n in node.output],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def onnxruntime_node(op_type: str, inputs: Inputs, opset: int, outputs: int = 1, **attributes: Any) -> list[np.ndarray]:
    """What onnxruntime computes for one node."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    proto = single_node(op_type, inputs, opset, outputs, **attributes)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {f"x{i}": x for i, x in enumerate(inputs) if x is not None})


def run_node(
    harness: Harness,
    op_type: str,
    inputs: Inputs,
    opset: int = 21,
    outputs: Sequence[str] = ("y",),
    weights: Sequence[int] = (),
    split: int = 1,
    **attributes: Any,
) -> tuple[np.ndarray, ...]:
    """What the registered op computes for one node."""
    definition = registry.find("", op_type, opset)
    assert definition is not None, f"{op_type} has no form for opset {opset}"

    def function(cx: Context, *args: Any, **kwargs: Any) -> Any:
        cx.node = replace(cx.node, outputs=tuple(outputs))
        result = definition.function(cx, *args, **kwargs)
        return _finish(result) if inspect.isgenerator(result) else _flat(result)

    host = [i for i, name in enumerate(definition.inputs) if name in definition.host]
    return harness.op(
        function, inputs, weights=weights, host=host, opset=opset, split=split, op_type=op_type, **attributes
    )


def _flat(result: Any) -> tuple[Any, ...]:
    return tuple(r for r in result if r is not None) if isinstance(result, tuple) else (result,)


def _finish(asking: Generator[Any, Any, Any]) -> Generator[Any, Any, tuple[Any, ...]]:
    return _flat((yield from asking))


@dataclass(frozen=True)
class Case:
    """One of the onnx package's cases of a single node."""

    name: str
    model: onnx.ModelProto
    inputs: list[np.ndarray]
    outputs: list[np.ndarray]
    rtol: float
    atol: float

    def run(self, harness: Harness, split: int = 1) -> tuple[np.ndarray, ...]:
        """What the registered op computes for it."""
        node, inputs = self.node
        return run_node(
            harness,
            node.op_type,
            inputs,
            self.model.opset_import[0].version,
            outputs=node.outputs,
            split=split,
            **node.attributes,
        )

    @property
    def node(self) -> tuple[model.Node, list[np.ndarray | None]]:
        """The node, and its inputs."""
        graph = model.load(self.model.SerializeToString())
        feeds = dict(zip((i.name for i in graph.inputs), self.inputs, strict=True))
        return graph.nodes[0], [feeds.get(n) for n in graph.nodes[0].inputs]


@functools.cache
def _all_cases() -> list[Any]:
    with warnings.catch_warnings():
        # Making the cases overflows and divides by zero on purpose.
        warnings.simplefilter("ignore")
        return onnx.backend.test.loader.load_model_tests(kind="node")


def node_cases(*op_types: str) -> list[Case]:
    """The onnx package's cases that are a single node of one of the operators."""
    cases = []
    for test in _all_cases():
        proto = test.model
        if proto is None or len(proto.graph.node) != 1 or proto.graph.node[0].op_type not in op_types:
            continue
        inputs, outputs = test.data_sets[0]
        cases.append(
            Case(test.name, proto, [_array(i) for i in inputs], [_array(o) for o in outputs], test.rtol, test.atol)
        )
    return cases


def _array(value: Any) -> np.ndarray:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)
