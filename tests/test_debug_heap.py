"""Each fault that the debug heap is for, planted, found and named."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from inspect import currentframe
from typing import Any

import numpy as np
import pytest

import graphs
import onnx_wasm as ort
from graphs import FLOAT, model, node
from onnx_wasm import debug_heap
from onnx_wasm.words import counted

HERE = __file__.replace("\\", "\\\\")
X = np.ones((2, 16), np.float32)
MODES = pytest.mark.parametrize("planned", [True, False], ids=["planned", "unplanned"])


@pytest.fixture
def runtime() -> Iterator[ort.Runtime]:
    runtime = ort.Runtime(debug=True)
    yield runtime
    gc.collect()
    runtime.heap_check()
    assert (runtime.memory().used, runtime.memory().blocks) == (0, 0)
    runtime.close()


def place() -> str:
    """The line before the caller's, as reports show it."""
    frame = currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return f"{__file__}:{frame.f_back.f_lineno - 1}"


def poke(runtime: ort.Runtime, address: int, value: int = 1) -> None:
    """What a wrong pointer would do."""
    runtime.heap_view("uint8")[address] = value


def test_patterns_are_nan_in_every_type_that_has_one() -> None:
    for word in (debug_heap.FRESH, debug_heap.FREED, debug_heap.FENCE):
        words = np.full(4, word, np.uint32)
        for dtype in (np.float16, np.float32, np.float64):
            assert np.isnan(words.view(dtype)).any()
        assert np.isnan(words.view(np.float32)).all()
        assert np.isnan(words.view(np.float64)).all()


@MODES
def test_a_model_computes_the_same_in_a_debug_heap(runtime: ort.Runtime, planned: bool) -> None:
    data = graphs.mlp(2)
    with (
        ort.Runtime() as plain,
        ort.InferenceSession.create(data, runtime=plain, enable_mem_pattern=planned) as session,
    ):
        expected = session.run({"x": X})["y"].get_data(release_data=True)
    with ort.InferenceSession.create(data, runtime=runtime, enable_mem_pattern=planned) as session:
        for _ in range(3):
            got = session.run({"x": X})["y"].get_data(release_data=True)
            assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("nbytes", [1, 2, 3, 4, 63, 64, 65, 100, 4096])
@pytest.mark.parametrize("at", [-64, -1, 0, 1, 63])
def test_a_write_outside_a_block(runtime: ort.Runtime, nbytes: int, at: int) -> None:
    pointer = runtime.malloc(nbytes)
    made = place()
    before, behind = pointer + at if at < 0 else None, pointer + nbytes + at
    poke(runtime, behind if before is None else before)
    distance = -at if at < 0 else at + 1
    what = "before its start" if at < 0 else "past its end"
    with pytest.raises(ort.HeapCorruptionError) as caught:
        runtime.heap_check()
    assert str(caught.value) == (
        f"write {what}, {counted(distance, 'byte')} from it and 1 in all: "
        f"block of {counted(nbytes, 'byte')} at {pointer:#x} "
        f"(user of malloc), made at {made}"
    )
    runtime.heap_check()  # it is said once
    poke(runtime, behind if before is None else before)
    with pytest.raises(ort.HeapCorruptionError, match=what):
        runtime.free(pointer)  # also found here, and freed all the same


def test_a_write_into_the_block_is_none(runtime: ort.Runtime) -> None:
    pointer = runtime.malloc(100)
    for at in (0, 50, 99):
        poke(runtime, pointer + at)
    runtime.heap_check()
    runtime.free(pointer)


def test_a_double_free(runtime: ort.Runtime) -> None:
    pointer = runtime.malloc(100)
    made = place()
    runtime.free(pointer)
    freed = place()
    with pytest.raises(ort.HeapPointerError) as caught:
        runtime.free(pointer)
    again = place()
    assert str(caught.value) == (
        f"double free: block of 100 bytes at {pointer:#x} (user of malloc), made at {made}, freed at {freed}, "
        f"now again at {again}"
    )


