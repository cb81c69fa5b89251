"""Sessions: one call a run, nothing leaked, plans kept by shape, outputs where they are wanted."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import graphs
import onnx_wasm as ort
from graphs import BOOL, FLOAT, INT64, STRING, model, node
from onnx_wasm import session as session_module


@pytest.fixture
def runtime() -> Iterator[ort.Runtime]:
    runtime = ort.Runtime()
    yield runtime
    gc.collect()
    runtime.heap_check()
    runtime.close()


def take(outputs: dict[str, ort.Tensor]) -> dict[str, np.ndarray]:
    return {n: t.get_data(release_data=True) for n, t in outputs.items()}


IMAGE = np.random.default_rng(3).normal(0, 1, (1, 3, 12, 12)).astype(np.float32)


@pytest.mark.parametrize("planned", [True, False])
def test_a_network_agrees_with_native(runtime: ort.Runtime, planned: bool) -> None:
    data = graphs.convnet()
    expected = graphs.native(data, {"x": IMAGE})
    with ort.InferenceSession.create(data, runtime=runtime, enable_mem_pattern=planned) as session:
        for _ in range(3):
            np.testing.assert_allclose(take(session.run({"x": IMAGE}))["y"], expected["y"], rtol=1e-4, atol=1e-5)
    assert runtime.memory().used == 0


@pytest.mark.parametrize("planned", [True, False])
def test_a_run_is_one_call_into_the_module(runtime: ort.Runtime, planned: bool) -> None:
    with ort.InferenceSession.create(graphs.convnet(), runtime=runtime, enable_mem_pattern=planned) as session:
        take(session.run({"x": IMAGE}))
        before = runtime.calls
        outputs = session.run({"x": IMAGE})
        assert runtime.calls == before + 1
        take(outputs)


@pytest.mark.parametrize("planned", [True, False])
def test_a_thousand_runs_leave_no_trace(runtime: ort.Runtime, planned: bool) -> None:
    with ort.InferenceSession.create(graphs.convnet(), runtime=runtime, enable_mem_pattern=planned) as session:
        for _ in range(2):
            take(session.run({"x": IMAGE}))
        before = runtime.memory()
        for _ in range(1000):
            take(session.run({"x": IMAGE}))
        after = runtime.memory()
    assert (after.used, after.blocks, after.linear) == (before.used, before.blocks, before.linear)


@pytest.mark.parametrize("planned", [True, False])
def test_two_hundred_sessions_leave_no_trace(runtime: ort.Runtime, planned: bool) -> None:
    def cycle() -> None:
        with ort.InferenceSession.create(graphs.convnet(), runtime=runtime, enable_mem_pattern=planned) as session:
            take(session.run({"x": IMAGE}))

    cycle()
    cycle()
    before = runtime.memory()
    assert before.used == 0
    for _ in range(200):
        cycle()
    after = runtime.memory()
    assert (after.used, after.blocks, after.linear, after.sessions) == (0, 0, before.linear, 0)


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc to see the process's memory")
def test_closing_a_runtime_gives_its_memory_back_to_the_process() -> None:
    gc.collect()
    before = resident()
    runtime = ort.Runtime()
    tensor = ort.Tensor("uint8", np.ones(256 << 20, np.uint8), runtime=runtime)
    assert resident() - before > 200 << 20
    tensor.dispose()
    runtime.close()
    gc.collect()
    assert resident() - before < 32 << 20


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc to see the process's memory")
@pytest.mark.parametrize("debug", [False, True], ids=["plain", "debug"])
def test_a_thousand_runtimes_leave_the_process_as_it_was(debug: bool) -> None:
    data, x = graphs.mlp(2), np.ones((2, 16), np.float32)

    def one() -> None:
        with ort.Runtime(debug=debug) as runtime, ort.InferenceSession.create(data, runtime=runtime) as session:
            session.run({"x": x})["y"].dispose()

    for _ in range(20):
        one()
    growth = []
    for _ in range(4):
        gc.collect()
        before = resident()
        for _ in range(250):
            one()
        gc.collect()
        growth.append(resident() - before)
    # What one of them left would be there four times; the process has other reasons to grow once.
    assert min(growth) < 1 << 20


def test_plans_are_kept_by_input_shape(runtime: ort.Runtime) -> None:
    data = graphs.mlp()
    with ort.InferenceSession.create(data, runtime=runtime, max_plans=2) as session:
        chance = np.random.default_rng(0)
        for batch in (1, 3, 1, 5, 3, 0, 1):
            x = chance.normal(0, 1, (batch, 16)).astype(np.float32)
            got = take(session.run({"x": x}))["y"]
            assert got.shape == (batch, 8)
            if batch:
                np.testing.assert_allclose(got, graphs.native(data, {"x": x})["y"], rtol=1e-4, atol=1e-6)
        assert len(session._programs) == 2
    assert runtime.memory().used == 0


def test_a_tensor_feed_is_read_where_it_lies(runtime: ort.Runtime) -> None:
    data = graphs.mlp(2)
    with (
        ort.InferenceSession.create(data, runtime=runtime) as session,
        ort.Tensor("float32", np.ones((2, 16), np.float32), runtime=runtime) as x,
    ):
        first = take(session.run({"x": x}))["y"]
        x.data[...] = 2
        second = take(session.run({"x": x}))["y"]
        view = x.data
        third = take(session.run({"x": view}))["y"]
        assert "input" not in runtime.memory().by_tag
        del view
    np.testing.assert_allclose(first, graphs.native(data, {"x": np.ones((2, 16), np.float32)})["y"], rtol=1e-4)
    np.testing.assert_allclose(second, graphs.native(data, {"x": np.full((2, 16), 2, np.float32)})["y"], rtol=1e-4)
    np.testing.assert_array_equal(second, third)


def test_a_tensor_of_another_runtime_is_copied(runtime: ort.Runtime) -> None:
    with ort.Runtime() as other, ort.InferenceSession.create(graphs.mlp(2), runtime=runtime) as session:
        x = np.random.default_rng(0).normal(0, 1, (2, 16)).astype(np.float32)
        with ort.Tensor("float32", x, runtime=other) as tensor:
            np.testing.assert_array_equal(take(session.run({"x": tensor}))["y"], take(session.run({"x": x}))["y"])


def branches() -> bytes:
    nodes = [
        node("Add", ["x", "x"], ["double"]),
        node("Mul", ["double", "x"], ["square"]),
        node("Neg", ["x"], ["minus"]),
    ]
    return model(nodes, {"x": (FLOAT, ["n"])}, ["double", "square", "minus"])


def test_fetches_choose_outputs(runtime: ort.Runtime) -> None:
    x = np.arange(4, dtype=np.float32)
    with ort.InferenceSession.create(branches(), runtime=runtime) as session:
        assert session.output_names == ["double", "square", "minus"]
        assert list(take(session.run({"x": x}, ["minus"]))) == ["minus"]
        got = take(session.run({"x": x}, ["square", "double"]))
        np.testing.assert_array_equal(got["square"], 2 * x * x)
        np.testing.assert_array_equal(got["double"], 2 * x)
        with pytest.raises(ValueError, match=r"\['other'\] are no outputs"):
            session.run({"x": x}, ["other"])
        with pytest.raises(TypeError, match="sequence of output names"):
            session.run({"x": x}, "minus")


@pytest.mark.parametrize("planned", [True, False])
def test_a_run_writes_into_tensors_that_are_given(runtime: ort.Runtime, planned: bool) -> None:
    x = np.arange(4, dtype=np.float32)
    with (
        ort.InferenceSession.create(branches(), runtime=runtime, enable_mem_pattern=planned) as session,
        ort.Tensor("float32", np.full(4, -7, np.float32), runtime=runtime) as mine,
    ):
        address = mine.address
        for i in range(3):
            out = session.run({"x": x + i}, {"square": mine, "minus": None})
            assert out["square"] is mine
            assert mine.address == address
            np.testing.assert_array_equal(mine.data, 2 * (x + i) ** 2)
            np.testing.assert_array_equal(out["minus"].data, -(x + i))
            out["minus"].dispose()
        with pytest.raises(ValueError, match=r"output 'square' is float32\[3\]"):
            session.run({"x": x[:3]}, {"square": mine})
        with pytest.raises(ValueError, match="shares memory with input 'x'"):
            session.run({"x": mine}, {"square": mine})
        with (
            ort.Runtime() as other,
            ort.Tensor("float32", x, runtime=other) as foreign,
            pytest.raises(ValueError, match="another runtime"),
        ):
            session.run({"x": x}, {"square": foreign})


@pytest.mark.parametrize("planned", [True, False])
def test_tensors_given_for_outputs_stay_the_callers_when_one_does_not_fit(runtime: ort.Runtime, planned: bool) -> None:
    x = np.arange(4, dtype=np.float32)
    with (
        ort.InferenceSession.create(branches(), runtime=runtime, enable_mem_pattern=planned) as session,
        ort.Tensor("float32", x, runtime=runtime) as right,
        ort.Tensor("float32", x[:3], runtime=runtime) as wrong,
    ):
        with pytest.raises(ValueError, match=r"output 'minus' is float32\[4\]"):
            session.run({"x": x}, {"double": right, "minus": wrong})
        with pytest.raises(ValueError, match="'minus' shares memory with output 'double'"):
            session.run({"x": x}, {"double": right, "minus": right})
        assert runtime.memory().blocks == len(runtime.blocks())
        assert session.run({"x": x}, {"double": right})["double"] is right
        np.testing.assert_array_equal(right.data, 2 * x)
    assert runtime.memory().used == 0


def nonzeros() -> bytes:
    """A model of two segments: where "x" is not zero, in another type and negative."""
    nodes = [
        node("NonZero", ["x"], ["places"]),
        node("Cast", ["places"], ["floats"], to=FLOAT),
        node("Neg", ["floats"], ["y"]),
    ]
    return model(nodes, {"x": (FLOAT, ["n"])}, ["y"])


@pytest.mark.parametrize("planned", [True, False])
def test_a_segment_that_could_not_be_made_is_made_by_the_next_run(runtime: ort.Runtime, planned: bool) -> None:
    x = np.array([0, 5, 0, 7], np.float32)
    failures = 0
    for nth in range(1, 20):
        with ort.InferenceSession.create(nonzeros(), runtime=runtime, enable_mem_pattern=planned) as session:
            runtime.fail_allocation(nth)
            try:
                take(session.run({"x": x}))
            except MemoryError:
                failures += 1
            runtime.fail_allocation(0)
            np.testing.assert_array_equal(take(session.run({"x": x}))["y"], [[-1, -3]])
            np.testing.assert_array_equal(take(session.run({"x": x[:2]}))["y"], [[-1]])
    assert 2 < failures < 19
    assert runtime.memory().used == 0


def test_outputs_that_are_inputs_or_constants_are_tensors_of_their_own(runtime: ort.Runtime) -> None:
    nodes = [
        node("Identity", ["x"], ["same"]),
        node("Identity", ["x"], ["again"]),
        node("Identity", ["w"], ["weight"]),
        node("Shape", ["x"], ["shape"]),
    ]
    data = model(nodes, {"x": (FLOAT, ["a", 3])}, ["same", "again", "weight", "shape"], {"w": np.ones(5, np.float32)})
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    with ort.InferenceSession.create(data, runtime=runtime) as session:
        out = session.run({"x": x})
        out["same"].data[...] = 0
        np.testing.assert_array_equal(out["again"].data, x)
        np.testing.assert_array_equal(out["weight"].data, np.ones(5))
        np.testing.assert_array_equal(out["shape"].data, [2, 3])
        take(out)


def test_an_input_whose_contents_decide_a_shape_joins_the_key(runtime: ort.Runtime) -> None:
    nodes = [node("Reshape", ["x", "shape"], ["r"]), node("Add", ["r", "r"], ["y"])]
    data = model(nodes, {"x": (FLOAT, [6]), "shape": (INT64, [2])}, ["y"])
    x = np.arange(6, dtype=np.float32)
    with ort.InferenceSession.create(data, runtime=runtime) as session:
        for shape in ([2, 3], [3, 2], [2, 3], [-1, 1]):
            got = take(session.run({"x": x, "shape": np.array(shape, np.int64)}))["y"]
            np.testing.assert_array_equal(got, 2 * x.reshape(shape))
        with pytest.raises(ValueError, match=r'Reshape "r" \(node 0\)'):
            session.run({"x": x, "shape": np.array([4, 4], np.int64)})
        with ort.Tensor("int64", [3, 2], runtime=runtime) as shape:
            assert take(session.run({"x": x, "shape": shape}))["y"].shape == (3, 2)


@pytest.mark.parametrize("order", ["<i8", ">i8"])
def test_what_decided_a_shape_may_change_after_the_run(runtime: ort.Runtime, order: str) -> None:
    """The shape is used on both sides of what only the run can tell."""
    nodes = [
        node("Reshape", ["x", "shape"], ["r"]),
        node("NonZero", ["r"], ["places"]),
        node("Reshape", ["places", "column"], ["flat"]),
        node("Gather", ["shape", "last"], ["width"]),
        node("Expand", ["flat", "width"], ["y"]),
    ]
    weights = {"column": np.array([-1, 1]), "last": np.array([1])}
    data = model(nodes, {"x": (FLOAT, [4]), "shape": (INT64, [2])}, ["y"], weights)
    shape = np.array([2, 2], order)
    with ort.InferenceSession.create(data, runtime=runtime) as session:
        assert take(session.run({"x": np.array([0, 0, 0, 1], np.float32), "shape": shape}))["y"].shape == (2, 2)
        shape[:] = (1, 4)
        again = {"x": np.ones(4, np.float32), "shape": np.array([2, 2], order)}
        assert take(session.run(again))["y"].shape == (8, 2)


def test_strings_that_are_changed_after_a_run_change_no_plan(runtime: ort.Runtime) -> None:
    data = model([node("Identity", ["x"], ["y"])], {"x": (STRING, ["n"])}, ["y"])
    words = ort.Tensor("string", ["a"])
    with ort.InferenceSession.create(data, runtime=runtime) as session:
        assert take(session.run({"x": words}))["y"].tolist() == ["a"]
        words.data[0] = "b"
        assert take(session.run({"x": words}))["y"].tolist() == ["b"]
        assert take(session.run({"x": np.array(["a"])}))["y"].tolist() == ["a"]


def test_an_input_without_a_declared_type_takes_any(runtime: ort.Runtime) -> None:
    proto = onnx.load_from_string(model([node("Add", ["x", "x"], ["y"])], {"x": (FLOAT, ["n"])}, ["y"]))
    proto.graph.input[0].ClearField("type")
    with ort.InferenceSession.create(proto.SerializeToString(), runtime=runtime) as session:
        for dtype in (np.float32, np.int64, np.float32):
            got = take(session.run({"x": np.arange(4).astype(dtype)}))["y"]
            assert got.dtype == dtype
            assert got.tolist() == [0, 2, 4, 6]


def test_a_weight_that_is_an_input_is_a_default(runtime: ort.Runtime) -> None:
    weights = {"w": np.array([1, 2, 3], np.float32), "b": np.array([10, 20, 30], np.float32)}
    nodes = [node("Mul", ["w", "b"], ["wb"]), node("Add", ["x", "wb"], ["y"])]
    inputs = {"x": (FLOAT, [3]), "w": (FLOAT, [3]), "b": (FLOAT, [3])}
    data = model(nodes, inputs, ["y"], weights, opset=8, ir_version=3)
    x = np.zeros(3, np.float32)
    with ort.InferenceSession.create(data, runtime=runtime) as session:
        assert session.input_names == ["x"]
        np.testing.assert_array_equal(take(session.run({"x": x}))["y"], [10, 40, 90])
        np.testing.assert_array_equal(take(session.run({"x": x, "w": x + 2}))["y"], [20, 40, 60])
        np.testing.assert_array_equal(take(session.run({"x": x}))["y"], [10, 40, 90])


def test_lazy_sessions_do_nothing_before_the_first_run(runtime: ort.Runtime) -> None:
    session = ort.InferenceSession.create(graphs.convnet(), runtime=runtime, enable_lazy_initialization=True)
    assert runtime.memory().used == 0
    take(session.run({"x": IMAGE}))
    assert runtime.memory().used > 0
    session.dispose()
    session.dispose()
    assert runtime.memory().used == 0
    with pytest.raises(ValueError, match="disposed"):
        session.run({"x": IMAGE})


def test_weights_are_placed_at_creation_also_for_symbolic_shapes(runtime: ort.Runtime) -> None:
    with ort.InferenceSession.create(graphs.mlp(), runtime=runtime):
        assert runtime.memory().by_tag["weights"] >= (16 * 32 + 32 * 8) * 4


def test_external_data(runtime: ort.Runtime, tmp_path: Path) -> None:
    proto = onnx.load_from_string(graphs.mlp(2))
    path = tmp_path / "model.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    x = np.ones((2, 16), np.float32)
    expected = graphs.native(graphs.mlp(2), {"x": x})["y"]
    with ort.InferenceSession.create(path, runtime=runtime) as session:
        np.testing.assert_allclose(take(session.run({"x": x}))["y"], expected, rtol=1e-4)
    given = {"weights.bin": (tmp_path / "weights.bin").read_bytes()}
    with ort.InferenceSession.create(path.read_bytes(), runtime=runtime, external_data=given) as session:
        np.testing.assert_allclose(take(session.run({"x": x}))["y"], expected, rtol=1e-4)
    listed = [{"path": "weights.bin", "data": given["weights.bin"]}]
    with ort.InferenceSession.create(path.read_bytes(), runtime=runtime, external_data=listed) as session:
        np.testing.assert_allclose(take(session.run({"x": x}))["y"], expected, rtol=1e-4)
    with pytest.raises(ValueError, match=r"'weights.bin' of tensor .* has no folder"):
        ort.InferenceSession.create(path.read_bytes(), runtime=runtime)
    (tmp_path / "weights.bin").write_bytes(given["weights.bin"][:100])
    with pytest.raises(ValueError, match=r"weights.bin is shorter than"):
        ort.InferenceSession.create(path, runtime=runtime)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ValueError, match=r"weights.bin' of tensor .* cannot be opened"):
        ort.InferenceSession.create(path, runtime=runtime)
    assert runtime.memory().used == 0


def test_options_of_ort_web_are_taken(runtime: ort.Runtime) -> None:
    settings = {"enable_cpu_mem_arena": False, "execution_mode": "sequential", "execution_providers": ["wasm"]}
    more = {"log_severity_level": 3, "extra": {"session": {"disable_prepacking": "1"}}, "intra_op_num_threads": 1}
    with ort.InferenceSession.create(branches(), runtime=runtime, enable_profiling=True, **settings, **more) as session:
        take(session.run({"x": np.ones(3, np.float32)}))
        assert {e.op_type for e in session.end_profiling()} == {"Add", "Mul", "Neg"}
    for wrong in (
        {"execution_providers": ["webgpu"]},
        {"preferred_output_location": "gpu-buffer"},
        {"execution_mode": "fast"},
        {"max_plans": 0},
        {"free_dimension_overrides": {"n": -1}},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong)).rstrip("s").replace("_provider", ".provider")):
            ort.InferenceSession.create(branches(), runtime=runtime, **wrong)


def test_an_output_that_finds_no_room_is_named_as_the_model_names_it() -> None:
    """Though the record that makes it is that of a node before."""
    nodes = [node("MatMul", ["x", "w"], ["between"]), node("Sigmoid", ["between"], ["y"])]
    data = model(nodes, {"x": (FLOAT, ["n", 1])}, ["y"], {"w": np.ones((1, 4096), np.float32)})
    with ort.Runtime(maximum=24 << 20) as runtime, ort.InferenceSession.create(data, runtime=runtime) as session:
        x = np.ones((2000, 1), np.float32)
        with pytest.raises(MemoryError, match="for tensor 'y' of MatMul"):
            session.run({"x": x})


def test_the_default_runtime_is_made_with_the_flags_of_the_environment() -> None:
    assert set(ort.env.versions) == {"onnx_wasm", "wasmtime", "onnx"}
    ort.default_runtime().close()
    ort.env.wasm.maximum = 24 << 20
    try:
        with pytest.raises(MemoryError, match="at most 25,165,824"):
            ort.Tensor("uint8", np.zeros(32 << 20, np.uint8))
        with pytest.raises(AttributeError, match="no flag 'num_thread'"):
            ort.env.wasm.num_thread = 2
    finally:
        ort.default_runtime().close()
        ort.env.wasm = type(ort.env.wasm)()
    assert ort.memory().maximum == 0xFFFF0000


def test_a_session_is_made_by_create_and_names_are_known_ones(runtime: ort.Runtime) -> None:
    for args in ((), ("m.onnx",), ("m.onnx", ort.SessionOptions(), runtime)):
        with pytest.raises(TypeError, match=r"use InferenceSession\.create\(\.\.\.\)"):
            ort.InferenceSession(*args)
    with pytest.raises(
        TypeError, match=r"unknown parameters of Runtime \['max_memory'\]; known: \['debug', .*'maximum'"
    ):
        ort.Runtime(max_memory=1)  # type: ignore[call-arg]
    for make in (ort.SessionOptions, lambda **s: ort.InferenceSession.create("m.onnx", runtime=runtime, **s)):
        with pytest.raises(TypeError, match=r"unknown session options \['plans'\]; known: \['enable_.*'max_plans'"):
            make(plans=1)
    for make in (ort.HeapPolicy, ort.HeapPolicy().with_):
        with pytest.raises(
            TypeError, match=r"unknown fields of HeapPolicy \['max'\]; known: \['geometric_cap', .*'maximum'"
        ):
            make(max=1)


def test_weights_of_a_branch_are_placed_when_a_run_gets_there(runtime: ort.Runtime) -> None:
    """As docs/guide.md says of creation."""
    weight = numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    bodies = {
        name: helper.make_graph(
            [node(op, inputs, ["z"])], name, [], [helper.make_tensor_value_info("z", FLOAT, None)], made
        )
        for name, op, inputs, made in (
            ("then_branch", "MatMul", ["x", "w"], [weight]),
            ("else_branch", "Relu", ["x"], []),
        )
    }
    data = model([node("If", ["c"], ["y"], **bodies)], {"c": (BOOL, []), "x": (FLOAT, [1, 64])}, ["y"])
    with ort.InferenceSession.create(data, runtime=runtime) as session:
        for condition, placed in ((False, 0), (True, 64 * 64 * 4)):
            take(session.run({"c": np.array(condition), "x": np.ones((1, 64), np.float32)}))
            assert runtime.memory().by_tag.get("weights", 0) == placed


def test_flags_that_the_default_runtime_would_not_see_are_refused() -> None:
    flags, used = ort.env.wasm, ort.memory().used
    before = dict(vars(flags))
    late = r"env\.wasm\.maximum = '24MiB' comes too late: .*default_runtime\(\)\.close\(\).*Runtime\(\.\.\.\)"
    with pytest.raises(RuntimeError, match=late):
        ort.env.wasm.maximum = "24MiB"
    with pytest.raises(RuntimeError, match="comes too late"):
        ort.env.wasm = type(flags)(maximum="24MiB")
    with pytest.raises(AttributeError, match="no flag 'num_thread'"):
        ort.env.wasm.num_thread = 2
    flags.num_threads = before["num_threads"]  # what it is already
    type(flags)().maximum = "24MiB"  # nobody's flags
    assert ort.env.wasm is flags
    assert (vars(flags), ort.memory().used) == (before, used)
    with ort.Runtime() as mine, ort.use_runtime(mine), pytest.raises(RuntimeError, match="comes too late"):
        ort.env.wasm.maximum = "24MiB"
    ort.default_runtime().close()
    ort.env.wasm.maximum = "24MiB"
    try:
        assert ort.memory().maximum == 24 << 20
    finally:
        ort.default_runtime().close()
        ort.env.wasm.maximum = None


def test_made_up_shapes_that_need_too_much_are_no_error(runtime: ort.Runtime) -> None:
    """The kernel fits into 64 places and not into 1; with 64 everywhere the output needs 7 GiB."""
    data = model(
        [node("Conv", ["x", "w"], ["y"])],
        {"x": (FLOAT, ["n", "c", "d", "h", "w"])},
        ["y"],
        {"w": np.ones((128, 64, 3, 3, 3), np.float32)},
    )
    with ort.InferenceSession.create(data, runtime=runtime) as session:
        x = np.ones((1, 64, 3, 3, 3), np.float32)
        assert take(session.run({"x": x}))["y"].reshape(-1).tolist() == [64 * 27] * 128


def test_a_lazy_session_is_loaded_once(runtime: ort.Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[object] = []
    load = session_module.model.load

    def slow(*args: object) -> object:
        loads.append(args)
        time.sleep(0.05)
        return load(*args)

    monkeypatch.setattr(session_module.model, "load", slow)
    with ort.InferenceSession.create(graphs.mlp(), runtime=runtime, enable_lazy_initialization=True) as session:
        names: list[list[str]] = []
        threads = [threading.Thread(target=lambda: names.append(session.input_names)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert names == [["x"]] * 4
    assert len(loads) == 1


def test_metadata_and_overrides(runtime: ort.Runtime) -> None:
    with ort.InferenceSession.create(branches(), runtime=runtime) as session:
        (x,) = session.input_metadata
        assert (x.name, x.is_tensor, x.type, x.shape) == ("x", True, "float32", ("n",))
    with ort.InferenceSession.create(branches(), runtime=runtime, free_dimension_overrides={"n": 4}) as session:
        assert session.input_metadata[0].shape == (4,)
        with pytest.raises(ValueError, match="has dimension 4 on axis 0"):
            session.run({"x": np.zeros(3, np.float32)})


def test_async_and_threads(runtime: ort.Runtime) -> None:
    data = graphs.mlp()

    async def go() -> list[np.ndarray]:
        session = await ort.InferenceSession.create_async(data, runtime=runtime)
        feeds = [{"x": np.full((i + 1, 16), i, np.float32)} for i in range(8)]
        outputs = await asyncio.gather(*[session.run_async(f) for f in feeds])
        arrays = [take(o)["y"] for o in outputs]
        session.dispose()
        return arrays

    for i, got in enumerate(asyncio.run(go())):
        expected = graphs.native(data, {"x": np.full((i + 1, 16), i, np.float32)})["y"]
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)
    assert runtime.memory().used == 0


def test_many_threads_share_a_session(runtime: ort.Runtime) -> None:
    data, failures = graphs.mlp(), []
    with ort.InferenceSession.create(data, runtime=runtime) as session:

        def work(i: int) -> None:
            x = np.full((i % 3 + 1, 16), i, np.float32)
            expected = graphs.native(data, {"x": x})["y"]
            for _ in range(50):
                if not np.allclose(take(session.run({"x": x}))["y"], expected, rtol=1e-4, atol=1e-6):
                    failures.append(i)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures
    assert runtime.memory().used == 0


def test_profiling_times_every_record(runtime: ort.Runtime) -> None:
    with ort.InferenceSession.create(graphs.convnet(), runtime=runtime) as session:
        expected = take(session.run({"x": IMAGE}))["y"]
        session.start_profiling()
        np.testing.assert_array_equal(take(session.run({"x": IMAGE}))["y"], expected)
        events = session.end_profiling()
        assert len(events) == session.plan_info.records
        assert {"Conv", "MaxPool", "Gemm"} <= {e.op_type for e in events}
        assert all(e.milliseconds >= 0 for e in events)
        take(session.run({"x": IMAGE}))
        assert session.end_profiling() == []


@pytest.mark.parametrize("watched", [False, True])
def test_profiled_runs_are_numbered_and_nodes_without_names_are_told_apart(
    runtime: ort.Runtime, *, watched: bool
) -> None:
    nodes = [onnx.helper.make_node("NonZero", ["x"], ["i"]), onnx.helper.make_node("Neg", ["i"], ["n"])]
    data = model([*nodes, node("Abs", ["n"], ["y"])], {"x": (FLOAT, [3])}, ["y"])
    if watched:
        runtime.start_events()
    with ort.InferenceSession.create(data, runtime=runtime, enable_profiling=True) as s:
        for count in (1, 2, 1):
            take(s.run({"x": np.array([1] * count + [0] * (3 - count), np.float32)}))
        with pytest.raises(ort.FeedError):
            s.run({"z": IMAGE})
        take(s.run({"x": np.ones(3, np.float32)}))
        events = s.end_profiling()
        assert [e.run for e in events] == sorted(e.run for e in events)
        assert {e.run for e in events} == {0, 1, 2, 3}
        assert {(e.op_type, e.node) for e in events} == {("NonZero", "node 0"), ("Neg", "node 1"), ("Abs", "y")}
        s.start_profiling()
        take(s.run({"x": np.ones(3, np.float32)}))
        assert {e.run for e in s.end_profiling()} == {0}


def test_a_session_that_nobody_disposed_warns_and_gives_its_memory_back(runtime: ort.Runtime) -> None:
    session = ort.InferenceSession.create(graphs.convnet(), runtime=runtime)
    take(session.run({"x": IMAGE}))
    with pytest.warns(ResourceWarning, match="never disposed"):
        del session
    assert runtime.memory().used == 0


def test_two_sessions_share_the_arena(runtime: ort.Runtime) -> None:
    small = ort.InferenceSession.create(graphs.mlp(1), runtime=runtime)
    take(small.run({"x": np.ones((1, 16), np.float32)}))
    large = ort.InferenceSession.create(graphs.convnet(), runtime=runtime)
    take(large.run({"x": IMAGE}))
    x = np.ones((1, 16), np.float32)
    np.testing.assert_allclose(take(small.run({"x": x}))["y"], graphs.native(graphs.mlp(1), {"x": x})["y"], rtol=1e-4)
    assert len([b for b in runtime.blocks() if b.tag == "activations"]) == 1
    large.dispose()
    small.dispose()
    assert runtime.memory().used == 0


def test_strict_and_relaxed_differ_by_little_and_strict_is_exact(runtime: ort.Runtime) -> None:
    results = []
    for _ in range(2):
        with (
            ort.Runtime(variant="strict") as strict,
            ort.InferenceSession.create(graphs.convnet(), runtime=strict) as session,
        ):
            results.append(take(session.run({"x": IMAGE}))["y"])
    np.testing.assert_array_equal(*results)


def test_bool_and_empty_tensors_pass_through(runtime: ort.Runtime) -> None:
    nodes = [node("Not", ["x"], ["y"])]
    with ort.InferenceSession.create(model(nodes, {"x": (BOOL, ["n"])}, ["y"]), runtime=runtime) as session:
        assert take(session.run({"x": np.array([True, False])}))["y"].tolist() == [False, True]
        assert take(session.run({"x": np.zeros(0, bool)}))["y"].shape == (0,)


def test_shape_arithmetic_in_floats_is_done_while_planning(runtime: ort.Runtime) -> None:
    """As exporters write sizes for Resize and conditions of loops: cast to float, scale, floor, cast back."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Cast", ["shape"], ["float"], to=FLOAT),
        node("Mul", ["float", "half"], ["scaled"]),
        node("Floor", ["scaled"], ["floor"]),
        node("Cast", ["floor"], ["size"], to=INT64),
        node("Expand", ["one", "size"], ["e"]),
        node("Neg", ["e"], ["y"]),
    ]
    weights = {"half": np.array(0.5, np.float32), "one": np.ones(1, np.float32)}
    data = model(nodes, {"x": (FLOAT, ["a", "b"])}, ["y"], weights)
    with ort.InferenceSession.create(data, runtime=runtime) as session:
        for shape in ((4, 7), (9, 2)):
            got = take(session.run({"x": np.zeros(shape, np.float32)}))["y"]
            np.testing.assert_array_equal(got, -np.ones((shape[0] // 2, shape[1] // 2)))
            assert session.plan_info.segments == 1


def test_random_numbers_differ_from_run_to_run_and_begin_alike_with_a_seed(runtime: ort.Runtime) -> None:
    nodes = [
        node("RandomNormal", [], ["fixed"], shape=[50], seed=7.0),
        node("RandomUniformLike", ["x"], ["free"]),
    ]
    data = model(nodes, {"x": (FLOAT, [50])}, ["fixed", "free"])
    feeds = {"x": np.zeros(50, np.float32)}
    runs = []
    for _ in range(2):
        with ort.InferenceSession.create(data, runtime=runtime) as session:
            runs.append([take(session.run(feeds)) for _ in range(2)])
    (a, b), (c, d) = runs
    np.testing.assert_array_equal(a["fixed"], c["fixed"])
    np.testing.assert_array_equal(b["fixed"], d["fixed"])
    for first, second in ((a["fixed"], b["fixed"]), (a["free"], b["free"]), (a["free"], c["free"])):
        assert not np.array_equal(first, second)


@pytest.mark.parametrize("planned", [True, False])
def test_a_slice_of_a_shape_at_axes_that_the_run_computes(runtime: ort.Runtime, planned: bool) -> None:
    """The slice is a view of what the host knows, so the host knows it too."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Add", ["axis", "zero"], ["axes"]),
        node("Slice", ["shape", "start", "end", "axes"], ["part"]),
        node("ConstantOfShape", ["part"], ["y"]),
    ]
    weights = {"start": np.array([1], np.int64), "end": np.array([3], np.int64)}
    inputs = {"x": (FLOAT, [2, 3, 4]), "axis": (INT64, [1]), "zero": (INT64, [])}
    feeds = {"x": np.zeros((2, 3, 4), np.float32), "axis": np.zeros(1, np.int64), "zero": np.int64(0)}
    data = model(nodes, inputs, ["y"], weights)
    with ort.InferenceSession.create(data, runtime=runtime, enable_mem_pattern=planned) as session:
        for _ in range(2):
            assert take(session.run(feeds))["y"].shape == (3, 4)
    assert runtime.memory().used == 0
