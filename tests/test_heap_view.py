"""Typed arrays over the heap, as a page has them, when the memory grows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import onnx_wasm as ort

MIB = 1 << 20


@pytest.fixture
def runtime() -> Iterator[ort.Runtime]:
    with ort.Runtime() as runtime:
        yield runtime


def test_a_view_sees_tensors_at_their_addresses(runtime: ort.Runtime) -> None:
    with ort.Tensor("float32", [1.0, 2.0, 3.0], runtime=runtime) as tensor:
        view = runtime.heap_view("float32")
        at = tensor.address // 4
        assert len(view) == 4 * MIB
        assert view[at : at + 3].tolist() == [1, 2, 3]
        view[at + 1] = 9
        assert tensor.data.tolist() == [1, 9, 3]
        with pytest.raises(IndexError):
            view[4 * MIB]


def test_a_view_of_shared_memory_keeps_its_length_when_it_grows(runtime: ort.Runtime) -> None:
    view = runtime.heap_view("uint8")
    with ort.Tensor("uint8", np.full(20 * MIB, 7, np.uint8), runtime=runtime) as tensor:
        assert runtime.memory().linear > 16 * MIB
        assert len(view) == 16 * MIB
        assert view[tensor.address] == 7
        with pytest.raises(IndexError):
            view[tensor.address + 20 * MIB - 1]
        assert runtime.heap_view("uint8")[tensor.address + 20 * MIB - 1] == 7


def test_a_view_of_unshared_memory_is_detached_when_it_grows(runtime: ort.Runtime) -> None:
    view = runtime.heap_view("int32", shared=False)
    assert (len(view), view.detached) == (4 * MIB, False)
    with ort.Tensor("uint8", np.zeros(20 * MIB, np.uint8), runtime=runtime):
        assert (len(view), view.detached) == (0, True)
        with pytest.raises(TypeError, match=r"from 16,777,216 to .* bytes: this view of unshared memory is detached"):
            view[0]
        with pytest.raises(ort.DetachedViewError):
            view[0] = 1
        assert repr(view) == "<HeapView int32 of 0 elements, detached>"


def test_types_without_typed_arrays_are_refused(runtime: ort.Runtime) -> None:
    for type in ("string", "int4", "float31"):
        with pytest.raises(TypeError):
            runtime.heap_view(type)
