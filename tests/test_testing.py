"""The assertions of onnx_wasm.testing, as any test framework calls them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphs
import onnx_wasm as ort
from onnx_wasm import testing
from onnx_wasm.heap import use_runtime
from onnx_wasm.testing import (
    assert_no_growth,
    assert_no_leak,
    assert_peak,
    each_failed_allocation,
    each_failed_growth,
    heap_table,
)

MIB = 1 << 20
DIGITS = Path(__file__).parent.parent / "examples" / "digits"
X = np.ones((2, 16), np.float32)
HERE = re.escape(__file__)


@pytest.fixture
def runtime() -> Iterator[ort.Runtime]:
    """One of the test's own, which is not the default one."""
    with ort.Runtime(trace_allocations=True) as runtime:
        yield runtime


@pytest.fixture
def kept() -> Iterator[list[Any]]:
    """What a test lets live on; disposed of after it."""
    things: list[Any] = []
    yield things
    for thing in things:
        thing.dispose()


def floats(count: int, runtime: ort.Runtime) -> ort.Tensor:
    return ort.Tensor("float32", np.zeros(count, np.float32), runtime=runtime)


SITE = floats.__code__.co_firstlineno + 1


def message(call: Callable[[], Any]) -> str:
    """Of the AssertionError that a call ends with."""
    with pytest.raises(AssertionError) as caught:
        call()
    return str(caught.value)


def rows(text: str) -> list[str]:
    """The lines of a table, without addresses."""
    found = [line for line in text.split("\n") if re.match(r" +[\d,]+ bytes ", line)]
    return [
        re.sub(r"\s+", " ", re.sub(r" (made|created|disposed) at .*|0x[0-9a-f]+", "", line)).strip() for line in found
    ]


# heap_table


def test_a_table_of_the_heap(runtime: ort.Runtime) -> None:
    assert heap_table(runtime) == (
        "linear memory 16,777,216 of at most 4,294,901,760 bytes (0 growths); used 0 in 0 blocks, peak 0, free 0, "
        "largest free 0 (nothing held)"
    )
    last = ort.Tensor("float32", [1.0, 2.0], runtime=runtime)
    with last, floats(10, runtime), floats(10, runtime):
        lines = heap_table(runtime).split("\n")
        assert len(lines) == 3
        assert lines[0].endswith("(user 88)")
        assert re.fullmatch(rf" {{12}}80 bytes in 2 blocks  user        Tensor  made at {HERE}:\d+", lines[1])
        assert re.fullmatch(rf" {{13}}8 bytes at {last.address:#x}  user        Tensor  made at {HERE}:\d+", lines[2])
        assert heap_table() != heap_table(runtime)
        with use_runtime(runtime):
            assert heap_table() == heap_table(runtime)


# assert_no_growth


def test_no_growth(runtime: ort.Runtime) -> None:
    calls: list[int] = []
    with ort.InferenceSession.create(graphs.mlp(), runtime=runtime) as session:

        def predict() -> None:
            calls.append(1)
            session.run({"x": X})["y"].dispose()

        assert_no_growth(predict, runs=5, warmup=2, runtime=runtime)
        assert len(calls) == 7
        assert_no_growth(predict, runtime=runtime)
        assert len(calls) == 7 + 101


def test_the_first_run_grows_the_bytes_in_use(runtime: ort.Runtime) -> None:
    with ort.InferenceSession.create(graphs.mlp(), runtime=runtime, enable_mem_pattern=False) as session:
        before = runtime.memory().used
        text = message(
            lambda: assert_no_growth(lambda: session.run({"x": X})["y"].dispose(), runs=2, warmup=0, runtime=runtime)
        )
        more = runtime.memory().used - before
        assert text.startswith(
            f"the bytes in use grew by {more:,} in 2 calls, after 0 to warm up (new input shapes are planned and kept: "
            "let warmup meet them all, or see SessionOptions.max_plans)\nnot leaked: sessions keep "
        )
        assert " bytes more for their next run; linear memory has not grown\nkept by sessions for their" in text
        assert [r.split(" ")[3] for r in rows(text)] == ["tape", "input"]


