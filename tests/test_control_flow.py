"""If, Loop and Scan, with conditions that depend on data; shapes that depend on data; sequences and optionals."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx.parser
import pytest

import graphs
import onnx_wasm as ort

Array = np.ndarray[Any, Any]


@pytest.fixture
def runtime() -> Iterator[ort.Runtime]:
    with ort.Runtime() as runtime:
        yield runtime
        gc.collect()
        runtime.heap_check()
        assert runtime.memory().used == 0


def text(body: str, opset: int = 21) -> bytes:
    """A model in ONNX's text format."""
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]>\n{body}')
    data: bytes = proto.SerializeToString()
    return data


def take(outputs: dict[str, Any]) -> dict[str, Any]:
    return {n: [v.get_data(True) for v in t] if isinstance(t, list) else t.get_data(True) for n, t in outputs.items()}


IF = text("""
g (float[n] x, bool flag) => (float[k] y, float[n] z) {
    a = Mul (x, x)
    s = ReduceSum <keepdims = 0> (a)
    ten = Constant <value_float = 10.0> ()
    big = Greater (s, ten)
    b = If (big) <then_branch = t () => (float[n] r) { r = Sub (a, s) },
                  else_branch = e () => (float[m] q) { q = Concat <axis = 0> (a, x) }>
    y = If (flag) <then_branch = t2 () => (float[n] r2) { r2 = Neg (b) },
                   else_branch = e2 () => (float[n] q2) { q2 = Identity (b) }>
    z = Add (a, x)
}
""")


@pytest.mark.parametrize("planned", [True, False])
def test_branches_that_data_chooses(runtime: ort.Runtime, planned: bool) -> None:
    with ort.InferenceSession.create(IF, runtime=runtime, enable_mem_pattern=planned) as session:
        for scale in (0.1, 3.0, 0.1, 5.0, 0.2):
            for flag in (True, False):
                feeds = {"x": np.full(3, scale, np.float32), "flag": np.array(flag)}
                expected = graphs.native(IF, feeds)
                got = take(session.run(feeds))
                for name, array in expected.items():
                    np.testing.assert_allclose(got[name], array, rtol=1e-5)


# Doubles until the sum passes a limit; the number of iterations is the data's.
LOOP = text("""
g (float[n] x, float limit) => (float[n] last, float[k, n] all, int64 count) {
    trips = Constant <value_int = 50> ()
    yes = Constant <value = bool {1}> ()
    zero = Constant <value_int = 0> ()
    last, count, all = Loop (trips, yes, x, zero) <body = b (int64 i, bool c, float[n] v, int64 k) =>
        (bool go, float[n] w, int64 k1, float[n] seen) {
            w = Add (v, v)
            one = Constant <value_int = 1> ()
            k1 = Add (k, one)
            s = ReduceSum <keepdims = 0> (w)
            go = Less (s, limit)
            seen = Sub (w, x)
        }>
}
""")


@pytest.mark.parametrize("planned", [True, False])
def test_a_loop_that_data_ends(runtime: ort.Runtime, planned: bool) -> None:
    x = np.array([1, 2, 0.5], np.float32)
    with ort.InferenceSession.create(LOOP, runtime=runtime, enable_mem_pattern=planned) as session:
        for limit in (10, 1000, 10, 100000, 500, 1, 100000):
            feeds = {"x": x, "limit": np.array(limit, np.float32)}
            expected = graphs.native(LOOP, feeds)
            got = take(session.run(feeds))
            assert got["count"] == expected["count"]
            np.testing.assert_allclose(got["last"], expected["last"])
            np.testing.assert_allclose(got["all"], expected["all"])


@pytest.mark.parametrize("planned", [True, False])
def test_any_allocation_of_a_loop_may_fail(planned: bool) -> None:
    feeds = {"x": np.array([1, 2], np.float32), "limit": np.array(40, np.float32)}
    expected = graphs.native(LOOP, feeds)
    with ort.Runtime() as runtime:
        failures = 0
        for nth in range(1, 100):
            with ort.InferenceSession.create(LOOP, runtime=runtime, enable_mem_pattern=planned) as session:
                runtime.fail_allocation(nth)
                try:
                    got = take(session.run(feeds))
                except MemoryError:
                    failures += 1
                    runtime.heap_check()
                    runtime.fail_allocation(0)
                    got = take(session.run(feeds))
                np.testing.assert_allclose(got["all"], expected["all"])
            runtime.fail_allocation(0)
            gc.collect()
            assert runtime.memory().used == 0
        assert failures > 5


