"""A session's constants in the heap: weights as the kernels want them, and what is computed from them.

Nothing is placed before a tape refers to it, and only what a tape refers to stays: an unpacked weight is a passing
guest, and a large one that is only packed is streamed through a small staging block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import engine, tape
from .blocks import Block
from .context import CHUNK, Recipe, Record, Value
from .errors import KernelTrapError
from .faults import fault_error, where
from .heap import Runtime

Array = NDArray[Any]
# A piece of a streamed constant: this share of it, so that it counts for little in the peak, within these bounds.
_SHARE = 32
_LEAST, _MOST = 1 << 15, 1 << 20
_MASK = 0xFFFFFFFF


class Weights:
    """The constants of one session, by root value."""

    def __init__(
        self,
        runtime: Runtime,
        owner: str,
    ) -> None:
        self._runtime = runtime
        self._owner = owner
        self._blocks: dict[Value, Block] = {}
        self._guests: dict[Value, Block] = {}
        self._wanted: set[Value] = set()

    @property
    def nbytes(self) -> int:
        """Bytes of the constants that tapes refer to."""
        return sum(b.nbytes for b in self._blocks.values())

    def blocks(self) -> list[Block]:
        """The blocks that hold them."""
        return list(self._blocks.values())

    def place(self, roots: Iterable[Value]) -> dict[Value, int]:
        """Bring constants into the heap; address by root. The gate must be held.

        Raises MemoryError, with nothing left behind that this call has made.
        """
        # The guests of large ones come and go while little else is there yet.
        roots = sorted(roots, key=lambda r: -r.nbytes)
        before = set(self._blocks)
        self._wanted = set(roots)
        try:
            for root in roots:
                if root not in self._blocks:
                    self._materialise(root)
        except BaseException:
            for root in set(self._blocks) - before:
                self._free(self._blocks.pop(root))
            raise
        finally:
            self._wanted = set()
            for block in self._guests.values():
                self._free(block)
            self._guests.clear()
        return {root: self._blocks[root].address for root in roots}

    def evaluate(self, value: Value) -> Array:
        """The contents of a constant that kernels compute, for lowering. The gate must be held."""
        root, dtype = value.root, value.dtype.numpy
        assert dtype is not None
        resident = root in self._blocks
        try:
            address = self._materialise(root) + value.offset
            data = self._runtime._bytes[address : address + value.nbytes].copy()
        finally:
            for block in self._guests.values():
                self._free(block)
            self._guests.clear()
        assert resident == (root in self._blocks)
        return data.view(dtype).reshape(value.shape)

    def dispose(self) -> None:
        """Give every block back. The gate must be held."""
        for block in self._blocks.values():
            self._free(block)
        self._blocks.clear()

    def _materialise(self, root: Value) -> int:
        block = self._blocks.get(root) or self._guests.get(root)
        if block is not None:
            return block.address
        held = _held(root)
        if held is not None:
            return self._copy(root, held())
        assert root.recipe is not None, root
        self._run(root.recipe)
        return self._materialise(root)

    def _copy(self, root: Value, array: Array) -> int:
        block = self._new(root)
        self._write(block, array.reshape(-1).view(np.uint8))
        return block.address

    def _write(self, block: Block, data: NDArray[np.uint8]) -> None:
        if data.size != block.nbytes:
            raise AssertionError(f"{data.size} bytes for {block!r}")
        self._runtime._bytes[block.address : block.address + data.size] = data

    def _new(self, root: Value) -> Block:
        block = self._runtime._allocate(root.nbytes, "weights", self._owner, self._owner)
        (self._blocks if root in self._wanted else self._guests)[root] = block
        return block

    def _free(self, block: Block) -> None:
        self._runtime._release(block)

    def _run(self, recipe: Recipe) -> None:
        """Run a recipe's records; inputs that nothing else wants leave again when they are done."""
        guests = set(self._guests)
        last = {v.root: i for i, r in enumerate(recipe.records) for v in r.values()}
        made = {v.root for v in recipe.made}
        for made_value in recipe.made:
            if made_value not in last:
                # Never written: it has no elements.
                self._new(made_value)
        for i, record in enumerate(recipe.records):
            streamed = self._streamed(record)
            addresses: dict[Value, int] = {}
            for value in record.values():
                root = value.root
                if root in made and root not in self._blocks and root not in self._guests:
                    self._new(root)
                if value is not streamed:
                    addresses[value] = self._materialise(root) + value.offset
            if streamed is not None:
                self._stream(record, streamed, addresses)
            else:
                self._run_at(record, addresses, 0, record.units)
            for value in record.values():
                root = value.root
                if last[root] == i and root in self._guests and root not in guests and root not in made:
                    self._free(self._guests.pop(root))

    def _streamed(self, record: Record) -> Value | None:
        """The argument that can be fed in pieces: a weight that is not in the heap yet, and not small."""
        if record.stream is None:
            return None
        value: Value = record.args[record.stream[0]]
        root = value.root
        if value.offset or root in self._blocks or root in self._guests or root in self._wanted:
            return None
        if root.nbytes <= _LEAST or (_held(root) is None and _producer(root) is None):
            return None
        return value

    def _stream(self, record: Record, value: Value, addresses: dict[Value, int]) -> None:
        """Run a record over pieces of one argument."""
        assert record.stream is not None
        per_unit, nbytes = record.stream[1], value.root.nbytes
        units = max(1, min(_MOST, max(_LEAST, nbytes // _SHARE)) // per_unit)
        guests = set(self._guests)
        with ExitStack() as stack:
            feed = self._feed(value.root, units * per_unit, stack)
            for begin in range(0, record.units, units):
                end = min(begin + units, record.units)
                addresses[value] = feed(begin * per_unit, min(end * per_unit, nbytes))
                self._run_at(record, addresses, begin, end)
        for root in set(self._guests) - guests:
            self._free(self._guests.pop(root))

    def _feed(self, root: Value, most: int, stack: ExitStack) -> Callable[[int, int], int]:
        """What brings bytes [begin, end) of a constant into a staging block, never more than ``most``: from the host,
        or from the record that makes them. It answers where byte 0 of the constant would then be, modulo 2**32."""
        producer = _producer(root)
        unit = producer.makes[1] if producer is not None and producer.makes is not None else 0
        # A piece need not begin and end where the producer's units do.
        staging = self._runtime._allocate(most + 2 * unit, "weights", f"{self._owner} (staging)", self._owner)
        stack.callback(self._free, staging)
        if producer is None:
            held = _held(root)
            assert held is not None
            data = held().reshape(-1).view(np.uint8)

            def copied(begin: int, end: int) -> int:
                self._runtime._bytes[staging.address : staging.address + end - begin] = data[begin:end]
                return staging.address - begin & _MASK

            return copied
        if producer.makes is None:
            self._fill_staging(producer, staging)
            return lambda begin, _: staging.address - begin & _MASK
        made, streamed = producer.args[producer.makes[0]], self._streamed(producer)
        addresses = {
            v: self._materialise(v.root) + v.offset for v in producer.values() if v is not made and v is not streamed
        }
        inner, size = None, 0
        if streamed is not None:
            assert producer.stream is not None
            size = producer.stream[1]
            inner = self._feed(streamed.root, (most // unit + 2) * size, stack)

        def computed(begin: int, end: int) -> int:
            first, last = begin // unit, min(-(-end // unit), producer.units)
            addresses[made] = base = staging.address - first * unit & _MASK
            if streamed is not None and inner is not None:
                addresses[streamed] = inner(first * size, min(last * size, streamed.root.nbytes))
            self._run_at(producer, addresses, first, last)
            return base

        return computed

    def _fill_staging(self, fill: Record, staging: Block) -> None:
        made: Value = fill.args["y"]
        part = Record(fill.kernel, 1, {**fill.args, "n": staging.nbytes // made.dtype.itemsize}, fill.node)
        part.units = -(-part.args["n"] // CHUNK)
        addresses = {v: self._materialise(v.root) + v.offset for v in fill.values() if v is not made}
        self._run_at(part, {**addresses, made: staging.address}, 0, part.units)

    def _run_at(self, record: Record, addresses: dict[Value, int], begin: int, end: int) -> None:
        found = engine.manifest().kernels.get(record.kernel)
        if found is None:
            raise tape.no_kernel(record)
        data = tape.encode_record(
            record, tape.signature(found.id, found.args), addresses.__getitem__, shared=self._runtime.threads > 1
        )
        block = self._runtime._allocate(len(data), "tape", self._owner, self._owner)
        try:
            self._write(block, np.frombuffer(data, np.uint8))
            if self._runtime._run_record(block.address, begin, end):
                status, _, detail, low, high = self._runtime._fault()
                raise fault_error(record, status, detail, low, high)
        except engine.TrapError as error:
            raise KernelTrapError(f"{where(record)} trapped: {error}") from None
        finally:
            self._free(block)


def _held(root: Value) -> Callable[[], Array] | None:
    """What gives the contents of a constant that the host holds."""
    if root.known is not None:
        known = root.known
        return lambda: np.ascontiguousarray(known)
    return root.source.array if root.source is not None else None


def _producer(root: Value) -> Record | None:
    """The one record that makes all of a constant, if it can make it piece by piece."""
    records = root.recipe.records if root.recipe is not None else []
    if len(records) != 1:
        return None
    record = records[0]
    made = "y" if record.uniform else record.makes[0] if record.makes is not None else ""
    return record if made and record.args[made] is root else None
