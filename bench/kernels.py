"""GFLOP/s of the matrix kernels, one op at a time, and their share of what 128-bit multiply-add does at most.

The operations counted are those of the plain product: a convolution by Winograd's filtering can have more than 100 %.
The least of several runs counts. --prototype PATH adds the ratio to a program that defines
module() as WAT text with an exported gemm(A, B, C, M, N, K, bufA, bufB, tmp, prepacked), --numpy the ratio to numpy.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import wasmtime

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from harness import Harness
from onnx_wasm.context import Record
from onnx_wasm.ops.conv import conv
from onnx_wasm.ops.matmul import matmul

GEMM = [(s, s, s) for s in (64, 128, 256, 512, 1024)] + [
    (128, 384, 384),
    (128, 384, 1536),
    (128, 1536, 384),
    (8, 512, 512),
]
GEMV = [(1, 4096, 4096), (1, 9216, 4096), (1, 1024, 1000), (1, 128, 128)]
# (channels, size, output channels, kernel, stride, pad)
RESNET50 = [
    (3, 224, 64, 7, 2, 3),
    (64, 56, 64, 1, 1, 0),
    (64, 56, 64, 3, 1, 1),
    (64, 56, 256, 1, 1, 0),
    (256, 56, 64, 1, 1, 0),
    (256, 56, 128, 1, 1, 0),
    (128, 56, 128, 3, 2, 1),
    (256, 56, 512, 1, 2, 0),
    (128, 28, 512, 1, 1, 0),
    (512, 28, 128, 1, 1, 0),
    (128, 28, 128, 3, 1, 1),
    (512, 28, 256, 1, 1, 0),
    (256, 14, 256, 3, 1, 1),
    (256, 14, 1024, 1, 1, 0),
    (1024, 14, 256, 1, 1, 0),
    (512, 7, 512, 3, 1, 1),
    (512, 7, 2048, 1, 1, 0),
    (2048, 7, 512, 1, 1, 0),
    (256, 1, 64, 1, 1, 0),
]
SQUEEZENET = [
    (3, 224, 64, 3, 2, 0),
    (64, 55, 16, 1, 1, 0),
    (16, 55, 64, 1, 1, 0),
    (16, 55, 64, 3, 1, 1),
    (128, 27, 32, 1, 1, 0),
    (32, 27, 128, 3, 1, 1),
    (64, 13, 256, 3, 1, 1),
    (512, 13, 1000, 1, 1, 0),
]
DEPTHWISE = [
    (32, 112, 3, 1),
    (64, 112, 3, 2),
    (128, 56, 3, 1),
    (256, 28, 3, 2),
    (512, 14, 3, 1),
    (1024, 7, 3, 1),
    (96, 56, 5, 1),
    (192, 28, 5, 2),
    (240, 14, 5, 1),
]

SETS: dict[str, Sequence[tuple[int, ...]]] = {
    "gemm": GEMM,
    "gemv": GEMV,
    "resnet50": RESNET50,
    "squeezenet": SQUEEZENET,
    "depthwise": DEPTHWISE,
}


def seconds(call: Callable[[], Any], budget: float = 0.25) -> float:
    """The least time of one call."""
    call()
    best, spent = 1e9, 0.0
    while spent < budget:
        start = time.perf_counter()
        call()
        took = time.perf_counter() - start
        best, spent = min(best, took), spent + took
    return best


def prepare(h: Harness, function: Callable[..., Any], inputs: list[np.ndarray], **attributes: Any) -> Callable[[], Any]:
    """Run an op once, all inputs but the first constant, and return what runs its records again: those of a run, not
    those that pack weights once a session."""
    tape: list[tuple[int, int, int]] = []
    last: list[tuple[int, int, int]] = []
    run_record, run = h.run_record, h._run

    def note(address: int, begin: int, end: int) -> int:
        last[:] = [(address, begin, end)]
        return int(run_record(address, begin, end))

    def note_record(record: Record, *rest: Any) -> None:
        run(record, *rest)
        if record.position >= 0:
            tape.extend(last)

    h.run_record, h._run = note, note_record  # type: ignore[method-assign]
    h.op(function, inputs, weights=range(1, len(inputs)), **attributes)
    h.run_record, h._run = run_record, run  # type: ignore[method-assign]

    def again() -> None:
        for call in tape:
            run_record(*call)

    return again


def peak() -> float:
    """Operations a second of 128-bit fused multiplications and additions that wait for nothing, in this engine."""
    rounds, sums = 4_000_000, range(12)
    step = " ".join(
        f"(local.set $s{i} (f32x4.relaxed_madd (local.get $s{i}) (local.get $x) (local.get $y)))" for i in sums
    )
    total = "(local.get $s0)"
    for i in sums[1:]:
        total = f"(f32x4.add {total} (local.get $s{i}))"
    config = wasmtime.Config()
    config.wasm_relaxed_simd = True
    store = wasmtime.Store(wasmtime.Engine(config))
    text = f"""(module (func (export "run") (param $n i32) (result f32) (local $x v128) (local $y v128)
      {" ".join(f"(local $s{i} v128)" for i in sums)}
      (local.set $x (f32x4.splat (f32.const 0.5)))
      (local.set $y (f32x4.splat (f32.const 1)))
      (loop $next {step}
        (br_if $next (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
      (f32x4.extract_lane 0 {total})))"""
    run = wasmtime.Instance(store, wasmtime.Module(store.engine, text), []).exports(store)["run"]
    assert isinstance(run, wasmtime.Func)
    return 8 * len(sums) * rounds / seconds(lambda: run(store, rounds))


def prototype(path: str) -> Callable[[int, int, int], float]:
    """Seconds of the prototype with B prepacked, by m, n, k."""
    sys.path.insert(0, str(Path(path).parent))
    spec = importlib.util.spec_from_file_location("prototype", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = wasmtime.Config()
    config.wasm_relaxed_simd = True
    store = wasmtime.Store(wasmtime.Engine(config))
    instance = wasmtime.Instance(store, wasmtime.Module(store.engine, module.module()), [])
    gemm = instance.exports(store)["gemm"]
    assert isinstance(gemm, wasmtime.Func)

    def run(m: int, n: int, k: int) -> float:
        a, b = 1 << 20, (1 << 20) + 4 * m * k
        c, scratch = b + 4 * k * n, b + 4 * k * n + 4 * m * n
        buffer = scratch + (1 << 20)
        gemm(store, a, b, c, m, n, k, scratch, buffer, 1024, 0)
        return seconds(lambda: gemm(store, a, b, c, m, n, k, scratch, buffer, 1024, 1))

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"some of {', '.join(SETS)} (default: all)")
    parser.add_argument("--prototype")
    parser.add_argument("--numpy", action="store_true")
    parser.add_argument("--variant", default="relaxed", choices=["relaxed", "strict"])
    args = parser.parse_args()
    for name in args.sets:
        if name not in SETS:
            parser.error(f"no set {name!r}; there are {', '.join(SETS)}")
    h = Harness(args.variant, pages=16384)
    reference = prototype(args.prototype) if args.prototype else None
    rng = np.random.default_rng(0)
    most = peak()
    print(f"{'peak':10} {'128-bit multiply-add':34} {'':12} {most / 1e9:6.1f} GFLOP/s", flush=True)

    def array(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, np.float32)

    for name in args.sets or SETS:
        total_flops = total_time = 0.0
        for shape in SETS[name]:
            if name in ("gemm", "gemv"):
                m, k, n = shape
                inputs = [array(m, k), array(k, n)]
                run, flops = prepare(h, matmul, inputs), 2.0 * m * k * n
            elif name == "depthwise":
                c, size, kernel, stride = shape
                out = -(-size // stride)
                inputs = [array(1, c, size, size), array(c, 1, kernel, kernel), array(c)]
                pads = [kernel // 2] * 4
                run = prepare(h, conv, inputs, group=c, pads=pads, strides=[stride, stride])
                flops = 2.0 * c * kernel * kernel * out * out
            else:
                c, size, m, kernel, stride, pad = shape
                out = (size + 2 * pad - kernel) // stride + 1
                inputs = [array(1, c, size, size), array(m, c, kernel, kernel), array(m)]
                run = prepare(h, conv, inputs, pads=[pad] * 4, strides=[stride, stride])
                flops = 2.0 * m * c * kernel * kernel * out * out
            took = seconds(run)
            total_flops, total_time = total_flops + flops, total_time + took
            line = f"{name:10} {shape!s:34} {took * 1e6:9.1f} us {flops / took / 1e9:6.1f} GFLOP/s"
            line += f" {flops / took / most:5.0%}"
            if name == "gemm" and reference:
                line += f"  {reference(m, n, k) / took:5.2f} x prototype"
            if name in ("gemm", "gemv") and args.numpy:
                line += f"  {seconds(lambda: inputs[0] @ inputs[1]) / took:5.2f} x numpy"  # noqa: B023
            print(line, flush=True)
        rate = total_flops / total_time
        print(f"{name:10} {'all':34} {total_time * 1e6:9.1f} us {rate / 1e9:6.1f} GFLOP/s {rate / most:5.0%}")


if __name__ == "__main__":
    main()
