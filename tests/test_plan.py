"""Memory plans: nothing that is alive at the same time shares memory, and little is wasted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from onnx_wasm import dtypes
from onnx_wasm.context import Context, Value
from onnx_wasm.lower import Lowered
from onnx_wasm.plan import ALIGNMENT, Buffer, MemoryPlan, Place, lower_bound, place, plan_memory

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8), st.integers(1, 5000)), min_size=1, max_size=40)


def buffers_of(spans: list[tuple[int, int, int]]) -> list[Buffer]:
    return [Buffer(nbytes, first, first + length, Place.ARENA) for first, length, nbytes in spans]


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
    assert lower_bound(buffers) == max(alive)


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


def planned(cx: Context, inputs: dict[str, Value], outputs: dict[str, Value]) -> MemoryPlan:
    return plan_memory(Lowered(cx, inputs, outputs))


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
    plan = planned(cx, {"x": x}, {"same": cx.alias(x, (2, 5)), "again": cx.alias(x, (5, 2))})
    assert [r.kernel for r in plan.records] == ["copy_bytes", "copy_bytes"]
    roots = {v.root for v in plan.outputs.values()}
    assert len(roots) == 2
    assert x not in roots
