"""Every element type that ONNX allows for an operator: accepted, with the right values, or in the list of those that
are not.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import defs, helper
from onnx.reference import ReferenceEvaluator

import narrow
import onnx_wasm as ort
from onnx_wasm import dtypes, ops, registry

registry.load(ops)
OPSET = defs.onnx_opset_version()

COMPLEX = {"complex64", "complex128"}
UNSUPPORTED: dict[str, set[str]] = {}
"""By operator, the types that it should take and does not."""

SMALL = np.array([[0, 1, 3], [2, 1, 0]])
IMAGE = np.arange(1 * 4 * 4 * 4).reshape(1, 4, 4, 4) % 7
INDEX = np.array([1, 0], np.int64)


class T:
    """An input of the type under test; floats get the values times ``scale``."""

    def __init__(self, values: Any, scale: float = 0.25, shift: float = 0, name: str = "T") -> None:
        self.values = np.asarray(values)
        self.scale, self.shift, self.name = scale, shift, name

    def of(self, dtype: dtypes.DType) -> np.ndarray:
        if dtype is dtypes.STRING:
            return np.char.add("s", self.values.astype(str)).astype(object)
        scalar = narrow.scalar_type(dtype)
        if dtype.is_float:
            return (self.values * self.scale + self.shift).astype(np.float32).astype(scalar)
        if dtype.bits < 8:
            return np.minimum(self.values, 1).astype(scalar)
        return (self.values + self.shift).astype(scalar)


def _cases() -> dict[str, tuple[list[Any], dict[str, Any]]]:
    x, y, one = T(SMALL), T(SMALL, shift=1), T([1])
    cases: dict[str, tuple[list[Any], dict[str, Any]]] = {}
    for name in (
        "Abs Acos Asin Asinh Atan Atanh Ceil Celu Cos Cosh Elu Erf Exp Flatten Floor Gelu HardSigmoid HardSwish Hardmax "
        "Identity IsInf IsNaN LeakyRelu Log LogSoftmax LpNormalization Mish Neg Not Reciprocal Relu Round Selu Shape "
        "Shrink Sigmoid Sign Sin Sinh Size Softmax Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu Transpose "
        "Trilu ArgMax ArgMin BitwiseNot Dropout ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean "
        "ReduceMin ReduceProd ReduceSum ReduceSumSquare"
    ).split():
        cases[name] = ([x], {})
    cases["Acosh"] = ([y], {})
    for name in "Add And Div Equal Greater GreaterOrEqual Less LessOrEqual Mod Mul Or Sub Xor".split():
        cases[name] = ([x, y], {})
    for name in "BitwiseAnd BitwiseOr BitwiseXor Max Min Sum Mean PRelu".split():
        cases[name] = ([x, y], {})
    cases["Mod"] = ([x, y], {"fmod": 1})
    cases["BitShift"] = ([x, y], {"direction": "LEFT"})
    for name in "AveragePool LpPool MaxPool".split():
        cases[name] = ([T(IMAGE)], {"kernel_shape": [2, 2]})
    for name in "GlobalAveragePool GlobalLpPool GlobalMaxPool MeanVarianceNormalization".split():
        cases[name] = ([T(IMAGE)], {})
    cases["LRN"] = ([T(IMAGE)], {"size": 3})
    for name in "DepthToSpace SpaceToDepth".split():
        cases[name] = ([T(IMAGE)], {"blocksize": 2})
    channels = T(np.arange(4) + 1)
    parameters = [T(np.arange(4) + 1, name="T1")] * 2 + [T(np.arange(4) + 1, name="T2")] * 2
    cases["BatchNormalization"] = ([T(IMAGE), *parameters], {})
    cases["InstanceNormalization"] = ([T(IMAGE), channels, channels], {})
    cases["GroupNormalization"] = ([T(IMAGE), channels, channels], {"num_groups": 2})
    cases["LayerNormalization"] = ([x, T([1, 2, 3]), T([1, 0, 2])], {})
    cases["RMSNormalization"] = ([x, T([1, 2, 3], name="V")], {})
    cases["CenterCropPad"] = ([x, np.array([3, 2])], {})
    cases["Clip"] = ([x, one, T([2])], {})
    cases["Clip"][0][1].values = np.array(1)
    cases["Clip"][0][2].values = np.array(2)
    cases["Compress"] = ([x, np.array([True, False, True])], {"axis": 1})
    cases["Concat"] = ([x, x], {"axis": 1})
    cases["Conv"] = ([T(IMAGE), T(np.arange(2 * 4 * 3 * 3).reshape(2, 4, 3, 3) % 5), T([1, 2])], {})
    cases["CumProd"] = cases["CumSum"] = ([x, np.array(1)], {})
    cases["Expand"] = ([T(SMALL[:, :1]), np.array([2, 2, 3])], {})
    cases["EyeLike"] = ([T(SMALL, name="T1")], {})
    for name in ("Gather", "GatherElements", "GatherND"):
        index = np.array([[1, 0, 2]]) if name == "GatherElements" else np.array([[1, 0]])
        cases[name] = ([x, index], {} if name != "GatherElements" else {"axis": 1})
    cases["Gemm"] = ([x, T(SMALL.T), T([1, 2])], {})
    cases["MatMul"] = ([x, T(SMALL.T)], {})
    cases["IsInf"] = cases["IsNaN"] = ([T(SMALL, name="T1")], {})
    cases["OneHot"] = ([np.array([1, 0]), np.array(3), T([0, 1], scale=1, name="T3")], {})
    cases["Pad"] = ([x, np.array([0, 1, 1, 0])], {})
    cases["Pow"] = ([x, T([[2, 1, 2]], scale=1, name="T1")], {})
    cases["Range"] = ([T(0), T(5), T(1)], {})
    cases["Reshape"] = ([x, np.array([3, 2])], {})
    cases["ReverseSequence"] = ([x, np.array([1, 2, 1])], {})
    scattered = [x, np.array([[1, 0, 1]]), T(SMALL[:1], shift=1)]
    cases["ScatterElements"] = (scattered, {})
    cases["ScatterND"] = ([x, np.array([[1]]), T(SMALL[:1])], {})
    cases["Slice"] = ([x, np.array([1]), np.array([3]), np.array([1])], {})
    cases["Split"] = ([x], {"axis": 1, "num_outputs": 2})
    cases["Squeeze"] = ([T(SMALL[:, :1]), np.array([1])], {})
    cases["TensorScatter"] = ([T(np.arange(12).reshape(1, 1, 4, 3) % 3), T(SMALL.reshape(1, 1, 2, 3))], {})
    cases["Tile"] = ([x, np.array([2, 1])], {})
    cases["Unsqueeze"] = ([x, np.array([1])], {})
    cases["Where"] = ([SMALL > 1, x, y], {})
    cases["Cast"] = ([T(SMALL, name="T1")], {"to": 1})
    cases["CastLike"] = ([T(SMALL, name="T1"), np.ones(1, np.float32)], {})
    cases["BitCast"] = ([T(SMALL, name="T1")], {})
    return cases


CASES = _cases()
REGISTERED = sorted({f.name for f in registry.registered() if f.domain == ""})


def allowed(schema: Any, parameter: str) -> Iterator[dtypes.DType]:
    """The tensor types that a schema allows."""
    names = {"float": "float32", "double": "float64"}
    for constraint in schema.type_constraints:
        if constraint.type_param_str == parameter:
            for text in constraint.allowed_type_strs:
                if text.startswith("tensor("):
                    inner = text.removeprefix("tensor(").removesuffix(")")
                    yield dtypes.from_name(names.get(inner, inner))


def expected(node: onnx.NodeProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What onnx's reference computes; for floats of 16 bits, in f32."""
    halves = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
    if node.op_type != "BitCast":
        feeds = {n: a.astype(np.float32) if a.dtype in halves else a for n, a in feeds.items()}
    graph = helper.make_graph(
        [node],
        "reference",
        [helper.make_tensor_value_info(n, narrow.type_of(a).onnx, a.shape) for n, a in feeds.items()],
        [onnx.ValueInfoProto(name=o) for o in node.output],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=13)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results: list[np.ndarray] = ReferenceEvaluator(model).run(None, feeds)
    return results


