"""Fixtures, and two ways to run all tests so that they find what threads would disturb.

With ONNX_WASM_TEST_THREADS=N every runtime has N threads, and shares all records that can be. With
ONNX_WASM_TEST_BACKWARDS=1 every record is run in up to 16 ranges of units, the last one first: a kernel that writes
past its units, or reads what others of them write, gives other results. (Tests that count calls fail then.)
"""

from __future__ import annotations

import os
import shutil
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import onnx_wasm as ort
import onnx_wasm.ops
import onnx_wasm.testing
from harness import Harness
from onnx_wasm import registry, tape
from onnx_wasm.engine import CANCEL, STATUS

pytest_plugins = ["pytester"]

EXAMPLES = Path(__file__).parent.parent / "examples"

THREADS = int(os.environ.get("ONNX_WASM_TEST_THREADS", "1"))
if THREADS > 1:
    ort.Runtime.__init__.__kwdefaults__["threads"] = THREADS  # type: ignore[misc]
    ort.env.wasm.num_threads = THREADS
    tape.SHARED_BYTES = 0


def backwards(runtime: ort.Runtime, start: int, end: int) -> int:
    """In place of `Runtime._execute`."""
    words = runtime._words
    while start < end:
        header, units = int(words[start // 4]), int(words[start // 4 + 1])
        worst, report = 0, None
        step = max(-(-units // 16), 1)
        if units < 2:
            worst = runtime._run(start, start + 4 * (header >> 16))
        elif words[CANCEL // 4]:
            return runtime._run(start, end)
        else:
            for begin in reversed(range(0, units, step)):
                if status := runtime._run_record(start, begin, min(begin + step, units)):
                    worst, report = status, runtime._bytes[STATUS:CANCEL].copy()
        if report is not None:
            runtime._bytes[STATUS:CANCEL] = report
        if worst:
            return worst
        start += 4 * (header >> 16)
    return 0


if os.environ.get("ONNX_WASM_TEST_BACKWARDS") == "1":
    ort.Runtime._execute = backwards  # type: ignore[method-assign]


@pytest.fixture(scope="session")
def harness() -> Harness:
    return Harness()


@pytest.fixture(scope="session")
def strict_harness() -> Harness:
    return Harness("strict")


@pytest.fixture(scope="session")
def operators() -> None:
    """All of them are imported: what a test with pytester imports first is imported once more by the next."""
    registry.load(onnx_wasm.ops)


@pytest.fixture
def project(operators: None, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project of somebody who tests with the plugin; it has ``examples/digits``."""
    shutil.copytree(EXAMPLES / "digits", pytester.path / "examples" / "digits")
    # Where the package runs from the checkout, processes in another folder must find it too.
    package = str(Path(onnx_wasm.__file__).parent.parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([package, os.environ.get("PYTHONPATH", "")]))
    # Where the package is installed pytest finds the plugin by itself. That of hypothesis takes seconds.
    found = entry_points(group="pytest11", name="pytest_onnx_wasm")
    # A fault handler that is set up after the engine takes its traps for crashes.
    plugin = "" if found else "-p pytest_onnx_wasm "
    monkeypatch.setenv("PYTEST_ADDOPTS", f"{plugin}-p no:hypothesispytest -p no:faulthandler")
    return pytester
