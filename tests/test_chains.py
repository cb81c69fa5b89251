"""Elementwise records that are done together, unit by unit, give what they give one after another."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphs
import onnx_wasm as ort
from graphs import FLOAT, node
from onnx_wasm import dtypes
from onnx_wasm.context import CHUNK, Context, Value
from onnx_wasm.errors import NodeValueError
from onnx_wasm.ops._elementwise import broadcast, flat
from onnx_wasm.plan import CHAINED_UNITS, Place
from test_plan import planned

Array = np.ndarray[Any, Any]
SHAPE = (5, 3, 1201)  # a last unit that is not whole, and rows that end within units
SIZE = int(np.prod(SHAPE))


@pytest.fixture(scope="module", params=[1, 2], ids=["1 thread", "2 threads"])
def runtime(request: pytest.FixtureRequest) -> Any:
    with ort.Runtime(threads=request.param) as runtime:
        yield runtime


@st.composite
def graphs_of_chains(draw: st.DrawFn) -> tuple[bytes, dict[str, Array]]:
    """Unary and binary nodes, all of them exact, over a few tensors of one size, with smaller operands, other shapes of
    the same elements, parts, other types, integers that are divided, and outputs in between."""
    chance = np.random.default_rng(draw(st.integers(0, 1 << 20)))
    feeds = {"x": chance.normal(0, 1, SHAPE).astype("f4"), "z": chance.normal(0, 1, SHAPE).astype("f4")}
    weights: dict[str, Array] = {
        "rows": np.array([SHAPE[0], -1]),
        "back": np.array(SHAPE),
        "one": np.array([1]),
        "two": np.array([2]),
        "three": np.array([3]),
        "axis": np.array([0]),
        "four": np.array(4, np.int32),
    }
    there, nodes = ["x", "z"], []

    def add(op: str, inputs: list[str], **attributes: Any) -> str:
        nodes.append(node(op, inputs, [f"t{len(nodes)}"], **attributes))
        return f"t{len(nodes) - 1}"

    for _ in range(draw(st.integers(2, 9))):
        x = draw(st.sampled_from(there[-3:]))
        kind = draw(st.integers(0, 9))
        if kind <= 2:
            y = add(draw(st.sampled_from(["Relu", "Neg", "Abs", "Floor"])), [x])
        elif kind <= 5:
            pair = [x, draw(st.sampled_from(there))]
            y = add(draw(st.sampled_from(["Add", "Mul", "Sub", "Max"])), pair if kind < 5 else pair[::-1])
        elif kind == 6:
            name = f"w{len(weights)}"
            shape = draw(st.sampled_from([(), (1201,), (3, 1), (5, 1, 1), (1, 3, 1201)]))
            weights[name] = chance.normal(0, 1, shape).astype("f4")
            y = add(draw(st.sampled_from(["Add", "Mul"])), [x, name])
        elif kind == 7:
            # One row of what is there, for all rows.
            row = add("Slice", [add("Reshape", [x, "rows"]), "one", "two", "axis"])
            weights["row"] = np.array([1, 3, 1201])
            y = add("Sub", [x, add("Reshape", [row, "row"])])
        elif kind == 8:
            half = add("Cast", [add("Cast", [x], to=ort_type("i4"))], to=FLOAT)
            y = add("Add", [half, x])
        else:
            whole = add("Div", [add("Cast", [x], to=ort_type("i4")), "four"])
            y = add("Cast", [whole], to=FLOAT)
        there.append(y)
    outputs = list(dict.fromkeys([there[-1], *(n for n in there[2:] if draw(st.integers(0, 4)) == 4)]))
    inputs = dict.fromkeys(feeds, (FLOAT, SHAPE))
    return graphs.model(nodes, inputs, outputs, weights), feeds


def ort_type(code: str) -> int:
    return {"i4": graphs.INT32}[code]


@settings(max_examples=60, deadline=None)
@given(graphs_of_chains())
def test_the_same_bytes_as_one_after_another(runtime: ort.Runtime, case: tuple[bytes, dict[str, Array]]) -> None:
    data, feeds = case
    results = []
    for together in (True, False):
        options = {"enable_mem_pattern": together}
        with ort.InferenceSession.create(data, runtime=runtime, **options) as session:
            results.append([t.get_data(release_data=True) for t in session.run(feeds).values()])
    for a, b, expected in zip(*results, graphs.native(data, feeds).values(), strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, expected)


def large(name: str = "x") -> Value:
    return Value((CHAINED_UNITS * CHUNK,), dtypes.F32, name=name)


def test_records_of_one_size_are_a_chain() -> None:
    cx, x = Context(), large()
    y = flat(cx, "exp_f32", flat(cx, "abs_f32", flat(cx, "neg_f32", x)))
    plan = planned(cx, {"x": x}, {"y": y})
    assert plan.chains == [(0, 2)]
    assert plan.arena_bytes == 0


def test_a_tensor_that_stays_in_the_cache_needs_no_chain() -> None:
    cx, x = Context(), Value(((CHAINED_UNITS - 1) * CHUNK,), dtypes.F32, name="x")
    y = flat(cx, "abs_f32", flat(cx, "neg_f32", x))
    assert planned(cx, {"x": x}, {"y": y}).chains == []


def test_a_part_of_what_the_chain_writes_is_read_after_it() -> None:
    cx, x = Context(), large()
    a = flat(cx, "neg_f32", x)
    last = cx.alias(a, (1,), offset=a.nbytes - 4)
    y, _ = broadcast(cx, "add_f32", "ab", (x, last), dtypes.F32, swaps=True)
    assert planned(cx, {"x": x}, {"y": y}).chains == []


def test_what_others_read_a_part_of_is_not_taken_over_by_the_chain() -> None:
    """The second record would write over elements that the first reads in later units."""
    cx, x = Context(), large()
    start = flat(cx, "neg_f32", x)
    cx.emit("copy_bytes", x=start, y=start, n=0)
    last = cx.alias(start, (1,), offset=start.nbytes - 4)
    a, _ = broadcast(cx, "add_f32", "ab", (x, last), dtypes.F32, swaps=True)
    y, _ = broadcast(cx, "add_f32", "ab", (start, a), dtypes.F32, swaps=True)
    assert planned(cx, {"x": x}, {"y": y}).chains == []


def test_what_a_chain_reads_stays_until_its_end() -> None:
    """The first record is the last to read a, whose place no later output of the chain may get."""
    cx, x = Context(), large()
    a, other = cx.out(x.shape, x.dtype), cx.out(x.shape, x.dtype)
    cx.emit("copy_bytes", x=x, y=a, n=0)
    cx.emit("copy_bytes", x=a, y=other, n=0)
    b, _ = broadcast(cx, "add_f32", "ab", (a, x), dtypes.F32)
    c, _ = broadcast(cx, "add_f32", "ab", (b, x), dtypes.F32)
    b.reuse = c.reuse = ()
    end = cx.out(x.shape, x.dtype)
    cx.emit("copy_bytes", x=c, y=end, n=0)
    # So much is alive before, that the chain can hold three.
    before = [cx.out(x.shape, x.dtype) for _ in range(2)]
    for value in before:
        cx.emit("copy_bytes", x=x, y=value, n=0)
    last = cx.out(x.shape, x.dtype)
    for value in (*before, other, end):
        cx.emit("copy_bytes", x=value, y=last, n=0)
    plan = planned(cx, {"x": x}, {"y": last})
    assert plan.chains == [(2, 3)]
    for value in (a, b, c):
        buffer = plan.buffers[value]
        assert buffer.place is Place.ARENA
        assert (buffer.first <= 2, buffer.last >= 3) == (True, True)
    assert plan.arena_bytes == plan.lower_bound


def test_a_chain_that_would_need_more_memory_is_none() -> None:
    cx, x = Context(), large()
    a = flat(cx, "neg_f32", x)
    cx.emit("copy_bytes", x=a, y=a, n=0)
    b, _ = broadcast(cx, "add_f32", "ab", (a, x), dtypes.F32)
    c, _ = broadcast(cx, "add_f32", "ab", (b, x), dtypes.F32)
    b.reuse = c.reuse = ()
    cx.emit("copy_bytes", x=c, y=(end := cx.out(x.shape, x.dtype)), n=0)
    plan = planned(cx, {"x": x}, {"y": end})
    assert plan.chains == []
    assert plan.arena_bytes == plan.lower_bound == 2 * a.nbytes


def test_a_long_chain_is_several() -> None:
    count, x = 5000, np.linspace(-1, 1, CHAINED_UNITS * CHUNK, dtype=np.float32)
    names = ["x", *(f"t{i}" for i in range(count))]
    nodes = [node("Neg", [a], [b]) for a, b in itertools.pairwise(names)]
    data = graphs.model(nodes, {"x": (FLOAT, x.shape)}, [names[-1]])
    with ort.InferenceSession.create(data) as session:
        np.testing.assert_array_equal(session.run({"x": x})[names[-1]].get_data(release_data=True), x)


def test_a_division_by_zero_is_that_of_the_first_node(runtime: ort.Runtime) -> None:
    """Nodes that report are done one after another: so the first of them is blamed, whatever the unit."""
    x = np.ones(8 * CHUNK, np.int32)
    a, b = x.copy(), x.copy()
    a[-1] = 0
    b[0] = 0
    data = graphs.model(
        [node("Div", ["x", "a"], ["first"]), node("Div", ["first", "b"], ["second"])],
        dict.fromkeys("xab", (graphs.INT32, x.shape)),
        ["second"],
    )
    with (
        ort.InferenceSession.create(data, runtime=runtime) as session,
        pytest.raises(NodeValueError, match='Div "first"'),
    ):
        session.run({"x": x, "a": a, "b": b})


def test_records_of_a_chain_are_profiled_one_by_one(runtime: ort.Runtime) -> None:
    x = np.random.default_rng(0).normal(0, 1, 8 * CHUNK).astype("f4")
    data = graphs.model(
        [node("Neg", ["x"], ["a"]), node("Exp", ["a"], ["b"]), node("Abs", ["b"], ["y"])],
        {"x": (FLOAT, x.shape)},
        ["y"],
    )
    with ort.InferenceSession.create(data, runtime=runtime) as session:
        plain = session.run({"x": x})["y"].get_data(release_data=True)
        session.start_profiling()
        profiled = session.run({"x": x})["y"].get_data(release_data=True)
        assert [e.node for e in session.end_profiling()] == ["a", "b", "y"]
    np.testing.assert_array_equal(plain, profiled)


def test_a_debug_heap_looks_at_each_record_of_a_chain() -> None:
    x = np.random.default_rng(0).normal(0, 1, 8 * CHUNK).astype("f4")
    data = graphs.model([node("Neg", ["x"], ["a"]), node("Exp", ["a"], ["y"])], {"x": (FLOAT, x.shape)}, ["y"])
    with ort.Runtime(debug=True) as runtime, ort.InferenceSession.create(data, runtime=runtime) as session:
        np.testing.assert_allclose(session.run({"x": x})["y"].get_data(release_data=True), np.exp(-x), rtol=1e-6)