def test_a_loop_with_a_trip_count_of_the_feeds_is_one_call_a_run(runtime: ort.Runtime) -> None:
    data = text("""
    g (float[n] x, int64 trips) => (float[n] y) {
        none = Constant <value = bool {1}> ()
        y = Loop (trips, none, x) <body = b (int64 i, bool c, float[n] v) => (bool go, float[n] w) {
            go = Identity (c)
            f = Cast <to = 1> (i)
            w = Add (v, f)
        }>
    }
    """)
    x = np.zeros(4, np.float32)
    with ort.InferenceSession.create(data, runtime=runtime) as session:
        for trips in (3, 0, 5, 3):
            feeds = {"x": x, "trips": np.array(trips)}
            np.testing.assert_array_equal(take(session.run(feeds))["y"], x + sum(range(trips)))
        before = runtime.calls
        outputs = session.run(feeds)
        assert runtime.calls == before + 1
        take(outputs)


def test_nested_control_flow_sees_names_of_the_graphs_around_it(runtime: ort.Runtime) -> None:
    data = text("""
    g (float[n] x) => (float[n] y) {
        trips = Constant <value_int = 4> ()
        yes = Constant <value = bool {1}> ()
        twice = Add (x, x)
        y = Loop (trips, yes, x) <body = b (int64 i, bool c, float[n] v) => (bool go, float[n] w) {
            go = Identity (c)
            s = ReduceMax <keepdims = 0> (v)
            four = Constant <value_float = 4.0> ()
            small = Less (s, four)
            w = If (small) <then_branch = t () => (float[n] r) { r = Add (v, twice) },
                            else_branch = e () => (float[n] q) { h = Neg (v)  q = Relu (h) }>
        }>
    }
    """)
    with ort.InferenceSession.create(data, runtime=runtime) as session:
        for scale in (1.0, 0.3, 1.0, 2.0):
            feeds = {"x": np.array([scale, -scale], np.float32)}
            np.testing.assert_allclose(take(session.run(feeds))["y"], graphs.native(data, feeds)["y"], rtol=1e-5)


@pytest.mark.parametrize("planned", [True, False])
def test_shapes_that_depend_on_data(runtime: ort.Runtime, planned: bool) -> None:
    data = text("""
    g (float[a, b] x) => (int64[2, k] where, float[k] picked, float total) {
        h = Relu (x)
        where = NonZero (h)
        t = Transpose <perm = [1, 0]> (where)
        picked = GatherND (h, t)
        twice = Add (picked, picked)
        total = ReduceSum <keepdims = 0> (twice)
    }
    """)
    chance = np.random.default_rng(0)
    with ort.InferenceSession.create(data, runtime=runtime, enable_mem_pattern=planned) as session:
        for _ in range(30):
            feeds = {"x": chance.normal(0, 1, (4, 5)).astype(np.float32)}
            expected, got = graphs.native(data, feeds), take(session.run(feeds))
            np.testing.assert_array_equal(got["where"], expected["where"])
            np.testing.assert_array_equal(got["picked"], expected["picked"])
            np.testing.assert_allclose(got["total"], expected["total"], rtol=1e-5)


def test_a_loop_without_a_condition_ignores_that_of_its_body(runtime: ort.Runtime) -> None:
    data = text("""
    g (float[n] x, int64 k) => (float[n] y) {
        y = Loop (k, , x) <body = b (int64 i, bool g, float[n] v) => (bool go, float[n] w)
            { zero = Constant <value_int = 0> ()  go = Less (i, zero)  w = Add (v, v) }>
    }
    """)
    with ort.InferenceSession.create(data, runtime=runtime) as session:
        feeds = {"x": np.ones(2, np.float32), "k": np.array(3)}
        assert take(session.run(feeds))["y"].tolist() == [8, 8]


