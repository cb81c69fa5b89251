"""Numbers with their nouns, alone and in what users read."""

from __future__ import annotations

import numpy as np
import pytest

import onnx_wasm as ort
from onnx_wasm.verdicts import forgotten_lines
from onnx_wasm.words import counted, meant, noun


def test_one_and_many() -> None:
    assert [counted(n, "block") for n in (0, 1, 2, 4096)] == ["0 blocks", "1 block", "2 blocks", "4,096 blocks"]
    assert (noun(1, "byte"), noun(-1, "byte")) == ("byte", "bytes")


def test_names_that_may_be_meant() -> None:
    assert meant("imgae", ["image", "mask"]) == "; did you mean 'image'?"
    assert meant("z", ["image", "mask"]) == ""
    assert meant("X", ["w", "x"]) == "; did you mean 'x'?"


def test_what_a_heap_says_of_one_thing() -> None:
    with ort.Runtime() as runtime:
        tensor = ort.Tensor("uint8", np.zeros(1, np.uint8), runtime=runtime)
        before = runtime.snapshot()
        assert "used 72 in 1 block, peak" in str(runtime.memory())
        assert "bytes, 1 block>" in repr(runtime)
        [block] = runtime.blocks()
        assert repr(block).startswith("<Block 1 byte at 0x")
        assert str(runtime.leaks()).splitlines()[0] == "leaked: 1 tensor (1 byte) never disposed"
        view = tensor.data
        with pytest.raises(ort.LeaseError, match=r"^1 numpy view of this heap is alive, .*; drop or copy it first$"):
            runtime.close()
        second = tensor.data
        with pytest.raises(ort.LeaseError, match=r"^2 numpy views of this heap are alive, .*; drop or copy them first"):
            runtime.close()
        del view, second
        tensor.dispose()
        assert "removed: 1 block, 1 byte\n             1 byte  at 0x" in str(before.diff(runtime.snapshot()))
        ort.Tensor("uint8", np.zeros(18 << 20, np.uint8), runtime=runtime).dispose()
        assert "(1 growth); used 0 in 0 blocks" in str(runtime.memory())
        assert forgotten_lines([]) == []
