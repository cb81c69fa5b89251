"""Nanoseconds of one malloc or free inside the module, on recordings of the browser's allocator.

    python bench/allocator.py [TRACES ...] [--rounds N] [--against MODULE.wasm] [--json OUT]

A second module, on the same engine, makes the calls of a recording one after the other and keeps the addresses; the
time of the same loop around functions that do nothing is subtracted. Every answer of the first replay is compared with
the recorded one. Two numbers, since they are costs of different things:

* `again`, the allocator's: the median replay in memory that earlier replays have used. Those free what the recording
  leaves; the third is the first that counts, for after a failed request the second answers other addresses.
* `first`, the allocator's and the system's: the first replay in a new memory, in which the memory grows and the system
  provides each page when it is touched. That is most of it, and `pages` counts them. Users of the blocks touch the
  same pages: here only the allocator does.

Times are of the processor, so that other processes' turns on it do not count. With --against the module of another
build takes turns, and `ratio` is the median of `again` here to `again` there, in the same round. Without TRACES: those
of `../shared/traces`.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import wasmtime

from onnx_wasm import engine
from onnx_wasm import trace as traces
from onnx_wasm.heap_layout import ENGINE_LIMIT
from onnx_wasm.heap_log import FREE, MALLOC, TENSOR

SHARED = Path(os.environ.get("ONNX_WASM_SHARED", Path(__file__).resolve().parents[2] / "shared"))
DRIVER = """(module
  (import "heap" "malloc" (func $malloc (param i32) (result i32)))
  (import "heap" "memalign" (func $memalign (param i32 i32) (result i32)))
  (import "heap" "free" (func $free (param i32) (result i32)))
  (memory (export "memory") {pages})
  ;; Calls of 12 bytes: alignment (0: malloc, -1: free), size or where the address is kept, where to keep the answer.
  (func (export "replay") (param $p i32) (param $end i32)
    (loop $next
      (if (i32.eq (i32.load (local.get $p)) (i32.const -1))
        (then (drop (call $free (i32.load (i32.load offset=4 (local.get $p))))))
        (else (i32.store (i32.load offset=8 (local.get $p))
          (if (result i32) (i32.load (local.get $p))
            (then (call $memalign (i32.load (local.get $p)) (i32.load offset=4 (local.get $p))))
            (else (call $malloc (i32.load offset=4 (local.get $p))))))))
      (br_if $next (i32.lt_u (local.tee $p (i32.add (local.get $p) (i32.const 12))) (local.get $end))))))"""
NOTHING = """(module
  (func (export "malloc") (param i32) (result i32) i32.const 0)
  (func (export "memalign") (param i32 i32) (result i32) i32.const 0)
  (func (export "free") (param i32) (result i32) i32.const 0))"""


class Heap:
    """A heap of a module as the recorded one was when its recording began."""

    def __init__(self, trace: traces.Trace, module: wasmtime.Module) -> None:
        policy = traces.recorded_policy(trace)
        self.store = wasmtime.Store(engine._engine())
        kind = wasmtime.MemoryType(wasmtime.Limits(*policy.pages), shared=True)
        self.memory = engine._SharedMemory(engine._engine(), kind)
        self.exports = wasmtime.Instance(self.store, module, [self.memory]).exports(self.store)
        growth = policy.geometric_step, policy.geometric_cap, policy.linear_step
        self.call("heap_init", policy.heap_base, policy.limit, *growth)
        address = ctypes.addressof(self.memory.data_ptr().contents) + ENGINE_LIMIT
        ctypes.c_uint32.from_address(address).value = policy.engine_limit % (1 << 32)
        for size in traces.START_REQUESTS if trace.start.top is not None else ():
            self.call("malloc", size)

    def call(self, name: str, *args: float) -> None:
        function = self.exports[name]
        assert isinstance(function, wasmtime.Func)
        function(self.store, *[a - (1 << 32) if a >= 1 << 31 else a for a in args])

    def close(self) -> None:
        self.store.close()
        self.memory.close()


class Driver:
    """The calls of a recording, ready to be made to `heap`'s malloc, memalign and free."""

    def __init__(self, trace: traces.Trace, store: wasmtime.Store, heap: wasmtime.InstanceExports) -> None:
        self.made = sum(op != FREE for op in trace.op)
        self.size = 12 * len(trace.op)
        rows, left, made = [], set(range(self.made)), 0
        for op, arg in zip(trace.op, trace.arg, strict=True):
            if op == FREE:
                rows.append(self.free(arg))
                left.discard(arg)
                continue
            rows.append(({MALLOC: 0, TENSOR: 64}.get(op, 1 << max(op - 4, 0)), arg, self.size + 4 * made))
            made += 1
        self.calls = np.array(rows, np.uint32)
        self.clear = np.array([self.free(i) for i in sorted(left)], np.uint32)
        self.store = store
        pages = -(-(self.size + 4 * made + self.clear.nbytes) // 65536)
        module = wasmtime.Module(store.engine, DRIVER.replace("{pages}", str(pages)))
        imports = [heap[name] for name in ("malloc", "memalign", "free")]
        exports = wasmtime.Instance(store, module, imports).exports(store)
        memory, self.run = exports["memory"], exports["replay"]
        assert isinstance(memory, wasmtime.Memory)
        self.memory = memory
        memory.write(store, self.calls.tobytes())
        memory.write(store, self.clear.tobytes(), self.size + 4 * made)

    def free(self, allocation: int) -> tuple[int, int, int]:
        return 0xFFFFFFFF, self.size + 4 * allocation, 0

    def replay(self) -> tuple[float, int]:
        """Nanoseconds a call, and the pages that were touched for the first time. What is left is freed after that."""
        assert isinstance(self.run, wasmtime.Func)
        pages, start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.thread_time_ns()
        self.run(self.store, 0, self.size)
        nanoseconds, pages = time.thread_time_ns() - start, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - pages
        clear = self.size + 4 * self.made
        if len(self.clear):
            self.run(self.store, clear, clear + self.clear.nbytes)
        return nanoseconds / len(self.calls), pages

    def answers(self) -> np.ndarray:
        return np.frombuffer(self.memory.read(self.store, self.size, self.size + 4 * self.made), np.uint32)


def measure(trace: traces.Trace, modules: list[wasmtime.Module], rounds: int) -> dict[str, float | int | str]:
    recorded = np.array([p for op, p in zip(trace.op, trace.ptr, strict=True) if op != FREE], np.uint32)
    first, pages, wrong = [], [], 0
    again: list[list[float]] = [[] for _ in modules]
    nothing = []
    for _ in range(3):
        heaps = [Heap(trace, module) for module in modules]
        drivers = [Driver(trace, heap.store, heap.exports) for heap in heaps]
        store = wasmtime.Store(engine._engine())
        module = wasmtime.Module(store.engine, NOTHING)
        empty = Driver(trace, store, wasmtime.Instance(store, module, []).exports(store))
        for driver in drivers:
            once, touched = driver.replay()
            wrong += int((driver.answers() != recorded).sum())
            if driver is drivers[0]:
                first.append(once)
                pages.append(touched)
            driver.replay()
        for _ in range(rounds):
            nothing.append(empty.replay()[0])
            for driver, times in zip(drivers, again, strict=True):
                times.append(driver.replay()[0])
        for heap in heaps:
            heap.close()
    loop = statistics.median(nothing)
    return {
        "trace": trace.name,
        "calls": len(trace.op),
        "wrong": wrong,
        "again_ns": statistics.median(again[0]) - loop,
        "first_ns": statistics.median(first) - loop,
        "pages": statistics.median(pages),
        "loop_ns": loop,
        "ratio": statistics.median((a - loop) / (b - loop) for a, b in zip(again[0], again[-1], strict=True)),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("traces", nargs="*", type=Path)
    parser.add_argument("--rounds", type=int, default=7, metavar="N")
    parser.add_argument("--against", type=Path, metavar="MODULE.wasm")
    parser.add_argument("--json", type=Path, metavar="OUT")
    options = parser.parse_args()
    paths = options.traces or sorted((SHARED / "traces").glob("*.npz"))
    if not paths:
        parser.error(
            f"no recordings in {SHARED / 'traces'}: name some (`onnx-wasm run MODEL --record OUT.npz` makes one)"
        )
    modules = [engine._module("relaxed")]
    if options.against:
        modules.append(wasmtime.Module(engine._engine(), options.against.read_bytes()))
    found = []
    for path in paths:
        trace = traces.load(path)
        if traces.injections(trace):
            print(f"{trace.name}: left out: calls were made to fail")
            continue
        found.append(measure(trace, modules, options.rounds))
        print(
            "{trace:18} {calls:8,} calls  again {again_ns:6.1f} ns a call (loop {loop_ns:.1f} ns)  "
            "first {first_ns:7.1f} ns, {pages:6,} pages  {wrong} wrong".format(**found[-1])
            + (f"  ratio {found[-1]['ratio']:.2f}" if options.against else ""),
            flush=True,
        )
    if found:
        calls = sum(int(f["calls"]) for f in found)
        mean = sum(float(f["again_ns"]) * int(f["calls"]) for f in found) / calls
        print(f"{'all':18} {calls:8,} calls  again {mean:6.1f} ns a call")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    if not found:
        print("nothing was measured: calls were made to fail in all of them", file=sys.stderr)
    return 0 if found and not any(f["wrong"] for f in found) else 1


if __name__ == "__main__":
    sys.exit(main())