def test_bytes_that_each_call_leaves(runtime: ort.Runtime, kept: list[Any]) -> None:
    text = message(lambda: assert_no_growth(lambda: kept.append(floats(25, runtime)), runs=10, runtime=runtime))
    assert text.startswith(
        "the bytes in use grew by 1,360 in 10 calls, after 1 to warm up\n"
        "leaked: 10 tensors (1,000 bytes) never disposed\n"
    )
    assert rows(text) == ["1,000 bytes in 10 blocks user Tensor"]


def test_the_call_in_which_memory_grows(runtime: ort.Runtime, kept: list[Any]) -> None:
    text = message(lambda: assert_no_growth(lambda: kept.append(floats(MIB, runtime)), runs=9, runtime=runtime))
    assert text.startswith(
        "linear memory grew from 16,777,216 to 20,185,088 bytes in call 2 of 9 (after 1 to warm up)\n"
        "leaked: 2 tensors (8,388,608 bytes) never disposed\n"
    )
    assert len(kept) == 3


def test_memory_that_grew_for_what_is_gone_is_retained(runtime: ort.Runtime) -> None:
    def once() -> None:
        floats(5 * MIB, runtime).dispose()

    text = message(lambda: assert_no_growth(once, runs=3, warmup=0, runtime=runtime))
    linear = runtime.memory().linear
    assert text.startswith(
        f"linear memory grew from 16,777,216 to {linear:,} bytes in call 1 of 3 (after 0 to warm up)\n"
        f"retained, not leaked: linear memory grew by {linear - 16 * MIB:,} bytes for what has been given back; it "
        f"cannot shrink, {linear - 6_303_872:,} bytes of it are free for what comes next\n"
    )
    assert_no_growth(once, runs=3, warmup=0, runtime=runtime)


def test_numbers_of_calls(runtime: ort.Runtime) -> None:
    for runs, warmup in ((0, 1), (1, -1)):
        with pytest.raises(ValueError, match=rf"runs {runs} must be at least 1, warmup {warmup} at least 0"):
            assert_no_growth(lambda: None, runs, warmup=warmup, runtime=runtime)


def test_an_error_of_the_callable_comes_through(runtime: ort.Runtime) -> None:
    def broken() -> None:
        raise KeyError("mine")

    for check in (assert_no_growth, assert_no_leak, each_failed_allocation, each_failed_growth):
        with pytest.raises(KeyError, match="mine"):
            check(broken, runtime=runtime)
    with pytest.raises(KeyError, match="mine"):
        assert_peak(broken, "1MiB", runtime=runtime)
    assert not runtime.logs_events


# assert_no_leak


def test_no_leak(runtime: ort.Runtime) -> None:
    with ort.InferenceSession.create(graphs.mlp(), runtime=runtime) as session:
        # Tape, staging and arena of the first run are kept, not leaked.
        assert_no_leak(lambda: session.run({"x": X})["y"].dispose(), warmup=0, runtime=runtime)


def test_an_output_and_a_session_that_live_on(runtime: ort.Runtime, kept: list[Any]) -> None:
    def page() -> None:
        kept.append(ort.InferenceSession.create(DIGITS / "digits.onnx", runtime=runtime))
        kept.append(kept[-1].run({"image": np.zeros((3, 1, 8, 8), np.float32)})["probabilities"])

    text = message(lambda: assert_no_leak(page, runtime=runtime))
    held = kept[2].info().nbytes
    assert text.startswith(
        f"leaked: 1 tensor (120 bytes) and 1 session ({held:,} bytes) never disposed\n"
        "sessions never disposed:\n"
        f"  {held:12,} bytes in 10 blocks  digits  created at {__file__}:"
    )
    assert "120 bytes at output digits probabilities" in rows(text)


def test_what_the_warm_up_leaves_is_no_leak(runtime: ort.Runtime, kept: list[Any]) -> None:
    def once() -> None:
        if not kept:
            kept.append(floats(1, runtime))

    assert_no_leak(once, runtime=runtime)
    kept.pop().dispose()
    assert message(lambda: assert_no_leak(once, warmup=0, runtime=runtime)).startswith("leaked: 1 tensor (4 bytes)")


def test_a_view_that_lives_on(runtime: ort.Runtime) -> None:
    views = []

    def page() -> None:
        with floats(4, runtime) as tensor:
            views.append(tensor.data)

    text = message(lambda: assert_no_leak(page, warmup=0, runtime=runtime))
    assert text.startswith("leaked: 1 tensor (16 bytes) never disposed\ntensors never disposed, or kept by views:\n")
    assert re.search(rf"disposed at {HERE}:\d+  kept by 1 view made at {HERE}:\d+\n", text)
    views.clear()


