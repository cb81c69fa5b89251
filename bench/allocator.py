"""Nanoseconds of one malloc or free inside the module, on recordings of the browser's allocator.

    python bench/allocator.py [TRACES ...] [--rounds N] [--json OUT]

A second module, on the same engine, makes the calls of a recording one after the other and keeps the addresses; the
time of the same loop around functions that do nothing is subtracted. Every answer is compared with the recorded one.
The memory has grown to its last size before the clock starts. Without TRACES: those of `../shared/traces`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import wasmtime

from onnx_wasm import trace as traces
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


def driver(
    store: wasmtime.Store, exports: wasmtime.InstanceExports, calls: np.ndarray, kept: int
) -> tuple[float, list[int]]:
    """Seconds of all calls, and the addresses that were answered."""
    pages = -(-(calls.nbytes + 4 * kept) // 65536)
    module = wasmtime.Module(store.engine, DRIVER.replace("{pages}", str(pages)))
    heap = [exports[name] for name in ("malloc", "memalign", "free")]
    own = wasmtime.Instance(store, module, heap).exports(store)
    memory, replay = own["memory"], own["replay"]
    assert isinstance(memory, wasmtime.Memory)
    assert isinstance(replay, wasmtime.Func)
    memory.write(store, calls.tobytes())
    start = time.perf_counter()
    replay(store, 0, calls.nbytes)
    seconds = time.perf_counter() - start
    answers = np.frombuffer(memory.read(store, calls.nbytes, calls.nbytes + 4 * kept), np.uint32)
    return seconds, answers.tolist()


def measure(trace: traces.Trace, rounds: int) -> dict[str, float | int | str]:
    allocations = [i for i, op in enumerate(trace.op) if op != FREE]
    at = 12 * len(trace.op)
    calls = np.zeros((len(trace.op), 3), np.int64)
    made = 0
    for row, op, arg in zip(calls, trace.op, trace.arg, strict=True):
        if op == FREE:
            row[:] = -1, at + 4 * arg, 0
            continue
        row[:] = {MALLOC: 0, TENSOR: 64}.get(op, 1 << max(op - 4, 0)), arg, at + 4 * made
        made += 1
    packed = calls.astype(np.uint32)
    nothing, whole, wrong = [], [], 0
    for _ in range(rounds):
        heap = traces.ModuleHeap(trace)
        traces.begin(trace, heap)
        instance = heap._instance
        _, answers = driver(instance._store, instance._exports, packed, made)
        wrong += sum(a != trace.ptr[i] for a, i in zip(answers, allocations, strict=True))
        for address in [a for a, free in zip(answers, _lives(trace), strict=True) if a and not free]:
            heap.free(address)
        # Again in the memory that is there now: growing it is the engine's time.
        whole.append(driver(instance._store, instance._exports, packed, made)[0])
        store = wasmtime.Store(instance._store.engine)
        empty = wasmtime.Instance(store, wasmtime.Module(store.engine, NOTHING), []).exports(store)
        nothing.append(driver(store, empty, packed, made)[0])
        heap.close()
    return {
        "trace": trace.name,
        "calls": len(trace.op),
        "wrong": wrong,
        "ns": (statistics.median(whole) - statistics.median(nothing)) / len(trace.op) * 1e9,
        "loop_ns": statistics.median(nothing) / len(trace.op) * 1e9,
    }


def _lives(trace: traces.Trace) -> list[bool]:
    """Which allocations the recording frees."""
    freed = {arg for op, arg in zip(trace.op, trace.arg, strict=True) if op == FREE}
    return [i in freed for i in range(sum(op != FREE for op in trace.op))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("traces", nargs="*", type=Path)
    parser.add_argument("--rounds", type=int, default=7, metavar="N")
    parser.add_argument("--json", type=Path, metavar="OUT")
    options = parser.parse_args()
    paths = options.traces or sorted((SHARED / "traces").glob("*.npz"))
    if not paths:
        parser.error(
            f"no recordings in {SHARED / 'traces'}: name some (`onnx-wasm run MODEL --record OUT.npz` makes one)"
        )
    found = []
    for path in paths:
        trace = traces.load(path)
        if traces.injections(trace):
            print(f"{trace.name}: left out: calls were made to fail")
            continue
        found.append(measure(trace, options.rounds))
        print(
            "{trace:20} {calls:8,} calls  {ns:6.1f} ns a call (loop {loop_ns:.1f} ns), {wrong} wrong".format(
                **found[-1]
            ),
            flush=True,
        )
    if found:
        calls = sum(int(f["calls"]) for f in found)
        mean = sum(float(f["ns"]) * int(f["calls"]) for f in found) / calls
        print(f"{'all':20} {calls:8,} calls  {mean:6.1f} ns a call")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    if not found:
        print("nothing was measured: calls were made to fail in all of them", file=sys.stderr)
    return 0 if found and not any(f["wrong"] for f in found) else 1


if __name__ == "__main__":
    sys.exit(main())
