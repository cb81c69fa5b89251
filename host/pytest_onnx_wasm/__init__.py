"""The pytest plugin of onnx-wasm: the fixture ``wasm_runtime`` and the marker ``wasm_heap``.

A package of its own, so that pytest can load it without importing onnx_wasm in projects that only have it installed.
"""

from __future__ import annotations

import contextlib
import gc
import traceback
import warnings
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from onnx_wasm import Runtime

MARKER = (
    "wasm_heap(maximum=None, initial=None, memory_maximum=None, policy='onnxruntime-web', variant='relaxed', "
    "threads=1, mem_pattern=True, debug=False, quarantine='16MiB', no_growth=False, no_leak=True): the heap of the "
    "test's wasm_runtime. Sizes are bytes or texts as '64MiB'; policy is the name of a preset or a HeapPolicy; threads "
    "share the work of a run; mem_pattern=False allocates intermediate tensors one by one, as a browser does; debug "
    "makes it a debug heap, with so many bytes of freed blocks in quarantine; no_growth: linear memory must not grow "
    "during the test; no_leak: tensors and sessions must be disposed of when it ends."
)
_SIZES = ("maximum", "initial", "memory_maximum", "quarantine")
_OPTIONS = {*_SIZES, "policy", "debug", "variant", "threads", "mem_pattern"}
_CHECKS = {"no_growth": False, "no_leak": True}
_passed = pytest.StashKey[bool]()
_error = pytest.StashKey[BaseException]()
_runtime = pytest.StashKey["Runtime"]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


def pytest_itemcollected(item: pytest.Item) -> None:
    """A test with the marker has the fixture, also where it does not name it.

    It is set up before the other fixtures of function scope, so that what they make lies in it; never before those of
    a larger scope, which outlive it.
    """
    names: list[str] | None = getattr(item, "fixturenames", None)
    if names is None or ("wasm_runtime" not in names and not item.get_closest_marker("wasm_heap")):
        return
    definitions = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    others = [n for n in names if n != "wasm_runtime"]
    larger = [i for i, n in enumerate(others) if n in definitions and definitions[n][-1].scope != "function"]
    place = larger[-1] + 1 if larger else 0
    names[:] = [*others[:place], "wasm_runtime", *others[place:]]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    report = yield
    runtime = item.stash.get(_runtime, None)
    if runtime is not None:
        if report.when == "call":
            item.stash[_passed] = report.passed
        if call.excinfo is not None:
            item.stash[_error] = call.excinfo.value
        held = getattr(item.stash.get(_error, None), "held", "") if report.when == "call" else ""
        if report.failed and held:
            report.sections.append(("wasm heap when memory ran out", held))
        if report.failed and not runtime.closed:
            report.sections.append(("wasm heap", _state(runtime)))
    return report


@pytest.fixture
def wasm_runtime(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    """A runtime of the test's own, and its default runtime; closed and checked for leaks after the test.

    The marker ``wasm_heap`` says how large it may be and what is checked. Blocks know the lines that made them.
    """
    from onnx_wasm.heap import use_runtime

    item = request.node
    runtime, checks = _make(item)
    item.stash[_runtime] = runtime
    item.stash[_passed] = False
    growths = runtime.memory().growth_count
    try:
        with use_runtime(runtime):
            yield runtime
        if item.stash[_passed]:
            _check(runtime, growths, checks)
    finally:
        del item.stash[_runtime]
        error = item.stash.get(_error, None)
        if error is not None:
            del item.stash[_error]
        _close(runtime, error)


def _make(item: pytest.Item) -> tuple[Runtime, dict[str, bool]]:
    """The runtime that the markers ask for, the closest having the last word, and what to check."""
    from onnx_wasm.heap import Runtime
    from onnx_wasm.heap_policy import parse_bytes

    given: dict[str, Any] = {}
    for marker in reversed(list(item.iter_markers("wasm_heap"))):
        if marker.args:
            raise _usage(f"it takes keywords only, got {', '.join(map(repr, marker.args))}")
        given.update(marker.kwargs)
    unknown = sorted(given.keys() - _OPTIONS - _CHECKS.keys())
    if unknown:
        raise _usage(f"it has no {', '.join(unknown)}; it is {MARKER}")
    for name in (*_CHECKS, "debug", "mem_pattern"):
        if not isinstance(given.get(name, True), bool):
            raise _usage(f"{name} must be True or False, got {given[name]!r}")
    checks = {name: given.pop(name, default) for name, default in _CHECKS.items()}
    for name in _SIZES:
        if given.get(name) is None:
            given.pop(name, None)
            continue
        try:
            given[name] = parse_bytes(given[name])
        except ValueError as error:
            raise _usage(f"{name}={error}") from None
    try:
        return Runtime(trace_allocations=True, **given), checks
    except (TypeError, ValueError) as error:
        raise _usage(str(error)) from None


def _usage(why: str) -> BaseException:
    return pytest.fail.Exception(f"wrong use of the marker wasm_heap: {why}", pytrace=False)


def _check(runtime: Runtime, growths: int, checks: dict[str, bool]) -> None:
    from onnx_wasm.errors import HeapCorruptionError
    from onnx_wasm.verdicts import BlockInfo, forgotten_lines

    gc.collect()
    if runtime.closed:
        if checks["no_leak"] and runtime.left:
            pytest.fail(f"the test closed its runtime: {runtime.left}", pytrace=False)
        return
    problems = []
    try:
        runtime.heap_check()
    except HeapCorruptionError as error:
        problems.append(f"the heap is damaged: {error}")
    memory, report = runtime.memory(), runtime.leaks()
    if checks["no_growth"] and memory.growth_count > growths:
        steps = ", ".join(f"{g.before:,} -> {g.after:,}" for g in memory.growths[growths - memory.growth_count :])
        problems.append(f"linear memory grew, and no_growth was asked for: {steps}")
    if checks["no_leak"]:
        kept = {b.serial for b in report.tensors}
        problems += [str(report)] if report else []
        problems += forgotten_lines(
            x for x in runtime.forgotten if not isinstance(x, BlockInfo) or x.serial not in kept
        )
    if problems:
        if not (checks["no_leak"] and report):
            problems.append(str(runtime.snapshot()))
        pytest.fail("\n".join(problems), pytrace=False)


def _state(runtime: Runtime) -> str:
    from onnx_wasm.errors import OnnxWasmError

    try:
        return str(runtime.snapshot())
    except OnnxWasmError as error:
        return f"it cannot be read: {error}"


def _close(runtime: Runtime, failure: BaseException | None) -> None:
    from onnx_wasm.errors import HeapCorruptionError, LeaseError

    with warnings.catch_warnings():
        # It has been said.
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            runtime.close()
        except HeapCorruptionError:
            # It has been said, too, and the runtime is closed.
            pass
        except LeaseError:
            # Views in the frames of a test that failed, which has been reported.
            _clear_frames(failure)
            gc.collect()
            # Where something else keeps a view, the runtime ends with that.
            with contextlib.suppress(LeaseError, HeapCorruptionError):
                runtime.close()


def _clear_frames(error: BaseException | None) -> None:
    """Let go what an error and those before it keep alive by the variables of their frames."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        for frame, _ in traceback.walk_tb(error.__traceback__):
            # Until Python 3.12 a dict of the variables, once somebody has asked for it, is kept until it is read again.
            dict(frame.f_locals)
        error = error.__cause__ or error.__context__
