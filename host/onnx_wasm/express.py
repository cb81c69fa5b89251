"""A run like the one before it, without the checks that the one before has passed.

Of one plan, fed arrays or tensors of the same types and shapes, a run changes little: the contents or addresses of the
inputs, and the outputs' blocks or the tensors given for them. Whatever else differs goes the long way (`Program.run`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from .program import Program, overlap
from .segment import Segment
from .tensor import Tensor

Array = NDArray[Any]
_MAX_LEGS = 64


@dataclass(slots=True, eq=False)
class _Input:
    """What an input must be."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    staging: Block | None
    nbytes: int
    view: Array | None
    """Of the staging block, where an array is copied to."""


@dataclass(slots=True, eq=False)
class _Output:
    name: str
    word: int
    """Of all memory: where the tape leaves the block, or finds one that it is lent."""
    record: int
    """The address of the record that does."""
    nbytes: int
    owner: str
    dtype: DType
    shape: tuple[int, ...]


@dataclass(slots=True, eq=False)
class _Leg:
    """One segment on the way to the outputs."""

    patches: list[list[tuple[int, int]]]
    """For each input, (word of all memory, bytes to add) that hold its address."""
    outputs: list[_Output] | None
    """None where a question ends the segment."""


class Express:
    """The short way for one program."""

    def __init__(self, program: Program, inputs: list[_Input], *, complete: bool) -> None:
        self._program = program
        self._core = program._core
        self._runtime = program._core.runtime
        self._arena = self._runtime._arena
        self._inputs = inputs
        self._complete = complete
        self._legs: dict[Segment, _Leg] = {}
        # Of the host's addresses, [low, high) is this heap.
        self._low = self._runtime._instance.address
        self._high = self._low + (1 << 32)

    @classmethod
    def of(cls, program: Program, feeds: Feeds, *, complete: bool) -> Express | None:
        """The short way for a program that has just run with these feeds, if there is one; ``complete`` says that it
        fetches all outputs. The gate must be held."""
        if len(feeds.tensors) != len(feeds.items):
            return None
        inputs = [_input(program, name, fed.shape, fed.dtype) for name, fed in feeds.tensors.items()]
        found = cls(program, [i for i in inputs if i is not None], complete=complete)
        return None if len(found._inputs) < len(inputs) or found._leg(program.root) is None else found

    def run(self, feeds: Mapping[str, Any], fetches: Any, check: Callable[[], Feeds]) -> dict[str, Any] | None:
        """One run, or None where it must go the long way; nothing has happened then. What ``check`` makes of the feeds
        is needed where a run tells what none before has told. The gate must be held."""
        runtime, core = self._runtime, self._core
        if runtime._closed or runtime._arena is not self._arena or len(feeds) != len(self._inputs):
            return None
        if runtime._allocator.watched or core.events is not None:
            return None
        program = self._program
        if not self._complete if fetches is None else (*fetches,) != program._fetches:
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
        lent = self._lent(fetches, addresses) if type(fetches) is dict else {}
        if lent is None:
            return None
        for i, item in enumerate(self._inputs):
            if not addresses[i]:
                assert item.view is not None
                assert item.staging is not None
                item.view[...] = feeds[item.name]
                addresses[i] = item.staging.address
        runtime._uncancel()
        runtime._begin_run(core.runs)
        core.runs += 1
        path: list[Segment] = []
        results: dict[str, Any] = {}
        words = runtime._words
        try:
            for output, tensor in lent.items():
                words[output.word] = tensor.address
            leg = self._follow(addresses, path)
            if leg is None:
                return program.go_on(path, check(), {})
            for output in leg.outputs or ():
                if output in lent:
                    results[output.name] = lent[output]
                    words[output.word] = 0
                    continue
                block = runtime._adopt(int(words[output.word]), output.nbytes, "output", output.owner, core.name)
                results[output.name] = Tensor._wrap(block, output.dtype, output.shape)
                # Only now: an interrupted run frees what its tape still lists.
                words[output.word] = 0
        except BaseException:
            # What is lent stands in the root's tape already, whether or not it was begun.
            program._unwind(path or [program.root], {output.record: tensor for output, tensor in lent.items()})
            raise
        return results

    def _lent(self, fetches: Mapping[str, Any], addresses: Sequence[int]) -> dict[_Output, Tensor] | None:
        """The caller's tensors by the outputs that they are for; None, unless all of them fit and lie apart. Only of
        programs of one segment, whose outputs are known before it is run."""
        if not any(tensor is not None for tensor in fetches.values()):
            return {}
        root = self._program.root
        leg = self._legs.get(root) or self._leg(root)
        if leg is None or leg.outputs is None:
            return None
        taken = [(a, i.nbytes) for a, i in zip(addresses, self._inputs, strict=True) if a]
        lent: dict[_Output, Tensor] = {}
        for output in leg.outputs:
            tensor = fetches[output.name]
            if tensor is None:
                continue
            block = tensor._block if type(tensor) is Tensor else None
            if block is None or block.runtime is not self._runtime:
                return None
            if tensor._dtype is not output.dtype or tensor._dims != output.shape:
                return None
            mine = (block.address + tensor._offset, output.nbytes)
            if any(overlap(mine, other) for other in taken):
                return None
            taken.append(mine)
            lent[output] = tensor
        return lent

    def _follow(self, addresses: list[int], path: list[Segment]) -> _Leg | None:
        """Run segment after segment, and enter them into ``path``; the last one's leg, or None before a segment that
        this way does not know."""
        program, words = self._program, self._runtime._words
        segment: Segment | None = program.root
        while segment is not None:
            leg = self._legs.get(segment) or self._leg(segment)
            if leg is None:
                return None
            bound = segment.bound
            for item, patches, address in zip(self._inputs, leg.patches, addresses, strict=True):
                if bound.get(item.name) != address:
                    # An interrupt in the middle must not leave words that nobody knows of.
                    bound.pop(item.name, None)
                    for word, offset in patches:
                        words[word] = address + offset
                    bound[item.name] = address
            path.append(segment)
            program._execute(segment)
            if segment.asked is None:
                return leg
            segment = segment.after(program._contents(segment, segment.asked))
        return None

    def _leg(self, segment: Segment) -> _Leg | None:
        found = self._new_leg(segment)
        if found is not None:
            if len(self._legs) >= _MAX_LEGS:
                # Among them are segments that the program has dropped.
                self._legs.clear()
            self._legs[segment] = found
        return found

    def _new_leg(self, segment: Segment) -> _Leg | None:
        program, core = self._program, self._core
        arena = self._arena.address if self._arena is not None else -1
        if core.planned and segment.plan.arena_bytes and segment.arena_address != arena:
            return None
        first = segment.block.address // 4
        patches = [[(first + w, offset) for w, offset in segment.tape.inputs.get(i.name, ())] for i in self._inputs]
        if segment.asked is not None:
            # What the tape of one segment allocates for the next ones is theirs to free.
            return _Leg(patches, None) if core.planned else None
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
            words = allocation.block_word, allocation.address
            outputs.append(_Output(name, *words, value.root.nbytes, owner, value.dtype, value.shape))
        tapes = [s.tape for s in segment.path()]
        lasting = {a.block_word for t in tapes for a in t.allocations if a.buffer.last >= FOREVER}
        # What the tapes allocate and do not free must be taken, once.
        return _Leg(patches, outputs) if sorted(lasting) == sorted(o.word for o in outputs) else None


def _input(program: Program, name: str, shape: tuple[int, ...], dtype: DType) -> _Input | None:
    core = program._core
    staging = core.staging.get(name)
    if dtype is dtypes.STRING or dtype.bits < 8 or dtype.numpy is None or 0 in shape:
        return None
    view = None
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if staging is not None:
        if size > staging.nbytes:
            return None
        view = core.runtime._bytes[staging.address : staging.address + size].view(dtype.numpy).reshape(shape)
    return _Input(name, dtype, shape, staging, size, view)
