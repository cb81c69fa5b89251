"""Assertions about the heap, for any test framework; the pytest plugin adds a fixture and a marker.

Each takes a callable without arguments, and looks at ``runtime``, the default runtime unless given. Under the fixture
``wasm_runtime`` that is the test's own.
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from .blocks import inside
from .heap import Runtime, default_runtime
from .heap_events import HeapEvent
from .heap_map import follow, peak_index
from .heap_policy import parse_bytes
from .verdicts import BlockInfo, LeakReport, SessionInfo, Snapshot, forgotten_lines, table
from .words import counted

__all__ = [
    "assert_no_growth",
    "assert_no_leak",
    "assert_peak",
    "each_failed_allocation",
    "each_failed_growth",
    "heap_table",
]

Call = Callable[[], Any]
_HINT = " (new input shapes are planned and kept: let warmup meet them all, or see SessionOptions.max_plans)"
T = TypeVar("T")


def heap_table(runtime: Runtime | None = None) -> str:
    """The heap's state in a line, and a table of what lives: bytes, what for, whose, where made."""
    return str((runtime or default_runtime()).snapshot())


def assert_no_growth(call: Call, runs: int = 100, *, warmup: int = 1, runtime: Runtime | None = None) -> None:
    """Calling ``runs`` times grows neither linear memory nor the bytes in use, after ``warmup`` calls that may.

    AssertionError says in which call memory grew, what lives that did not before, and whose it is.
    """
    __tracebackhide__ = True
    runtime = runtime or default_runtime()
    if runs < 1 or warmup < 0:
        raise ValueError(f"runs {runs} must be at least 1, warmup {warmup} at least 0")
    allocations = runtime.allocations
    for _ in range(warmup):
        call()
    before = _settled(runtime)
    for number in range(1, runs + 1):
        call()
        linear = runtime.linear
        if linear != before.memory.linear:
            raise AssertionError(
                f"linear memory grew from {before.memory.linear:,} to {linear:,} bytes in call {number} of {runs} "
                f"(after {warmup} to warm up)\n{_report(runtime, before)}"
            )
    report = _report(runtime, before)
    _demand_allocations(runtime, allocations)
    more = report.memory.used - before.memory.used
    if more > 0:
        raise AssertionError(
            f"the bytes in use grew by {more:,} in {counted(runs, 'call')}, after {warmup} to warm up"
            f"{_HINT if report.kept and not report else ''}\n{report}"
        )


def assert_no_leak(call: Call, *, warmup: int = 1, runtime: Runtime | None = None) -> None:
    """One more call after ``warmup`` leaves no tensor and no session that was not there, and disposes of each that it
    makes: none is left to Python's collector. AssertionError names them."""
    __tracebackhide__ = True
    runtime = runtime or default_runtime()
    allocations = runtime.allocations
    for _ in range(warmup):
        call()
    before, forgotten = _settled(runtime), runtime.forgotten
    call()
    _demand_allocations(runtime, allocations)
    report = _report(runtime, before)
    problems = [str(report)] if report else []
    problems += _forgotten(runtime, forgotten, report)
    if problems:
        raise AssertionError("\n".join(problems))


def assert_peak(call: Call, limit: int | str, *, runtime: Runtime | None = None) -> int:
    """The bytes in use, all that lived before included, never exceed ``limit`` (bytes, or "32MiB") during the call.

    Returns the peak in bytes. AssertionError shows who held what at the peak.
    """
    __tracebackhide__ = True
    runtime = runtime or default_runtime()
    most = parse_bytes(limit)
    before = _settled(runtime)
    runtime.reset_peak()
    logged = not runtime.logs_events
    if logged:
        runtime.start_events(None)
    earlier, allocations = runtime.events, runtime.allocations
    try:
        call()
    finally:
        later = runtime.stop_events() if logged else runtime.events
    _demand_allocations(runtime, allocations)
    peak = runtime.memory().peak
    if peak <= most:
        return peak
    events = _after(earlier, later)
    live = {b.address: b for b in before.blocks}
    follow(live, events[: peak_index(events) + 1] if events else (), _block_of)
    headline = f"peak of {peak:,} bytes in use, {peak - most:,} more than {most:,}; at the peak:"
    raise AssertionError("\n".join([headline, *table(live.values())]))


def _block_of(event: HeapEvent) -> BlockInfo:
    owner = f"{event.owner} ({event.node})" if event.node else event.owner
    return BlockInfo(0, event.address, event.nbytes, event.tag, owner, 0.0, event.site, "", ())