def test_what_python_collects_is_a_leak_in_a_page(runtime: ort.Runtime) -> None:
    with ort.InferenceSession.create(graphs.mlp(), runtime=runtime) as session:
        text = message(lambda: assert_no_leak(lambda: session.run({"x": X}), runtime=runtime))
        lines = text.split("\n")
        assert lines[0] == ("forgotten: 1 tensor (64 bytes) dropped without dispose, which only Python collects:")
        assert len(lines) == 2
        assert re.fullmatch(rf" +64 bytes at 0x[0-9a-f]+  output      session \d+ y  made at {HERE}:\d+", lines[1])

        # What was dropped before is none of its business, nor what is dropped in another runtime.
        with ort.Runtime() as other:
            assert_no_leak(lambda: (floats(1, other), floats(1, runtime).dispose()), runtime=runtime)
            assert len(other.forgotten) == 2

    def whole_session() -> None:
        ort.InferenceSession.create(DIGITS / "digits.onnx", runtime=runtime)

    with ort.Runtime() as plain:
        text = message(lambda: assert_no_leak(lambda: floats(2, plain), warmup=0, runtime=plain))
        assert re.fullmatch(
            r"forgotten: 1 tensor \(8 bytes\) dropped .*\n +8 bytes at 0x[0-9a-f]+  user        Tensor", text
        )
    text = message(lambda: assert_no_leak(whole_session, runtime=runtime))
    assert re.match(r"forgotten: 1 session \([\d,]+ bytes\) dropped without dispose", text)


def test_a_leak_and_something_forgotten(runtime: ort.Runtime, kept: list[Any]) -> None:
    def page() -> None:
        kept.append(floats(2, runtime))
        floats(1, runtime)

    text = message(lambda: assert_no_leak(page, runtime=runtime))
    assert text.startswith("leaked: 1 tensor (8 bytes) never disposed\n")
    assert "\nforgotten: 1 tensor (4 bytes) dropped without dispose" in text
    assert rows(text) == ["8 bytes at user Tensor", "4 bytes at user Tensor"]


def test_a_block_that_a_view_keeps_is_reported_once(runtime: ort.Runtime) -> None:
    views = []
    text = message(lambda: assert_no_leak(lambda: views.append(floats(2, runtime).data), warmup=0, runtime=runtime))
    assert text.startswith("leaked: 1 tensor (8 bytes) never disposed\n")
    assert "forgotten" not in text
    views.clear()


def test_hundreds_of_forgotten_tensors(runtime: ort.Runtime) -> None:
    def page() -> None:
        for _ in range(300):
            floats(1, runtime)

    text = message(lambda: assert_no_leak(page, runtime=runtime))
    # The latest 256 are known.
    assert text.startswith("forgotten: 256 tensors (1,024 bytes) dropped without dispose")


# assert_peak


def test_the_peak_of_a_run_is_returned(runtime: ort.Runtime) -> None:
    with floats(1000, runtime):
        before = runtime.memory().used

        def page() -> None:
            with floats(10_000, runtime), ort.Tensor(np.zeros(20_000, np.float32), runtime=runtime):
                pass

        peak = assert_peak(page, "1MiB", runtime=runtime)
        assert 120_000 < peak - before < 120_200
        assert assert_peak(page, peak, runtime=runtime) == peak
        assert before < assert_peak(lambda: floats(1, runtime).dispose(), "8192", runtime=runtime) <= before + 80
        text = message(lambda: assert_peak(page, peak - 1, runtime=runtime))
        assert text.startswith(f"peak of {peak:,} bytes in use, 1 more than {peak - 1:,}; at the peak:\n")
        assert rows(text) == ["80,000 bytes at user Tensor", "44,000 bytes in 2 blocks user Tensor"]
    assert not runtime.logs_events


def test_the_table_is_of_the_peak_not_of_the_end(runtime: ort.Runtime) -> None:
    def page() -> None:
        first = floats(1000, runtime)
        second = ort.Tensor(np.zeros(3000, np.float32), runtime=runtime)
        first.dispose()
        third = floats(500, runtime)
        second.dispose()
        third.dispose()

    assert rows(message(lambda: assert_peak(page, 100, runtime=runtime))) == [
        "12,000 bytes at user Tensor",
        "4,000 bytes at user Tensor",
    ]