@pytest.mark.parametrize("first", ["SequenceConstruct (x)", "SequenceEmpty <dtype = 1> ()"])
def test_a_sequence_takes_one_type(runtime: ort.Runtime, first: str) -> None:
    data = text(f"g (float[n] x, int64[n] i) => (seq(float[n]) s) {{ a = {first}  s = SequenceInsert (a, i) }}")
    feeds = {"x": np.ones(2, np.float32), "i": np.ones(2, np.int64)}
    wrong = pytest.raises(ort.ShapeError, match=r"SequenceInsert .* the tensor is int64, the sequence holds float32")
    with wrong, ort.InferenceSession.create(data, runtime=runtime) as session:
        session.run(feeds)


def test_a_loop_collects_its_iteration_numbers(runtime: ort.Runtime) -> None:
    data = text("""
    g (float[n] x, int64 k, bool c) => (float[n] y, int64[k] direct, int64[k] copied) {
        y, direct, copied = Loop (k, c, x) <body = b (int64 i, bool g, float[n] v)
            => (bool go, float[n] w, int64 i, int64 j) { go = Identity (g)  w = Add (v, v)  j = Identity (i) }>
    }
    """)
    with ort.InferenceSession.create(data, runtime=runtime) as session:
        for count, going in ((3, True), (0, True), (2, False)):
            feeds = {"x": np.ones(2, np.float32), "k": np.array(count), "c": np.array(going)}
            got = take(session.run(feeds))
            numbers = list(range(count if going else 0))
            assert got["direct"].tolist() == got["copied"].tolist() == numbers
            assert got["y"].tolist() == [2.0 ** len(numbers)] * 2


def test_scan_runs_over_slices_in_both_directions(runtime: ort.Runtime) -> None:
    data = text("""
    g (float[3] start, float[t, 3] x) => (float[3] end, float[t, 3] sums) {
        end, sums = Scan <num_scan_inputs = 1, scan_input_directions = [1], scan_output_directions = [1], body =
            b (float[3] s, float[3] v) => (float[3] n, float[3] o) { n = Add (s, v)  o = Identity (n) }> (start, x)
    }
    """)
    feeds = {"start": np.ones(3, np.float32), "x": np.arange(12, dtype=np.float32).reshape(4, 3)}
    with ort.InferenceSession.create(data, runtime=runtime) as session:
        expected, got = graphs.native(data, feeds), take(session.run(feeds))
        np.testing.assert_array_equal(got["end"], expected["end"])
        np.testing.assert_array_equal(got["sums"], expected["sums"])


ADDED = "add = Add (v, x)  twice = Concat <axis = 0> (add, add)"
KEPT = "kept = Compress <axis = 0> (x, flags)"
FAILS = "bad = Reshape (v, seven)"


@pytest.mark.parametrize("planned", [True, False])
@pytest.mark.parametrize(
    ("made", "body", "shape"),
    [
        ("float[2, 3] twice", ADDED, (0, 2, 3)),
        ("float[n, 3] twice", ADDED, (0, 4, 3)),
        ("float[4, n] twice", ADDED, (0, 4, 3)),
        ("float[5, n] twice", ADDED, (0, 5, 3)),
        ("float[n] twice", ADDED, (0, 0)),
        ("float[] twice", ADDED, (0, 4, 3)),
        ("twice", ADDED, (0, 4, 3)),
        ("float twice", ADDED, (0,)),
        ("float[] kept", KEPT, (0, 1, 3)),
        ("float[] kept", KEPT.replace("(x,", "(w,"), (0, 1, 3)),
        ("float[] kept", "some = Greater (w, v)  at = NonZero (some)  kept = Cast <to = 1> (at)", (0, 2, 0)),
        (
            "int64[] huge",
            "many = Constant <value_ints = [65536, 65536]> ()  huge = Expand (seven, many)",
            (0, 1 << 16, 1 << 16),
        ),
        ("float[] bad", FAILS, (0,)),
    ],
    ids=[
        *("declared", "partly", "first", "other", "other rank", "no shape", "no type", "scalar", "fed", "of the body"),
        *("only a run can tell", "huge", "invalid"),
    ],
)
def test_what_a_loop_without_iterations_collects(
    runtime: ort.Runtime, made: str, body: str, shape: tuple[int, ...], planned: bool
) -> None:
    data = text(f"""
    g (int64 trips, float[2, 3] x, bool[2] flags) => (last, all) {{
        none = Constant <value = bool {{1}}> ()
        seven = Constant <value_ints = [7]> ()
        last, all = Loop (trips, none, x) <body = b (int64 i, bool c, float[2, 3] v) =>
            (bool more, float[2, 3] w, {made}) {{ more = Identity (c)  w = Neg (v)  {body} }}>
    }}
    """)
    feeds = {"x": np.float32([[1, 2, 3], [4, 5, 6]]), "flags": np.array([True, False])}
    with ort.InferenceSession.create(data, runtime=runtime, enable_mem_pattern=planned) as session:
        for trips in (0, -3):
            got = take(session.run({**feeds, "trips": np.int64(trips)}))
            np.testing.assert_array_equal(got["last"].reshape(2, 3), feeds["x"])
            assert (got["all"].shape, got["all"].dtype) == (shape, np.int64 if "huge" in made else np.float32)


