"""The module's heap, bare: one instance over a memory of its own, no tensors, no ledger."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from onnx_wasm import engine, heap_layout
from onnx_wasm.env import MAXIMUM as POLICY_MAXIMUM
from onnx_wasm.env import ORT_WEB_HEAP_BASE as BASE
from onnx_wasm.trace import START_REQUESTS

PAGE = engine.PAGE
CALLS = {
    "malloc": "i",
    "memalign": "ii",
    "aligned_new": "ii",
    "free": "i",
    "realloc": "ii",
    "calloc": "ii",
    "usable_size": "i",
    "heap_owns": "i",
    "heap_stats": "",
    "heap_check": "",
}


class WasmHeap:
    """An empty heap at ``base``. ``engine_limit`` (bytes) is where the engine refuses to grow."""

    def __init__(
        self,
        *,
        base: int = BASE,
        initial: int = 16 << 20,
        engine_limit: int = 1 << 32,
        maximum: int = POLICY_MAXIMUM,
        step: float = 0.2,
        cap: int = 96 << 20,
        linear: int = -1,
        limit_known: bool = False,
    ) -> None:
        self.instance = engine.Instance(initial // PAGE, engine_limit // PAGE)
        for name, params in CALLS.items():
            setattr(self, name, self.instance.bind(name, params))
        self.memory_size = self.instance.memory_size
        state = (ctypes.c_uint32 * (heap_layout.STATE_END // 4)).from_address(self.instance.address)
        self.state = np.frombuffer(state, np.uint32)
        self.instance.bind("heap_init", "iidii", result=False)(base, maximum, step, cap, linear)
        if limit_known:
            self.state[heap_layout.ENGINE_LIMIT // 4] = engine_limit % (1 << 32)

    def __getattr__(self, name: str) -> Any:
        """A word of the state block, by its lower-case name in heap_layout."""
        try:
            return int(self.state[getattr(heap_layout, name.upper()) // 4])
        except AttributeError:
            raise AttributeError(name) from None

    def brk(self) -> int:
        return int(self.state[heap_layout.BRK // 4])

    def word(self, address: int) -> int:
        return ctypes.c_uint32.from_address(self.instance.address + address).value

    def set_word(self, address: int, value: int) -> None:
        ctypes.c_uint32.from_address(self.instance.address + address).value = value

    def write(self, address: int, data: bytes) -> None:
        ctypes.memmove(self.instance.address + address, data, len(data))

    def read(self, address: int, length: int) -> bytes:
        return ctypes.string_at(self.instance.address + address, length)

    def growth_log(self) -> list[tuple[int, int, int]]:
        """The last entries of the growth log, oldest first: (from, to, break asked for)."""
        count, entries = self.growths, heap_layout.GROWTH_ENTRIES
        log = self.state[heap_layout.GROWTH_LOG // 4 :].reshape(entries, 3)
        return [tuple(log[n % entries].tolist()) for n in range(max(0, count - entries), count)]

    def close(self) -> None:
        del self.state
        self.instance.close()


def at_trace_start(**options: Any) -> WasmHeap:
    """A heap in the state in which the recordings begin."""
    heap = WasmHeap(**options)
    for size in START_REQUESTS:
        heap.malloc(size)
    return heap
