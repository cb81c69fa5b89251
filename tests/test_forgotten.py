"""What finalisers leave behind for somebody to read: what was never disposed of, and faults of the debug heap."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphs
import onnx_wasm as ort
from onnx_wasm.verdicts import BlockInfo, SessionInfo

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def numbers(count: int, runtime: ort.Runtime) -> ort.Tensor:
    return ort.Tensor("float32", np.zeros(count, np.float32), runtime=runtime)


def test_tensors_and_sessions_that_python_collected() -> None:
    with ort.Runtime(trace_allocations=True) as runtime:
        with numbers(1, runtime), ort.InferenceSession.create(graphs.mlp(), runtime=runtime):
            pass
        assert runtime.forgotten == ()
        numbers(3, runtime)
        ort.InferenceSession.create(graphs.mlp(), runtime=runtime)
        gc.collect()
        forgotten = runtime.forgotten
        assert len(forgotten) == 2
        tensor, session = forgotten
        assert isinstance(tensor, BlockInfo)
        assert (tensor.nbytes, tensor.tag, tensor.owner) == (12, "user", "Tensor")
        assert re.fullmatch(rf"{re.escape(__file__)}:\d+", tensor.site)
        assert isinstance(session, SessionInfo)
        # Two layers, 16 x 32 + 32 and 32 x 8 + 8 floats.
        assert (session.blocks, session.nbytes) == (4, 4 * (544 + 264))
        assert runtime.memory().used == 0


def test_what_holds_no_memory_is_not_forgotten() -> None:
    with ort.Runtime() as runtime:
        numbers(0, runtime)
        ort.Tensor("string", ["a"], runtime=runtime)
        ort.InferenceSession.create(graphs.mlp(), runtime=runtime, enable_lazy_initialization=True)
        gc.collect()
        assert runtime.forgotten == ()


def test_the_latest_are_kept() -> None:
    with ort.Runtime() as runtime:
        for count in range(1, 301):
            numbers(count, runtime)
        assert [t.nbytes // 4 for t in runtime.forgotten] == list(range(45, 301))
    assert len(runtime.forgotten) == 256


def test_what_dies_with_its_runtime_is_not_forgotten() -> None:
    runtime = ort.Runtime()
    tensor = numbers(1, runtime)
    runtime.close()
    del tensor
    assert runtime.forgotten == ()


def drop_tensor(runtime: ort.Runtime) -> None:
    tensor = numbers(2, runtime)
    write_past(runtime, tensor.address, 8)


def drop_view(runtime: ort.Runtime) -> None:
    tensor = numbers(2, runtime)
    view = tensor.data
    write_past(runtime, tensor.address, 8)
    tensor.dispose()
    del view


def drop_session(runtime: ort.Runtime) -> None:
    session = ort.InferenceSession.create(graphs.mlp(), runtime=runtime)
    block = min((b for b in runtime.blocks() if b.tag == "weights"), key=lambda b: b.nbytes)
    write_past(runtime, block.address, block.nbytes)
    del session


def write_past(runtime: ort.Runtime, address: int, nbytes: int) -> None:
    runtime.heap_view("uint8")[address + nbytes] = 1


@pytest.mark.parametrize(
    ("drop", "block"),
    [
        (drop_tensor, r"block of 8 bytes at 0x\w+ \(user of Tensor\)"),
        (drop_view, r"block of 8 bytes at 0x\w+ \(user of Tensor\)"),
        (drop_session, r"block of 32 bytes at 0x\w+ \(weights of session \d+\)"),
    ],
)
def test_what_a_finaliser_finds_is_told_by_the_next_check(drop: Callable[[ort.Runtime], Any], block: str) -> None:
    with ort.Runtime(debug=True) as runtime:
        drop(runtime)
        gc.collect()
        with pytest.raises(ort.HeapCorruptionError) as caught:
            runtime.heap_check()
        assert re.match(rf"write past its end, 1 byte from it and 1 in all: {block}, made at ", str(caught.value))
        assert ", freed at " in str(caught.value)
        assert len(re.findall("write past", str(caught.value))) == 1
        # It is told once, and the memory has been given back.
        runtime.heap_check()
        assert runtime.memory().used == 0


def test_an_explicit_dispose_raises_at_once() -> None:
    with ort.Runtime(debug=True) as runtime:
        tensor = numbers(2, runtime)
        write_past(runtime, tensor.address, 8)
        with pytest.raises(ort.HeapCorruptionError, match="write past its end"):
            tensor.dispose()
        runtime.heap_check()
        assert runtime.memory().used == 0
        tensor.dispose()
