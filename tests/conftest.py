"""Fixtures. With ONNX_WASM_TEST_THREADS=N every runtime of the tests has N threads, and shares all records that can be."""

from __future__ import annotations

import os

import pytest

import onnx_wasm as ort
from harness import Harness
from onnx_wasm import tape

THREADS = int(os.environ.get("ONNX_WASM_TEST_THREADS", "1"))
if THREADS > 1:
    ort.Runtime.__init__.__kwdefaults__["threads"] = THREADS  # type: ignore[misc]
    ort.env.wasm.num_threads = THREADS
    tape.SHARED_BYTES = 0


@pytest.fixture(scope="session")
def harness() -> Harness:
    return Harness()


@pytest.fixture(scope="session")
def strict_harness() -> Harness:
    return Harness("strict")
