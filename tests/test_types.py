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

UNSUPPORTED: dict[str, set[str]] = {
    # Operands of more than one type.
    "Attention": {"T1 float64", "T2 float64"},
    "Col2Im": {"T bool", "T complex64", "T complex128"},
    "GridSample": {"T1 complex64", "T1 complex128"},
    "NonZero": {"T complex128"},
    "Unique": {"T complex64", "T complex128"},
}
"""By operator, the type parameters and the types that they should stand for and cannot."""

SMALL = np.array([[0, 1, 3], [2, 1, 0]])
IMAGE = np.arange(1 * 4 * 4 * 4).reshape(1, 4, 4, 4) % 7
INDEX = np.array([1, 0], np.int64)


UNARY = """
    Abs Acos ArgMax ArgMin Asin Asinh Atan Atanh BitwiseNot Ceil Celu Cos Cosh Dropout Elu Erf Exp
    Flatten Floor Gelu HardSigmoid HardSwish Hardmax Identity IsInf IsNaN LeakyRelu Log LogSoftmax
    LpNormalization Mish Neg Not Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax
    ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Round Selu Shape Shrink Sigmoid
    Sign Sin Sinh Size Softmax Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu Transpose Trilu
"""
BINARY = """
    Add And BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mul Or PRelu
    Sub Sum Xor
"""


class T:
    """An input of the type under test; floats get the values times ``scale``."""

    def __init__(self, values: Any, scale: float = 0.25, shift: float = 0, name: str = "T") -> None:
        self.values = np.asarray(values)
        self.scale, self.shift, self.name = scale, shift, name

    def of(self, dtype: dtypes.DType) -> np.ndarray:
        scalar = narrow.scalar_type(dtype)
        if dtype.is_float:
            return (self.values * self.scale + self.shift).astype(np.float32).astype(scalar)
        if dtype.bits < 8:
            return np.minimum(self.values, 1).astype(scalar)
        return (self.values + self.shift).astype(scalar)