def each_failed_allocation(call: Call, *, runtime: Runtime | None = None, most: int = 100_000) -> int:
    """Call with the 1st, 2nd, ... allocation failing, until a call comes to its end without meeting the failure.

    Each failure must come out as a MemoryError (or be handled by the callable), leave the heap sound, and leave no more
    bytes in use, no tensor and no session than there were, nor any to Python's collector. Returns how many allocations
    failed. AssertionError says which allocation it was, and what is left.
    """
    __tracebackhide__ = True
    runtime = runtime or default_runtime()
    return _each(call, runtime, runtime.fail_allocation, "allocation", most)


def each_failed_growth(call: Call, *, runtime: Runtime | None = None, most: int = 100_000) -> int:
    """As `each_failed_allocation`, with the 1st, 2nd, ... growth of linear memory refused.

    Memory that has grown stays so: each growth is met once, by the first call that comes so far. The runtime should be
    new, or small enough that the callable must grow it.
    """
    __tracebackhide__ = True
    runtime = runtime or default_runtime()
    grown = runtime.memory().growth_count

    def refuse(nth: int) -> int:
        # What earlier calls have grown is not asked for again.
        done = runtime.memory().growth_count - grown
        return runtime.fail_growth(max(1, nth - done) if nth else 0)

    return _each(call, runtime, refuse, "growth", most)


def _each(call: Call, runtime: Runtime, fail: Callable[[int], int], what: str, most: int) -> int:
    __tracebackhide__ = True
    if most < 1:
        raise ValueError(f"most {most} must be at least 1")
    before, allocations = _settled(runtime), runtime.allocations
    for nth in range(1, most + 1):
        forgotten = runtime.forgotten
        fail(nth)
        outcome, other = "", None
        try:
            call()
        except MemoryError as error:
            outcome = f"at {_line(error)}: {_outcome(error)}"
        except Exception as error:
            other = error
        finally:
            left = fail(0)
        if other is not None:
            if left:
                raise other
            raise AssertionError(f"{what} {nth} failed, which came out as {_outcome(other)}, no MemoryError") from other
        if left and outcome:
            raise AssertionError(f"out of memory before {what} {nth}, which should have failed: {outcome}")
        if left:
            _demand_allocations(runtime, allocations)
            return nth - 1
        report = _report(runtime, before)
        more = report.memory.used - before.memory.used
        lost = _forgotten(runtime, forgotten, report)
        if report or more > 0 or lost:
            raise AssertionError(
                "\n".join(
                    [
                        f"{what} {nth} failed{f' {outcome}' if outcome else ', and was handled'}",
                        *(
                            [f"afterwards {counted(more, 'byte')} more {'is' if more == 1 else 'are'} in use"]
                            if more > 0
                            else []
                        ),
                        *([str(report)] if report or more > 0 else []),
                        *lost,
                    ]
                )
            )
    raise AssertionError(f"{counted(most, 'call')}, with {what} 1 to {most} failing, and still no end")


def _line(error: BaseException) -> str:
    """The caller's innermost line in an error's traceback."""
    frames = [f"{f.filename}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__) if not inside(f.filename)]
    return frames[-1] if frames else "an unknown line"


def _outcome(error: BaseException) -> str:
    # The frames of an error keep what was being made alive.
    traceback.clear_frames(error.__traceback__)
    return f"{type(error).__name__}: {error}"


def _demand_allocations(runtime: Runtime, before: int) -> None:
    """A callable that uses another runtime would pass everything."""
    __tracebackhide__ = True
    if runtime.allocations == before:
        raise AssertionError(
            f"the callable asked for no memory of {runtime!r}, so nothing was tested: does it use another runtime?"
        )


def _settled(runtime: Runtime) -> Snapshot:
    gc.collect()
    runtime.heap_check()
    return runtime.snapshot()


def _report(runtime: Runtime, since: Snapshot) -> LeakReport:
    gc.collect()
    runtime.heap_check()
    return runtime.leaks(since)


def _forgotten(runtime: Runtime, before: Sequence[BlockInfo | SessionInfo], report: LeakReport) -> list[str]:
    """Lines about what was collected undisposed meanwhile; blocks that views keep are in the report."""
    kept = {b.serial for b in report.tensors}
    lost = _after(before, runtime.forgotten)
    return forgotten_lines(x for x in lost if isinstance(x, SessionInfo) or x.serial not in kept)


def _after(earlier: Sequence[T], later: Sequence[T]) -> Sequence[T]:
    """What has come into a log of bounded length since it was ``earlier``."""
    if earlier:
        for i in range(len(later) - 1, -1, -1):
            if later[i] is earlier[-1]:
                return later[i + 1 :]
    return later