@pytest.mark.parametrize(("axis", "shape"), [(0, (0, 3)), (1, (3, 0)), (-1, (3, 0))])
@pytest.mark.parametrize("declared", ["float[3] ", ""])
def test_a_scan_of_nothing(runtime: ort.Runtime, declared: str, axis: int, shape: tuple[int, ...]) -> None:
    data = text(f"""
    g (float[3] first, float[n, 3] xs) => (last, all) {{
        last, all = Scan <num_scan_inputs = 1, scan_output_axes = [{axis}], body = b (float[3] s, float[3] x)
            => (float[3] t, {declared}y) {{ t = Add (s, x)  y = Neg (t) }}> (first, xs)
    }}
    """)
    first = np.float32([1, 2, 3])
    with ort.InferenceSession.create(data, runtime=runtime) as session:
        got = take(session.run({"first": first, "xs": np.zeros((0, 3), np.float32)}))
        np.testing.assert_array_equal(got["last"], first)
        assert got["all"].shape == shape
        xs = np.float32([[1, 0, 0], [0, 1, 0]])
        got = take(session.run({"first": first, "xs": xs}))
        expected = np.stack(list(-(first + np.cumsum(xs, 0))), axis)
        np.testing.assert_array_equal(got["all"], expected)


def text_of_a_loop(body: str, *, before: str = "") -> bytes:
    """A loop of ``trips`` iterations that collects ``made``, whose shape is not declared."""
    return text(f"""
    g (int64 trips, float[2, 3] x) => (last, all) {{
        none = Constant <value = bool {{1}}> ()
        {before}
        last, all = Loop (trips, none, x) <body = b (int64 i, bool c, float[2, 3] v) =>
            (bool more, float[2, 3] w, float[] made) {{ more = Identity (c)  w = Neg (v)  {body} }}>
    }}
    """)


def test_what_fails_while_a_shape_is_looked_for_is_no_answer(runtime: ort.Runtime) -> None:
    """The shape is computed by kernels, in memory that may be refused."""
    data = text_of_a_loop(
        """
        s = Shape (v)  f = Cast <to = 1> (s)  two = Constant <value_floats = [2.0]> ()
        d = Mul (f, two)  t = Cast <to = 7> (d)  made = Expand (one, t)
    """,
        before="one = Constant <value_float = 1.0> ()",
    )
    feeds = {"trips": np.int64(0), "x": np.zeros((2, 3), np.float32)}
    failed = 0
    with ort.InferenceSession.create(data, runtime=runtime) as session:
        assert take(session.run(feeds))["all"].shape == (0, 4, 6)
    for nth in range(1, 40):
        with ort.InferenceSession.create(data, runtime=runtime) as session:
            runtime.fail_allocation(nth)
            try:
                assert take(session.run(feeds))["all"].shape == (0, 4, 6)
            except MemoryError:
                failed += 1
            runtime.fail_allocation(0)
            assert take(session.run(feeds))["all"].shape == (0, 4, 6)
    assert failed > 5