def _cases() -> dict[str, tuple[list[Any], dict[str, Any]]]:
    x, y, one = T(SMALL), T(SMALL, shift=1), T([1])
    cases: dict[str, tuple[list[Any], dict[str, Any]]] = {}
    for name in UNARY.split():
        cases[name] = ([x], {})
    cases["Acosh"] = ([y], {})
    for name in BINARY.split():
        cases[name] = ([x, y], {})
    cases["Mod"] = ([x, y], {"fmod": 1})
    cases["BitShift"] = ([x, y], {"direction": "LEFT"})
    for name in ("AveragePool", "LpPool", "MaxPool"):
        cases[name] = ([T(IMAGE)], {"kernel_shape": [2, 2]})
    for name in ("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "MeanVarianceNormalization"):
        cases[name] = ([T(IMAGE)], {})
    cases["LRN"] = ([T(IMAGE)], {"size": 3})
    for name in ("DepthToSpace", "SpaceToDepth"):
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
    cases["CumProd"] = cases["CumSum"] = ([x, T(1, name="T2")], {})
    cases["Expand"] = ([T(SMALL[:, :1]), np.array([2, 2, 3])], {})
    cases["EyeLike"] = ([T(SMALL, name="T1")], {})
    for name in ("Gather", "GatherElements", "GatherND"):
        cases[name] = ([x, T([[1, 0]], name="Tind") if name == "Gather" else np.array([[1, 0]])], {})
    cases["GatherElements"] = ([x, T([[1, 0, 2], [2, 2, 0]], name="Tind")], {"axis": 1})
    cases["Gemm"] = ([x, T(SMALL.T), T([1, 2])], {})
    cases["MatMul"] = ([x, T(SMALL.T)], {})
    cases["IsInf"] = cases["IsNaN"] = ([T(SMALL, name="T1")], {})
    cases["OneHot"] = ([T([1, 0], scale=1, name="T1"), T(3, scale=1, name="T2"), T([0, 1], scale=1, name="T3")], {})
    cases["Pad"] = ([x, np.array([0, 1, 1, 0]), T(2)], {})
    cases["Pow"] = ([x, T([[2, 1, 2]], scale=1, name="T1")], {})
    cases["Range"] = ([T(0), T(5), T(1)], {})
    cases["Reshape"] = ([x, np.array([3, 2])], {})
    cases["ReverseSequence"] = ([x, np.array([1, 2, 1])], {})
    scattered = [x, T([[1, 0, 1]], name="Tind"), T(SMALL[:1], shift=1)]
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
    cases["TopK"] = ([x, np.array([2])], {})
    cases["Unique"] = cases["NonZero"] = ([x], {})
    cases["Einsum"] = ([x, T(SMALL.T)], {"equation": "ij,jk->ik"})
    cases["Det"] = ([T([[2, 1], [1, 3]])], {})
    cases["ConvTranspose"] = ([T(IMAGE), T(np.arange(4 * 2 * 3 * 3).reshape(4, 2, 3, 3) % 5)], {})
    cases["Resize"] = (
        [T(IMAGE, name="T1"), None, np.array([1, 1, 2, 2], np.float32)],
        {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    )
    cases["GridSample"] = (
        [T(IMAGE, name="T1"), T(np.arange(8).reshape(1, 2, 2, 2) - 4, name="T2")],
        {"mode": "nearest"},
    )
    cases["AffineGrid"] = ([T([[[4, 1, 0], [1, 4, 2]]], name="T1"), np.array([1, 1, 3, 2])], {})
    cases["Col2Im"] = ([T(np.arange(4 * 9).reshape(1, 4, 9) % 7), np.array([4, 4]), np.array([2, 2])], {})
    cases["RoiAlign"] = ([T(IMAGE, name="T1"), T([[0, 0, 8, 8]], name="T1"), np.array([0])], {"sampling_ratio": 1})
    logits, labels = T(np.arange(6).reshape(2, 3) % 4), T([2, 0], scale=1, name="Tind")
    cases["NegativeLogLikelihoodLoss"] = cases["SoftmaxCrossEntropyLoss"] = ([logits, labels], {})
    heads = np.arange(24).reshape(1, 2, 3, 4) % 5
    cases["Attention"] = ([T(heads, name="T1"), T(heads[..., ::-1], name="T1"), T(heads, name="T2")], {})
    for name, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):
        w, r = (np.arange(gates * 2 * n).reshape(1, gates * 2, n) % 5 for n in (3, 2))
        cases[name] = ([T(SMALL.reshape(2, 1, 3)), T(w), T(r)], {"hidden_size": 2})
    cases["DFT"] = ([T(np.arange(8).reshape(1, 8, 1), name="T1")], {})
    cases["DequantizeLinear"] = ([T(SMALL, scale=1, name="T1"), T(2, name="T2")], {"output_dtype": 1})
    cases["QuantizeLinear"] = ([T(SMALL, name="T1"), T(2, name="T2"), T(0, name="T3")], {})
    cases["MatMulInteger"] = ([T(SMALL, name="T1"), T(SMALL.T, name="T2")], {})
    cases["ConvInteger"] = ([T(IMAGE, name="T1"), T(np.ones((1, 4, 2, 2), int), name="T2")], {})
    cases["MaxUnpool"] = (
        [T(IMAGE[:, :1, :2, :2], name="T1"), T([[[[0, 2], [8, 10]]]], name="T2")],
        {"kernel_shape": [2, 2], "strides": [2, 2]},
    )
    return cases


CASES = _cases()
REGISTERED = sorted({f.name for f in registry.registered() if f.domain == ""})


def allowed(schema: Any, parameter: str) -> Iterator[dtypes.DType]:
    """The tensor types that a schema allows."""
    names = {"float": "float32", "double": "float64"}
    for constraint in schema.type_constraints:
        if constraint.type_param_str == parameter:
            for text in constraint.allowed_type_strs:
                inner = text.removeprefix("tensor(").removesuffix(")")
                # Strings never reach kernels.
                if inner not in (text, "string"):
                    yield dtypes.from_name(names.get(inner, inner))


# onnx's reference has them for f32 only.
IN_F32 = {"MeanVarianceNormalization", "MaxPool", "OneHot", "Resize"}


def _lrn(x: np.ndarray, size: int) -> np.ndarray:
    squares = np.pad(x.astype(np.float64) ** 2, ((0, 0), (1, 1), (0, 0), (0, 0)))
    total = sum(squares[:, k : k + x.shape[1]] for k in range(size))
    return x / (1 + 1e-4 / size * total) ** 0.75


OWN = {"GlobalLpPool": lambda x: np.sqrt((x.astype(np.float64) ** 2).sum((2, 3), keepdims=True)), "LRN": _lrn}


def expected(node: onnx.NodeProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What onnx's reference computes; for floats of 16 bits, in f32."""
    halves = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
    name, attributes = node.op_type, {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if name in OWN:
        return [OWN[name](*feeds.values(), **attributes)]
    if name in IN_F32:
        feeds = {
            n: a if a.dtype == np.int64 and name == "OneHot" else np.real(a).astype(np.float32)
            for n, a in feeds.items()
        }
    elif name != "BitCast":
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


def check(runtime: ort.Runtime, name: str, parameter: str, dtype: dtypes.DType) -> None:
    """Run the operator's case with one type parameter as the type."""
    inputs, attributes = CASES[name]
    default = DEFAULT.get(name, {})
    arrays = [
        i.of(dtype if i.name == parameter else default.get(i.name, dtypes.F32)) if isinstance(i, T) else i
        for i in inputs
    ]
    feeds = {f"x{i}": a for i, a in enumerate(arrays) if a is not None}
    names = ["" if a is None else f"x{i}" for i, a in enumerate(arrays)]
    if name == "BitCast":
        attributes = {"to": dtype.onnx}
    outputs = [f"y{i}" for i in range(OUTPUTS.get(name, 1))]
    node = helper.make_node(name, names, outputs, **attributes)
    got = narrow.run([node], feeds, OPSET, runtime)
    for output, want in zip(outputs, expected(node, feeds), strict=True):
        compare(got[output], want)


OUTPUTS = {"Split": 2, "TopK": 2}
DEFAULT = {
    "CumSum": {"T2": dtypes.I64},
    "CumProd": {"T2": dtypes.I64},
    "Gather": {"Tind": dtypes.I64},
    "GatherElements": {"Tind": dtypes.I64},
    "ScatterElements": {"Tind": dtypes.I64},
    "OneHot": {"T1": dtypes.I64, "T2": dtypes.I64},
    "NegativeLogLikelihoodLoss": {"Tind": dtypes.I64},
    "SoftmaxCrossEntropyLoss": {"Tind": dtypes.I64},
    "MatMulInteger": {"T1": dtypes.U8, "T2": dtypes.U8},
    "ConvInteger": {"T1": dtypes.U8, "T2": dtypes.U8},
    "DequantizeLinear": {"T1": dtypes.U8},
    "QuantizeLinear": {"T3": dtypes.U8},
    "MaxUnpool": {"T2": dtypes.I64},
}
"""The types of parameters that are not under test; f32 unless it says otherwise."""


@pytest.mark.parametrize("name", [n for n in REGISTERED if n in CASES])
def test_every_type(runtime: ort.Runtime, name: str) -> None:
    schema = defs.get_schema(name, OPSET)
    refused = {}
    for parameter in dict.fromkeys(i.name for i in CASES[name][0] if isinstance(i, T)):
        for dtype in allowed(schema, parameter):
            try:
                check(runtime, name, parameter, dtype)
            except (ort.OnnxWasmError, NotImplementedError) as error:
                refused[f"{parameter} {dtype}"] = str(error)
    assert set(refused) == UNSUPPORTED.get(name, set()), refused


# Types that an attribute names: the attribute, the type parameter that it decides, inputs, if there is a reference.
NAMED: dict[str, tuple[str, str, list[Any], bool]] = {
    "Bernoulli": ("dtype", "T2", [np.full((3, 5), 0.5, np.float32)], False),
    "BlackmanWindow": ("output_datatype", "T2", [np.array(6)], True),
    "Cast": ("to", "T2", [np.array([0, 1, 0.5, 1], np.float32)], True),
    "EyeLike": ("dtype", "T2", [np.ones((2, 3), np.float32)], True),
    "HammingWindow": ("output_datatype", "T2", [np.array(6)], True),
    "HannWindow": ("output_datatype", "T2", [np.array(6)], True),
    "MelWeightMatrix": (
        "output_datatype",
        "T3",
        [np.array(4), np.array(16), np.array(8192), np.array(0, np.float32), np.array(4096, np.float32)],
        True,
    ),
    "Multinomial": ("dtype", "T2", [np.ones((2, 3), np.float32)], False),
    "RandomNormal": ("dtype", "T", [], False),
    "RandomNormalLike": ("dtype", "T2", [np.ones((2, 3), np.float32)], False),
    "RandomUniform": ("dtype", "T", [], False),
    "RandomUniformLike": ("dtype", "T2", [np.ones((2, 3), np.float32)], False),
}
UNSUPPORTED_NAMED: dict[str, set[str]] = {}


@pytest.mark.parametrize("name", [n for n in NAMED if n in REGISTERED])
def test_every_type_that_an_attribute_names(runtime: ort.Runtime, name: str) -> None:
    attribute, parameter, inputs, has_reference = NAMED[name]
    more: dict[str, Any] = {"shape": [2, 3]} if name in ("RandomNormal", "RandomUniform") else {}
    refused = {}
    for dtype in allowed(defs.get_schema(name, OPSET), parameter):
        feeds = {f"x{i}": a for i, a in enumerate(inputs)}
        node = helper.make_node(name, list(feeds), ["y0"], **{attribute: dtype.onnx}, **more)
        try:
            got = narrow.run([node], feeds, OPSET, runtime)["y0"]
        except (ort.OnnxWasmError, NotImplementedError) as error:
            refused[dtype.name] = str(error)
            continue
        assert got.dtype == narrow.scalar_type(dtype)
        if has_reference:
            in_f32 = dtype in (dtypes.F16, dtypes.BF16) and name != "Cast"
            wide = helper.make_node(name, list(feeds), ["y0"], **{attribute: 1 if in_f32 else dtype.onnx}, **more)
            compare(got, expected(wide, feeds)[0])
    assert set(refused) == UNSUPPORTED_NAMED.get(name, set()), refused


@pytest.mark.parametrize("name", ["Constant", "ConstantOfShape"])
def test_every_type_of_a_tensor_in_an_attribute(runtime: ort.Runtime, name: str) -> None:
    parameter = {"Constant": "T", "ConstantOfShape": "T2"}[name]
    refused = {}
    for dtype in allowed(defs.get_schema(name, OPSET), parameter):
        one = T([1], scale=1).of(dtype)
        raw = narrow.pack(one, dtype.bits) if dtype.bits < 8 else one
        value = helper.make_tensor("value", dtype.onnx, [1], raw.tobytes(), raw=True)
        feeds = {"x0": np.array([2, 3])} if name == "ConstantOfShape" else {}
        node = helper.make_node(name, list(feeds), ["y0"], value=value)
        try:
            got = narrow.run([node], feeds, OPSET, runtime)["y0"]
        except (ort.OnnxWasmError, NotImplementedError) as error:
            refused[dtype.name] = str(error)
            continue
        compare(got, np.full((2, 3) if feeds else (1,), one[0]))
        assert got.dtype == one.dtype
    assert not refused


def test_sequences_of_every_type(runtime: ort.Runtime) -> None:
    for dtype in allowed(defs.get_schema("SequenceConstruct", OPSET), "T"):
        x, y = T(SMALL).of(dtype), T(SMALL, shift=1).of(dtype)
        nodes = [
            helper.make_node("SequenceConstruct", ["x", "y"], ["s"]),
            helper.make_node("SequenceAt", ["s", "at"], ["second"]),
            helper.make_node("ConcatFromSequence", ["s"], ["both"], axis=0),
        ]
        feeds = {"x": x, "y": y, "at": np.array(1)}
        got = narrow.run(nodes, feeds, OPSET, runtime, fetches=["second", "both"])
        compare(got["second"], y)
        compare(got["both"], np.concatenate([x, y]))


@pytest.mark.parametrize("new_axis", [-1, 2, -100])
def test_a_new_axis_is_there_or_not(runtime: ort.Runtime, new_axis: int) -> None:
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "x"], ["s"]),
        helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0, new_axis=new_axis),
    ]
    with pytest.raises(ort.ShapeError, match=f"new_axis is {new_axis}, must be 0 or 1"):
        narrow.run(nodes, {"x": np.zeros(3, np.float32)}, OPSET, runtime, fetches=["y"])