def test_a_double_free_after_quarantine() -> None:
    with ort.Runtime(debug=True, quarantine=0) as runtime:
        pointer = runtime.malloc(100)
        runtime.free(pointer)
        with pytest.raises(ort.HeapPointerError, match=rf"double free: block of 100 bytes at {pointer:#x}"):
            runtime.free(pointer)


def test_foreign_pointers(runtime: ort.Runtime) -> None:
    pointer = runtime.malloc(64)
    with pytest.raises(
        ort.HeapPointerError, match=rf"foreign pointer {pointer + 16:#x}.*: 16 bytes into the block of 64"
    ):
        runtime.free(pointer + 16)
    with pytest.raises(ort.HeapPointerError, match=r"foreign pointer 0x3039.*: no block was ever there"):
        runtime.free(12345)
    with ort.Tensor("float32", X, runtime=runtime) as tensor:
        with pytest.raises(ort.HeapPointerError, match=r"user, Tensor.* is not malloc's; dispose of its owner"):
            runtime.free(tensor.address)
        np.testing.assert_array_equal(tensor.data, X)
    runtime.free(0)
    runtime.free(pointer)


def test_pointers_without_a_debug_heap() -> None:
    with ort.Runtime() as runtime:
        pointer = runtime.malloc(64)
        runtime.free(pointer)
        for bad in (pointer, pointer + 8, 12345):
            with pytest.raises(ort.HeapPointerError, match=rf"free of {bad:#x}: no block begins there"):
                runtime.free(bad)
        runtime.heap_check()
        assert runtime.memory().used == 0
        with pytest.raises(MemoryError, match="cannot hold 4,294,967,296 bytes for malloc"):
            runtime.malloc(1 << 32)
        with pytest.raises(ValueError, match="a block of -5 bytes"):
            runtime.malloc(-5)


def test_a_write_through_a_null_pointer(runtime: ort.Runtime) -> None:
    """What onnxruntime-web does with an input for which memory does not suffice."""
    with pytest.raises(MemoryError):
        runtime.malloc(1 << 32)
    runtime.heap_view("float32")[0:4] = 1.0
    with pytest.raises(ort.HeapCorruptionError, match="write through a null pointer: 8 bytes from address 2 on"):
        runtime.heap_check()
    runtime.heap_check()


def test_a_write_after_free(runtime: ort.Runtime) -> None:
    pointer = runtime.malloc(100)
    runtime.free(pointer)
    poke(runtime, pointer + 99)
    with pytest.raises(
        ort.HeapCorruptionError, match=rf"write after free, at offset .*block of 100 bytes at {pointer:#x}"
    ):
        runtime.heap_check()
    runtime.heap_check()


def test_reading_after_dispose(runtime: ort.Runtime) -> None:
    tensor = ort.Tensor("float32", X, runtime=runtime)
    made = place()
    view = tensor.data
    looked = place()
    part, copy = view[1:, ::2], view.copy()
    tensor.dispose()
    disposed = place()
    with pytest.raises(ort.UseAfterDisposeError) as caught:
        view.sum()
    assert str(caught.value) == (
        f"use after dispose: a view of 128 bytes at {caught.value.args[0].split(' at ')[1].split()[0]} (user, Tensor, "
        f"made at {made}), disposed of at {disposed}; the view was made at {looked}"
    )
    uses: list[Any] = [
        lambda: view[0, 0],
        lambda: view.__setitem__((0, 0), 1),
        lambda: part + 1,
        lambda: np.exp(part),
        lambda: np.concatenate([X, view]),
        lambda: np.where(X > 0, part[0, 0], 0),
        lambda: view.tolist(),
        lambda: view.tobytes(),
        lambda: float(view[:1, :1].reshape(())),
        lambda: repr(view),
        lambda: [*view],
        lambda: view.astype(np.float64),
        lambda: np.add(X, X, out=view),
    ]
    for use in uses:
        with pytest.raises(ort.UseAfterDisposeError, match="use after dispose"):
            use()
    assert np.isnan(np.asarray(view)).all()  # what gets past it
    np.testing.assert_array_equal(copy, X)
    with pytest.raises(ort.DisposedError, match=r"The tensor is disposed: dispose\(\) was called at .*:\d+\."):
        _ = tensor.data


