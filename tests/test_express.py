"""Runs that take the short way give what the long one gives, and give way to it where anything differs."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import onnx_wasm as ort
from graphs import FLOAT, INT64, model, node
from interrupting import interrupted_at

DATA = model(
    [
        node("Add", ["x", "y"], ["sum"]),
        node("Tile", ["sum", "twice"], ["wide"]),
        node("Slice", ["wide", "zero", "four", "one"], ["back"]),
        node("Mul", ["x", "back"], ["product"]),
        node("Neg", ["sum"], ["z"]),
    ],
    {"x": (FLOAT, ["n", 4]), "y": (FLOAT, [4])},
    ["product", "z"],
    {"twice": np.array([1, 2]), "zero": np.array([0]), "four": np.array([4]), "one": np.array([1])},
)


@pytest.fixture
def runtime() -> Iterator[ort.Runtime]:
    runtime = ort.Runtime()
    yield runtime
    gc.collect()
    assert runtime.memory().used == 0
    runtime.heap_check()
    runtime.close()


def feeds(n: int, seed: int) -> dict[str, Any]:
    chance = np.random.default_rng(seed)
    return {"x": chance.normal(0, 1, (n, 4)).astype("f4"), "y": chance.normal(0, 1, 4).astype("f4")}


def check(session: ort.InferenceSession, fed: dict[str, Any], short: bool) -> None:
    """One run, and which way it took."""
    found: list[bool] = []
    express = session._express
    if express is not None:
        run = express.run
        express.run = lambda *args: _note(found, run(*args))  # type: ignore[method-assign]
    out = session.run(fed)
    if express is not None:
        express.run = run  # type: ignore[method-assign]
    x, y = (np.asarray(fed[n].data if isinstance(fed[n], ort.Tensor) else fed[n]) for n in ("x", "y"))
    np.testing.assert_array_equal(out["product"].get_data(release_data=True), x * (x + y))
    np.testing.assert_array_equal(out["z"].get_data(release_data=True), -(x + y))
    assert (found == [True]) == short


def _note(found: list[bool], results: Any) -> Any:
    found.append(results is not None)
    return results


@pytest.mark.parametrize("planned", [True, False], ids=["planned", "unplanned"])
def test_the_short_way_gives_what_the_long_one_gives(runtime: ort.Runtime, planned: bool) -> None:
    with ort.InferenceSession.create(DATA, runtime=runtime, enable_mem_pattern=planned) as session:
        check(session, feeds(2, 0), False)
        check(session, feeds(2, 1), False)
        for seed in range(2, 6):
            check(session, feeds(2, seed), True)
        check(session, feeds(3, 6), False)  # other shapes
        check(session, feeds(2, 7), False)
        check(session, feeds(2, 8), False)
        check(session, feeds(2, 9), True)
        x = np.asfortranarray(feeds(2, 10)["x"])
        check(session, {**feeds(2, 10), "x": x}, True)
        check(session, {**feeds(2, 10), "x": x[::-1]}, True)
        with ort.Tensor("float32", x, runtime=runtime) as tensor:
            check(session, {**feeds(2, 11), "x": tensor}, True)
            check(session, {**feeds(2, 11), "x": tensor.data}, False)  # lies in the heap, and is not copied
            check(session, feeds(2, 13), True)
            with tensor.reshape([2, 4]) as other:
                check(session, {**feeds(2, 11), "x": other}, True)


def test_what_differs_goes_the_long_way_and_is_refused_there(runtime: ort.Runtime) -> None:
    with ort.InferenceSession.create(DATA, runtime=runtime) as session:
        for _ in range(3):
            check(session, feeds(2, 0), session._express is not None)
        good = feeds(2, 0)
        for bad, kind in (
            ({"x": good["x"]}, ValueError),
            ({**good, "w": good["y"]}, ValueError),
            ({**good, "x": good["x"].astype(np.float64)}, TypeError),
            ({**good, "y": good["y"].reshape(2, 2)}, ValueError),
            ({**good, "x": good["x"].tolist()}, TypeError),
            ({**good, "x": None}, TypeError),
        ):
            with pytest.raises(kind):
                session.run(bad)
            check(session, good, False)
            check(session, good, True)
        check(session, {**good, "x": good["x"].astype(">f4")}, False)
        disposed = ort.Tensor("float32", good["x"], runtime=runtime)
        disposed.dispose()
        with pytest.raises(ort.DisposedError):
            session.run({**good, "x": disposed})
        with ort.Runtime() as other, ort.Tensor("float32", good["x"], runtime=other) as foreign:
            check(session, {**good, "x": foreign}, False)


def test_the_short_way_ends_with_what_it_stands_on(runtime: ort.Runtime) -> None:
    session = ort.InferenceSession.create(DATA, runtime=runtime)
    other = ort.InferenceSession.create(DATA, runtime=runtime)
    for _ in range(3):
        check(session, feeds(2, 0), session._express is not None)
    check(other, feeds(1000, 1), False)  # the arena that both share has moved
    check(session, feeds(2, 0), False)
    check(session, feeds(2, 0), True)
    runtime.start_events()
    check(session, feeds(2, 0), False)
    runtime.stop_events()
    check(session, feeds(2, 0), True)
    session.start_profiling()
    check(session, feeds(2, 0), False)
    assert len(session.end_profiling()) >= 2
    for nth in (1, 2):
        for _ in range(3):
            check(session, feeds(2, 0), session._express is not None)
        runtime.fail_allocation(nth)
        with pytest.raises(MemoryError, match="for tensor"):
            session.run(feeds(2, 0))
        assert session._express is None
    other.dispose()
    session.dispose()
    with pytest.raises(ort.DisposedError):
        session.run(feeds(2, 0))


def test_errors_of_values_name_the_node_on_the_short_way(runtime: ort.Runtime) -> None:
    data = model([node("Gather", ["x", "i"], ["y"])], {"x": (FLOAT, [3]), "i": (INT64, [1])}, ["y"])
    x = np.arange(3, dtype=np.float32)
    with ort.InferenceSession.create(data, runtime=runtime) as session:
        for i in (0, 1, 2):
            assert session.run({"x": x, "i": np.array([i])})["y"].get_data(release_data=True).tolist() == [i]
        assert session._express is not None
        with pytest.raises(IndexError, match=r'Gather "y" \(node 0\): index 3 out of range \[-3, 3\)'):
            session.run({"x": x, "i": np.array([3])})
        assert session.run({"x": x, "i": np.array([1])})["y"].get_data(release_data=True).tolist() == [1]


def test_outputs_that_are_named_take_it_too(runtime: ort.Runtime) -> None:
    fed = feeds(2, 0)
    with ort.InferenceSession.create(DATA, runtime=runtime) as session:
        for names in (["z"], ["z"], ["z"], ("z",), ["z", "product"], ["z", "product"], None, None, ["z"]):
            out = session.run(fed, names)
            assert list(out) == list(names or ["product", "z"])
            np.testing.assert_array_equal(out["z"].data, -(fed["x"] + fed["y"]))
            for tensor in out.values():
                tensor.dispose()
        assert session._express is None
        session.run(fed, ["z"])["z"].dispose()
        assert session._express is not None
        with pytest.raises(ValueError, match="no outputs"):
            session.run(fed, ["nothing"])
        with ort.Tensor("float32", np.zeros((2, 4), np.float32), runtime=runtime) as given:
            for _ in range(3):
                assert session.run(fed, {"z": given})["z"] is given
        np.testing.assert_array_equal(session.run(fed, ["z"])["z"].get_data(release_data=True), -(fed["x"] + fed["y"]))


@pytest.mark.parametrize("planned", [True, False], ids=["planned", "unplanned"])
def test_outputs_that_are_given_take_it_too(runtime: ort.Runtime, planned: bool) -> None:
    with ort.InferenceSession.create(DATA, runtime=runtime, enable_mem_pattern=planned) as session:
        given = [ort.Tensor("float32", np.zeros((2, 4), np.float32), runtime=runtime) for _ in range(2)]
        short = 0
        choices = [{"product": None, "z": given[0]}, {"product": given[1], "z": given[0]}, {"product": None, "z": None}]
        for seed in range(24):
            fed = feeds(2, seed)
            fetches: Any = choices[seed // 2 % 3] if seed < 18 else None
            express = session._express
            used = runtime.memory().used
            out = session.run(fed, fetches)
            short += express is not None and session._express is express
            new = [n for n in ("product", "z") if fetches is None or fetches[n] is None]
            assert all(out[n] is fetches[n] for n in out if n not in new)
            np.testing.assert_array_equal(out["product"].data, fed["x"] * (fed["x"] + fed["y"]))
            np.testing.assert_array_equal(out["z"].data, -(fed["x"] + fed["y"]))
            for name in new:
                out[name].dispose()
            if seed > 1:
                assert runtime.memory().used == used
        assert short == 22
        for tensor in given:
            tensor.dispose()


def test_outputs_given_that_do_not_fit_go_the_long_way_and_are_refused_there(runtime: ort.Runtime) -> None:
    zeros = np.zeros((2, 4), np.float32)
    with ort.InferenceSession.create(DATA, runtime=runtime) as session:
        fed = feeds(2, 0)
        x, good, other = (ort.Tensor("float32", zeros, runtime=runtime) for _ in range(3))
        long = ort.Tensor("float32", np.zeros((4, 4), np.float32), runtime=runtime)
        rows = ort.Tensor("float32", long.data[:2], runtime=runtime)
        overlapping = ort.Tensor("float32", long.data[1:3], runtime=runtime)
        integers = ort.Tensor("int32", np.zeros((2, 4), np.int32), runtime=runtime)
        flat = ort.Tensor("float32", np.zeros(8, np.float32), runtime=runtime)
        gone = ort.Tensor("float32", zeros, runtime=runtime)
        gone.dispose()
        wrong: list[tuple[dict[str, Any], Any, type[Exception], str]] = [
            ({"product": good, "z": integers}, fed, ort.FeedError, "'z' is float32"),
            ({"product": flat, "z": good}, fed, ort.FeedError, "'product' is float32"),
            ({"product": good, "z": good}, fed, ort.FeedError, "shares memory with output 'product'"),
            ({"product": rows, "z": overlapping}, fed, ort.FeedError, "shares memory with output 'product'"),
            ({"product": None, "z": x}, {**fed, "x": x}, ort.FeedError, "shares memory with input 'x'"),
            ({"product": gone, "z": None}, fed, ort.DisposedError, "disposed"),
            ({"product": 1, "z": None}, fed, TypeError, "must be a Tensor or None"),
        ]
        for fetches, inputs, kind, message in wrong:
            for _ in range(3):
                session.run(inputs, {"product": good, "z": other})
            assert session._express is not None
            with pytest.raises(kind, match=message):
                session.run(inputs, fetches)
        out = session.run(fed, {"product": good, "z": other})
        np.testing.assert_array_equal(out["z"].data, -(fed["x"] + fed["y"]))
        for tensor in (x, good, other, long, rows, overlapping, integers, flat):
            tensor.dispose()


def test_outputs_that_are_given_stay_the_callers_after_an_error(runtime: ort.Runtime) -> None:
    nodes = [node("Neg", ["x"], ["y"]), node("Gather", ["x", "i"], ["z"])]
    data = model(nodes, {"x": (FLOAT, [3]), "i": (INT64, [1])}, ["y", "z"])
    x = np.arange(3, dtype=np.float32)
    given = ort.Tensor("float32", x, runtime=runtime)
    with ort.InferenceSession.create(data, runtime=runtime) as session:
        for _ in range(3):
            session.run({"x": x, "i": np.array([1])}, {"y": given, "z": None})["z"].dispose()
        express, used = session._express, runtime.memory().used
        assert express is not None
        with pytest.raises(IndexError, match="index 3 out of range"):
            session.run({"x": x, "i": np.array([3])}, {"y": given, "z": None})
        assert (session._express, runtime.memory().used) == (express, used)
        out = session.run({"x": x + 1, "i": np.array([2])})
        assert out["y"].get_data(release_data=True).tolist() == [-1, -2, -3]
        assert out["z"].get_data(release_data=True).tolist() == [3]
        assert given.data.tolist() == [0, -1, -2]
    given.dispose()


def test_an_interrupt_leaves_no_address_that_was_given(runtime: ort.Runtime) -> None:
    """The short way is interrupted after each line in turn."""
    nodes = [node("Mul", ["x", f"c{i}"], [f"y{i}"]) for i in range(3)]
    weights = {f"c{i}": np.full(4, i + 1, np.float32) for i in range(3)}
    data = model(nodes, {"x": (FLOAT, [4])}, ["y0", "y1", "y2"], weights)
    x = np.ones(4, np.float32)
    first, second = (ort.Tensor("float32", np.zeros(4, np.float32), runtime=runtime) for _ in range(2))
    with ort.InferenceSession.create(data, runtime=runtime, graph_optimization_level="disabled") as session:
        interrupted = 0
        for nth in range(1, 160):
            for _ in range(3):
                session.run({"x": x}, {"y0": first, "y1": None, "y2": second})["y1"].dispose()

            def run() -> None:
                session.run({"x": x * 2}, {"y0": second, "y1": None, "y2": first})["y1"].dispose()

            interrupted += interrupted_at(nth, run, file="express.py")
            gc.collect()
            out = session.run({"x": x})
            assert [float(t.get_data(release_data=True)[0]) for t in out.values()] == [1, 2, 3]
        assert 60 < interrupted < 159
    first.dispose()
    second.dispose()


def branching() -> bytes:
    """y = x * 2 where the sum of x is positive, else x - 1; z are the elements of x that are not 0."""

    def branch(name: str, nodes: list[onnx.NodeProto]) -> onnx.GraphProto:
        return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(name, FLOAT, None)])

    nodes = [
        node("ReduceSum", ["x"], ["sum"], keepdims=0),
        node("Greater", ["sum", "zero"], ["positive"]),
        node(
            "If",
            ["positive"],
            ["y"],
            then_branch=branch("double", [node("Mul", ["x", "two"], ["double"])]),
            else_branch=branch("less", [node("Sub", ["x", "one"], ["less"])]),
        ),
        node("NonZero", ["x"], ["places"]),
        node("Transpose", ["places"], ["turned"]),
        node("GatherND", ["x", "turned"], ["z"]),
    ]
    weights = {n: np.array(v, np.float32) for n, v in {"zero": 0, "one": 1, "two": 2}.items()}
    return model(nodes, {"x": (FLOAT, ["n"])}, ["y", "z"], weights)


@pytest.mark.parametrize("planned", [True, False], ids=["planned", "unplanned"])
def test_it_follows_what_a_run_tells_and_goes_on_the_long_way_where_that_is_new(
    runtime: ort.Runtime, planned: bool
) -> None:
    chance = np.random.default_rng(0)
    with ort.InferenceSession.create(branching(), runtime=runtime, enable_mem_pattern=planned) as session:
        short = 0
        for _ in range(60):
            x = chance.integers(-2, 3, 5).astype(np.float32)
            express = session._express
            out = session.run({"x": x})
            short += express is not None and session._express is express
            np.testing.assert_array_equal(out["y"].get_data(release_data=True), x * 2 if x.sum() > 0 else x - 1)
            np.testing.assert_array_equal(out["z"].get_data(release_data=True), x[x != 0])
        # Also where what it told was new: what had been run was not run again.
        assert short >= 50 if planned else short == 0


def test_runs_are_counted_once_on_either_way(runtime: ort.Runtime) -> None:
    """Random numbers come from the number of the run."""
    nodes = [
        node("RandomNormalLike", ["x"], ["noise"], seed=1.0),
        node("NonZero", ["x"], ["places"]),
        node("Identity", ["noise"], ["y"]),
    ]
    data = model(nodes, {"x": (FLOAT, [4])}, ["y", "places"])
    inputs = np.random.default_rng(0).integers(0, 2, (12, 4)).astype(np.float32)
    found = []
    for short in (True, False):
        with ort.InferenceSession.create(data, runtime=runtime) as session:
            for x in inputs:
                session._express = session._express if short else None
                out = session.run({"x": x})
                found.append(out["y"].get_data(release_data=True).tolist())
                out["places"].dispose()
    assert found[: len(inputs)] == found[len(inputs) :]
    assert len({tuple(f) for f in found}) == len(inputs)


def test_errors_after_the_first_segment_leave_nothing(runtime: ort.Runtime) -> None:
    with ort.InferenceSession.create(branching(), runtime=runtime) as session:

        def run(x: np.ndarray) -> None:
            for tensor in session.run({"x": x}).values():
                tensor.dispose()

        x = np.array([1, 0, 2, 0, 3], np.float32)
        for _ in range(4):
            run(x)
            run(-x)
        used = runtime.memory().used
        for nth in range(1, 6):
            runtime.fail_allocation(nth)
            try:
                run(x)
                run(-x)
            except MemoryError:
                pass
            runtime.fail_allocation(0)
            for _ in range(2):
                run(x)
                run(-x)
        assert runtime.memory().by_tag.get("output", 0) == 0
        assert runtime.memory().used == used


def test_inputs_that_decide_shapes_never_take_it(runtime: ort.Runtime) -> None:
    data = model([node("Reshape", ["x", "shape"], ["y"])], {"x": (FLOAT, [4]), "shape": (INT64, [2])}, ["y"])
    x = np.arange(4, dtype=np.float32)
    with ort.InferenceSession.create(data, runtime=runtime) as session:
        for shape in ([2, 2], [2, 2], [2, 2], [4, 1], [1, 4], [2, 2]):
            with session.run({"x": x, "shape": np.array(shape)})["y"] as y:
                assert list(y.dims) == shape
        assert session._express is None


@pytest.mark.parametrize("short", [True, False])
def test_an_interrupt_between_two_words_leaves_no_stale_address(runtime: ort.Runtime, short: bool) -> None:
    """The input is read by many records; the patching of their words is interrupted after each line in turn."""
    nodes = [node("Mul", ["x", f"c{i}"], [f"y{i}"]) for i in range(6)]
    weights = {f"c{i}": np.full(4, i + 1, np.float32) for i in range(6)}
    data = model(nodes, {"x": (FLOAT, [4])}, [f"y{i}" for i in range(6)], weights)
    file = "express.py" if short else "program.py"
    first, second = (ort.Tensor("float32", np.full(4, v, np.float32), runtime=runtime) for v in (1, 100))

    def values(session: ort.InferenceSession, tensor: ort.Tensor) -> list[float]:
        out = session.run({"x": tensor})
        return [float(t.get_data(release_data=True)[0]) for t in out.values()]

    with ort.InferenceSession.create(data, runtime=runtime, graph_optimization_level="disabled") as session:
        for nth in range(1, 60):
            for _ in range(3):
                assert values(session, first) == [1, 2, 3, 4, 5, 6]
            if not short:
                session._express = None
            interrupted_at(nth, lambda: session.run({"x": second}), file=file, functions=("run", "_bind"))
            gc.collect()
            assert values(session, first) == [1, 2, 3, 4, 5, 6]
    first.dispose()
    second.dispose()


def test_a_session_that_was_disposed_of_during_its_run_is_disposed(runtime: ort.Runtime) -> None:
    session = ort.InferenceSession.create(DATA, runtime=runtime)
    check(session, feeds(2, 0), False)

    def tracer(frame: Any, event: str, arg: Any) -> Any:
        if frame.f_code.co_name == "_execute" and frame.f_code.co_filename.endswith("program.py"):
            sys.settrace(None)
            session.dispose()
        return None

    sys.settrace(tracer)
    out = session.run(feeds(2, 1))
    sys.settrace(None)
    for tensor in out.values():
        tensor.dispose()
    assert session._express is None
    with pytest.raises(ort.DisposedError):
        session.run(feeds(2, 1))
    runtime.heap_check()


def test_what_is_known_of_segments_is_bounded(runtime: ort.Runtime) -> None:
    """More answers in turn than the program keeps segments for."""
    nodes = [node("NonZero", ["x"], ["places"])]
    data = model(nodes, {"x": (FLOAT, [100])}, ["places"])
    with ort.InferenceSession.create(data, runtime=runtime) as session:
        for _ in range(3):
            for count in range(100):
                x = np.zeros(100, np.float32)
                x[:count] = 1
                out = session.run({"x": x})["places"]
                assert out.dims == (1, count)
                out.dispose()
        assert session._express is not None
        assert len(session._express._legs) <= 64


def test_outputs_belong_to_their_session(runtime: ort.Runtime) -> None:
    with ort.InferenceSession.create(
        model([node("Exp", ["x"], ["y"])], {"x": (FLOAT, [4])}, ["y"]), runtime=runtime
    ) as s:
        outputs = [s.run({"x": np.zeros(4, np.float32)})["y"] for _ in range(4)]
        assert s._express is not None
        names = {b.session for b in runtime.blocks() if b.tag == "output"}
        assert len(names) == 1
        assert "" not in names
        for y in outputs:
            y.dispose()