def test_a_planned_run_shows_the_arena(runtime: ort.Runtime) -> None:
    with ort.InferenceSession.create(graphs.convnet(), runtime=runtime) as session:
        feeds = {"x": np.ones((1, 3, 12, 12), np.float32)}
        text = message(lambda: assert_peak(lambda: session.run(feeds)["y"].dispose(), "1KiB", runtime=runtime))
        assert session.plan_info is not None
        arena = session.plan_info.arena_bytes
        [row] = [r for r in rows(text) if "activations" in r]
        assert row == f"{arena:,} bytes at activations arena"


def test_an_unplanned_run_shows_the_nodes(runtime: ort.Runtime) -> None:
    with ort.InferenceSession.create(graphs.convnet(), runtime=runtime, enable_mem_pattern=False) as session:
        feeds = {"x": np.ones((1, 3, 12, 12), np.float32)}

        def run() -> None:
            session.run(feeds)["y"].dispose()

        run()
        text = message(lambda: assert_peak(run, "1KiB", runtime=runtime))
        nodes = [r for r in rows(text) if "activations" in r]
        assert nodes
        assert all(re.search(r'session \d+( \w+)? \(\w+ "\w+" \(node \d\)\)', r) for r in nodes), nodes
        assert any(r.startswith("4,608 bytes") for r in nodes), nodes


def test_a_log_that_is_kept_anyway(runtime: ort.Runtime) -> None:
    """It goes on, also where it is too short to have its place in it."""
    for limit in (None, 4):
        runtime.start_events(limit)
        for _ in range(3):
            floats(1, runtime).dispose()

        def page() -> None:
            with floats(1000, runtime), floats(500, runtime):
                pass

        text = message(lambda: assert_peak(page, 100, runtime=runtime))
        assert rows(text) == ["6,000 bytes in 2 blocks user Tensor"]
        assert runtime.logs_events
        assert len(runtime.events) == (10 if limit is None else 4)
        runtime.stop_events()


def test_the_peak_of_a_debug_heap_has_no_quarantine_in_it() -> None:
    with ort.Runtime(debug=True) as runtime:

        def page() -> None:
            for _ in range(10):
                floats(1000, runtime).dispose()

        # Two guards and the rounding of one block.
        assert assert_peak(page, "5KiB", runtime=runtime) == runtime.memory().peak == 4168
        assert runtime.memory().quarantine == 10 * 4168


@pytest.mark.parametrize("limit", ["12 M", -1, True, None])
def test_a_limit_that_is_no_size(runtime: ort.Runtime, limit: Any) -> None:
    with pytest.raises(ValueError, match="is no size: a whole number of bytes"):
        assert_peak(lambda: None, limit, runtime=runtime)


# each_failed_allocation


def first_run(runtime: ort.Runtime, **settings: Any) -> Callable[[], None]:
    def call() -> None:
        with ort.InferenceSession.create(graphs.mlp(), runtime=runtime, **settings) as session:
            session.run({"x": X})["y"].dispose()

    return call


def test_each_allocation_of_a_first_run(runtime: ort.Runtime) -> None:
    planned = each_failed_allocation(first_run(runtime), runtime=runtime)
    assert planned == count_allocations(runtime, first_run(runtime))
    unplanned = first_run(runtime, enable_mem_pattern=False)
    assert each_failed_allocation(unplanned, runtime=runtime) == count_allocations(runtime, unplanned) > planned
    assert runtime.memory().used == 0
    assert runtime.fail_allocation(0) == 0


def count_allocations(runtime: ort.Runtime, call: Callable[[], Any]) -> int:
    runtime.start_events(None)
    call()
    return [e.kind for e in runtime.stop_events()].count("alloc")


def test_of_the_default_runtime_unless_told(runtime: ort.Runtime) -> None:
    with use_runtime(runtime):
        assert each_failed_allocation(lambda: ort.Tensor("float32", [1.0]).dispose()) == 1
        assert each_failed_growth(lambda: ort.Tensor("float32", [1.0]).dispose()) == 0
        assert_no_growth(lambda: ort.Tensor("float32", [1.0]).dispose(), 1)
        assert_no_leak(lambda: ort.Tensor("float32", [1.0]).dispose())
        assert assert_peak(lambda: ort.Tensor("float32", [1.0]).dispose(), "1KiB") == 72


