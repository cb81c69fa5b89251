"""Fixtures, and two ways to run all tests so that they find what threads would disturb.

With ONNX_WASM_TEST_THREADS=N every runtime has N threads, and shares all records that can be. With
ONNX_WASM_TEST_BACKWARDS=1 every record is run in up to 16 ranges of units, the last one first: a kernel that writes
past its units, or reads what others of them write, gives other results. (Tests that count calls fail then.)
"""

from __future__ import annotations

import os

import pytest

import onnx_wasm as ort
from harness import Harness
from onnx_wasm import tape
from onnx_wasm.engine import CANCEL, STATUS

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
