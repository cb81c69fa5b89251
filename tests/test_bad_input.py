"""What bad input gets: an exception that says what is wrong, nothing leaked, and everything usable afterwards."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import graphs
import onnx_wasm as ort
from graphs import BOOL, FLOAT, INT64, model, node
from onnx_wasm import dtypes, tape
from onnx_wasm.context import Record, Value
from onnx_wasm.model import Node


@pytest.fixture
def runtime() -> Iterator[ort.Runtime]:
    runtime = ort.Runtime()
    yield runtime
    gc.collect()
    assert runtime.memory().used == 0
    runtime.heap_check()
    runtime.close()


GOOD = np.ones((2, 16), np.float32)


@pytest.fixture
def session(runtime: ort.Runtime) -> Iterator[ort.InferenceSession]:
    """An MLP of fixed batch, which must still be right after the test."""
    session = ort.InferenceSession.create(graphs.mlp(2), runtime=runtime)
    expected = session.run({"x": GOOD})["y"].get_data(release_data=True)
    used = runtime.memory().used
    yield session
    gc.collect()
    assert runtime.memory().used == used
    np.testing.assert_array_equal(session.run({"x": GOOD})["y"].get_data(release_data=True), expected)
    session.dispose()


@pytest.mark.parametrize(
    ("feeds", "kind", "message"),
    [
        ({}, ValueError, r"inputs not fed: \['x'\]"),
        ({"X": GOOD}, ValueError, r"'X' is no input of the model, which takes \['x'\]; did you mean 'x'\?"),
        ({"x": GOOD, "z": GOOD}, ValueError, r"'z' is no input of the model, which takes \['x'\]"),
        ({"x": GOOD.astype(np.float64)}, TypeError, "input 'x' takes float32, got float64"),
        ({"x": GOOD.astype(np.int64)}, TypeError, "input 'x' takes float32, got int64"),
        ({"x": GOOD[0]}, ValueError, r"input 'x' has rank 2 \(\[2, 16\]\), got rank 1"),
        ({"x": GOOD[:1]}, ValueError, "input 'x' has dimension 2 on axis 0"),
        ({"x": GOOD[:, :5]}, ValueError, "input 'x' has dimension 16 on axis 1"),
        ({"x": GOOD.tolist()}, TypeError, "must be a Tensor or a numpy array, got list"),
        ({"x": None}, TypeError, "must be a Tensor or a numpy array, got NoneType"),
        ({"x": np.array(["a"] * 32).reshape(2, 16)}, TypeError, "input 'x' takes float32, got string"),
        ({"x": np.array([{}] * 32).reshape(2, 16)}, TypeError, "input 'x' takes float32, got string"),
        ([GOOD], TypeError, "feeds must map input names"),
    ],
    ids=lambda v: None if not isinstance(v, str) else v[:30],
)
def test_feeds_that_do_not_fit(session: ort.InferenceSession, feeds: object, kind: type, message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        session.run(feeds)
    assert isinstance(caught.value, ort.OnnxWasmError)


@pytest.mark.parametrize(
    "array",
    [
        np.repeat(GOOD, 2, axis=0)[::2],
        GOOD.astype(">f4"),
        np.asfortranarray(GOOD),
        np.broadcast_to(np.float32(1), (2, 16)),
    ],
    ids=["strided", "big-endian", "fortran", "read-only"],
)
def test_any_layout_is_read_right(session: ort.InferenceSession, array: np.ndarray) -> None:
    got = session.run({"x": array})["y"].get_data(release_data=True)
    np.testing.assert_array_equal(got, session.run({"x": GOOD})["y"].get_data(release_data=True))


def test_a_disposed_tensor_is_no_feed(session: ort.InferenceSession) -> None:
    tensor = ort.Tensor("float32", GOOD, runtime=session.runtime)
    tensor.dispose()
    with pytest.raises(ort.DisposedError):
        session.run({"x": tensor})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not an ONNX model"),
        (b"not a model at all", "not an ONNX model"),
        (b"\x08\x0a", "not an ONNX model"),
        (graphs.mlp()[: len(graphs.mlp()) // 2], "not an ONNX model, or truncated"),
        (graphs.mlp()[:-7], "not an ONNX model, or truncated"),
        (bytes(1000), "not an ONNX model"),
    ],
)
def test_bytes_that_are_no_model(runtime: ort.Runtime, tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(ort.InvalidModelError, match=f"model bytes: {message}"):
        ort.InferenceSession.create(data, runtime=runtime)
    path = tmp_path / "broken.onnx"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"broken\.onnx: "):
        ort.InferenceSession.create(path, runtime=runtime)


def test_contents_of_a_model_that_cannot_be_read(runtime: ort.Runtime) -> None:
    def changed(change: Callable[[onnx.GraphProto], object]) -> bytes:
        proto = onnx.load_from_string(graphs.mlp())
        change(proto.graph)
        return proto.SerializeToString()

    def attribute(graph: onnx.GraphProto) -> None:
        graph.node[0].attribute.add(name="speed", type=onnx.AttributeProto.STRING, s=b"\xff")

    def dimensions(graph: onnx.GraphProto) -> None:
        graph.initializer[0].dims[0] = -16

    for change, message in [
        (attribute, "model bytes: attribute 'speed' cannot be read"),
        (dimensions, r"model bytes: tensor 'w0' has negative dimensions \[-16, 32\]"),
    ]:
        with pytest.raises(ort.InvalidModelError, match=message):
            ort.InferenceSession.create(changed(change), runtime=runtime)
    with pytest.raises(ort.InvalidModelError, match="tensor '': unknown ONNX element type 0"):
        ort.InferenceSession.create(changed(lambda g: g.sparse_initializer.add()), runtime=runtime)


def test_a_path_to_nothing(runtime: ort.Runtime, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.onnx"):
        ort.InferenceSession.create(tmp_path / "nowhere.onnx", runtime=runtime)
    with pytest.raises(OSError, match=tmp_path.name):
        ort.InferenceSession.create(tmp_path, runtime=runtime)
    with pytest.raises(TypeError, match="a path or bytes, got int"):
        ort.InferenceSession.create(5, runtime=runtime)
    with pytest.raises(TypeError, match="unknown session options"):
        ort.InferenceSession.create(graphs.mlp(), runtime=runtime, enable_magic=True)
    with pytest.raises(ValueError, match="graph_optimization_level 'most'"):
        ort.InferenceSession.create(graphs.mlp(), runtime=runtime, graph_optimization_level="most")


def test_every_missing_operator_is_named_at_once(runtime: ort.Runtime) -> None:
    nodes = [node("Frobnicate", ["x"], ["a"]), node("Relu", ["a"], ["b"]), node("Twist", ["b"], ["y"], domain="my.ops")]
    data = model(nodes, {"x": (FLOAT, [1])}, ["y"], domains={"my.ops": 3})
    with pytest.raises(NotImplementedError, match=r"ai.onnx::Frobnicate \(opset 21\), my.ops::Twist \(opset 3\)"):
        ort.InferenceSession.create(data, runtime=runtime)


def test_a_kernel_that_is_not_there_says_what_may_be_wrong() -> None:
    x = Value((2,), dtypes.F32, name="x")
    error = tape.no_kernel(Record("softsign_f31", 1, {"x": x, "n": 2}, Node("Softsign", "s", index=3)))
    assert str(error) == (
        'Softsign "s" (node 3): not implemented for these types (float32): no kernel softsign_f31 '
        "(after a change to the kernels: run ./build.sh, or its name is misspelt)"
    )


def test_images_are_not_decoded_and_that_is_said_at_creation(runtime: ort.Runtime) -> None:
    nodes = [node("ImageDecoder", ["x"], ["i"]), node("CastMap", ["x"], ["m"], domain="ai.onnx.ml")]
    data = model(nodes, {"x": (onnx.TensorProto.UINT8, ["n"])}, ["i"], domains={"ai.onnx.ml": 3})
    message = r"not supported: ai\.onnx::ImageDecoder \(opset 21\), ai\.onnx\.ml::CastMap \(opset 3\)$"
    with pytest.raises(ort.UnsupportedModelError, match=message):
        ort.InferenceSession.create(data, runtime=runtime)


@pytest.mark.parametrize("opset", [0, 99])
def test_opsets_out_of_range(runtime: ort.Runtime, opset: int) -> None:
    data = model([node("Relu", ["x"], ["y"])], {"x": (FLOAT, [1])}, ["y"], opset=opset)
    with pytest.raises(NotImplementedError, match=f"opset {opset} of domain ai.onnx"):
        ort.InferenceSession.create(data, runtime=runtime)


def test_graphs_that_do_not_hang_together(runtime: ort.Runtime) -> None:
    def create(nodes: list[onnx.NodeProto], outputs: list[str]) -> None:
        ort.InferenceSession.create(model(nodes, {"x": (FLOAT, [1])}, outputs), runtime=runtime)

    with pytest.raises(ort.InvalidModelError, match=r'Relu "y" \(node 0\): input \'a\' is not computed before it'):
        create([node("Relu", ["a"], ["y"]), node("Relu", ["y"], ["a"])], ["y"])
    with pytest.raises(ort.InvalidModelError, match="output 'y' has another producer"):
        create([node("Relu", ["x"], ["y"]), node("Neg", ["x"], ["y"])], ["y"])
    with pytest.raises(ort.InvalidModelError, match="output 'z' is computed by no node"):
        create([node("Relu", ["x"], ["y"])], ["z"])


def test_nodes_that_do_not_fit_their_operator(runtime: ort.Runtime) -> None:
    def create(made: onnx.NodeProto) -> None:
        ort.InferenceSession.create(model([made], {"x": (FLOAT, [2, 3])}, [made.output[0]]), runtime=runtime)

    with pytest.raises(ValueError, match=r"unknown attributes \['speed'\]"):
        create(node("Relu", ["x"], ["y"], speed=3))
    with pytest.raises(ValueError, match="2 inputs; Relu-6 takes at most 1"):
        create(node("Relu", ["x", "x"], ["y"]))
    with pytest.raises(ValueError, match="1 of the 2 required inputs"):
        create(node("Add", ["x"], ["y"]))
    with pytest.raises(ValueError, match=r'Transpose "y" \(node 0\)'):
        create(node("Transpose", ["x"], ["y"], perm=[0, 5]))
    with pytest.raises(ValueError, match=r'Concat "y" \(node 0\): missing attributes'):
        create(node("Concat", ["x", "x"], ["y"]))


def test_shapes_that_do_not_fit_at_run_time(runtime: ort.Runtime) -> None:
    data = model([node("Add", ["a", "b"], ["y"])], {"a": (FLOAT, ["n"]), "b": (FLOAT, ["m"])}, ["y"])
    with ort.InferenceSession.create(data, runtime=runtime) as session:
        with pytest.raises(ValueError, match=r'Add "y" \(node 0\)'):
            session.run({"a": np.zeros(3, np.float32), "b": np.zeros(4, np.float32)})
        session.run({"a": np.zeros(3, np.float32), "b": np.zeros(1, np.float32)})["y"].dispose()


@pytest.mark.parametrize("planned", [True, False])
def test_an_index_out_of_range_names_the_node(runtime: ort.Runtime, planned: bool) -> None:
    weights = {"table": np.arange(20, dtype=np.float32).reshape(5, 4)}
    nodes = [
        node("Neg", ["x"], ["n"]),
        node("Neg", ["n"], ["i"]),
        node("Gather", ["table", "i"], ["g"]),
        node("Neg", ["g"], ["y"]),
    ]
    data = model(nodes, {"x": (INT64, ["n"])}, ["y"], weights)
    with ort.InferenceSession.create(data, runtime=runtime, enable_mem_pattern=planned) as session:
        session.run({"x": np.array([1, -5, 4])})["y"].dispose()
        used = runtime.memory().used
        for bad in (5, -6, 1 << 40):
            with pytest.raises(IndexError, match=rf'Gather "g" \(node 2\): index {bad} out of range \[-5, 5\)'):
                session.run({"x": np.array([0, bad, 1])})
            assert runtime.memory().used == used
        got = session.run({"x": np.array([4, 0, -1])})["y"].get_data(release_data=True)
        np.testing.assert_array_equal(got, -weights["table"][[4, 0, -1]])


def test_division_by_zero_names_the_node(runtime: ort.Runtime) -> None:
    data = model([node("Div", ["a", "b"], ["y"])], {"a": (INT64, [2]), "b": (INT64, [2])}, ["y"])
    with ort.InferenceSession.create(data, runtime=runtime) as session:
        with pytest.raises(ValueError, match=r'Div "y" \(node 0\)'):
            session.run({"a": np.array([1, 2]), "b": np.array([1, 0])})
        assert session.run({"a": np.array([7, -7]), "b": np.array([2, 2])})["y"].get_data(True).tolist() == [3, -3]


@pytest.mark.parametrize("planned", [True, False])
def test_a_shape_that_does_not_fit_the_memory(planned: bool) -> None:
    nodes = [node("Expand", ["x", "shape"], ["e"]), node("Relu", ["e"], ["y"])]
    data = model(nodes, {"x": (FLOAT, [1]), "shape": (INT64, [1])}, ["y"])
    one = np.ones(1, np.float32)
    with ort.Runtime(maximum=32 << 20) as runtime:
        with ort.InferenceSession.create(data, runtime=runtime, enable_mem_pattern=planned) as session:
            small = session.run({"x": one, "shape": np.array([1000])})
            assert small["y"].data.sum() == 1000
            small["y"].dispose()
            for size in (20 << 20, 1 << 30, 1 << 45):
                with pytest.raises(MemoryError):
                    session.run({"x": one, "shape": np.array([size])})
                runtime.heap_check()
            session.run({"x": one, "shape": np.array([1000])})["y"].dispose()
        assert runtime.memory().used == 0


def test_weights_that_do_not_fit_the_memory() -> None:
    weights = {"w": np.ones((4096, 4096), np.float32)}
    data = model([node("MatMul", ["x", "w"], ["y"])], {"x": (FLOAT, ["n", 4096])}, ["y"], weights)
    with ort.Runtime(maximum=32 << 20) as runtime:
        with pytest.raises(MemoryError, match="67,108,864 bytes"):
            ort.InferenceSession.create(data, runtime=runtime)
        assert runtime.memory().used == 0
        with ort.InferenceSession.create(graphs.mlp(2), runtime=runtime) as session:
            session.run({"x": GOOD})["y"].dispose()


@pytest.mark.parametrize("planned", [True, False])
def test_every_allocation_may_fail(planned: bool) -> None:
    image = np.random.default_rng(3).normal(0, 1, (1, 3, 12, 12)).astype(np.float32)
    data = graphs.convnet()
    expected = graphs.native(data, {"x": image})["y"]
    with ort.Runtime() as runtime:
        failures = 0
        for nth in range(1, 200):
            runtime.fail_allocation(nth)
            try:
                with ort.InferenceSession.create(data, runtime=runtime, enable_mem_pattern=planned) as session:
                    got = session.run({"x": image})["y"].get_data(release_data=True)
            except MemoryError:
                failures += 1
                runtime.heap_check()
                gc.collect()
                assert runtime.memory().used == 0
                continue
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
            break
        assert failures > 10
        runtime.fail_allocation(0)


def test_a_run_that_is_cancelled_leaves_the_session_usable(session: ort.InferenceSession) -> None:
    runtime = session.runtime
    original = runtime._execute

    def cancelled(start: int, end: int) -> int:
        runtime.cancel()
        return original(start, end)

    runtime._execute = cancelled
    try:
        with pytest.raises(ort.CancelledError, match="was cancelled"):
            session.run({"x": GOOD})
    finally:
        del runtime._execute


def test_a_run_too_large_does_not_stand_in_the_way_of_smaller_ones() -> None:
    with (
        ort.Runtime(maximum=24 << 20) as runtime,
        ort.InferenceSession.create(graphs.mlp(sizes=(64, 64, 64)), runtime=runtime) as session,
    ):
        for batch in (100_000, 50_000, 20_000):
            with pytest.raises(MemoryError):
                session.run({"x": np.ones((batch, 64), np.float32)})
            assert "input" not in runtime.memory().by_tag
            session.run({"x": np.ones((9000, 64), np.float32)})["y"].dispose()


def test_a_fetch_that_does_not_fit_allocates_nothing(runtime: ort.Runtime) -> None:
    with (
        ort.InferenceSession.create(graphs.mlp(), runtime=runtime) as session,
        ort.Tensor("float32", np.ones((1, 8), np.float32), runtime=runtime) as mine,
    ):
        with pytest.raises(ValueError, match=r"output 'y' is float32\[5000, 8\]"):
            session.run({"x": np.ones((5000, 16), np.float32)}, {"y": mine})
        assert runtime.memory().by_tag.keys() == {"weights", "tape", "user"}


def test_a_typo_in_an_override_is_named(runtime: ort.Runtime) -> None:
    with pytest.raises(ValueError, match=r"names \['btch'\]; the model's dimensions are \['batch'\]"):
        ort.InferenceSession.create(graphs.mlp(), runtime=runtime, free_dimension_overrides={"btch": 4})
    with pytest.raises(TypeError, match="options must be SessionOptions, got str"):
        ort.InferenceSession.create(graphs.mlp(), "fast", runtime=runtime)


@pytest.mark.parametrize("count", [-100, 0, 3])
def test_a_scan_with_a_wrong_number_of_inputs(runtime: ort.Runtime, count: int) -> None:
    inputs = [onnx.helper.make_tensor_value_info(n, FLOAT, None) for n in ("a", "b")]
    outputs = [onnx.helper.make_tensor_value_info("c", FLOAT, None)]
    body = onnx.helper.make_graph([node("Add", ["a", "b"], ["c"])], "body", inputs, outputs)
    scan = node("Scan", ["x", "x"], ["y"], body=body, num_scan_inputs=count)
    with pytest.raises(ort.ShapeError, match=rf'Scan "y".*num_scan_inputs is {count}, must be of \[1, 2\]'):
        ort.InferenceSession.create(model([scan], {"x": (FLOAT, [2])}, ["y"]), runtime=runtime)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"scan_input_axes": [0, 0]}, r"scan_input_axes \[0, 0\] has 2 elements, must have 1"),
        ({"scan_output_axes": [0, 0]}, r"scan_output_axes \[0, 0\] has 2 elements, must have 1"),
        ({"scan_input_directions": [0, 1]}, r"scan_input_directions \[0, 1\] has 2 elements, must have 1"),
        ({"scan_output_directions": [1, 1]}, r"scan_output_directions \[1, 1\] has 2 elements, must have 1"),
        ({"scan_input_directions": [-100]}, r"scan_input_directions \[-100\] must be 0, forward, or 1, backward"),
        ({"scan_output_directions": [2]}, r"scan_output_directions \[2\] must be 0, forward, or 1, backward"),
    ],
)
def test_a_scan_with_axes_or_directions_that_do_not_fit(
    runtime: ort.Runtime, made: dict[str, list[int]], message: str
) -> None:
    values = [onnx.helper.make_tensor_value_info(n, FLOAT, None) for n in ("a", "b")]
    body = onnx.helper.make_graph([node("Neg", ["a"], ["b"])], "body", values[:1], values[1:])
    scan = node("Scan", ["x"], ["y"], body=body, num_scan_inputs=1, **made)
    with pytest.raises(ort.ShapeError, match=rf'Scan "y".*{message}'):
        ort.InferenceSession.create(model([scan], {"x": (FLOAT, [2])}, ["y"]), runtime=runtime)


@pytest.mark.parametrize(
    ("name", "given", "array"),
    [
        ("ConstantOfShape", ["k"], np.array(3)),
        ("Expand", ["x", "k"], np.array(3)),
        ("Tile", ["x", "k"], np.array(3)),
        ("Reshape", ["x", "k"], np.array(2)),
        ("Split", ["x", "k"], np.array(2)),
        ("Pad", ["x", "k"], np.array(1)),
        ("Pad", ["x", "k"], np.array([[1], [1]])),
        ("Slice", ["x", "k", "k"], np.array(0)),
    ],
)
@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize("kind", [FLOAT, INT64])
def test_a_vector_is_no_scalar(
    runtime: ort.Runtime, name: str, given: list[str], array: np.ndarray, fed: bool, kind: int
) -> None:
    made = node(name, given, ["y"])
    inputs: Any = {"x": (kind, [2])} | ({"k": (INT64, list(array.shape))} if fed else {})
    weights = {} if fed else {"k": array}
    feeds = {"x": np.ones(2, onnx.helper.tensor_dtype_to_np_dtype(kind))} | ({"k": array} if fed else {})
    wrong = pytest.raises(ort.ShapeError, match=rf'{name} "y".* one dimension')
    with wrong, ort.InferenceSession.create(model([made], inputs, ["y"], weights), runtime=runtime) as session:
        session.run(feeds)


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.float64])
def test_a_scale_is_a_short_float(runtime: ort.Runtime, dtype: Any) -> None:
    scale, zero = {"s": np.array(2, dtype)}, {"z": np.array(0, np.uint8)}
    made = onnx.helper.make_node("QLinearAdd", ["x", "s", "z", "x", "s", "z", "s", "z"], ["y"], domain="com.microsoft")
    data = model([made], {"x": (onnx.TensorProto.UINT8, [2])}, ["y"], scale | zero, domains={"com.microsoft": 1})
    wrong = pytest.raises(ort.ShapeError, match=r"QLinearAdd .* must be float32 or a shorter float type")
    with wrong, ort.InferenceSession.create(data, runtime=runtime) as session:
        session.run({"x": np.ones(2, np.uint8)})


def test_a_body_with_another_number_of_inputs(runtime: ort.Runtime) -> None:
    inputs = [onnx.helper.make_tensor_value_info(n, FLOAT, None) for n in ("a", "b")]
    outputs = [onnx.helper.make_tensor_value_info("c", FLOAT, None)]
    body = onnx.helper.make_graph([node("Add", ["a", "b"], ["c"])], "body", inputs, outputs)
    scan = node("Scan", ["x"], ["y"], body=body, num_scan_inputs=1)
    with pytest.raises(ort.ShapeError, match=r'Scan "y".* has 2 inputs, and is given 1'):
        ort.InferenceSession.create(model([scan], {"x": (FLOAT, [2])}, ["y"]), runtime=runtime)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (node("LeakyRelu", ["x"], ["y"], alpha="a"), "attribute 'alpha' is 'a', must be float"),
        (node("LeakyRelu", ["x"], ["y"], alpha=2), "attribute 'alpha' is 2, must be float"),
        (node("Softmax", ["x"], ["y"], axis=1.0), "attribute 'axis' is 1.0, must be int"),
        (node("Transpose", ["x"], ["y"], perm=1), r"attribute 'perm' is 1, must be Sequence\[int\]"),
        (node("Transpose", ["x"], ["y"], perm=[0.5, 1.0]), "attribute 'perm' is"),
        (node("Einsum", ["x"], ["y"], equation=b"\xff\xfe"), "attribute 'equation' cannot be read"),
    ],
    ids=lambda v: v.op_type if isinstance(v, onnx.NodeProto) else None,
)
def test_attributes_of_the_wrong_type(runtime: ort.Runtime, made: onnx.NodeProto, message: str) -> None:
    with pytest.raises(ort.InvalidModelError, match=message):
        ort.InferenceSession.create(model([made], {"x": (FLOAT, [2, 3])}, ["y"]), runtime=runtime)


def test_an_attribute_that_occurs_twice(runtime: ort.Runtime) -> None:
    made = node("Softmax", ["x"], ["y"], axis=0)
    made.attribute.append(onnx.helper.make_attribute("axis", 1))
    with pytest.raises(ort.InvalidModelError, match=r"Softmax 'y': attributes \['axis'\] occur twice"):
        ort.InferenceSession.create(model([made], {"x": (FLOAT, [2, 3])}, ["y"]), runtime=runtime)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (node("SequenceAt", ["x", "i"], ["y"]), r'SequenceAt "y" \(node 0\)'),
        (node("Split", ["x"], ["y"], num_outputs=1 << 50), "num_outputs is"),
        (node("MaxPool", ["x4"], ["y"], kernel_shape=[1 << 40, 1]), r'MaxPool "y" \(node 0\)'),
    ],
    ids=["not a sequence", "outputs", "kernel"],
)
def test_attributes_and_inputs_beyond_sense(runtime: ort.Runtime, made: onnx.NodeProto, message: str) -> None:
    inputs = {"x": (FLOAT, [2, 3]), "x4": (FLOAT, [1, 1, 4, 4]), "i": (INT64, [])}
    feeds = {"x": GOOD[:, :3], "x4": np.ones((1, 1, 4, 4), np.float32), "i": np.array(0)}
    with (
        pytest.raises(ort.OnnxWasmError, match=message),
        ort.InferenceSession.create(model([made], inputs, ["y"]), runtime=runtime) as session,
    ):
        session.run(feeds)


def changed(change: Callable[[onnx.ModelProto], object]) -> bytes:
    proto = onnx.ModelProto.FromString(model([node("Add", ["x", "w"], ["y"])], {"x": (FLOAT, [4])}, ["y"], WEIGHT))
    change(proto)
    data: bytes = proto.SerializeToString()
    return data


WEIGHT = {"w": np.ones(4, np.float32)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.graph.initializer.append(m.graph.initializer[0]), "initializer 'w' occurs 2 times"),
        (lambda m: m.graph.input.append(m.graph.input[0]), "input 'x' occurs 2 times"),
        (lambda m: m.opset_import.append(onnx.helper.make_opsetid("", 13)), "opsets 21 and 13 of domain ai.onnx"),
        (lambda m: m.graph.initializer[0].dims.__setitem__(0, -4), r"'w' has negative dimensions \[-4\]"),
        (lambda m: m.graph.node[0].output.__setitem__(0, "x"), "output 'x' has another producer"),
        (lambda m: m.graph.node[0].output.__setitem__(0, "w"), "output 'w' has another producer"),
        (lambda m: setattr(m.graph.initializer[0], "raw_data", b"123"), "'w'.*cannot be read"),
    ],
)
def test_names_and_opsets_that_are_ambiguous(
    runtime: ort.Runtime, change: Callable[[onnx.ModelProto], object], message: str
) -> None:
    with pytest.raises(ort.InvalidModelError, match=message):
        ort.InferenceSession.create(changed(change), runtime=runtime)


def test_an_output_that_is_listed_twice(runtime: ort.Runtime) -> None:
    data = changed(lambda m: m.graph.output.append(m.graph.output[0]))
    with ort.InferenceSession.create(data, runtime=runtime) as session:
        out = session.run({"x": np.arange(4, dtype=np.float32)})
        assert {n: t.get_data(release_data=True).tolist() for n, t in out.items()} == {"y": [1, 2, 3, 4]}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_external_data_in_a_pipe(runtime: ort.Runtime, tmp_path: Path) -> None:
    def change(proto: onnx.ModelProto) -> None:
        weight = proto.graph.initializer[0]
        weight.ClearField("raw_data")
        weight.data_location = onnx.TensorProto.EXTERNAL
        entry = weight.external_data.add()
        entry.key, entry.value = "location", "pipe"

    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "m.onnx").write_bytes(changed(change))
    with pytest.raises(ort.InvalidModelError, match=r"external data 'pipe' of tensor 'w': .* is no file"):
        ort.InferenceSession.create(tmp_path / "m.onnx", runtime=runtime)


def test_a_call_that_does_not_fit_the_models_function(runtime: ort.Runtime) -> None:
    opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("my", 1)]
    body = [onnx.helper.make_node("Neg", ["a"], ["b"])]
    function = onnx.helper.make_function("my", "Twice", ["a"], ["b"], body, opsets[:1])
    for inputs, outputs in ((["x", "x"], ["y"]), (["x"], ["y", "z"])):
        call = node("Twice", inputs, outputs, domain="my")
        proto = onnx.ModelProto.FromString(model([call], {"x": (FLOAT, [2])}, outputs, domains={"my": 1}))
        proto.functions.append(function)
        with pytest.raises(ort.ShapeError, match=rf"{len(inputs)} inputs? and {len(outputs)} outputs?; function Twice"):
            ort.InferenceSession.create(proto.SerializeToString(), runtime=runtime)


@pytest.mark.parametrize("fetches", [5, "y"])
def test_fetches_of_the_wrong_type(session: ort.InferenceSession, fetches: object) -> None:
    with pytest.raises(TypeError, match="fetches must be") as caught:
        session.run({"x": GOOD}, fetches)
    assert isinstance(caught.value, ort.OnnxWasmError)


def test_fetches_may_be_any_iterable(session: ort.InferenceSession) -> None:
    session.run({"x": GOOD}, iter(["y"]))["y"].dispose()


@pytest.mark.parametrize("op", ["Reshape", "Expand", "Tile"])
def test_a_shape_must_be_a_vector(runtime: ort.Runtime, op: str) -> None:
    data = model([node(op, ["x", "shape"], ["y"])], {"x": (FLOAT, [2])}, ["y"], {"shape": np.array(2, np.int64)})
    with pytest.raises(ort.ShapeError, match=rf'{op} "y".* must have one dimension, got shape \[\]'):
        ort.InferenceSession.create(data, runtime=runtime)


def test_an_output_beyond_all_memory(runtime: ort.Runtime) -> None:
    def change(proto: onnx.ModelProto) -> None:
        del proto.graph.node[:]
        del proto.graph.initializer[0].dims[:]
        proto.graph.initializer[0].dims.extend([1 << 31, 1 << 31])
        proto.graph.output[0].name = "w"

    with pytest.raises(ort.HeapMemoryError, match=r"'w' float32\[2147483648, 2147483648\] needs 18,446,744,073"):
        ort.InferenceSession.create(changed(change), runtime=runtime)


@pytest.mark.parametrize(
    ("version", "domain"), [(1 << 40, "ai.onnx.ml"), (1 << 31, "my.ops"), (-1, "ai.onnx.ml"), (1 << 40, "")]
)
def test_versions_beyond_sense(runtime: ort.Runtime, version: int, domain: str) -> None:
    nodes = [node("Relu", ["x"], ["y"], domain=domain)]
    data = model(nodes, {"x": (FLOAT, [1])}, ["y"], domains={domain: version} if domain else None)
    if not domain:
        proto = onnx.ModelProto.FromString(data)
        proto.opset_import[0].version = version
        data = proto.SerializeToString()
    with pytest.raises(NotImplementedError, match=str(version)):
        ort.InferenceSession.create(data, runtime=runtime)


@pytest.mark.parametrize("name", [b"Reluu", b"xxxxx", b"yyyyy"])
def test_names_that_are_no_text(runtime: ort.Runtime, name: bytes) -> None:
    data = model([node("Reluu", ["xxxxx"], ["yyyyy"])], {"xxxxx": (FLOAT, [1])}, ["yyyyy"])
    with pytest.raises(ort.InvalidModelError, match=r"has the name b'\\xff\\xfe.*, which is not UTF-8"):
        ort.InferenceSession.create(data.replace(name, b"\xff\xfe" + name[2:]), runtime=runtime)


@pytest.mark.parametrize(
    ("op_type", "inputs"), [("Reshape", ["x", "f"]), ("CumSum", ["x", "f"]), ("TopK", ["x", "f"]), ("Tile", ["x", "f"])]
)
def test_floats_where_integers_belong(runtime: ort.Runtime, op_type: str, inputs: list[str]) -> None:
    data = model([node(op_type, inputs, ["y"])], {"x": (FLOAT, [2])}, ["y"], {"f": np.array([1.5], np.float32)})
    with pytest.raises(ort.InvalidModelError, match=rf'{op_type} "y" \(node 0\): input .* is float32; in opset 21'):
        ort.InferenceSession.create(data, runtime=runtime)


@pytest.mark.parametrize("axes", [[], [0, 0]])
@pytest.mark.parametrize(
    ("op", "name"), [("CumSum", "axis"), ("CumProd", "axis"), ("TopK", "K"), ("Trilu", "k"), ("OneHot", "depth")]
)
def test_an_input_of_one_element(runtime: ort.Runtime, op: str, name: str, axes: list[int]) -> None:
    outputs = ["y", "index"] if op == "TopK" else ["y"]
    weights = {name: np.array(axes, np.int64)}
    inputs = ["x", name]
    if op == "OneHot":
        inputs.append("values")
        weights["values"] = np.array([0, 1], np.float32)
    data = model([node(op, inputs, outputs)], {"x": (FLOAT, [2, 2])}, outputs, weights, opset=26)
    with pytest.raises(ort.ShapeError, match=rf"{name} has shape \[{len(axes)}\], must hold one element"):
        ort.InferenceSession.create(data, runtime=runtime)


@pytest.mark.parametrize("pads", [[-3, 0], [0, -3], [-2, -1], [1, -4]])
@pytest.mark.parametrize("known", [False, True])
def test_pads_that_take_more_than_there_is(runtime: ort.Runtime, pads: list[int], known: bool) -> None:
    weights = {"pads": np.array(pads, np.int64)}
    inputs = {"z": (FLOAT, [1])} if known else {"x": (FLOAT, [2])}
    if known:
        weights["x"] = np.array([1, 2], np.int64)
    data = model([node("Pad", ["x", "pads"], ["y"])], inputs, ["y"], weights)
    with pytest.raises(ort.ShapeError, match=rf"take {-sum(pads)} from an extent of 2"):
        ort.InferenceSession.create(data, runtime=runtime)


@pytest.mark.parametrize("size", [0, 2])
@pytest.mark.parametrize(
    ("op", "inputs", "name"),
    [
        ("Range", {"start": np.int64(0), "limit": np.int64(3), "delta": np.int64(1)}, "delta"),
        ("Range", {"start": np.float32(0), "limit": np.float32(3), "delta": np.float32(1)}, "start"),
        ("HannWindow", {"size": np.int64(4)}, "size"),
        (
            "MelWeightMatrix",
            {
                "num_mel_bins": np.int64(2),
                "dft_length": np.int64(16),
                "sample_rate": np.int64(8000),
                "lower_edge_hertz": np.float32(0),
                "upper_edge_hertz": np.float32(4000),
            },
            "upper_edge_hertz",
        ),
        ("DFT", {"x": np.zeros((1, 4, 1), np.float32), "dft_length": np.int64(4)}, "dft_length"),
        ("DFT", {"x": np.zeros((1, 4, 1), np.float32), "": None, "axis": np.int64(1)}, "axis"),
        (
            "STFT",
            {"x": np.zeros((1, 4, 1), np.float32), "frame_step": np.int64(2), "w": np.ones(2, "f4")},
            "frame_step",
        ),
        ("Dropout", {"x": np.ones(2, np.float32), "ratio": np.float32(0.5), "training_mode": np.array(True)}, "ratio"),
        ("Dropout", {"x": np.ones(2, np.float32), "": None, "training_mode": np.array(True)}, "training_mode"),
    ],
)
def test_a_constant_of_one_element(
    runtime: ort.Runtime, op: str, inputs: dict[str, np.ndarray | None], name: str, size: int
) -> None:
    weights = {n: np.asarray(a) for n, a in inputs.items() if a is not None}
    weights[name] = np.repeat(weights[name].reshape(-1), size)
    graph = [node(op, list(inputs), ["y"]), node("Identity", ["z"], ["w_out"])]
    data = model(graph, {"z": (FLOAT, [1])}, ["y"], weights, opset=21)
    with pytest.raises(ort.ShapeError, match=rf"{name} has shape \[{size}\], must hold one element"):
        ort.InferenceSession.create(data, runtime=runtime)


@pytest.mark.parametrize("size", [0, 2])
@pytest.mark.parametrize("name", ["max_trip_count", "cond", "the condition of the body"])
def test_a_loop_is_told_by_one_element(runtime: ort.Runtime, name: str, size: int) -> None:
    body = onnx.helper.make_graph(
        [node("Identity", ["keep" if name.startswith("the") else "going"], ["still"])],
        "body",
        [
            onnx.helper.make_tensor_value_info("i", INT64, []),
            onnx.helper.make_tensor_value_info("going", BOOL, []),
            onnx.helper.make_tensor_value_info("x_in", FLOAT, [2]),
        ],
        [
            onnx.helper.make_tensor_value_info("still", BOOL, None),
            onnx.helper.make_tensor_value_info("x_in", FLOAT, [2]),
        ],
    )
    sizes = {"max_trip_count": 1, "cond": 1, "the condition of the body": 1} | {name: size}
    data = model(
        [node("Loop", ["trips", "cond", "x"], ["y"], body=body)],
        {
            "trips": (INT64, [sizes["max_trip_count"]]),
            "cond": (BOOL, [sizes["cond"]]),
            "keep": (BOOL, [sizes["the condition of the body"]]),
            "x": (FLOAT, [2]),
        },
        ["y"],
    )
    feeds = {
        "trips": np.full(sizes["max_trip_count"], 2, np.int64),
        "cond": np.full(sizes["cond"], True),
        "keep": np.full(sizes["the condition of the body"], True),
        "x": np.ones(2, np.float32),
    }
    wanted = pytest.raises(ort.ShapeError, match=rf"{name} has shape \[{size}\], must hold one element")
    with ort.InferenceSession.create(data, runtime=runtime) as session, wanted:
        session.run(feeds)


@pytest.mark.parametrize("op", ["Conv", "ConvInteger", "MaxPool", "AveragePool", "LpPool"])
def test_steps_between_no_windows(runtime: ort.Runtime, op: str) -> None:
    """Strides of one window and dilations of one tap mean nothing, whatever their size."""
    kind = onnx.TensorProto.UINT8 if op == "ConvInteger" else FLOAT
    x = np.arange(1, 7, dtype=onnx.helper.tensor_dtype_to_np_dtype(kind)).reshape(1, 1, 6)
    attributes: dict[str, Any] = {"kernel_shape": [6], "strides": [1 << 40]}
    inputs, weights = ["x"], {}
    if op.startswith("Conv"):
        inputs, weights = ["x", "w"], {"w": np.ones((1, 1, 6), x.dtype)}
    data = model([node(op, inputs, ["y"], **attributes)], {"x": (kind, [1, 1, 6])}, ["y"], weights, opset=22)
    wanted = {"MaxPool": 6, "AveragePool": 3.5, "LpPool": np.sqrt(91)}.get(op, 21)
    with ort.InferenceSession.create(data, runtime=runtime) as session:
        got = session.run({"x": x})["y"].get_data(release_data=True)
    np.testing.assert_allclose(got, np.full((1, 1, 1), wanted), rtol=1e-6)
    if op != "AveragePool":
        attributes = {"kernel_shape": [1], "dilations": [1 << 40]}
        weights = {n: a[..., :1] for n, a in weights.items()}
        data = model([node(op, inputs, ["y"], **attributes)], {"x": (kind, [1, 1, 6])}, ["y"], weights, opset=22)
        with ort.InferenceSession.create(data, runtime=runtime) as session:
            got = session.run({"x": x})["y"].get_data(release_data=True)
        np.testing.assert_allclose(got, x, rtol=1e-6)


@pytest.mark.parametrize("include", [0, 1])
def test_the_mean_of_nothing_but_padding_is_0(runtime: ort.Runtime, include: int) -> None:
    made = node("AveragePool", ["x"], ["y"], kernel_shape=[1, 2], dilations=[1, 2], pads=[0, 1, 0, 1])
    made.attribute.append(onnx.helper.make_attribute("count_include_pad", include))
    data = model([made], {"x": (FLOAT, [1, 1, 1, 1])}, ["y"], opset=21)
    with ort.InferenceSession.create(data, runtime=runtime) as session:
        y = session.run({"x": np.full((1, 1, 1, 1), 3, np.float32)})["y"].get_data(release_data=True)
    np.testing.assert_array_equal(y, np.zeros((1, 1, 1, 1)))


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("SequenceConstruct", {}),
        ("Concat", {"axis": 0}),
        ("Sum", {}),
        ("Max", {}),
        ("Einsum", {"equation": "i,i,i->i"}),
    ],
)
def test_one_of_many_inputs_is_left_out(runtime: ort.Runtime, op: str, attributes: dict[str, Any]) -> None:
    data = model([node(op, ["x", "", "x"], ["y"], **attributes)], {"x": (FLOAT, [2])}, ["y"])
    with pytest.raises(ort.ShapeError, match=rf'{op} "y" \(node 0\): input 1 is not given'):
        ort.InferenceSession.create(data, runtime=runtime)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        ("Flatten", [[[1, 2], [3, 4]]], {"axis": -3}),
        ("Flatten", [[[1, 2], [3, 4]]], {"axis": 3}),
        ("GatherElements", [[[1, 2], [3, 4]], [0, 1]], {"axis": 0}),
        ("GatherND", [[[1, 2], [3, 4]], [0]], {"batch_dims": 1}),
        ("GatherND", [[[1, 2], [3, 4]], [[0]]], {"batch_dims": 1}),
        ("GatherND", [[[1, 2], [3, 4]], [[0], [0]]], {"batch_dims": -1}),
        ("Transpose", [[[1, 2], [3, 4]]], {"perm": [-1, 0]}),
        ("TopK", [[1, 2, 3], [-1]], {}),
        ("Pad", [[[1, 2], [3, 4]], [1, 1]], {}),
        ("Trilu", [[1, 2, 3]], {}),
        ("OneHot", [[1, 2, 3], [3], [0, 1, 2]], {}),
        ("OneHot", [[1, 2, 3], [-2], [0, 1]], {}),
        ("ScatterElements", [[[1, 2], [3, 4]], [0], [0]], {}),
        ("ScatterND", [[[1, 2], [3, 4]], [[0]], [[0]]], {}),
        ("ScatterND", [[[1, 2], [3, 4]], [[0]], [0, 0]], {}),
        ("Reshape", [[[1, 2], [3, 4]], [-2, 2]], {}),
        ("Reshape", [[[1, 2], [3, 4]], [-1, -1]], {}),
        ("Concat", [[1, 2], [[3, 4]]], {"axis": 0}),
        ("Tile", [[[1, 2], [3, 4]], [2]], {}),
        ("Expand", [[[1, 2], [3, 4]], [-1, 2]], {}),
        ("CumSum", [[[1, 2], [3, 4]], [2]], {}),
        ("Slice", [[1, 2, 3], [0], [1], [1]], {}),
        ("ReduceSum", [[[1, 2], [3, 4]], [0, -2]], {}),
    ],
)
def test_what_is_known_is_checked_as_what_is_fed(
    runtime: ort.Runtime, op: str, inputs: list[Any], attributes: dict[str, Any], known: bool
) -> None:
    arrays = {f"i{i}": np.array(a, np.int64) for i, a in enumerate(inputs)}
    nodes = [node(op, list(arrays), ["y", "at"] if op == "TopK" else ["y"], **attributes)]
    feeds = {} if known else arrays
    data = model(nodes, {n: (INT64, list(a.shape)) for n, a in feeds.items()}, ["y"], arrays if known else None)
    refused = pytest.raises(ort.ShapeError, match=f'{op} "y"')
    with refused, ort.InferenceSession.create(data, runtime=runtime) as session:
        session.run(feeds)


@pytest.mark.parametrize("shape", [[0, 2**31, 2**32], [2**62, 0, 4]])
def test_shapes_that_only_a_0_keeps_small(runtime: ort.Runtime, shape: list[int]) -> None:
    data = graphs.model([graphs.node("ConstantOfShape", ["s"], ["z"])], {"s": (graphs.INT64, ["n"])}, ["z"])
    message = r'ConstantOfShape "z" \(node 0\): output shape \[.*\] has no elements, and too large extents besides'
    with ort.InferenceSession.create(data, runtime=runtime) as session, pytest.raises(ort.ShapeError, match=message):
        session.run({"s": np.array(shape)})