def compare(got: np.ndarray, want: Any) -> None:
    want = np.asarray(want)
    assert got.shape == want.shape
    if got.dtype.kind in "OUS":
        assert got.astype(str).tolist() == want.astype(str).tolist()
    elif got.dtype.kind in "biu" or narrow.type_of(got).bits < 8:
        np.testing.assert_array_equal(got.astype(int), want.astype(int))
    else:
        bits = narrow.type_of(got).bits
        rtol = {8: 0, 16: 2**-7, 32: 1e-5, 64: 1e-5, 128: 1e-7}[bits]
        wide = np.complex128 if got.dtype.kind == "c" else np.float64
        np.testing.assert_allclose(got.astype(wide), want.astype(wide), rtol=rtol, atol=rtol / 4)


@pytest.fixture(scope="module")
def runtime() -> Iterator[ort.Runtime]:
    with ort.Runtime() as made:
        yield made


@pytest.mark.parametrize("name", [n for n in REGISTERED if n in CASES])
def test_every_type(runtime: ort.Runtime, name: str) -> None:
    inputs, attributes = CASES[name]
    schema = defs.get_schema(name, OPSET)
    refused = {}
    for parameter in dict.fromkeys(i.name for i in inputs if isinstance(i, T)):
        for dtype in allowed(schema, parameter):
            arrays = [
                i if not isinstance(i, T) else i.of(dtype if i.name == parameter else dtypes.F32) for i in inputs
            ]
            feeds = {f"x{i}": a for i, a in enumerate(arrays)}
            if name == "BitCast":
                attributes = {"to": dtype.onnx}
            outputs = ["y0", "y1"] if name == "Split" else ["y0"]
            node = helper.make_node(name, list(feeds), outputs, **attributes)
            try:
                got = narrow.run([node], feeds, OPSET, runtime)
            except Exception as error:
                refused[dtype.name] = str(error)
                continue
            for output, want in zip(outputs, expected(node, feeds), strict=True):
                compare(got[output], want)
    assert set(refused) == UNSUPPORTED.get(name, set()), refused