def test_nothing_is_allocated(runtime: ort.Runtime) -> None:
    """A callable that allocates elsewhere would pass whatever it does."""
    with ort.Runtime() as other:

        def elsewhere() -> None:
            floats(1, other).dispose()

        checks: list[Callable[[], object]] = [
            lambda: assert_no_growth(elsewhere, runs=2, runtime=runtime),
            lambda: assert_no_leak(elsewhere, runtime=runtime),
            lambda: assert_peak(elsewhere, "1MiB", runtime=runtime),
            lambda: each_failed_allocation(elsewhere, runtime=runtime),
        ]
        for check in checks:
            assert re.fullmatch(
                r"the callable asked for no memory of <Runtime 16,777,216 .*>, so nothing was tested: "
                r"does it use another runtime\?",
                message(check),
            )


def test_a_callable_that_handles_the_failure(runtime: ort.Runtime) -> None:
    handled = []

    def page() -> None:
        try:
            with floats(1000, runtime), floats(1000, runtime):
                pass
        except MemoryError as error:
            handled.append(str(error).split(":")[0])

    assert each_failed_allocation(page, runtime=runtime) == 2
    assert handled == ["the heap cannot hold 4,000 bytes for Tensor (user)"] * 2


def test_a_callable_that_makes_it_another_error(runtime: ort.Runtime) -> None:
    def page() -> None:
        try:
            with floats(1, runtime), floats(2, runtime):
                pass
        except MemoryError:
            raise RuntimeError("no model today") from None

    with pytest.raises(AssertionError) as caught:
        each_failed_allocation(page, runtime=runtime)
    assert str(caught.value) == "allocation 1 failed, which came out as RuntimeError: no model today, no MemoryError"
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert runtime.fail_allocation(0) == 0


def test_a_callable_that_leaks_where_it_fails(runtime: ort.Runtime, kept: list[Any]) -> None:
    def page() -> None:
        kept.append(floats(1000, runtime))
        second = floats(500, runtime)
        second.dispose()
        kept.pop().dispose()

    text = message(lambda: each_failed_allocation(page, runtime=runtime))
    assert text.startswith(
        f"allocation 2 failed at {__file__}:{SITE}: HeapMemoryError: the heap cannot hold 2,000 bytes for Tensor "
    )
    assert "\nafterwards 4,040 bytes more are in use\nleaked: 1 tensor (4,000 bytes) never disposed\n" in text
    assert rows(text) == ["4,000 bytes at user Tensor"]


def test_a_callable_that_handles_the_failure_and_leaks(runtime: ort.Runtime, kept: list[Any]) -> None:
    def page() -> None:
        first = floats(1000, runtime)
        try:
            floats(500, runtime).dispose()
        except MemoryError:
            kept.append(first)
        else:
            first.dispose()

    text = message(lambda: each_failed_allocation(page, runtime=runtime))
    assert text.startswith("allocation 2 failed, and was handled\nafterwards 4,040 bytes more are in use\nleaked: 1")


def test_a_callable_without_finally(runtime: ort.Runtime) -> None:
    """Python gives back what the frames of the error held; nothing does in a page."""

    def page() -> None:
        first = floats(1000, runtime)
        second = floats(500, runtime)
        second.dispose()
        first.dispose()

    text = message(lambda: each_failed_allocation(page, runtime=runtime))
    assert re.match(rf"allocation 2 failed at {HERE}:{SITE}: HeapMemoryError: .*\nforgotten: ", text)
    assert rows(text) == ["4,000 bytes at user Tensor"]


def test_a_session_that_lives_on_after_a_failure(runtime: ort.Runtime, kept: list[Any]) -> None:
    def page() -> None:
        session = ort.InferenceSession.create(graphs.mlp(), runtime=runtime)
        kept.append(session)
        session.run({"x": X})["y"].dispose()
        kept.pop().dispose()

    text = message(lambda: each_failed_allocation(page, runtime=runtime))
    assert "\nleaked: 1 session (" in text


def test_one_that_never_ends(runtime: ort.Runtime) -> None:
    def page() -> None:
        for _ in range(20):
            floats(1, runtime).dispose()

    assert message(lambda: each_failed_allocation(page, runtime=runtime, most=7)) == (
        "7 calls, with allocation 1 to 7 failing, and still no end"
    )
    assert each_failed_allocation(page, runtime=runtime, most=21) == 20


