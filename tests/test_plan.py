"""Memory plans: nothing that is alive at the same time shares memory, and little is wasted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from onnx_wasm import dtypes
from onnx_wasm.context import Context, Value
from onnx_wasm.plan import ALIGNMENT, Buffer, Place, Planner, SegmentPlan, alive_at, place

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8), st.integers(1, 5000)), min_size=1, max_size=40)


def buffers_of(spans: list[tuple[int, int, int]]) -> list[Buffer]:
    return [Buffer(nbytes, first, first + length, Place.ARENA) for first, length, nbytes in spans]


def lower_bound(buffers: list[Buffer]) -> int:
    return max(alive_at(buffers, 0, 40))


@given(SPANS)
def test_placed_buffers_never_overlap_while_alive(spans: list[tuple[int, int, int]]) -> None:
    buffers = buffers_of(spans)
    bound = lower_bound(buffers)
    total = place(buffers, bound)
    assert total >= bound
    for i, a in enumerate(buffers):
        assert a.offset >= 0
        assert a.offset % ALIGNMENT == 0
        assert a.offset + a.nbytes <= total
        for b in buffers[:i]:
            alive_together = a.first <= b.last and b.first <= a.last
            apart = a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset
            assert apart or not alive_together


@given(SPANS)
def test_the_lower_bound_is_the_most_alive_at_once(spans: list[tuple[int, int, int]]) -> None:
    buffers = buffers_of(spans)
    alive = [sum(b.size for b in buffers if b.first <= t <= b.last) for t in range(40)]
    assert alive_at(buffers, 0, 40) == alive
    assert alive_at(buffers, 7, 20) == alive[7:20]


def test_a_better_order_is_found_where_greedy_wastes() -> None:
    # By size, the two middle buffers leave no gap that the last fits; by time it does.
    spans = [(0, 1, 4096), (1, 1, 2048), (2, 1, 4096), (3, 1, 2048), (4, 1, 4096), (0, 5, 1024)]
    buffers = buffers_of(spans)
    assert place(buffers, lower_bound(buffers)) == lower_bound(buffers)


def chain(cx: Context, x: Value, *, keep: bool = False) -> tuple[Value, Value]:
    """Two elementwise records in a row; with ``keep`` the first result is read again later."""
    a = cx.out(x.shape, x.dtype, reuse=(x,))
    cx.emit("copy_bytes", x=x, y=a, n=x.nbytes)
    b = cx.out(x.shape, x.dtype, reuse=(a,))
    cx.emit("copy_bytes", x=a, y=b, n=x.nbytes)
    c = cx.out(x.shape, x.dtype, reuse=(b,))
    cx.emit("copy_bytes", x=a if keep else b, y=c, n=x.nbytes)
    return b, c


class Described:
    """What a lowering leaves behind, made by hand."""

    def __init__(self, cx: Context, inputs: dict[str, Value], outputs: dict[str, Value]) -> None:
        self.context, self.inputs, self.outputs = cx, inputs, outputs
        self.needed: set[Value] = set()

    def alive(self) -> set[Value]:
        return self.needed


def planned(cx: Context, inputs: dict[str, Value], outputs: dict[str, Value]) -> SegmentPlan:
    return Planner(Described(cx, inputs, outputs)).segment(None)


def test_in_place_chain_needs_no_arena() -> None:
    cx, x = Context(), Value((100,), dtypes.F32, name="x")
    b, c = chain(cx, x)
    plan = planned(cx, {"x": x}, {"y": c})
    assert plan.arena_bytes == 0
    assert plan.buffers[b] is plan.buffers[c]
    assert plan.buffers[c].place is Place.OUTPUT
    assert plan.buffers[x].place is Place.INPUT


def test_a_value_that_is_still_read_is_not_taken_over() -> None:
    cx, x = Context(), Value((100,), dtypes.F32, name="x")
    chain(cx, x, keep=True)
    _, c = chain(cx, x, keep=True)
    plan = planned(cx, {"x": x}, {"y": c})
    first, second = (plan.buffers[r.args["y"]] for r in plan.records[3:5])
    assert first is not second


def test_another_view_of_the_same_memory_forbids_in_place() -> None:
    cx, x = Context(), Value((4, 8), dtypes.F32, name="x")
    a = cx.out(x.shape, x.dtype)
    cx.emit("copy_bytes", x=x, y=a, n=x.nbytes)
    row = cx.alias(a, (8,))
    b = cx.out(x.shape, x.dtype, reuse=(a,))
    cx.emit("add_f32", a=a, b=row, y=b)
    c = cx.out(x.shape, x.dtype)
    cx.emit("copy_bytes", x=b, y=c, n=x.nbytes)
    plan = planned(cx, {"x": x}, {"y": c})
    assert plan.buffers[a] is not plan.buffers[b]


def test_an_input_that_is_also_an_output_is_copied() -> None:
    cx, x = Context(), Value((10,), dtypes.F32, name="x")
    described = Described(cx, {"x": x}, {"same": cx.alias(x, (2, 5)), "again": cx.alias(x, (5, 2))})
    plan = Planner(described).segment(None)
    assert [r.kernel for r in plan.records] == ["copy_bytes", "copy_bytes"]
    roots = {v.root for v in described.outputs.values()}
    assert len(roots) == 2
    assert x not in roots


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 3000)), min_size=3, max_size=30), st.data())
def test_what_is_alive_between_segments_keeps_its_place(steps: list[tuple[int, int]], data: st.DataObject) -> None:
    """A random chain of records in random segments: no record reads a value whose place another has taken."""
    cx, x = Context(), Value((1,), dtypes.F32, name="x")
    described = Described(cx, {"x": x}, {})
    planner = Planner(described)
    values, contents = [x], dict[int, Value]()
    cuts = data.draw(st.sets(st.integers(1, len(steps) - 1), max_size=4))
    plans: list[SegmentPlan] = []
    for i, (back, nbytes) in enumerate(steps):
        if i in cuts:
            described.needed = set(values[-10:])
            plans.append(planner.segment(values[-1]))
        made = cx.out((nbytes,), dtypes.U8)
        cx.emit("copy_bytes", x=values[max(0, len(values) - 1 - back)], y=made, n=1)
        values.append(made)
    described.outputs = {"y": values[-1]}
    plans.append(planner.segment(None))
    for plan in plans:
        for record in plan.records:
            given, made = record.args["x"], record.args["y"]
            source, target = plan.buffers[given], plan.buffers[made]
            if source.place is Place.ARENA:
                for at in range(source.offset, source.offset + source.nbytes):
                    assert contents[at] is given
            if target.place is Place.ARENA:
                contents.update(dict.fromkeys(range(target.offset, target.offset + target.nbytes), made))