def test_loops_within_a_loop_that_never_runs_are_not_followed_for_long(runtime: ort.Runtime) -> None:
    inner = """
        many = Constant <value_int = {count}> ()
        made = Loop (many, none, v) <body = n (int64 j, bool d, float[2, 3] a) =>
            (bool on, float[2, 3] b) {{ on = Identity (d)  b = Add (a, a) }}>
    """
    feeds = {"trips": np.int64(0), "x": np.zeros((2, 3), np.float32)}
    for count, shape in ((10, (0, 2, 3)), (1000, (0,)), (1 << 40, (0,))):
        with ort.InferenceSession.create(text_of_a_loop(inner.format(count=count)), runtime=runtime) as session:
            assert take(session.run(feeds))["all"].shape == shape


@pytest.mark.parametrize(("count", "shape"), [(20, (0, 0, 2, 3)), (50, (0,))])
def test_loops_that_never_run_count_together(runtime: ort.Runtime, count: int, shape: tuple[int, ...]) -> None:
    """Each iteration of the inner loop would look into another one."""
    data = text_of_a_loop(
        f"""
        many = Constant <value_int = {count}> ()
        nothing = Constant <value_int = 0> ()
        first = Unsqueeze (v, axis)  part = Slice (first, axis, axis)
        made = Loop (many, none, part) <body = n (int64 j, bool d, float[0, 2, 3] a) => (bool on, float[] b) {{
            on = Identity (d)
            b = Loop (nothing, none) <body = m (int64 k, bool e) => (bool p, float[] q) {{
                p = Identity (e)
                q = Neg (v)
            }}>
        }}>
    """,
        before="axis = Constant <value_ints = [0]> ()",
    )
    with ort.InferenceSession.create(data, runtime=runtime) as session:
        assert take(session.run({"trips": np.int64(0), "x": np.zeros((2, 3), np.float32)}))["all"].shape == shape


def test_shapes_of_what_no_iteration_made_do_not_depend_on_the_runs_before(runtime: ort.Runtime) -> None:
    data = text("""
    g (int64 trips, float[n, k] x, bool chosen) => (all) {
        all = Loop (trips, "") <body = b (int64 i, bool c) => (bool more, float[] made) {
            more = Identity (c)
            made = If (chosen) <then_branch = t () => (float[] p) { p = Identity (x) },
                                else_branch = e () => (float[] q) { q = Transpose (x) }> }>
    }
    """)
    x = np.float32([[1, 2, 3], [4, 5, 6]])
    for order in ([0], [1, 0], [0, 2, 0]):
        with ort.InferenceSession.create(data, runtime=runtime) as session:
            for trips in order:
                for chosen in (True, False):
                    got = take(session.run({"trips": np.int64(trips), "x": x, "chosen": np.array(chosen)}))["all"]
                    np.testing.assert_array_equal(got, np.stack([x if chosen else x.T] * trips) if trips else got)
                    assert got.shape == (trips, *(x if chosen else x.T).shape)


@pytest.mark.parametrize("planned", [True, False])
def test_strings_that_iterations_make_are_stacked(runtime: ort.Runtime, planned: bool) -> None:
    data = text("""
    g (float[n, 2] x, int64 trips) => (string[n, 2] scanned, string[m, 2] looped, untyped) {
        scanned = Scan <num_scan_inputs = 1, body = b (float[2] r) => (string[2] s) { s = Cast <to = 8> (r) }> (x)
        looped = Loop (trips, "") <body = l (int64 i, bool c) => (bool more, string[2] s) {
            more = Identity (c)  row = Gather (x, i)  s = Cast <to = 8> (row) }>
        untyped = Loop (trips, "") <body = u (int64 i, bool c) => (bool more, s) {
            more = Identity (c)  row = Gather (x, i)  s = Cast <to = 8> (row) }>
    }
    """)
    with ort.InferenceSession.create(data, runtime=runtime, enable_mem_pattern=planned) as session:
        for trips in (2, 1, 0):
            feeds = {"x": np.float32([[1, 2.5], [-3, 4]]), "trips": np.array(trips)}
            got, expected = take(session.run(feeds)), graphs.native(data, feeds)
            assert got["untyped"].tolist() == got["looped"].tolist()
            assert (got["untyped"].shape, got["untyped"].dtype) == ((trips, 2), object)
            assert got["scanned"].tolist() == expected["scanned"].tolist() == [["1", "2.5"], ["-3", "4"]]
            assert got["looped"].tolist() == expected["looped"].tolist()
            assert got["looped"].shape == (trips, 2)