def test_memory_that_ends_before_the_allocation_that_should_fail() -> None:
    with ort.Runtime(maximum=8 * MIB) as runtime:

        def page() -> None:
            with floats(10, runtime), floats(MIB, runtime), floats(20, runtime):
                pass

        text = message(lambda: each_failed_allocation(page, runtime=runtime))
        assert text.startswith(
            f"out of memory before allocation 3, which should have failed: at {__file__}:{SITE}: "
            "HeapMemoryError: the heap cannot hold 4,194,304 bytes for Tensor (user): linear memory 8,388,608 of at "
            "most 8,388,608 bytes (0 growths); "
        )
        assert runtime.fail_allocation(0) == 0


def test_another_error_before_the_failure_comes_through(runtime: ort.Runtime) -> None:
    def page() -> None:
        floats(1, runtime).dispose()
        floats(0, runtime)
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        each_failed_allocation(page, runtime=runtime)
    assert runtime.fail_allocation(0) == 0


def test_no_failure_is_left_after_an_outcome_of_pytest(runtime: ort.Runtime) -> None:
    for fail in (each_failed_allocation, each_failed_growth):
        with pytest.raises(pytest.fail.Exception):
            fail(lambda: pytest.fail("mine"), runtime=runtime)
    assert (runtime.fail_allocation(0), runtime.fail_growth(0)) == (0, 0)


def test_a_debug_heap_finds_what_a_failing_call_wrote() -> None:
    with ort.Runtime(debug=True) as runtime, floats(4, runtime) as outer:

        def page() -> None:
            try:
                floats(1, runtime).dispose()
            except MemoryError:
                runtime.heap_view("float32")[outer.address // 4 + 4] = 1

        with pytest.raises(ort.HeapCorruptionError, match="write past its end, 1 byte from it and 4 in all"):
            each_failed_allocation(page, runtime=runtime)


# each_failed_growth


def uploads(runtime: ort.Runtime, count: int) -> Callable[[], None]:
    def page() -> None:
        tensors = []
        try:
            for _ in range(count):
                tensors.append(floats(MIB, runtime))
        finally:
            for tensor in tensors:
                tensor.dispose()

    return page


def test_each_growth_is_refused_once(runtime: ort.Runtime) -> None:
    refused = []
    page = uploads(runtime, 6)

    def counted() -> None:
        try:
            page()
        except MemoryError:
            refused.append(runtime.memory().growth_count)
            raise

    # As docs/testing.md shows, 24 MiB take four growths.
    assert each_failed_growth(counted, runtime=runtime) == 4
    assert refused == [0, 1, 2, 3]
    assert runtime.memory().growth_count == 4
    assert runtime.memory().used == 0
    # It has grown.
    assert each_failed_growth(page, runtime=runtime) == 0


def test_a_leak_where_growth_is_refused(runtime: ort.Runtime, kept: list[Any]) -> None:
    def page() -> None:
        kept.extend(floats(MIB, runtime) for _ in range(3))
        while kept:
            kept.pop().dispose()

    text = message(lambda: each_failed_growth(page, runtime=runtime))
    assert text.startswith(
        f"growth 1 failed at {__file__}:{SITE}: HeapMemoryError: the heap cannot hold 4,194,304 bytes for Tensor"
    )
    assert "\nleaked: 2 tensors (8,388,608 bytes) never disposed\n" in text


def test_a_callable_that_tries_again_when_growth_is_refused(runtime: ort.Runtime) -> None:
    tries = []

    def page() -> None:
        while True:
            tries.append(runtime.memory().growth_count)
            try:
                floats(5 * MIB * (3 if tries[-1] else 1), runtime).dispose()
            except MemoryError:
                continue
            return

    # 20 MiB are refused, and had at the second try; then 60 are.
    assert each_failed_growth(page, runtime=runtime) == 2
    assert tries == [0, 0, 1, 1, 2]


def test_growth_without_end(runtime: ort.Runtime) -> None:
    assert message(lambda: each_failed_growth(uploads(runtime, 6), runtime=runtime, most=2)) == (
        "2 calls, with growth 1 to 2 failing, and still no end"
    )


def test_what_is_public() -> None:
    assert sorted(testing.__all__) == testing.__all__
    assert all(getattr(testing, name).__doc__ for name in testing.__all__)
