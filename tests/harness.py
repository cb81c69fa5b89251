"""Run what an op describes without a session: every value gets memory of its own, every record is one call.

h = Harness()
y = h.op(conv, [x, w], group=2)          # numpy in, numpy out; weights=(1,) makes input 1 a constant
"""

from __future__ import annotations

import ctypes
import inspect
import itertools
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from onnx_wasm import dtypes, engine
from onnx_wasm.context import Context, Record, Value
from onnx_wasm.model import Node

GUARD = 256
_FORMAT = {"ptr": "I", "scratch": "Q", "i32": "I", "words": "I", "f32": "f", "i64": "q", "f64": "d"}


class KernelStatus(Exception):
    """A kernel reported bad data: (status, detail, low, high)."""


class Harness:
    """An instance whose memory is handed out by a bump allocator, with guard bytes behind every block."""

    def __init__(self, variant: engine.Variant = "relaxed", pages: int = 4096) -> None:
        self.instance = engine.Instance(pages, pages, variant)
        self.run_record = self.instance.bind("run_record", "iii")
        self.memory = np.ctypeslib.as_array(
            (ctypes.c_uint8 * (pages * engine.PAGE)).from_address(self.instance.address)
        )
        self.reset()

    def reset(self) -> None:
        self.top = 1 << 20
        self.guards: list[tuple[int, str]] = []

    def alloc(self, nbytes: int, name: str = "") -> int:
        """A 64-aligned block of NaN-ish bytes; what lies behind it must not be written."""
        address = self.top
        self.top = (address + nbytes + GUARD + 63) & ~63
        assert self.top < self.memory.size, "harness memory is full"
        self.memory[address : self.top] = 0xFE
        self.guards.append((address + nbytes, name))
        return address

    def put(self, array: np.ndarray) -> int:
        address = self.alloc(array.nbytes)
        self.memory[address : address + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return address

    def get(self, address: int, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return self.memory[address : address + nbytes].view(dtype).reshape(shape).copy()

    def check_guards(self) -> None:
        for address, name in self.guards:
            assert (self.memory[address : address + 8] == 0xFE).all(), f"written past the end of {name or hex(address)}"

    def call(self, kernel: str, units: int = 1, *, begin: int = 0, end: int | None = None, **args: Any) -> None:
        """Run one kernel on addresses and numbers; raises KernelStatus on a report of bad data."""
        signature = engine.manifest().kernels[kernel]
        assert signature.args.keys() == args.keys(), f"{kernel} takes {list(signature.args)}, got {list(args)}"
        fixed = [(_FORMAT[k], a, args[a]) for a, k in signature.args.items()]
        offset = 8 + sum(struct.calcsize("<" + f) for f, _, _ in fixed)
        body, tail = b"", b""
        for name, kind in signature.args.items():
            value = args[name]
            if kind == "words":
                words = struct.pack(f"<{len(value)}i", *value)
                value = offset + len(tail)
                tail += words
            code = _FORMAT[kind]
            body += struct.pack("<" + code, value & 0xFFFFFFFF if code == "I" else value)
        record = struct.pack("<HHI", signature.id, (8 + len(body) + len(tail)) // 4, units) + body + tail
        address = self.put(np.frombuffer(record, np.uint8))
        if self.run_record(address, begin, units if end is None else end):
            status, _ = self.memory[64:72].view(np.uint32)
            raise KernelStatus(int(status), *self.memory[72:96].view(np.int64).tolist())

    def op(
        self,
        function: Callable[..., Any],
        inputs: Sequence[np.ndarray | None],
        *,
        weights: Sequence[int] = (),
        host: Sequence[int] = (),
        opset: int = 21,
        split: int = 1,
        op_type: str = "Test",
        **attributes: Any,
    ) -> Any:
        """What an op computes. Inputs in ``weights`` are constants, those in ``host`` go in as arrays; with
        ``split`` > 1 every record is run in that many ranges of units, in an order that threads may have."""
        self.reset()
        cx = Context()
        cx.node, cx.opset = Node(op_type, "test", index=0), opset
        addresses: dict[Value, int] = {}
        args: list[Any] = []
        for i, array in enumerate(inputs):
            if array is None or i in host:
                args.append(array)
                continue
            value = Value(array.shape, dtypes.from_numpy(array.dtype), name=f"x{i}", const=i in weights)
            addresses[value] = self.put(array)
            args.append(value)
        results = function(cx, *args, **attributes)
        done: set[int] = set()
        ran = 0
        contents: np.ndarray | None = None
        while inspect.isgenerator(results):
            try:
                asked = results.send(contents)
            except StopIteration as stop:
                results = stop.value
                continue
            for record in cx.records[ran:]:
                self._run(record, addresses, split, done)
            ran = len(cx.records)
            contents = self._fetch(asked[0] if isinstance(asked, tuple) else asked, addresses, split, done)
        outputs = results if isinstance(results, tuple) else (results,)
        for record in cx.records[ran:]:
            self._run(record, addresses, split, done)
        arrays = tuple(None if v is None else self._fetch(v, addresses, split, done) for v in outputs)
        self.check_guards()
        return arrays if isinstance(results, tuple) else arrays[0]

    def _fetch(self, v: Value, addresses: dict[Value, int], split: int, done: set[int]) -> np.ndarray:
        if v.known is not None:
            return v.known
        address = self._address(v, addresses, split, done)
        assert v.dtype.numpy is not None
        return self.get(address, v.shape, v.dtype.numpy)

    def _address(self, v: Value, addresses: dict[Value, int], split: int, done: set[int]) -> int:
        root = v.root
        if root.known is not None and root not in addresses:
            addresses[root] = self.put(root.known)
        if root.source is not None and root not in addresses:
            addresses[root] = self.put(root.source.array())
        if root not in addresses:
            addresses[root] = self.alloc(root.nbytes, repr(root))
            if root.recipe is not None and id(root.recipe) not in done:
                done.add(id(root.recipe))
                for record in root.recipe.records:
                    self._run(record, addresses, split, done)
        return addresses[root] + v.offset

    def _run(self, record: Record, addresses: dict[Value, int], split: int, done: set[int]) -> None:
        args = {
            k: self._address(a, addresses, split, done) if isinstance(a, Value) else (0 if a is None else a)
            for k, a in record.args.items()
        }
        bounds = [record.units * i // split for i in range(split + 1)]
        # The last first, so that what is written past a range's end stays there.
        for begin, end in reversed(list(itertools.pairwise(bounds))):
            if begin < end:
                self.call(record.kernel, record.units, begin=begin, end=end, **args)
