"""A model at one set of input shapes, ready to run.

A program is a tree of segments. Each is a tape that ends where the host must look at a value; the child is chosen by
what it sees, and made when it is first seen. A graph whose shapes do not depend on data is one segment: one call a
run.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import engine, tape
from .blocks import Block, Tag
from .context import Array, EmptyOptional, HostView, Item, Record, TensorSequence, Value
from .errors import FeedError, KernelTrapError
from .faults import OUT_OF_MEMORY, fault_error, where
from .feeds import Feeds
from .lower import Lowering
from .plan import Buffer, Place, Planner
from .segment import Core, NeedsInputError, Segment, answer_key, kernel_signature, own_kernel
from .tape import Allocation, Tape
from .tensor import Tensor

Result = Tensor | list[Any] | dict[Any, Any] | None
# How many different answers to one question keep their segment.
_MAX_CHILDREN = 16
_LIMIT = 1 << 32


@dataclass(eq=False)
class _Work:
    """A lowering that waits for an answer, and the segments it has made so far."""

    lowering: Lowering
    steps: Any
    planner: Planner
    inputs: dict[str, Value]
    allocations: dict[Buffer, Allocation] = field(default_factory=dict)
    last: Segment | None = None


class Program:
    """The segments for one set of input shapes and fetches."""

    def __init__(self, core: Core, feeds: Feeds, fetches: Sequence[str], known: Mapping[str, Array]) -> None:
        self._core = core
        self._fetches = tuple(fetches)
        self._known = dict(known)
        self._work: _Work | None = self._begin(feeds)
        self.outputs: dict[Segment, dict[str, Item]] = {}
        self.root = self._advance(self._work, None)

    # Making segments

    def _begin(self, feeds: Feeds) -> _Work:
        core = self._core
        items, inputs = feeds.values(self._known)
        lowering = Lowering(
            core.cache,
            items,
            self._fetches,
            evaluate=core.weights.evaluate,
            check=core.runtime._check_cancelled,
            fuse=core.fuse,
            threads=core.runtime.threads,
        )
        return _Work(lowering, lowering.steps(), Planner(lowering, chained=core.planned and core.fuse), inputs)

    def _advance(self, work: _Work, answer: Array | None, again: Segment | None = None) -> Segment:
        """Lower on to the next question or the end. ``again`` is the segment that the same answers made before: its
        tape is in the heap already."""
        # Until a segment is made the work cannot go on from here: after an error it begins anew.
        parent, work.last = work.last, None
        try:
            asked: Value | None = next(work.steps) if answer is None else work.steps.send(answer)
        except StopIteration:
            asked = None
        if asked is not None and asked.root in set(work.inputs.values()):
            raise NeedsInputError(asked.root.name)
        core = self._core
        plan = work.planner.segment(asked)
        if plan.arena_bytes >= _LIMIT:
            raise core.runtime._out_of_memory(plan.arena_bytes, "intermediate tensors")
        shared = core.runtime.threads > 1
        encoded, relocate = tape.encode(plan, kernel_signature, work.allocations, planned=core.planned, shared=shared)
        work.allocations.update({a.buffer: a for a in encoded.allocations})
        if again is not None:
            relocate(again.block.address)
            work.last = again
            return again
        roots = dict.fromkeys(root for _, root, _ in encoded.weights)
        addresses = core.weights.place(roots)
        block = core.runtime._allocate(encoded.words.nbytes, "tape", core.name, core.name)
        relocate(block.address)
        for word, root, offset in encoded.weights:
            encoded.words[word] = addresses[root] + offset
        segment = Segment(parent, plan, encoded, block, asked, answer, dict(work.allocations))
        self._words(segment)[...] = encoded.words
        work.last = segment
        if asked is None:
            self.outputs[segment] = work.lowering.outputs
            self._work = None
        return segment

    def _next(self, segment: Segment, feeds: Feeds) -> Segment:
        """The segment that follows by what the run has told."""
        assert segment.asked is not None
        answer = self._contents(segment, segment.asked)
        child = segment.after(answer)
        if child is not None:
            return child
        work = self._work
        if work is None or work.last is not segment:
            # Another answer was followed from here: lower up to this point once more.
            work = self._begin(feeds)
            for known in segment.path():
                self._advance(work, known.answer, known)
            self._work = work
        child = self._advance(work, answer)
        while len(segment.children) >= _MAX_CHILDREN:
            self._drop(segment.children.popitem(last=False)[1])
        segment.children[answer_key(answer)] = child
        return child

    def _drop(self, segment: Segment) -> None:
        for each in segment.tree():
            self._core.runtime._release(each.block)
            self.outputs.pop(each, None)

    def dispose(self) -> None:
        """Give every block back. The gate must be held."""
        self._drop(self.root)

    def blocks(self) -> list[Block]:
        """The blocks it keeps in the heap."""
        return [s.block for s in self.root.tree()]

    # Running

    def run(self, feeds: Feeds, given: Mapping[str, Tensor]) -> dict[str, Result]:
        """One run; the gate must be held. After an error all that it allocated is back in the heap."""
        self._core.runtime._begin_run(self._core.runs)
        self._core.runs += 1
        if self.root.asked is None:
            self._check_given(self.root, feeds, given)
        return self.go_on([], feeds, given)

    def go_on(self, path: list[Segment], feeds: Feeds, given: Mapping[str, Tensor]) -> dict[str, Result]:
        """A run from the segments on that have been run already, or from the beginning."""
        lent: dict[int, Tensor] = {}
        try:
            self._stage(feeds)
            segment = self._next(path[-1], feeds) if path else self.root
            while True:
                path.append(segment)
                self._bind(segment, feeds, fresh=len(path) == 1)
                if segment.asked is None:
                    self._lend(segment, feeds, given, lent)
                self._execute(segment)
                if segment.asked is None:
                    break
                segment = self._next(segment, feeds)
            self._core.runtime._after_run()
            results = {n: self._result(segment, n, given) for n in self._fetches}
        except BaseException:
            self._unwind(path, lent)
            raise
        self._unwind(path, lent)
        return results

    def _words(self, segment: Segment) -> NDArray[np.uint32]:
        block = segment.block
        return self._core.runtime._words[block.address // 4 : (block.address + block.nbytes) // 4]

    def _stage(self, feeds: Feeds) -> None:
        """Copy arrays to where the tapes will look for them."""
        runtime = self._core.runtime
        for name, fed in feeds.tensors.items():
            if fed.array is None or not fed.nbytes:
                continue
            staging = self._core.staging
            block = staging.get(name)
            if block is None or block.nbytes < fed.nbytes:
                if block is not None:
                    runtime._release(staging.pop(name))
                block = staging[name] = runtime._allocate(
                    fed.nbytes, "input", f"{self._core.name} {name}", self._core.name
                )
            target = runtime._bytes[block.address : block.address + fed.nbytes]
            if fed.dtype.bits < 8:
                np.copyto(target, fed.array.reshape(-1))
            else:
                assert fed.dtype.numpy is not None
                np.copyto(target.view(fed.dtype.numpy).reshape(fed.shape), fed.array)
            fed.address = block.address

    def _bind(self, segment: Segment, feeds: Feeds, *, fresh: bool) -> None:
        words = self._words(segment)
        for name, fed in feeds.tensors.items():
            if segment.bound.get(name) != fed.address:
                # An interrupt in the middle must not leave words that nobody knows of.
                segment.bound.pop(name, None)
                for word, offset in segment.tape.inputs.get(name, ()):
                    words[word] = fed.address + offset
                segment.bound[name] = fed.address
        if self._core.planned and segment.plan.arena_bytes:
            arena = self._core.runtime._reserve_arena(segment.plan.arena_bytes, keep=not fresh)
            if arena != segment.arena_address:
                places, offsets = segment.tape.arena
                segment.arena_address = -1
                words[places] = offsets + np.uint32(arena)
                segment.arena_address = arena

    def _check_given(self, segment: Segment, feeds: Feeds, given: Mapping[str, Tensor]) -> None:
        """The caller's tensors for outputs must have their shapes, and memory that nothing else of the run is in."""
        taken = {f"input {n!r}": (f.address, f.nbytes) for n, f in feeds.tensors.items() if f.array is None}
        for name, tensor in given.items():
            value = self.outputs[segment][name]
            if not isinstance(value, Value) or tensor._dtype is not value.dtype or tensor.dims != value.shape:
                shown = f"{value.dtype}{list(value.shape)}" if isinstance(value, Value) else "not a tensor"
                raise FeedError(f"output {name!r} is {shown}, the tensor given for it is {tensor!r}")
            mine = (tensor.address, tensor.nbytes)
            for other, theirs in taken.items():
                if overlap(mine, theirs):
                    raise FeedError(f"the tensor given for output {name!r} shares memory with {other}")
            taken[f"output {name!r}"] = mine

    def _lend(self, segment: Segment, feeds: Feeds, given: Mapping[str, Tensor], lent: dict[int, Tensor]) -> None:
        """Put the caller's tensors into the records that would allocate outputs; enter them into ``lent``, by address
        of the record.

        Either all of them are lent or, where one does not fit, none: what a record holds and was not lent is freed.
        """
        self._check_given(segment, feeds, given)
        words = self._words(segment)
        for name, tensor in given.items():
            value = self.outputs[segment][name]
            allocation = self._allocation(segment, value) if isinstance(value, Value) else None
            if allocation is not None:
                lent[allocation.address] = tensor
                words[allocation.result] = tensor.address

    def _allocation(self, segment: Segment, value: Value) -> Allocation | None:
        return segment.allocations.get(segment.plan.buffers[value.root])

    def _execute(self, segment: Segment) -> None:
        runtime = self._core.runtime
        try:
            status = self._go(segment)
        except engine.TrapError as error:
            record = self._record_at(segment, runtime._fault()[1])
            raise KernelTrapError(f"{where(record)} trapped: {error} (in {', '.join(error.functions[:3])})") from None
        if status:
            raise self._fault(segment)

    def _go(self, segment: Segment) -> int:
        runtime, encoded, start = self._core.runtime, segment.tape, segment.block.address
        events = self._core.events
        if runtime.watched:
            return self._step(segment)
        if events is None:
            return runtime._execute(start, start + 4 * encoded.end)
        ends = [*encoded.starts, encoded.end][1:]
        for record, here, there in zip(encoded.records, encoded.starts, ends, strict=True):
            if here in encoded.chains:
                continue
            before = time.perf_counter()
            status = runtime._execute(start + 4 * here, start + 4 * there)
            spent = (time.perf_counter() - before) * 1e3
            if record is not None:
                self._core.enter(record, spent)
            if status:
                return status
        return 0

    def _step(self, segment: Segment) -> int:
        """Run record by record, and do by calls what the tape's own records would do with the heap: so that a debug
        heap, a log or a recorder sees each block, with its node."""
        runtime, encoded, first = self._core.runtime, segment.tape, segment.block.address
        allocator, words, events = runtime._allocator, self._words(segment), self._core.events
        by_address = {a.address: a for a in segment.allocations.values()}
        ends = [*encoded.starts, encoded.end][1:]
        for i, (record, here, there) in enumerate(zip(encoded.records, encoded.starts, ends, strict=True)):
            kernel = int(words[here]) & 0xFFFF
            if here in encoded.chains:
                continue
            before = time.perf_counter()
            if kernel == own_kernel("tape_free"):
                allocation = by_address[int(words[here + 2])]
                address = int(runtime._words[allocation.block_word])
                runtime._words[allocation.block_word] = 0
                node = self._node(encoded, i - 1, -1)
                allocator.give(address, allocation.buffer.nbytes, node=node, **self._purpose(allocation))
                continue
            if kernel == own_kernel("tape_malloc"):
                allocation = by_address[first + 4 * here]
                if not words[allocation.result]:
                    node = self._node(encoded, i, 1)
                    address = allocator.take(allocation.buffer.nbytes, node=node, **self._purpose(allocation))
                    if not address:
                        raise self._cannot_hold(segment, allocation.buffer.nbytes, first + 4 * here)
                    words[allocation.result] = address
            status = runtime._execute(first + 4 * here, first + 4 * there)
            if record is not None:
                if events is not None:
                    self._core.enter(record, (time.perf_counter() - before) * 1e3)
                if allocator.debug is not None:
                    touched = {self._address(segment, v) for v in record.values() if self._in_block(segment, v)}
                    allocator.debug.check_blocks(touched, where(record))
            if status:
                return status
        return 0

    def _purpose(self, allocation: Allocation) -> dict[str, str]:
        """What a block of the tape is for, and whose it is: tag, owner and session."""
        name = next((v.name for v in allocation.buffer.values if v.name), "")
        tag: Tag = "output" if allocation.buffer.place is Place.OUTPUT else "activations"
        return {"tag": tag, "owner": f"{self._core.name} {name}".rstrip(), "session": self._core.name}

    @staticmethod
    def _node(encoded: Tape, index: int, step: int) -> str:
        """The node of the next record from there that is not the run loop's own."""
        while 0 <= index < len(encoded.records):
            record = encoded.records[index]
            if record is not None:
                return str(record.node)
            index += step
        return ""

    @staticmethod
    def _in_block(segment: Segment, value: Value) -> bool:
        """Whether a value begins at a block that the tape has allocated."""
        return not value.offset and value.nbytes > 0 and segment.plan.buffers[value.root] in segment.allocations

    def _record_at(self, segment: Segment, address: int) -> Record | None:
        encoded = segment.tape
        index = tape.find_record(encoded, (address - segment.block.address) // 4)
        if index >= 0 and encoded.starts[index] in encoded.chains:
            index += 1
        return None if index < 0 else encoded.records[index]

    def _fault(self, segment: Segment) -> Exception:
        status, address, detail, low, high = self._core.runtime._fault()
        if status != OUT_OF_MEMORY:
            return fault_error(self._record_at(segment, address), status, detail, low, high)
        return self._cannot_hold(segment, detail, address)

    def _cannot_hold(self, segment: Segment, nbytes: int, address: int) -> Exception:
        """The error for a block that the record at ``address`` did not get."""
        encoded, runtime = segment.tape, self._core.runtime
        word = (address - segment.block.address) // 4
        outputs = {v.root: n for n, v in self.outputs.get(segment, {}).items() if isinstance(v, Value)}
        roots = [v for a in encoded.allocations if a.at == word for v in a.buffer.values]
        # What a node was fused into bears the name of what it took in.
        names = [outputs.get(v, v.name) for v in roots if v.name or v in outputs]
        index = tape.find_record(encoded, word)
        record = next((r for r in encoded.records[index:] if r is not None), None)
        what = f"tensor {names[0]!r}" if names else "an intermediate tensor"
        running: Counter[str] = Counter()
        for allocation in segment.allocations.values():
            # What the caller has lent for outputs is in the ledger.
            taken = int(runtime._words[allocation.block_word])
            if taken and taken not in runtime._blocks:
                running[f"{self._purpose(allocation)['tag']} of {self._core.name}"] += allocation.buffer.nbytes
        return runtime._out_of_memory(nbytes, f"{what} of {where(record)}", running)

    def _contents(self, segment: Segment, value: Value) -> Array:
        """What the host asked for, copied out of the heap."""
        dtype = value.dtype.numpy
        assert dtype is not None
        runtime = self._core.runtime
        if not value.nbytes:
            return np.empty(value.shape, dtype)
        address = self._address(segment, value)
        return runtime._bytes[address : address + value.nbytes].copy().view(dtype).reshape(value.shape)

    def _address(self, segment: Segment, value: Value) -> int:
        buffer = segment.plan.buffers[value.root]
        allocation = segment.allocations.get(buffer)
        if allocation is None:
            return segment.arena_address + buffer.offset + value.offset
        return int(self._core.runtime._words[allocation.block_word]) + value.offset

    # Results

    def _result(self, segment: Segment, name: str, given: Mapping[str, Tensor]) -> Result:
        item = self.outputs[segment][name]
        if name in given:
            return given[name]
        if isinstance(item, TensorSequence):
            return [self._tensor(segment, v, name) for v in item.elements]
        if isinstance(item, HostView):
            converted: Result = item.convert(*(self._contents(segment, v) for v in item.sources))
            return Tensor._of_strings(converted) if isinstance(converted, np.ndarray) else converted
        if isinstance(item, EmptyOptional):
            return None
        return self._tensor(segment, item, name)

    def _tensor(self, segment: Segment, value: Value, name: str) -> Tensor:
        runtime = self._core.runtime
        if value.known is not None and value.dtype.numpy is None:
            return Tensor._of_strings(value.known)
        allocation = self._allocation(segment, value)
        if allocation is None:
            return Tensor._wrap(Block(runtime, 0, 0, "output", name), value.dtype, value.shape)
        words = self._words(segment)
        block = runtime._adopt(
            int(words[allocation.result]), value.root.nbytes, "output", f"{self._core.name} {name}", self._core.name
        )
        tensor = Tensor._wrap(block, value.dtype, value.shape)
        # Only now: an interrupted run frees what its tapes still list.
        words[allocation.result] = 0
        return tensor

    def _unwind(self, path: Sequence[Segment], lent: Mapping[int, Tensor]) -> None:
        """Give back what tapes have allocated and nobody took."""
        runtime = self._core.runtime
        for segment in path:
            words, encoded = self._words(segment), segment.tape
            if not words[encoded.results].any():
                continue
            for allocation in encoded.allocations:
                address = int(words[allocation.result])
                # Forgotten first: a tape that finds the block here takes it for one that is lent.
                words[allocation.result] = 0
                if address and allocation.address not in lent:
                    runtime._free_at(address, allocation.buffer.nbytes, **self._purpose(allocation))
            words[encoded.results] = 0


def overlap(a: tuple[int, int], b: tuple[int, int]) -> bool:
    """Whether two (address, bytes) share memory."""
    return a[0] < b[0] + b[1] and b[0] < a[0] + a[1]
