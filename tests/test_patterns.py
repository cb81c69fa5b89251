"""Operators that a model has written out are recognised, and give what the written-out form gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import helper

import graphs
import onnx_wasm as ort
from graphs import FLOAT, node
from onnx_wasm import model as models
from onnx_wasm.patterns import simplify

Nodes = list[Any]
Weights = dict[str, np.ndarray]
RNG = np.random.default_rng(0)
X = np.concatenate([RNG.standard_normal(60) * 4, [0, -0.0, 3, -3, 100, -100]]).astype(np.float32).reshape(2, 3, 11)


def number(value: float, shape: tuple[int, ...] = ()) -> np.ndarray:
    return np.full(shape, value, np.float32)


def silu() -> tuple[Nodes, Weights]:
    return [node("Sigmoid", ["x"], ["s"]), node("Mul", ["x", "s"], ["y"])], {}


def quick_gelu() -> tuple[Nodes, Weights]:
    nodes = [
        node("Mul", ["k", "x"], ["m"]),
        node("Sigmoid", ["m"], ["s"]),
        node("Mul", ["s", "x"], ["y"]),
    ]
    return nodes, {"k": number(1.702)}


def hard_sigmoid() -> tuple[Nodes, Weights]:
    nodes = [
        node("Add", ["x", "three"], ["a"]),
        node("Clip", ["a", "zero", "six"], ["c"]),
        node("Div", ["c", "six"], ["y"]),
    ]
    return nodes, {"three": number(3), "zero": number(0), "six": number(6)}


def hard_swish_div() -> tuple[Nodes, Weights]:
    nodes, weights = hard_sigmoid()
    return [*nodes[:2], node("Mul", ["x", "c"], ["m"]), node("Div", ["m", "six"], ["y"])], weights


def hard_swish_mul() -> tuple[Nodes, Weights]:
    nodes, weights = hard_sigmoid()
    nodes = [*nodes[:2], node("Mul", ["c", "sixth"], ["d"]), node("Mul", ["d", "x"], ["y"])]
    return nodes, {**weights, "sixth": number(1 / 6)}


def hard_swish_one() -> tuple[Nodes, Weights]:
    nodes = [node("HardSigmoid", ["x"], ["h"], alpha=1 / 6, beta=0.5), node("Mul", ["x", "h"], ["y"])]
    return nodes, {}


def gelu_last_half() -> tuple[Nodes, Weights]:
    nodes = [
        node("Div", ["x", "root"], ["d"]),
        node("Erf", ["d"], ["e"]),
        node("Add", ["e", "one"], ["a"]),
        node("Mul", ["x", "a"], ["m"]),
        node("Mul", ["m", "half"], ["y"]),
    ]
    return nodes, {"root": number(2**0.5), "one": number(1), "half": number(0.5)}


def gelu_first_half() -> tuple[Nodes, Weights]:
    nodes, weights = gelu_last_half()
    nodes = [
        node("Mul", ["x", "half"], ["h"]),
        node("Mul", ["x", "root"], ["d"]),
        *nodes[1:3],
        node("Mul", ["a", "h"], ["y"]),
    ]
    return nodes, {**weights, "root": number(0.5**0.5)}


def gelu_inner_half() -> tuple[Nodes, Weights]:
    nodes, weights = gelu_last_half()
    return [*nodes[:3], node("Mul", ["half", "a"], ["h"]), node("Mul", ["x", "h"], ["y"])], weights


def fast_gelu() -> tuple[Nodes, Weights]:
    nodes = [
        node("Pow", ["x", "three"], ["p"]),
        node("Mul", ["p", "k"], ["c"]),
        node("Add", ["x", "c"], ["i"]),
        node("Mul", ["i", "root"], ["r"]),
        node("Tanh", ["r"], ["t"]),
        node("Add", ["t", "one"], ["a"]),
        node("Mul", ["x", "half"], ["h"]),
        node("Mul", ["h", "a"], ["y"]),
    ]
    weights = {"three": number(3), "k": number(0.044715), "root": number((2 / np.pi) ** 0.5)}
    return nodes, {**weights, "one": number(1), "half": number(0.5)}


def fast_gelu_by_products() -> tuple[Nodes, Weights]:
    nodes, weights = fast_gelu()
    del weights["three"]
    nodes[:2] = [node("Mul", ["k", "x"], ["l"]), node("Mul", ["x", "l"], ["p"]), node("Mul", ["x", "p"], ["c"])]
    return nodes, {**weights, "one": number(1, (1, 1, 1))}


def fast_gelu_by_a_square() -> tuple[Nodes, Weights]:
    nodes, weights = fast_gelu()
    del weights["three"]
    nodes[:2] = [node("Mul", ["x", "x"], ["l"]), node("Mul", ["l", "x"], ["p"]), node("Mul", ["p", "k"], ["c"])]
    return nodes, weights


def layer_norm() -> tuple[Nodes, Weights]:
    nodes = [
        node("ReduceMean", ["x"], ["mean"], axes=[-1]),
        node("Sub", ["x", "mean"], ["d"]),
        node("Pow", ["d", "two"], ["q"]),
        node("ReduceMean", ["q"], ["v"], axes=[-1]),
        node("Add", ["v", "eps"], ["e"]),
        node("Sqrt", ["e"], ["r"]),
        node("Div", ["d", "r"], ["n"]),
        node("Mul", ["n", "scale"], ["m"]),
        node("Add", ["m", "bias"], ["y"]),
    ]
    rows = {k: RNG.standard_normal(11).astype(np.float32) for k in ("scale", "bias")}
    return nodes, {"two": number(2), "eps": number(1e-5), **rows}


def layer_norm_by_product() -> tuple[Nodes, Weights]:
    nodes, weights = layer_norm()
    nodes[2] = node("Mul", ["d", "d"], ["q"])
    nodes[7] = node("Mul", ["scale", "n"], ["m"])
    nodes[8] = node("Add", ["bias", "m"], ["y"])
    del weights["two"]
    return nodes, weights


CASES: list[tuple[Callable[[], tuple[Nodes, Weights]], str]] = [
    (silu, "Swish"),
    (quick_gelu, "Swish"),
    (hard_sigmoid, "HardSigmoid"),
    (hard_swish_div, "HardSwish"),
    (hard_swish_mul, "HardSwish"),
    (hard_swish_one, "HardSwish"),
    (gelu_last_half, "Gelu"),
    (gelu_first_half, "Gelu"),
    (gelu_inner_half, "Gelu"),
    (fast_gelu, "FastGelu"),
    (fast_gelu_by_products, "FastGelu"),
    (fast_gelu_by_a_square, "FastGelu"),
    (layer_norm, "LayerNormalization"),
    (layer_norm_by_product, "LayerNormalization"),
]
IDS = [case[0].__name__ for case in CASES]


def kinds(data: bytes) -> list[str]:
    return [n.op_type for n in simplify(models.load(data)).nodes if n.op_type != "Constant"]


def made(nodes: Nodes, weights: Weights, *, outputs: tuple[str, ...] = ("y",), shape: Any = None) -> bytes:
    return graphs.model(nodes, {"x": (FLOAT, X.shape if shape is None else shape)}, outputs, weights, opset=13)


def check(data: bytes, x: np.ndarray = X) -> None:
    expected = graphs.native(data, {"x": x})
    for level in ("all", "disabled"):
        with ort.InferenceSession.create(data, graph_optimization_level=level) as session:
            for name, tensor in session.run({"x": x}).items():
                got = tensor.get_data(release_data=True)
                assert got.shape == expected[name].shape
                np.testing.assert_allclose(got, expected[name], rtol=2e-5, atol=3e-6)


@pytest.mark.parametrize(("case", "kind"), CASES, ids=IDS)
def test_recognised(case: Callable[[], tuple[Nodes, Weights]], kind: str) -> None:
    nodes, weights = case()
    data = made(nodes, weights)
    assert kinds(data) == [kind]
    check(data)


@pytest.mark.parametrize(("case", "kind"), CASES, ids=IDS)
def test_constants_as_nodes_and_of_one_axis(case: Callable[[], tuple[Nodes, Weights]], kind: str) -> None:
    nodes, weights = case()
    constants = [
        helper.make_node("Constant", [], [k], value=helper.make_tensor(k, FLOAT, w.shape or [1], w.reshape(-1)))
        for k, w in weights.items()
    ]
    data = made([*constants, *nodes], {})
    assert kinds(data) == [kind]
    check(data)


@pytest.mark.parametrize(("case", "kind"), CASES, ids=IDS)
def test_not_if_something_between_is_read_elsewhere(case: Callable[[], tuple[Nodes, Weights]], kind: str) -> None:
    nodes, weights = case()
    for between in nodes[:-1]:
        data = made(nodes, weights, outputs=("y", between.output[0]))
        # What is left of the pattern may be a smaller one.
        assert kinds(data) != [kind]
        check(data)


@pytest.mark.parametrize(("case", "kind"), CASES, ids=IDS)
def test_not_with_other_numbers(case: Callable[[], tuple[Nodes, Weights]], kind: str) -> None:
    nodes, weights = case()
    for name, value in weights.items():
        if name in ("eps", "scale", "bias") or kind == "Swish":
            continue
        for other in (value * np.float32(1.01) + np.float32(0.01), np.float32(value) + np.float32(1.1e-4)):
            data = made(nodes, {**weights, name: np.asarray(other, np.float32)})
            assert kinds(data) != [kind], name
            # Native takes any power for a square.
            if name != "two":
                check(data)


@pytest.mark.parametrize(("root", "one"), [(1.4142, 1.0), (1.41421, 1.0), (1.414213, 1.0), (1.41421354, 1.0)])
def test_numbers_in_a_few_digits(root: float, one: float) -> None:
    nodes, weights = gelu_last_half()
    data = made(nodes, {**weights, "root": number(root), "one": number(one)})
    assert kinds(data) == ["Gelu"]
    check(data)


def test_swish_of_any_factor() -> None:
    nodes, weights = quick_gelu()
    data = made(nodes, {**weights, "k": number(0.37)})
    assert kinds(data) == ["Swish"]
    check(data)


def test_a_scale_that_makes_a_row_longer_is_no_layer_normalization() -> None:
    nodes, weights = layer_norm()
    for shape in ([2, 1], [2, "n"]):
        data = made(nodes, weights, shape=shape)
        assert kinds(data) == [n.op_type for n in nodes]
        x = np.array([[1], [2]], np.float32)
        with ort.InferenceSession.create(data) as session:
            assert session.run({"x": x})["y"].get_data().shape == (2, 11)


def test_layer_normalization_of_what_a_product_made() -> None:
    nodes, weights = layer_norm()
    weights["w"] = RNG.standard_normal((4, 11)).astype(np.float32)
    data = graphs.model(
        [node("MatMul", ["in", "w"], ["x"]), *nodes], {"in": (FLOAT, ["n", 4])}, ["y"], weights, opset=13
    )
    assert kinds(data) == ["MatMul", "LayerNormalization"]


@pytest.mark.parametrize("kind", ["MatMul", "Conv", "BatchNormalization", "LayerNormalization", "Add"])
@pytest.mark.parametrize("inputs", [[], [""]])
def test_a_node_without_inputs_is_named(kind: str, inputs: list[str]) -> None:
    nodes, weights = quick_gelu()
    data = graphs.model([node(kind, inputs, ["x"]), *nodes], {}, ["y"], {**weights, "k": number(1.702, (1,))})
    with pytest.raises(ort.OnnxWasmError, match=kind):
        ort.InferenceSession.create(data)


def test_not_with_numbers_that_a_feed_may_replace() -> None:
    nodes, weights = gelu_last_half()
    data = graphs.model(nodes, {"x": (FLOAT, X.shape), "half": (FLOAT, ())}, ["y"], weights, opset=13)
    assert kinds(data) == [n.op_type for n in nodes]
    with ort.InferenceSession.create(data) as session:
        twice = session.run({"x": X, "half": number(1)})["y"].get_data()
        once = session.run({"x": X})["y"].get_data()
        np.testing.assert_allclose(twice, 2 * once, rtol=1e-5)


def test_not_if_a_number_adds_an_axis() -> None:
    nodes, weights = gelu_last_half()
    data = made(nodes, {k: w.reshape(1) for k, w in weights.items()}, shape=())
    assert kinds(data) == [n.op_type for n in nodes]
    with ort.InferenceSession.create(data) as session:
        assert session.run({"x": np.array(1.5, np.float32)})["y"].get_data().shape == (1,)


@pytest.mark.parametrize(("case", "kind"), CASES, ids=IDS)
def test_nodes_with_too_few_inputs_are_left_to_be_refused(case: Callable[[], tuple[Nodes, Weights]], kind: str) -> None:
    nodes, weights = case()
    for short in nodes:
        if short.op_type == "Clip":
            continue
        taken = short.input.pop()
        assert kinds(made(nodes, weights)) != [kind]
        with pytest.raises(ort.OnnxWasmError):
            ort.InferenceSession.create(made(nodes, weights)).run({"x": X})
        short.input.append(taken)


def test_not_with_broadcasting_along_other_axes() -> None:
    """Opset 6: an attribute says which axes of the first operand the second one has."""
    nodes, weights = layer_norm()
    for n in nodes:
        if n.op_type in ("Sub", "Div", "Mul", "Add", "Pow"):
            n.attribute.append(helper.make_attribute("broadcast", 1))
    for n in nodes[-2:]:
        n.attribute.append(helper.make_attribute("axis", 0))
    x = RNG.standard_normal((11, 11)).astype(np.float32)
    data = graphs.model(nodes, {"x": (FLOAT, x.shape)}, ["y"], weights, opset=6, ir_version=3)
    d = x - x.mean(-1, keepdims=True)
    normal = d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5)
    expected = normal * weights["scale"][:, None] + weights["bias"][:, None]
    with ort.InferenceSession.create(data) as session:
        np.testing.assert_allclose(session.run({"x": x})["y"].get_data(), expected, rtol=1e-4, atol=1e-5)


def test_not_in_float64() -> None:
    nodes, weights = gelu_last_half()
    weights = {k: w.astype(np.float64) for k, w in weights.items()}
    double = helper.np_dtype_to_tensor_dtype(np.dtype(np.float64))
    assert kinds(graphs.model(nodes, {"x": (double, [3])}, ["y"], weights, opset=13)) == [n.op_type for n in nodes]


@pytest.mark.parametrize("axes", [[1], [0, -1], [2]])
def test_means_of_other_axes_are_no_layer_normalization(axes: list[int]) -> None:
    nodes, weights = layer_norm()
    for i in (0, 3):
        nodes[i] = node("ReduceMean", nodes[i].input, nodes[i].output, axes=axes)
    data = made(nodes, weights)
    assert "LayerNormalization" not in kinds(data)
    check(data)


def test_a_chain_of_patterns_ends_in_the_convolution() -> None:
    """Scaled and shifted by numbers, and the hard swish of that: one record."""
    nodes, weights = hard_swish_div()
    nodes = [
        node("Conv", ["image", "w"], ["conv"]),
        node("Mul", ["k", "conv"], ["f"]),
        node("Add", ["f", "b"], ["x"]),
        *nodes,
    ]
    weights = {
        **{k: v.reshape(1) for k, v in weights.items()},
        "w": RNG.standard_normal((5, 3, 1, 1)).astype(np.float32),
        "k": number(0.7, (1,)),
        "b": number(-0.3, (1,)),
    }
    data = graphs.model(nodes, {"image": (FLOAT, [1, 3, 8, 8])}, ["y"], weights, opset=13)
    image = RNG.standard_normal((1, 3, 8, 8)).astype(np.float32)
    expected = graphs.native(data, {"image": image})["y"]
    with ort.InferenceSession.create(data) as session:
        session.start_profiling()
        got = session.run({"image": image})["y"].get_data()
        assert [e.kernel for e in session.end_profiling()] == ["conv_f32"]
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def flattened(*, opset: int = 13, index: Any = 0) -> tuple[Nodes, Weights]:
    """As PyTorch writes ``x.reshape(x.shape[0], -1)``."""
    axes = {"axes": [0]} if opset < 13 else {}
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "i"], ["d"], axis=0),
        node("Unsqueeze", ["d"] if axes else ["d", "zero"], ["u"], **axes),
        node("Concat", ["u", "rest"], ["t"], axis=0),
        node("Reshape", ["x", "t"], ["y"]),
    ]
    weights = {"i": np.array(index, np.int64), "rest": np.array([-1], np.int64)}
    return nodes, weights if axes else {**weights, "zero": np.array([0], np.int64)}


@pytest.mark.parametrize("opset", [11, 13])
@pytest.mark.parametrize("index", [0, 1, -1, -3])
def test_an_extent(opset: int, index: int) -> None:
    nodes, weights = flattened(opset=opset, index=index)
    data = graphs.model(nodes, {"x": (FLOAT, ["a", "b", "c"])}, ["y"], weights, opset=opset)
    assert kinds(data) == ["Extents", "Reshape"]
    check(data)


def test_an_extent_that_is_a_vector_already() -> None:
    nodes, weights = flattened(index=[1])
    nodes[1:4] = [node("Gather", ["s", "i"], ["u"]), node("Concat", ["u", "rest"], ["t"], axis=0)]
    data = made(nodes, weights)
    assert kinds(data) == ["Extents", "Reshape"]
    check(data)


def test_extents_of_one_shape_that_others_read_too() -> None:
    nodes, weights = flattened()
    nodes += [
        node("Gather", ["s", "j"], ["e"]),
        node("Unsqueeze", ["e", "zero"], ["v"]),
        node("Unsqueeze", ["e", "zero"], ["w"]),
        node("Cast", ["s"], ["whole"], to=FLOAT),
        *(node("Cast", [name], [f"{name}_"], to=FLOAT) for name in "evw"),
    ]
    weights["j"] = np.array(2, np.int32)
    extents = ["Extents", "Reshape", "Extent", "Extent", "Extent"]
    for outputs, expected in [(("y", "e_", "v_", "w_"), extents), (("y", "whole", "v_"), ["Shape", *extents[:-1]])]:
        used = [n for n in nodes if n.output[0] not in ("e_", "v_", "w_", "whole") or n.output[0] in outputs]
        data = made(used, weights, outputs=outputs)
        assert [k for k in kinds(data) if k != "Cast"] == expected
        check(data)


def shape_of_two(*parts: str, axis: int = 0) -> tuple[Nodes, Weights]:
    """A shape of extents of two tensors and constants, in this order."""
    nodes = [
        *(node("Shape", [x], [f"{x}s"]) for x in "xw"),
        node("Gather", ["xs", "first"], ["a"]),
        node("Gather", ["xs", "last"], ["b"]),
        node("Gather", ["ws", "first"], ["c"]),
        node("Gather", ["xs", "scalar"], ["d"]),
        node("Concat", list(parts), ["t"], axis=axis),
        node("Reshape", ["x", "t"], ["y"]),
    ]
    vectors = {"first": [0], "last": [-1], "rest": [-1], "ones": [1, 1], "none": []}
    weights: Weights = {n: np.array(v, np.int64) for n, v in vectors.items()}
    return nodes, {**weights, "scalar": np.int64(1), "w": np.zeros((2, 5), np.float32)}


@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize(
    "parts",
    [["a", "rest"], ["c", "none", "rest", "b"], ["ones", "a", "a", "rest"], ["rest", "c", "a"], ["b", "rest", "ones"]],
)
def test_a_shape_put_together_of_extents(parts: list[str], axis: int) -> None:
    nodes, weights = shape_of_two(*parts, axis=axis)
    inputs = {"x": (FLOAT, [2, "b", 4])}
    data = graphs.model(nodes, inputs, ["y"], weights, opset=13)
    assert kinds(data)[-2:] == ["Extents", "Reshape"]
    for extent in (2, 6):
        x = RNG.standard_normal((2, extent, 4)).astype(np.float32)
        with ort.InferenceSession.create(data) as session:
            np.testing.assert_array_equal(session.run({"x": x})["y"].get_data(), graphs.native(data, {"x": x})["y"])


def test_an_extent_of_a_shape_that_others_read_too() -> None:
    nodes, weights = shape_of_two("a", "rest")
    nodes.append(node("Cast", ["a"], ["z"], to=FLOAT))
    data = graphs.model(nodes, {"x": (FLOAT, [2, "b", 4])}, ["y", "z"], weights, opset=13)
    assert kinds(data)[-4:] == ["Extent", "Extents", "Reshape", "Cast"]
    x = RNG.standard_normal((2, 3, 4)).astype(np.float32)
    with ort.InferenceSession.create(data) as session:
        got = session.run({"x": x})
    assert got["y"].dims == (2, 12)
    assert got["z"].get_data().tolist() == [2]


def test_no_shape_of_what_is_none() -> None:
    nodes, weights = shape_of_two("a", "rest")
    nodes.insert(6, node("Add", ["a", "first"], ["sum"]))
    nodes[7] = node("Concat", ["sum", "rest"], ["t"], axis=0)
    assert kinds(made(nodes, weights))[-2:] == ["Concat", "Reshape"]
    assert kinds(made(*shape_of_two("rest")))[-2:] == ["Concat", "Reshape"]


@pytest.mark.parametrize("level", ["all", "disabled"])
@pytest.mark.parametrize("joined", [True, False])
def test_an_extent_that_is_not_there(level: str, joined: bool) -> None:
    nodes, weights = flattened(index=3)
    if not joined:
        nodes[3:] = [node("Cast", ["u"], ["y"], to=FLOAT)]
    with pytest.raises(IndexError, match=r'^Gather "d" \(node 1\): index 3 out of range \[-3, 3\)'):
        ort.InferenceSession.create(made(nodes, weights), graph_optimization_level=level)


@pytest.mark.parametrize(("at", "attributes"), [(0, {"start": 1}), (1, {"axis": -1}), (2, {"axis": 0})])
def test_no_extent_with_other_attributes(at: int, attributes: dict[str, int]) -> None:
    nodes, weights = flattened()
    nodes[at] = node(nodes[at].op_type, nodes[at].input, nodes[at].output, **attributes)
    assert kinds(made(nodes, weights))[at:] == [n.op_type for n in nodes[at:]] or at == 2
    assert kinds(made(nodes, weights)) != ["Extents", "Reshape"]
