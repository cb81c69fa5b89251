"""A run like the one before it, without the checks that the one before has passed.

Of one plan, fed arrays or tensors of the same types and shapes, a run changes little: the contents or addresses of the
inputs, and the outputs' blocks. Whatever else differs goes the long way (`Program.run`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import dtypes
from .blocks import Block
from .context import Value
from .dtypes import DType
from .feeds import Feeds
from .plan import FOREVER
from .program import Program, Segment
from .tensor import Tensor

Array = NDArray[Any]


@dataclass(slots=True, eq=False)
class _Input:
    """Where an input's address goes, and what it must be."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    patches: list[tuple[int, int]]
    """(word of all memory, bytes to add) that hold its address."""
    staging: Block | None
    view: Array | None
    """Of the staging block, where an array is copied to."""


@dataclass(slots=True, eq=False)
class _Output:
    name: str
    word: int
    """Of all memory: where the tape leaves the block."""
    nbytes: int
    owner: str
    dtype: DType
    shape: tuple[int, ...]


class Express:
    """The short way for one program of one segment."""

    def __init__(self, program: Program, inputs: list[_Input], outputs: list[_Output]) -> None:
        self._program = program
        self._segment = program.root
        self._core = program._core
        self._runtime = program._core.runtime
        self._arena = self._runtime._arena
        self._inputs = inputs
        self._outputs = outputs
        # Of the host's addresses, [low, high) is this heap.
        self._low = self._runtime._instance.address
        self._high = self._low + (1 << 32)

    @classmethod
    def of(cls, program: Program, feeds: Feeds) -> Express | None:
        """The short way for a program that has just run with these feeds, if there is one. The gate must be held."""
        segment, core = program.root, program._core
        if segment.asked is not None or len(feeds.tensors) != len(feeds.items):
            return None
        inputs = [_input(program, segment, name, fed.shape, fed.dtype) for name, fed in feeds.tensors.items()]
        values = program.outputs[segment]
        outputs: list[_Output] = []
        for name in program._fetches:
            value = values[name]
            if not isinstance(value, Value) or value.root not in segment.plan.buffers:
                return None
            allocation = program._allocation(segment, value)
            if allocation is None:
                return None
            owner = f"{core.name} {name}"
            outputs.append(_Output(name, allocation.block_word, value.root.nbytes, owner, value.dtype, value.shape))
        lasting = {a.block_word for a in segment.tape.allocations if a.buffer.last >= FOREVER}
        # What the tape allocates and does not free must be taken, once.
        if any(i is None for i in inputs) or sorted(lasting) != sorted(o.word for o in outputs):
            return None
        return cls(program, [i for i in inputs if i is not None], outputs)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any] | None:
        """One run, or None where it must go the long way; nothing has happened then. The gate must be held."""
        runtime, core, segment = self._runtime, self._core, self._segment
        if runtime._closed or runtime._arena is not self._arena or len(feeds) != len(self._inputs):
            return None
        if runtime._allocator.watched or core.events is not None:
            return None
        addresses = []
        for item in self._inputs:
            feed = feeds.get(item.name)
            if type(feed) is np.ndarray:
                if (
                    item.view is None
                    or feed.shape != item.shape
                    or feed.dtype != item.view.dtype
                    or (feed.base is not None and self._low <= feed.__array_interface__["data"][0] < self._high)
                ):
                    return None
                addresses.append(0)
            elif type(feed) is Tensor:
                block = feed._block
                if block is None or block.runtime is not runtime or feed._dims != item.shape:
                    return None
                if feed._dtype is not item.dtype:
                    return None
                addresses.append(block.address + feed._offset)
            else:
                return None
        words, bound = runtime._words, segment.bound
        for item, address in zip(self._inputs, addresses, strict=True):
            if not address:
                assert item.view is not None
                assert item.staging is not None
                item.view[...] = feeds[item.name]
                address = item.staging.address
            if bound.get(item.name) != address:
                # An interrupt in the middle must not leave words that nobody knows of.
                bound.pop(item.name, None)
                for word, offset in item.patches:
                    words[word] = address + offset
                bound[item.name] = address
        runtime._uncancel()
        runtime._begin_run(core.runs)
        core.runs += 1
        results: dict[str, Any] = {}
        try:
            self._program._execute(segment)
            for output in self._outputs:
                block = runtime._adopt(int(words[output.word]), output.nbytes, "output", output.owner)
                results[output.name] = Tensor._wrap(block, output.dtype, output.shape)
                # Only now: an interrupted run frees what its tape still lists.
                words[output.word] = 0
        except BaseException:
            self._program._unwind([segment], {})
            raise
        return results


def _input(program: Program, segment: Segment, name: str, shape: tuple[int, ...], dtype: DType) -> _Input | None:
    core = program._core
    staging = core.staging.get(name)
    if dtype is dtypes.STRING or dtype.bits < 8 or dtype.numpy is None or 0 in shape:
        return None
    view = None
    if staging is not None:
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if size > staging.nbytes:
            return None
        view = core.runtime._bytes[staging.address : staging.address + size].view(dtype.numpy).reshape(shape)
    first = segment.block.address // 4
    patches = [(first + word, offset) for word, offset in segment.tape.inputs.get(name, ())]
    return _Input(name, dtype, shape, patches, staging, view)
