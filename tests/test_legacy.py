"""The forms that operators had before opset 7; numpy says what they compute."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import defs

import graphs
import onnx_wasm as ort
from graphs import FLOAT, INT64, model, node
from onnx_wasm import prepare, registry

Arrays = dict[str, np.ndarray[Any, Any]]
chance = np.random.default_rng(5)


@pytest.fixture(scope="module")
def runtime() -> Iterator[ort.Runtime]:
    runtime = ort.Runtime()
    yield runtime
    gc.collect()
    assert runtime.memory().used == 0
    runtime.close()


def floats(*shape: int) -> np.ndarray[Any, Any]:
    return chance.normal(size=shape).astype(np.float32)


def run(
    runtime: ort.Runtime,
    nodes: list[onnx.NodeProto],
    feeds: Arrays,
    outputs: tuple[str, ...] = ("y",),
    weights: Arrays | None = None,
    opset: int = 6,
) -> list[np.ndarray[Any, Any]]:
    inputs = {n: (onnx.helper.np_dtype_to_tensor_dtype(a.dtype), list(a.shape)) for n, a in feeds.items()}
    data = model(nodes, inputs, outputs, weights, opset=opset)
    with ort.InferenceSession.create(data, runtime=runtime) as session:
        results = session.run(feeds)
        arrays = [np.array(results[n].data) for n in outputs]
        for result in results.values():
            result.dispose()
    return arrays


def one(
    runtime: ort.Runtime, op: str, feeds: Arrays, *, opset: int = 6, weights: Arrays | None = None, **a: Any
) -> Any:
    names = [*feeds, *(weights or {})]
    return run(runtime, [node(op, names, ["y"], **a)], feeds, weights=weights, opset=opset)[0]


def schemas() -> list[Any]:
    prepare.load_ops()
    found = [s for s in defs.get_all_schemas_with_history() if s.domain == "" and not s.deprecated]
    return [s for s in found if registry.find("", s.name, s.since_version)]


def test_every_form_takes_what_its_schema_declares() -> None:
    """Every version of every operator that has a form: its attributes, and as many inputs."""
    wrong = []
    for schema in schemas():
        form = registry.find("", schema.name, schema.since_version)
        assert form is not None
        lacks = set(schema.attributes) - form.attributes
        many = len(schema.inputs) > len(form.inputs) and not form.variadic
        if lacks or many:
            wrong.append(f"{schema.name}-{schema.since_version}: {sorted(lacks)} {form.inputs}")
    assert wrong == []
    assert len(schemas()) > 200


@pytest.mark.parametrize(
    ("shape", "axis", "aligned"),
    [
        ([], None, ()),
        ([1, 1], None, ()),
        ([5], None, (5,)),
        ([4, 5], None, (4, 5)),
        ([3, 4], 1, (3, 4, 1)),
        ([2], 0, (2, 1, 1, 1)),
        ([4], -2, (4, 1)),
        ([3, 1], 1, (3, 1, 1)),
        ([2, 3, 4, 5], None, (2, 3, 4, 5)),
    ],
)
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Pow", "Less", "Greater"])
def test_arithmetic_broadcasts_at_an_axis(
    runtime: ort.Runtime, op: str, shape: list[int], axis: int | None, aligned: tuple[int, ...]
) -> None:
    a, b = np.abs(floats(2, 3, 4, 5)) + 0.5, np.abs(floats(*shape)) + 0.5
    b = np.asarray(b, np.float32)
    functions = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Pow": np.power}
    function = functions.get(op) or {"Less": np.less, "Greater": np.greater}[op]
    attributes = {} if axis is None else {"axis": axis}
    expected = function(a, b.reshape(aligned))
    for weights in (None, {"b": b}):
        feeds = {"a": a} if weights else {"a": a, "b": b}
        y = one(runtime, op, feeds, weights=weights, broadcast=1, **attributes)
        np.testing.assert_allclose(y, expected, rtol=2e-6)


@pytest.mark.parametrize(("op", "function"), [("And", np.logical_and), ("Or", np.logical_or), ("Xor", np.logical_xor)])
def test_logic_broadcasts_at_an_axis(runtime: ort.Runtime, op: str, function: Any) -> None:
    a, b = chance.random((2, 3, 4)) < 0.5, chance.random(3) < 0.5
    assert (one(runtime, op, {"a": a, "b": b}, opset=1, broadcast=1, axis=1) == function(a, b[:, None])).all()
    assert (one(runtime, op, {"a": a, "b": ~a}, opset=1) == function(a, ~a)).all()


def test_arithmetic_broadcasts_only_if_told_to(runtime: ort.Runtime) -> None:
    a, b = floats(2, 3), floats(3)
    with pytest.raises(ort.ShapeError, match="shapes differ, and broadcast is not set"):
        one(runtime, "Add", {"a": a, "b": b})
    with pytest.raises(ort.ShapeError, match="does not broadcast to the axes from 0 on"):
        one(runtime, "Add", {"a": a, "b": b}, broadcast=1, axis=0)
    with pytest.raises(ort.ShapeError, match="does not broadcast to the last axes"):
        one(runtime, "Add", {"a": b, "b": a}, broadcast=1)
    with pytest.raises(ort.ShapeError, match=r"broadcast is not set, and .* has not the shape \[2, 2\]"):
        one(runtime, "Gemm", {"a": a, "b": floats(3, 2), "c": floats(2)})


def test_shape_arithmetic_folds(runtime: ort.Runtime) -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Mul", ["s", "two"], ["m"], broadcast=1),
        node("Tile", ["one", "m"], ["y"]),
    ]
    weights = {"two": np.array([2], np.int64), "one": np.ones((1, 1), np.float32)}
    assert run(runtime, nodes, {"x": floats(2, 3)}, weights=weights)[0].shape == (4, 6)


CONSUMING = {
    "Abs": np.abs,
    "Ceil": np.ceil,
    "Elu": lambda x: np.where(x < 0, np.expm1(x), x),
    "Exp": np.exp,
    "Floor": np.floor,
    "HardSigmoid": lambda x: np.clip(0.2 * x + 0.5, 0, 1),
    "LeakyRelu": lambda x: np.where(x < 0, np.float32(0.01) * x, x),
    "Log": lambda x: np.log(x),
    "Neg": np.negative,
    "Reciprocal": np.reciprocal,
    "Relu": lambda x: np.maximum(x, 0),
    "Selu": lambda x: 1.0507 * np.where(x < 0, 1.6732 * np.expm1(x), x),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Sqrt": np.sqrt,
    "Tanh": np.tanh,
    "Clip": lambda x: np.clip(x, -0.5, 0.5),
}


@pytest.mark.parametrize("op", CONSUMING)
def test_consumed_inputs(runtime: ort.Runtime, op: str) -> None:
    x = floats(3, 7)
    x = np.abs(x) if op in ("Log", "Sqrt") else x
    bounds = {"min": -0.5, "max": 0.5} if op == "Clip" else {}
    y = one(runtime, op, {"x": x}, opset=5, consumed_inputs=[0], **bounds)
    np.testing.assert_allclose(y, CONSUMING[op](x), rtol=1e-6, atol=1e-6)


def test_clip_1_without_bounds(runtime: ort.Runtime) -> None:
    x = floats(5) * 1e30
    assert (one(runtime, "Clip", {"x": x}, opset=1) == x).all()
    assert (one(runtime, "Clip", {"x": x}, opset=1, min=0.0) == np.maximum(x, 0)).all()


@pytest.mark.parametrize("op", ["Sum", "Mean", "Max", "Min"])
def test_variadic_ops_consume(runtime: ort.Runtime, op: str) -> None:
    a, b, c = floats(2, 3), floats(2, 3), floats(2, 3)
    y = one(runtime, op, {"a": a, "b": b, "c": c}, opset=1, consumed_inputs=[0, 0, 0])
    np.testing.assert_allclose(y, getattr(np, op.lower())([a, b, c], axis=0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("shape", "aligned"), [((4,), (4, 1, 1)), ((1,), ())])
def test_prelu_has_slopes_of_channels(runtime: ort.Runtime, shape: tuple[int, ...], aligned: tuple[int, ...]) -> None:
    x, slope = floats(2, 4, 3, 3), floats(*shape)
    expected = np.where(x < 0, slope.reshape(aligned) * x, x)
    np.testing.assert_array_equal(one(runtime, "PRelu", {"x": x, "s": slope}), expected)


def test_gemm_1(runtime: ort.Runtime) -> None:
    a, b, c = floats(3, 4), floats(4, 2), floats(2)
    y = one(runtime, "Gemm", {"a": a, "b": b, "c": c}, broadcast=1, alpha=2.0, beta=0.5)
    np.testing.assert_allclose(y, 2 * a @ b + 0.5 * c, rtol=1e-5)


@pytest.mark.parametrize("spatial", [1, 0])
@pytest.mark.parametrize("opset", [1, 6, 7])
def test_batch_normalization(runtime: ort.Runtime, opset: int, spatial: int) -> None:
    """Exporters list the outputs of training, which nothing reads."""
    x = floats(2, 3, 4)
    shape = (3,) if spatial else (3, 4)
    scale, bias, mean, var = floats(*shape), floats(*shape), floats(*shape), np.abs(floats(*shape)) + 0.1
    old = {"is_test": 1} if opset < 7 else {}
    old |= {"consumed_inputs": [0, 0, 0, 1, 1]} if opset == 1 else {}
    names = ["x", "scale", "bias", "mean", "var"]
    nodes = [node("BatchNormalization", names, ["y", "m", "v", "sm", "sv"], spatial=spatial, epsilon=1e-3, **old)]
    weights = {"scale": scale, "bias": bias, "mean": mean, "var": var}
    s, b, m, v = (p[:, None] if spatial else p for p in weights.values())
    expected = (x - m) / np.sqrt(v + 1e-3) * s + b
    np.testing.assert_allclose(run(runtime, nodes, {"x": x}, weights=weights, opset=opset)[0], expected, rtol=1e-4)
    with pytest.raises(ort.UnsupportedModelError, match=r"outputs \['m'\] are not supported"):
        run(runtime, nodes, {"x": x}, ("y", "m"), weights, opset)


def test_dropout_hands_its_input_on(runtime: ort.Runtime) -> None:
    x = floats(3)
    assert (one(runtime, "Dropout", {"x": x}, opset=1, is_test=1, ratio=0.3, consumed_inputs=[0]) == x).all()
    assert (one(runtime, "Dropout", {"x": x}, opset=6) == x).all()


def test_attributes_that_became_inputs(runtime: ort.Runtime) -> None:
    x = floats(2, 6)
    assert (one(runtime, "Reshape", {"x": x}, opset=1, shape=[0, 2, -1]) == x.reshape(2, 2, 3)).all()
    y = one(runtime, "Pad", {"x": x}, opset=1, paddings=[0, 1, 0, 2], value=3.0)
    assert (y == np.pad(x, ((0, 0), (1, 2)), constant_values=3)).all()
    tiles, axis = np.array(3, np.int64), np.array(1, np.int64)
    y = one(runtime, "Tile", {"x": x}, opset=1, weights={"tiles": tiles, "axis": axis})
    assert (y == np.tile(x, (1, 3))).all()


@pytest.mark.parametrize(("to", "numpy"), [("FLOAT", np.float32), ("DOUBLE", np.float64), ("INT64", np.int64)])
def test_cast_1_names_its_type(runtime: ort.Runtime, to: str, numpy: Any) -> None:
    x = np.array([1, -2, 3], np.int32)
    y = one(runtime, "Cast", {"x": x}, opset=1, to=to)
    assert y.dtype == numpy
    assert (y == x).all()
    with pytest.raises(ort.ShapeError, match="unknown tensor type 'number'"):
        one(runtime, "Cast", {"x": x}, opset=1, to="NUMBER")


def test_concat_1_joins_channels(runtime: ort.Runtime) -> None:
    a, b = floats(2, 3), floats(2, 1)
    assert (one(runtime, "Concat", {"a": a, "b": b}, opset=1) == np.concatenate([a, b], 1)).all()


def test_split_1(runtime: ort.Runtime) -> None:
    x = floats(2, 5)
    for weights, attributes in (({"s": np.array([2, 3])}, {}), ({}, {"split": [2, 3]})):
        nodes = [node("Split", ["x", *weights], ["y", "z"], axis=1, **attributes)]
        y, z = run(runtime, nodes, {"x": x}, ("y", "z"), weights, 1)
        assert (y == x[:, :2]).all()
        assert (z == x[:, 2:]).all()


def test_p_of_pooling_was_a_float(runtime: ort.Runtime) -> None:
    x = floats(1, 2, 4)
    y = one(runtime, "GlobalLpPool", {"x": x}, opset=1, p=2.0)
    np.testing.assert_allclose(y, np.sqrt((x**2).sum(2, keepdims=True)), rtol=1e-6)
    y = one(runtime, "LpPool", {"x": x}, opset=1, p=1.0, kernel_shape=[2], strides=[2])
    np.testing.assert_allclose(y, np.abs(x).reshape(1, 2, 2, 2).sum(3), rtol=1e-6)
    with pytest.raises(ort.ShapeError, match=r"p is 2\.5"):
        one(runtime, "GlobalLpPool", {"x": x}, opset=1, p=2.5)


@pytest.mark.parametrize(("op", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_recurrent_layers(runtime: ort.Runtime, op: str, gates: int) -> None:
    x, w, r = floats(4, 2, 3), floats(1, gates * 5, 3), floats(1, gates * 5, 5)
    feeds = {"x": x, "w": w, "r": r}
    old = run(
        runtime, [node(op, list(feeds), ["y", "h"], hidden_size=5, output_sequence=1)], feeds, ("y", "h"), opset=3
    )
    new = run(runtime, [node(op, list(feeds), ["y", "h"], hidden_size=5)], feeds, ("y", "h"), opset=7)
    for a, b in zip(old, new, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(old[0][-1], old[1])


def test_upsample_1(runtime: ort.Runtime) -> None:
    x = floats(1, 2, 2, 3)
    y = one(runtime, "Upsample", {"x": x}, opset=1, height_scale=2.0, width_scale=3.0, mode="nearest")
    np.testing.assert_array_equal(y, x.repeat(2, 2).repeat(3, 3))
    y = one(runtime, "Upsample", {"x": x}, opset=1, height_scale=2.0, width_scale=1.0, mode="bilinear")
    weights = np.array([[1, 0], [0.5, 0.5], [0, 1], [0, 1]], np.float32)
    np.testing.assert_allclose(y, np.einsum("ij,ncjw->nciw", weights, x), rtol=1e-6)


def test_scan_8_has_a_batch(runtime: ort.Runtime) -> None:
    body = onnx.helper.make_graph(
        [node("Add", ["state", "item"], ["next"]), node("Identity", ["next"], ["scan"])],
        "body",
        [onnx.helper.make_tensor_value_info(n, FLOAT, [2]) for n in ("state", "item")],
        [onnx.helper.make_tensor_value_info(n, FLOAT, [2]) for n in ("next", "scan")],
    )
    nodes = [node("Scan", ["", "initial", "x"], ["y", "z"], body=body, num_scan_inputs=1)]
    initial, x = floats(3, 2), floats(3, 4, 2)
    y, z = run(runtime, nodes, {"initial": initial, "x": x}, ("y", "z"), opset=8)
    sums = initial[:, None] + np.cumsum(x, 1)
    np.testing.assert_allclose(y, sums[:, -1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(z, sums, rtol=1e-5, atol=1e-6)


def test_a_body_hands_its_attributes_on(runtime: ort.Runtime) -> None:
    """The body of SoftmaxCrossEntropyLoss is made of an operator that has a body, and shares its attributes."""
    x, labels = floats(3, 5), np.array([0, 4, 2])
    nodes = [node("SoftmaxCrossEntropyLoss", ["x", "l"], ["y"], reduction="none")]
    data = model(nodes, {"x": (FLOAT, [3, 5]), "l": (INT64, [3])}, ["y"])
    with ort.InferenceSession.create(data, runtime=runtime) as session, session.run({"x": x, "l": labels})["y"] as y:
        np.testing.assert_allclose(y.data, graphs.native(data, {"x": x, "l": labels})["y"], rtol=1e-5)