def test_a_scan_of_batches(runtime: ort.Runtime) -> None:
    """Opset 8, where the batch is axis 0; of empty sequences, and of no examples."""
    data = text(
        """
    g (float[b, 3] first, int64[b, n, 1] at) => (last, all) {
        last, all = Scan <num_scan_inputs = 1, body = b (float[3] s, int64[1] i)
            => (float[3] t, float[] y) { t = Neg (s)  y = Gather (s, i) }> ("", first, at)
    }
    """,
        opset=8,
    )
    first = np.float32([[1, 2, 3], [4, 5, 6]])
    with ort.InferenceSession.create(data, runtime=runtime) as session:
        # What was freed last is no index.
        ort.Tensor("int64", np.full(16, 77), runtime=runtime).dispose()
        got = take(session.run({"first": first, "at": np.zeros((2, 0, 1), np.int64)}))
        np.testing.assert_array_equal(got["last"], first)
        assert got["all"].shape == (2, 0, 1)
        got = take(session.run({"first": first, "at": np.int64([[[0], [2]], [[1], [1]]])}))
        np.testing.assert_array_equal(got["all"], np.float32([[[1], [-3]], [[5], [-5]]]))
        with pytest.raises(
            ort.UnsupportedModelError, match=r"Scan .*: 'first' float32\[0, 3\] is a batch of no examples"
        ):
            session.run({"first": first[:0], "at": np.zeros((0, 2, 1), np.int64)})


def test_sequences_go_in_and_come_out(runtime: ort.Runtime) -> None:
    data = text("""
    g (seq(float[n]) xs, float[n] more) => (seq(float[n]) ys, float[m] all, int64 count) {
        zero = Constant <value_int = 0> ()
        longer = SequenceInsert (xs, more, zero)
        ys = SequenceErase (longer)
        all = ConcatFromSequence <axis = 0> (longer)
        count = SequenceLength (longer)
    }
    """)
    xs = [np.full(i + 1, i, np.float32) for i in range(3)]
    with ort.InferenceSession.create(data, runtime=runtime) as session:
        assert not session.input_metadata[0].is_tensor
        for n in (3, 1, 2, 3):
            got = take(session.run({"xs": xs[:n], "more": np.full(2, 9, np.float32)}))
            assert got["count"] == n + 1
            np.testing.assert_array_equal(got["all"], np.concatenate([np.full(2, 9), *xs[:n]]))
            assert [len(y) for y in got["ys"]] == [2, *range(1, n)]
        with pytest.raises(TypeError, match="input 'xs' is a sequence"):
            session.run({"xs": xs[0], "more": xs[1]})
        with pytest.raises(TypeError, match="input 'xs' takes float32, got int64"):
            session.run({"xs": [np.arange(3)], "more": xs[1]})