def test_writing_after_dispose_past_the_view(runtime: ort.Runtime) -> None:
    tensor = ort.Tensor("float32", X, runtime=runtime)
    view = tensor.data
    tensor.dispose()
    disposed = place()
    np.asarray(view)[1, 0] = 3
    with pytest.raises(
        ort.HeapCorruptionError, match="write after dispose, through an old view, at offset 64"
    ) as caught:
        runtime.heap_check()
    assert f"disposed of at {disposed}, views made at {__file__}:" in str(caught.value)


def test_a_live_view_is_an_array_like_any_other(runtime: ort.Runtime) -> None:
    with ort.Tensor("float32", X, runtime=runtime) as tensor:
        view = tensor.data
        view += 1
        assert type(view) is debug_heap.CheckedView
        view[0] *= 3
        assert (view.sum(), view.T.shape, view.mean(), np.stack([view, X]).shape) == (128, (16, 2), 4, (2, 2, 16))
        assert type(view + 1) is np.ndarray
        np.testing.assert_array_equal(tensor.data, [[6] * 16, [2] * 16])
        out = np.multiply(view, 2, out=view)
        assert out is view
        assert np.shares_memory(np.asarray(view), view)


def test_a_tensor_that_is_collected_leaves_its_view_alone(runtime: ort.Runtime) -> None:
    with pytest.warns(ResourceWarning, match="never disposed"):
        view = ort.Tensor("float32", X, runtime=runtime).data
    np.testing.assert_array_equal(view, X)


