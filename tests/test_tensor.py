"""Tensors: what goes in comes out, views hold their memory, dispose gives it back."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Iterator

import numpy as np
import pytest

import graphs
import onnx_wasm as ort


@pytest.fixture
def runtime() -> Iterator[ort.Runtime]:
    runtime = ort.Runtime()
    yield runtime
    gc.collect()
    runtime.heap_check()
    runtime.close()


TYPES = [
    "float32",
    "float64",
    "float16",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "bool",
]


@pytest.mark.parametrize("type", TYPES)
def test_contents_survive(runtime: ort.Runtime, type: str) -> None:
    array = np.arange(24).astype(type).reshape(2, 3, 4)
    with ort.Tensor(type, array, [2, 3, 4], runtime=runtime) as tensor:
        assert (tensor.type, tensor.dims, tensor.size) == (type, (2, 3, 4), 24)
        assert tensor.address % 64 == 0
        np.testing.assert_array_equal(tensor.data, array)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24, dtype=np.float32).reshape(4, 6)[::2, ::-1],
        np.arange(24, dtype=np.float32).reshape(4, 6).T,
        np.arange(24, dtype=">f4").reshape(4, 6),
        np.asfortranarray(np.arange(24, dtype=np.float32).reshape(4, 6)),
        np.broadcast_to(np.float32(3), (2, 5)),
        np.zeros((0, 3), np.float32),
        np.float32(7),
        np.array(7, np.float32),
    ],
    ids=["strided", "transposed", "big-endian", "fortran", "broadcast", "empty", "scalar", "rank 0"],
)
def test_any_layout_is_copied_right(runtime: ort.Runtime, array: np.ndarray) -> None:
    with ort.Tensor("float32", array, runtime=runtime) as tensor:
        assert tensor.dims == np.shape(array)
        np.testing.assert_array_equal(tensor.data, array)
        assert tensor.data.dtype == np.float32


def test_a_read_only_array_is_copied(runtime: ort.Runtime) -> None:
    array = np.arange(4, dtype=np.float32)
    array.flags.writeable = False
    with ort.Tensor("float32", array, runtime=runtime) as tensor:
        tensor.data[0] = 9
        assert array[0] == 0


def test_numbers_are_converted_and_typed(runtime: ort.Runtime) -> None:
    with ort.Tensor("int64", [1, 2, 3, 4], [2, 2], runtime=runtime) as tensor:
        np.testing.assert_array_equal(tensor.data, [[1, 2], [3, 4]])
    with ort.Tensor([0.5, 1.5], [2], runtime=runtime) as tensor:
        assert tensor.type == "float32"
    with ort.Tensor(np.arange(3, dtype=np.int16), runtime=runtime) as tensor:
        assert tensor.type == "int16"


@pytest.mark.parametrize(
    ("args", "kind", "message"),
    [
        (("float31", [1.0]), TypeError, "unknown tensor type 'float31'"),
        (("float32", np.zeros(3)), TypeError, "takes an array of float32, got float64"),
        (("float32", np.zeros(3, np.float32), [4]), ValueError, "has 4 elements, the data has 3"),
        (("float32", np.zeros(3, np.float32), [-3]), ValueError, "must not be negative"),
        (("float32", np.zeros(3, np.float32), [3.5]), TypeError, "sequence of integers"),
        (("float32", np.zeros(3, np.float32), [float("nan")]), TypeError, "sequence of integers"),
        (("float32", np.zeros(3, np.float32), 3), TypeError, "sequence of integers"),
        (("uint8", [300], [1]), TypeError, "cannot become a uint8 tensor"),
        (("float32", ["a"], [1]), TypeError, "cannot become a float32 tensor"),
        (("float32",), TypeError, "None is no number"),
        (("float32", [1.0, None]), TypeError, "None is no number"),
        (("float32", np.zeros(0, np.float32), [1 << 40, 1 << 40]), ValueError, "elements"),
    ],
)
def test_what_does_not_fit_is_refused(runtime: ort.Runtime, args: tuple, kind: type, message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        ort.Tensor(*args, runtime=runtime)
    assert isinstance(caught.value, ort.OnnxWasmError)
    assert runtime.memory().used == 0


def test_a_view_of_the_heap_is_used_in_place(runtime: ort.Runtime) -> None:
    with ort.Tensor("float32", np.arange(12, dtype=np.float32), [3, 4], runtime=runtime) as tensor:
        row = tensor.data[1:]
        used = runtime.memory().used
        part = ort.Tensor("float32", row, [8], runtime=runtime)
        assert part.address == tensor.address + 16
        assert runtime.memory().used == used
        part.data[...] = -1
        assert (row == -1).all()
        del row
        part.dispose()


def test_reshape_shares_memory_and_each_is_disposed_for_itself(runtime: ort.Runtime) -> None:
    tensor = ort.Tensor("float32", np.arange(6, dtype=np.float32), [6], runtime=runtime)
    other = tensor.reshape([2, 3])
    tensor.dispose()
    assert runtime.memory().tensors == 1
    np.testing.assert_array_equal(other.data, [[0, 1, 2], [3, 4, 5]])
    with pytest.raises(ValueError, match="cannot become"):
        other.reshape([4])
    other.dispose()
    assert runtime.memory().used == 0


def test_a_disposed_tensor_is_dead_but_its_views_live(runtime: ort.Runtime) -> None:
    tensor = ort.Tensor("float32", np.arange(6, dtype=np.float32), runtime=runtime)
    view = tensor.data
    derived = view[2:4].reshape(2, 1)
    tensor.dispose()
    tensor.dispose()
    assert tensor.location == "none"
    for use in (lambda: tensor.data, lambda: tensor.reshape([6]), lambda: tensor.address, lambda: tensor.get_data()):
        with pytest.raises(ort.DisposedError, match="disposed"):
            use()
    assert runtime.memory().used > 0
    del view
    assert runtime.memory().used > 0
    np.testing.assert_array_equal(derived, [[2], [3]])
    del derived
    assert runtime.memory().used == 0


def test_get_data_with_release_copies_and_disposes(runtime: ort.Runtime) -> None:
    tensor = ort.Tensor("float32", [1.0, 2.0], runtime=runtime)
    copy = tensor.get_data(release_data=True)
    assert tensor.location == "none"
    assert runtime.memory().used == 0
    np.testing.assert_array_equal(copy, [1, 2])


def test_closing_with_live_views_is_refused() -> None:
    runtime = ort.Runtime()
    tensor = ort.Tensor("float32", [1.0], runtime=runtime)
    view = tensor.data
    with pytest.raises(BufferError, match="1 numpy view of"):
        runtime.close()
    assert view[0] == 1
    del view
    runtime.close()
    runtime.close()
    assert tensor.location == "none"
    with pytest.raises(ort.DisposedError, match="closed"):
        _ = tensor.data
    with pytest.raises(ort.DisposedError, match="closed"):
        runtime.memory()
    with pytest.raises(ort.DisposedError, match="closed"):
        ort.Tensor("float32", [1.0], runtime=runtime)


def test_a_tensor_that_nobody_disposed_warns_and_gives_its_memory_back(runtime: ort.Runtime) -> None:
    tensor = ort.Tensor("float32", [1.0], runtime=runtime)
    with pytest.warns(ResourceWarning, match="never disposed"):
        del tensor
    assert runtime.memory().used == 0


def test_a_view_survives_growth(runtime: ort.Runtime) -> None:
    first = ort.Tensor("float32", np.arange(1000, dtype=np.float32), runtime=runtime)
    view = first.data
    before = runtime.memory().linear
    second = ort.Tensor("uint8", np.ones(64 << 20, np.uint8), runtime=runtime)
    assert runtime.memory().linear > before
    view += 1
    np.testing.assert_array_equal(first.data, np.arange(1, 1001))
    del view
    first.dispose()
    second.dispose()


def test_out_of_memory_names_the_request_and_the_biggest_holders() -> None:
    with ort.Runtime(maximum=24 << 20) as runtime:
        holder = ort.Tensor("uint8", np.zeros(8 << 20, np.uint8), runtime=runtime)
        with pytest.raises(
            MemoryError, match=r"12,582,912 bytes for Tensor \(user\).*Biggest holders: user of Tensor 8,388,608"
        ):
            ort.Tensor("uint8", np.zeros(12 << 20, np.uint8), runtime=runtime)
        runtime.heap_check()
        holder.dispose()
        ort.Tensor("uint8", np.zeros(8 << 20, np.uint8), runtime=runtime).dispose()
        assert runtime.memory().used == 0


def test_views_that_die_in_other_threads_give_their_blocks_back(runtime: ort.Runtime) -> None:
    def work(seed: int) -> None:
        chance = np.random.default_rng(seed)
        for _ in range(200):
            tensor = ort.Tensor("float32", np.full(int(chance.integers(1, 500)), seed, np.float32), runtime=runtime)
            view = tensor.data
            tensor.dispose()
            assert (view == seed).all()
            del view

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert runtime.memory().used == 0


def test_a_block_that_is_given_back_twice_is_freed_once(runtime: ort.Runtime) -> None:
    """As when its holder and its last view go at once in two threads, and its place is taken between the two."""
    first = runtime.allocate(1000)
    token = first.hold()
    first.drop(token)
    second = runtime.allocate(1000)
    assert second.address == first.address
    first.drop(token)
    assert runtime.memory().blocks == len(runtime.blocks()) == 1
    with pytest.raises(ort.DisposedError, match="given back"):
        runtime.view(first, (10,), np.dtype(np.uint8))
    second.free()
    assert runtime.memory().used == 0


def test_a_view_of_any_block_keeps_it(runtime: ort.Runtime) -> None:
    with ort.InferenceSession.create(graphs.mlp(2), runtime=runtime):
        (weights, *_) = [b for b in runtime.blocks() if b.tag == "weights"]
        view = runtime.view(weights, (weights.nbytes // 4,), np.dtype(np.float32))
        before = view.copy()
    assert runtime.blocks() == [weights]
    np.testing.assert_array_equal(view, before)
    del view
    assert runtime.memory().used == 0


def test_what_finalisers_dispose_of_in_the_middle_of_a_call_goes_when_it_ends(runtime: ort.Runtime) -> None:
    tensor = ort.Tensor("float32", [1.0], runtime=runtime)
    session = ort.InferenceSession.create(graphs.mlp(2), runtime=runtime)
    session.run({"x": np.ones((2, 16), np.float32)})["y"].dispose()
    with runtime._gate.lock:
        tensor.dispose()
        session.dispose()
    runtime._gate.try_drain()
    assert runtime.memory().used == 0
    assert runtime.memory().sessions == 0


def test_an_array_that_is_not_aligned_in_the_heap_is_copied(runtime: ort.Runtime) -> None:
    with ort.Tensor("uint8", np.arange(16, dtype=np.uint8), runtime=runtime) as tensor:
        odd = tensor.data[1:9].view(np.float32)
        with ort.Tensor("float32", odd, runtime=runtime) as copy:
            assert copy.address % 64 == 0
            np.testing.assert_array_equal(copy.data, odd)
        del odd


def test_strings_lie_outside_the_heap(runtime: ort.Runtime) -> None:
    tensor = ort.Tensor("string", ["a", "b"], [1, 2], runtime=runtime)
    assert (tensor.location, tensor.data.tolist()) == ("cpu", [["a", "b"]])
    assert runtime.memory().used == 0
    for use in (lambda: tensor.address, lambda: tensor.runtime):
        with pytest.raises(TypeError, match="outside the heap"):
            use()
    tensor.dispose()
    assert tensor.location == "none"


def test_numpy_reads_a_tensor_as_an_array(runtime: ort.Runtime) -> None:
    with ort.Tensor("int32", [1, 2, 3], runtime=runtime) as tensor:
        assert np.asarray(tensor).tolist() == [1, 2, 3]
        assert np.asarray(tensor, np.float64).dtype == np.float64


@pytest.mark.parametrize(
    "settings",
    [
        {"initial": 1 << 20},
        {"initial": 32 << 20, "maximum": 16 << 20},
        {"heap_base": 6303875},
        {"heap_base": 0},
        {"memory_maximum": 1 << 33},
        {"geometric_step": -1.0},
        {"linear_step": -2},
        {"variant": "fast"},
    ],
)
def test_impossible_runtimes_are_refused(settings: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        ort.Runtime(**settings)


def test_the_engine_limit_stops_growth_before_the_maximum() -> None:
    with ort.Runtime(memory_maximum=20 << 20) as runtime:
        with pytest.raises(MemoryError):
            ort.Tensor("uint8", np.zeros(16 << 20, np.uint8), runtime=runtime)
        assert runtime.memory().linear == 16 << 20
        assert runtime.memory().maximum == 20 << 20


def test_blocks_know_the_line_that_made_them() -> None:
    with warnings.catch_warnings(), ort.Runtime(trace_allocations=True) as runtime:
        tensor = ort.Tensor("float32", [1.0], runtime=runtime)
        (block,) = runtime.blocks()
        assert block.site.startswith(f"{__file__}:")
        tensor.dispose()


def fail_with_a_view_alive() -> None:
    with ort.Runtime() as runtime:
        view = ort.Tensor("float32", [1.0], runtime=runtime).data
        _ = view[0] + 1 / 0


def test_an_error_is_not_hidden_by_the_views_in_its_frames() -> None:
    with pytest.raises(ZeroDivisionError):
        fail_with_a_view_alive()


def test_small_maxima_need_no_initial_size() -> None:
    with ort.Runtime(maximum=12 << 20) as runtime:
        assert runtime.memory().linear == 12 << 20
        assert repr(runtime) == "<Runtime 12,582,912 of at most 12,582,912 bytes, 0 blocks>"
    assert repr(runtime) == "<Runtime (closed)>"
    with pytest.raises(ValueError, match="more than the 4 GiB"):
        ort.Runtime(maximum=8 << 30)


def test_the_peak_can_begin_anew(runtime: ort.Runtime) -> None:
    ort.Tensor("uint8", np.zeros(1 << 20, np.uint8), runtime=runtime).dispose()
    assert runtime.memory().peak > 1 << 20
    runtime.reset_peak()
    assert runtime.memory().peak == 0
