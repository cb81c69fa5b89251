"""The pytest plugin of onnx-wasm: the fixture ``wasm_runtime`` and the marker ``wasm_heap``.

A package of its own, so that pytest can load it without importing onnx_wasm in projects that only have it installed.
"""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from onnx_wasm import Runtime

MARKER = (
    "wasm_heap(maximum=None, initial=None, memory_maximum=None, policy='onnxruntime-web', debug=False, "
    "no_growth=False, no_leak=True, threads=1): the heap of the test's wasm_runtime. Sizes are bytes or texts as "
    "'64MiB'; policy is the name of a preset; debug makes it a debug heap; threads share the work of a run; no_growth: "
    "linear memory must not grow during the test; no_leak: tensors and sessions must be disposed of when it ends."
)
_SIZES = ("maximum", "initial", "memory_maximum", "quarantine")
_OPTIONS = {*_SIZES, "policy", "debug", "variant", "threads"}
_CHECKS = {"no_growth": False, "no_leak": True}
_passed = pytest.StashKey[bool]()
_runtime = pytest.StashKey["Runtime"]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


def pytest_itemcollected(item: pytest.Item) -> None:
    """A test with the marker has the fixture, also where it does not name it."""
    names = getattr(item, "fixturenames", None)
    if names is not None and "wasm_runtime" not in names and item.get_closest_marker("wasm_heap"):
        names.insert(0, "wasm_runtime")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report = yield
    if report.when == "call":
        item.stash[_passed] = report.passed
    runtime = item.stash.get(_runtime, None)
    if report.failed and runtime is not None and not runtime.closed:
        report.sections.append(("wasm heap", str(runtime.snapshot())))
    return report


@pytest.fixture
def wasm_runtime(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    """A runtime of the test's own, and its default runtime; closed and checked for leaks after the test.

    The marker ``wasm_heap`` says how large it may be and what is checked. Blocks know the lines that made them.
    """
    from onnx_wasm.heap import Runtime, use_runtime

    settings, checks = _settings(request)
    runtime = Runtime(trace_allocations=True, **settings)
    item = request.node
    item.stash[_runtime] = runtime
    growths = runtime.memory().growth_count
    try:
        with use_runtime(runtime):
            yield runtime
        if item.stash.get(_passed, False):
            _check(runtime, growths, checks)
    finally:
        del item.stash[_runtime]
        _close(runtime)


def _settings(request: pytest.FixtureRequest) -> tuple[dict[str, Any], dict[str, bool]]:
    """What the markers say, the closest having the last word: settings of the runtime, and what to check."""
    given: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers("wasm_heap"))):
        if marker.args:
            raise pytest.UsageError(f"wasm_heap takes keywords only, got {marker.args}")
        given.update(marker.kwargs)
    unknown = sorted(given.keys() - _OPTIONS - _CHECKS.keys())
    if unknown:
        raise pytest.UsageError(f"wasm_heap has no {unknown}; it is {MARKER}")
    checks = {name: bool(given.pop(name, default)) for name, default in _CHECKS.items()}
    try:
        from onnx_wasm.heap_policy import parse_bytes

        return {n: parse_bytes(v) if n in _SIZES and v is not None else v for n, v in given.items()}, checks
    except ValueError as error:
        raise pytest.UsageError(f"wasm_heap: {error}") from None


def _check(runtime: Runtime, growths: int, checks: dict[str, bool]) -> None:
    from onnx_wasm.errors import HeapCorruptionError

    gc.collect()
    if runtime.closed:
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
    if checks["no_leak"] and report:
        problems.append(str(report))
    elif problems:
        problems.append(str(runtime.snapshot()))
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)


def _close(runtime: Runtime) -> None:
    from onnx_wasm.errors import LeaseError

    with warnings.catch_warnings():
        # It has been said.
        warnings.simplefilter("ignore", ResourceWarning)
        # Where a traceback, or a fixture of larger scope, keeps a view, the runtime ends with that.
        with contextlib.suppress(LeaseError):
            runtime.close()