def test_a_condition_that_fails_midway_gives_everything_back(runtime: ort.Runtime) -> None:
    data = text("""
    g (float[n] x, int64[1] at) => (float y) {
        s = ReduceSum <keepdims = 0> (x)
        one = Constant <value_float = 1.0> ()
        big = Greater (s, one)
        h = Neg (x)
        y = If (big) <then_branch = t () => (float[1] r) { r = Gather (h, at) },
                      else_branch = e () => (float q) { q = Identity (s) }>
    }
    """)
    for planned in (True, False):
        with ort.InferenceSession.create(data, runtime=runtime, enable_mem_pattern=planned) as session:
            x = np.ones(3, np.float32)
            take(session.run({"x": x, "at": np.array([1])}))
            used = runtime.memory().used
            with pytest.raises(IndexError, match=r'Gather "" \(node 0\): index 7 out of range \[-3, 3\)'):
                session.run({"x": x, "at": np.array([7])})
            assert runtime.memory().used == used
            assert take(session.run({"x": x, "at": np.array([2])}))["y"] == [-1]


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (
            "y = Loop (k, , x) <body = b (int64 i, bool g, int64[n] v) => (bool g2, int64[n] w) "
            "{ g2 = Identity (g)  w = Identity (v) }>",
            r"Loop .* input 'v' of 'b' is declared int64, but is float32",
        ),
        (
            "y = Loop (k, , x) <body = b (int64 i, bool g, float[n] v) => (bool g2, float[n] w) "
            "{ g2 = Identity (g)  w = Cast <to = 7> (v) }>",
            r"Loop .* output 'w' of 'b' is declared float32, but is int64",
        ),
        (
            "y = Loop (k, , x) <body = b (int64 i, bool g, float[n] v) => (bool g2, int64[n] w) "
            "{ g2 = Identity (g)  w = Cast <to = 7> (v) }>",
            r"Loop .* carried value 0 is float32, and an iteration makes it int64",
        ),
        (
            "y = Scan <num_scan_inputs = 1, body = b (int64 s) => (float o) "
            "{ one = Constant <value_float = 1.0> ()  o = Identity (one) }> (x)",
            r"Scan .* input 's' of 'b' is declared int64, but is float32",
        ),
        (
            "y = If (c) <then_branch = t () => (float[n] p) { p = Identity (x) }, "
            "else_branch = e () => (int64[n] q) { q = Cast <to = 7> (x) }>",
            r"If .* the branches give different types: float32 and int64",
        ),
    ],
)
def test_types_that_a_body_does_not_keep_to(runtime: ort.Runtime, graph: str, message: str) -> None:
    data = text(f"g (float[n] x, int64 k, bool c) => (float[n] y) {{ {graph} }}")
    feeds = {"x": np.ones(2, np.float32), "k": np.array(1), "c": np.array(True)}
    refused = pytest.raises(ort.InvalidModelError, match=message)
    with refused, ort.InferenceSession.create(data, runtime=runtime) as session:
        session.run({n: feeds[n] for n in session.input_names})


@pytest.mark.parametrize(
    "graph",
    [
        "m = Sub (x, x2)  r = Squeeze (m, axes)  y = Relu (r)",
        "m = Sub (x, x2)  r = Reshape (m, axes)  y = Relu (r)",
        "m = MatMul (x, w)  r = Squeeze (m, axes)  y = Relu (r)",
        "m = MatMul (x, w)  r = Squeeze (m, axes)  y = Add (r, v)",
        "m = MatMul (x, w)  r = Unsqueeze (m, axes)  y = Add (r, x3)",
        "m = Conv (x3, c)  r = Squeeze (m, axes)  y = Relu (r)",
        "m = Conv (x3, c)  r = Squeeze (m, axes)  y = Add (r, x)",
        "m = Conv (x3, c)  r = Squeeze (m, axes)  y = Mul (r, two)",
    ],
)
@pytest.mark.parametrize("planned", [True, False])
def test_what_has_run_is_not_changed_any_more(runtime: ort.Runtime, graph: str, planned: bool) -> None:
    """Nodes before and after a shape that depends on data are not fused."""
    data = text(f"""
    g (float[1, 3] x, float[1, 1, 3] x3, int64[1] a, int64 b) => (y)
    <float[3, 3] w = {{1, 0, 0, 0, 1, 0, 0, 0, 1}}, float[3] v = {{1, 2, 3}}, float[1, 1, 1] c = {{1}},
    float two = {{2}}>
    {{ x2 = Mul (x, x)  axes = Add (a, b)  {graph} }}
    """)
    x = np.array([[0.27, -0.46, -0.9]], np.float32)
    at = np.array([-1 if "Reshape" in graph else 0])
    given = {"x": x, "x3": x[None] * 3, "a": at, "b": np.array(0)}
    with ort.InferenceSession.create(data, runtime=runtime, enable_mem_pattern=planned) as session:
        feeds = {n: given[n] for n in session.input_names}
        expected = graphs.native(data, feeds)["y"]
        for _ in range(2):
            np.testing.assert_allclose(take(session.run(feeds))["y"], expected, rtol=1e-6)