@MODES
def test_a_kernel_that_writes_past_its_output_is_named(runtime: ort.Runtime, planned: bool) -> None:
    """The record of one node is given an element too many to write."""
    data = model(
        [node("Neg", ["x"], ["a"]), node("Abs", ["a"], ["b"]), node("Neg", ["b"], ["y"])], {"x": (FLOAT, [64])}, ["y"]
    )
    with ort.InferenceSession.create(data, runtime=runtime, enable_mem_pattern=planned) as session:
        x = np.arange(64, dtype=np.float32)
        session.run({"x": x})["y"].dispose()
        [block] = [b for b in runtime.blocks() if b.tag == "tape"]
        words = runtime.heap_view("uint32")
        tape = words[block.address // 4 : (block.address + block.nbytes) // 4]
        counts = np.flatnonzero(tape == 64)
        assert counts.size
        for at in counts[-1:]:
            words[block.address // 4 + int(at)] = 65
        with pytest.raises(ort.HeapCorruptionError, match="write past its end, 4 bytes from it and 1 in all") as caught:
            session.run({"x": x})
        # A negation of the guard, which changes the sign of its NaN.
        assert str(caught.value).startswith('Neg "y" (node 2) (kernel neg_f32): ')
        for at in counts[-1:]:
            words[block.address // 4 + int(at)] = 64
        np.testing.assert_array_equal(session.run({"x": x})["y"].get_data(release_data=True), -x)


@MODES
def test_each_run_checks_the_heap(runtime: ort.Runtime, planned: bool) -> None:
    with ort.InferenceSession.create(graphs.mlp(2), runtime=runtime, enable_mem_pattern=planned) as session:
        session.run({"x": X})["y"].dispose()
        weights = next(b for b in runtime.blocks() if b.tag == "weights")
        poke(runtime, weights.address + weights.nbytes + 5)
        with pytest.raises(ort.HeapCorruptionError, match=r"write past its end, 6 bytes from it.*\(weights of session"):
            session.run({"x": X})
        session.run({"x": X})["y"].dispose()


def test_uninitialised_memory_is_nan(runtime: ort.Runtime) -> None:
    pointer = runtime.malloc(16)
    assert np.isnan(runtime.heap_view("float32")[pointer // 4 : pointer // 4 + 4]).all()
    runtime.free(pointer)
    assert np.isnan(runtime.heap_view("float32")[pointer // 4 : pointer // 4 + 4]).all()


def test_quarantine_keeps_addresses_from_being_used_again(runtime: ort.Runtime) -> None:
    seen = set()
    for _ in range(50):
        pointer = runtime.malloc(1000)
        assert pointer not in seen
        seen.add(pointer)
        runtime.free(pointer)
    assert runtime.memory().quarantine > 50 * 1000
    assert runtime.memory().used == 0


def test_quarantine_ends_at_its_limit_and_before_memory_does() -> None:
    with ort.Runtime(debug=True, quarantine=4096) as runtime:
        for _ in range(50):
            runtime.free(runtime.malloc(1000))
            assert runtime.memory().quarantine <= 4096
    with ort.Runtime(debug=True, maximum=8 << 20, quarantine=1 << 30) as runtime:
        for _ in range(50):
            runtime.free(runtime.malloc(500_000))
        assert 0 < runtime.memory().quarantine <= 2 << 20
        # A failure that was asked for does not become a success by giving quarantine up.
        runtime.fail_allocation(1)
        with pytest.raises(MemoryError):
            runtime.malloc(100)


@MODES
def test_the_same_allocations_fail_as_without(planned: bool) -> None:
    failed = []
    for debug in (False, True):
        with ort.Runtime(debug=debug) as runtime:
            nth = 0
            while True:
                nth += 1
                runtime.fail_allocation(nth)
                try:
                    with ort.InferenceSession.create(
                        graphs.mlp(2), runtime=runtime, enable_mem_pattern=planned
                    ) as session:
                        session.run({"x": X})["y"].dispose()
                except MemoryError:
                    gc.collect()
                    assert runtime.memory().used == 0
                    runtime.heap_check()
                if runtime.fail_allocation(0):
                    break
            failed.append(nth - 1)
    assert failed[0] == failed[1] > 10


SCRIPT = """
import numpy as np, onnx_wasm as ort
runtime = ort.Runtime(trace_allocations=True)
tensor = ort.Tensor("float32", np.ones(4, np.float32), runtime=runtime)
view = tensor.data
"""


def test_what_is_never_disposed_is_named_at_exit() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "always::ResourceWarning", "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    assert "ResourceWarning: never disposed at exit: <Block 16 bytes at" in done.stderr
    assert "user, Tensor, made at <string>:4>" in done.stderr


def test_what_is_never_disposed_is_named_on_close() -> None:
    runtime = ort.Runtime(trace_allocations=True)
    session = ort.InferenceSession.create(graphs.mlp(2), runtime=runtime)
    made = place()
    tensor = session.run({"x": X})["y"]
    pointer = runtime.malloc(100)
    with pytest.warns(ResourceWarning, match="never disposed when its runtime was closed") as caught:
        runtime.close()
    text = str(caught[0].message)
    assert f"created at {made}" in text
    assert f"<Block 64 bytes at {runtime_address(text)}, output, {session._name} y, made at {__file__}:" in text
    assert f"<Block 100 bytes at {pointer:#x}, user, malloc, made at {__file__}:" in text
    assert caught[0].filename == __file__
    assert tensor.location == "none"


def runtime_address(text: str) -> str:
    return text.split("<Block 64 bytes at ")[1].split(",")[0]


def test_nothing_is_said_on_close_where_all_was_disposed(recwarn: pytest.WarningsRecorder) -> None:
    with ort.Runtime() as runtime, ort.InferenceSession.create(graphs.mlp(2), runtime=runtime) as session:
        session.run({"x": X})["y"].dispose()
    tensors = []

    def fail() -> None:
        with ort.Runtime() as runtime:
            tensors.append(ort.Tensor("float32", X, runtime=runtime))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert tensors[0].location == "none"
    assert not [w for w in recwarn if w.category is ResourceWarning]


def test_a_view_that_is_kept_is_named_on_close() -> None:
    runtime = ort.Runtime(debug=True)
    tensor = ort.Tensor("float32", X, runtime=runtime)
    view = tensor.data
    looked = place()
    tensor.dispose()
    with pytest.raises(BufferError, match="1 numpy view of this heap is alive") as caught:
        runtime.close()
    assert f"made at {looked}" in str(caught.value)
    assert runtime.leaks().tensors[0].views == (looked,)
    del view
    runtime.close()


def test_stale_views_are_no_input(runtime: ort.Runtime) -> None:
    tensor = ort.Tensor("float32", X, runtime=runtime)
    view = tensor.data
    tensor.dispose()
    with ort.InferenceSession.create(graphs.mlp(2), runtime=runtime) as session:
        with pytest.raises(ort.UseAfterDisposeError, match="use after dispose: a view of 128 bytes"):
            session.run({"x": view})
        with pytest.raises(ort.UseAfterDisposeError):
            ort.Tensor("float32", view, runtime=runtime)
        session.run({"x": X})["y"].dispose()


def test_without_a_debug_heap_a_tensor_may_come_back_by_its_view() -> None:
    with ort.Runtime(trace_allocations=True) as runtime:
        tensor = ort.Tensor("float32", X, runtime=runtime)
        view = tensor.data
        tensor.dispose()
        again = ort.Tensor("float32", view, runtime=runtime)
        np.testing.assert_array_equal(again.data, X)
        assert runtime.leaks().tensors[0].disposed == ""
        del view
        again.dispose()


def test_what_is_found_when_something_else_happens_is_told_by_the_next_check(runtime: ort.Runtime) -> None:
    """Freeing a block that was written past, in a finaliser or as another call leaves, must not break that call."""
    tensor = ort.Tensor("float32", X, runtime=runtime)
    poke(runtime, tensor.address + 128)
    with pytest.warns(ResourceWarning):
        del tensor
    pointer = runtime.malloc(100)
    with pytest.raises(ort.HeapCorruptionError, match=r"write past its end, 1 byte from it.*\(user of Tensor\)"):
        runtime.heap_check()
    runtime.free(pointer)


def test_a_tensor_is_disposed_of_although_it_was_written_past(runtime: ort.Runtime) -> None:
    runtime.start_events()
    tensor = ort.Tensor("float32", X, runtime=runtime)
    poke(runtime, tensor.address + 128)
    with pytest.raises(ort.HeapCorruptionError, match="write past its end"):
        tensor.dispose()
    assert tensor.location == "none"
    assert [e.kind for e in runtime.events] == ["alloc", "free"]
    assert runtime.forgotten == ()


def test_what_is_found_at_the_end_is_told_once_the_runtime_is_closed() -> None:
    runtime = ort.Runtime(debug=True)
    pointer = runtime.malloc(100)
    poke(runtime, pointer + 100)
    with pytest.raises(ort.HeapCorruptionError, match="write past its end"), pytest.warns(ResourceWarning):
        runtime.close()
    assert runtime.closed


@pytest.mark.parametrize("through", [np.asarray, memoryview])
def test_a_write_through_an_array_that_is_gone_before_anybody_looks(runtime: ort.Runtime, through: Any) -> None:
    tensor = ort.Tensor("float32", X, runtime=runtime)
    view = through(tensor.data)
    tensor.dispose()
    view[0, 0] = 3
    del view
    with pytest.raises(ort.HeapCorruptionError, match="write after dispose, through an old view, at offset 0"):
        runtime.heap_check()
