"""The command ``onnx-wasm``."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from . import dtypes, engine, registry, trace
from .env import VERSION
from .errors import FeedError, OnnxWasmError
from .heap import MemoryInfo, Runtime
from .lower import load_ops
from .session import InferenceSession, PlanInfo, ValueMetadata
from .tensor import Tensor

Array = NDArray[Any]
_SEED = 0
_SHOWN = 6


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; the exit code is 0, 1 for a difference or an error, 2 for wrong arguments."""
    args = _parser().parse_args(argv)
    try:
        result: int = args.command(args)
    except (OnnxWasmError, OSError) as error:
        print(f"onnx-wasm: {error}", file=sys.stderr)
        return 1
    return result


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="onnx-wasm", description="ONNX models in a WebAssembly heap.")
    parser.add_argument("--version", action="version", version=f"onnx-wasm {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="run a model; show its outputs, times and heap")
    run.add_argument("model", metavar="MODEL")
    run.add_argument("--input", action="append", default=[], metavar="NAME=FILE.npy", help="an input; random without")
    run.add_argument("--shape", action="append", default=[], metavar="NAME=1,3,224,224", help="shape of a random input")
    run.add_argument("--runs", type=_positive, default=10, metavar="N", help="runs after the first (default 10)")
    run.add_argument("--save", metavar="OUT.npz", help="write the outputs of the last run to a file")
    run.add_argument("--json", action="store_true", help="print one JSON object")
    run.add_argument(
        "--no-mem-pattern", action="store_true", help="allocate intermediates one by one, as a browser does"
    )
    run.add_argument(
        "--variant", choices=("relaxed", "strict"), default="relaxed", help="of the module (default relaxed)"
    )
    run.set_defaults(command=_run)

    heap = commands.add_parser("heap", help="the allocator")
    actions = heap.add_subparsers(required=True, metavar="ACTION")
    replay = actions.add_parser("replay", help="replay recordings of an allocator; exit 1 at the first difference")
    replay.add_argument("traces", nargs="+", metavar="TRACE.npz")
    replay.set_defaults(command=_replay)

    info = commands.add_parser("info", help="versions, kernels and operators")
    info.add_argument("--json", action="store_true", help="print one JSON object")
    info.set_defaults(command=_info)
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def _run(args: argparse.Namespace) -> int:
    with Runtime(variant=args.variant) as runtime:
        started = time.perf_counter()
        session = InferenceSession.create(args.model, runtime=runtime, enable_mem_pattern=not args.no_mem_pattern)
        with session:
            created = (time.perf_counter() - started) * 1e3
            feeds, notes = _feeds(session, _pairs(args.input), _pairs(args.shape))
            times, outputs = _time(session, feeds, args.runs)
            memory, plan = runtime.memory(), session.plan_info
            assert plan is not None
            report = {
                "model": str(args.model),
                "variant": args.variant,
                "inputs": {
                    n: {"type": str(a.dtype), "shape": list(a.shape), "from": notes[n]} for n, a in feeds.items()
                },
                "outputs": {n: _summary(a) for n, a in outputs.items()},
                "recognised": _recognised(session, outputs),
                "times_ms": {
                    "create": created,
                    "first_run": times[0],
                    "median": statistics.median(times[1:]),
                    "fastest": min(times[1:]),
                    "runs": len(times) - 1,
                },
                "heap": _heap(memory, plan),
            }
    if args.save:
        np.savez(args.save, **{_file_key(n): a for n, a in outputs.items()})  # type: ignore[arg-type]
    if args.json:
        print(json.dumps(report, indent=2))
    else:
        print("\n".join(_lines(report)))
        if args.save:
            print(f"\noutputs written to {args.save}")
    return 0


def _pairs(items: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for item in items:
        name, equals, value = item.rpartition("=")
        if not equals or not name or not value:
            raise FeedError(f"{item!r} is not NAME=VALUE")
        pairs[name] = value
    return pairs


def _feeds(
    session: InferenceSession, files: dict[str, str], shapes: dict[str, str]
) -> tuple[dict[str, Array], dict[str, str]]:
    feeds: dict[str, Array] = {}
    notes: dict[str, str] = {}
    for name, file in files.items():
        try:
            feeds[name] = np.load(file, allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise FeedError(f"input {name!r}: {file} is no .npy file: {error}") from None
        notes[name] = file
    for name in shapes:
        if name not in session.input_names:
            raise FeedError(f"{name!r} is no input of the model, which takes {session.input_names}")
    chance = np.random.default_rng(_SEED)
    for metadata in session.input_metadata:
        if metadata.name not in feeds:
            shape, note = _shape(metadata, shapes.get(metadata.name))
            feeds[metadata.name] = _random(chance, metadata, shape)
            notes[metadata.name] = note
    return feeds, notes


def _shape(metadata: ValueMetadata, given: str | None) -> tuple[tuple[int, ...], str]:
    if given is not None:
        try:
            shape = tuple(int(d) for d in given.split(","))
        except ValueError:
            raise FeedError(f"--shape {metadata.name}={given}: not integers separated by commas") from None
        if min(shape) < 0:
            raise FeedError(f"--shape {metadata.name}={given}: dimensions must not be negative")
        return shape, "random, shape as given"
    unknown = [d or "?" for d in metadata.shape if isinstance(d, str)]
    shape = tuple(d if isinstance(d, int) else 1 for d in metadata.shape)
    return shape, "random" + (f", dimensions {', '.join(unknown)} taken as 1" if unknown else "")


def _random(chance: np.random.Generator, metadata: ValueMetadata, shape: tuple[int, ...]) -> Array:
    if not metadata.is_tensor:
        raise FeedError(f"input {metadata.name!r} is no tensor; the command line feeds tensors only")
    dtype = dtypes.from_name(metadata.type) if metadata.type else dtypes.STRING
    if dtype.numpy is None or dtype.bits < 8:
        raise FeedError(f"input {metadata.name!r} of type {metadata.type or 'unknown'} needs --input")
    if dtype.is_float:
        return chance.random(shape, np.float32).astype(dtype.numpy)
    return chance.integers(0, 2, shape).astype(dtype.numpy)


def _time(session: InferenceSession, feeds: dict[str, Array], runs: int) -> tuple[list[float], dict[str, Array]]:
    times: list[float] = []
    outputs: dict[str, Array] = {}
    progress = sys.stderr.isatty()
    for i in range(runs + 1):
        started = time.perf_counter()
        results = session.run(feeds)
        times.append((time.perf_counter() - started) * 1e3)
        outputs = dict(pair for name, result in results.items() for pair in _take(name, result))
        if progress:
            print(f"\rrun {i} of {runs} ", end="", file=sys.stderr, flush=True)
    if progress:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    return times, outputs


def _take(name: str, result: Any) -> Iterator[tuple[str, Array]]:
    """The arrays of a result by a name of their own, "output[2]" for a part of a sequence or map; tensors end here."""
    if isinstance(result, Tensor):
        yield name, result.get_data(release_data=True)
    elif isinstance(result, (list, dict)):
        for key, part in result.items() if isinstance(result, dict) else enumerate(result):
            yield from _take(f"{name}[{key}]", part)
    elif result is not None:
        yield name, np.asarray(result)


def _summary(array: Array) -> dict[str, Any]:
    summary: dict[str, Any] = {"type": str(array.dtype), "shape": list(array.shape)}
    flat = array.reshape(-1)
    if array.dtype.kind in "OUSc":
        summary["first"] = [str(v) for v in flat[:_SHOWN]]
        return summary
    if flat.size:
        numbers = flat.astype(np.float64)
        summary.update(min=float(numbers.min()), max=float(numbers.max()), mean=float(numbers.mean()))
    summary["first"] = [float(v) for v in flat[:_SHOWN]]
    return summary


def _recognised(session: InferenceSession, outputs: dict[str, Array]) -> dict[str, Any] | None:
    """The most likely label, for a classifier whose metadata has as many labels as its output has classes."""
    labels = [v.strip() for v in session.model_metadata.get("labels", "").split(",") if v.strip()]
    scores = next(iter(outputs.values()), np.empty(0))
    if (
        not labels
        or scores.dtype.kind != "f"
        or scores.ndim != 2
        or scores.shape[0] < 1
        or scores.shape[1] != len(labels)
    ):
        return None
    best = int(scores[0].argmax())
    return {"label": labels[best], "score": float(scores[0, best])}


def _heap(memory: MemoryInfo, plan: PlanInfo) -> dict[str, Any]:
    floor = plan.weight_bytes + plan.lower_bound
    return {
        **memory.to_dict(),
        "weights": plan.weight_bytes,
        "arena": plan.arena_bytes,
        "lower_bound": plan.lower_bound,
        "arena_ratio": plan.arena_bytes / plan.lower_bound if plan.lower_bound else 1.0,
        "peak_ratio": memory.peak / floor if floor else 1.0,
        "tape": plan.tape_bytes,
        "records": plan.records,
    }


def _lines(report: dict[str, Any]) -> list[str]:
    lines = [f"model    {report['model']} ({report['variant']})"]
    for name, item in report["inputs"].items():
        lines.append(f"input    {name}: {item['type']}{item['shape']} ({item['from']})")
    for name, item in report["outputs"].items():
        text = f"output   {name}: {item['type']}{item['shape']}"
        if "mean" in item:
            text += f"  min {item['min']:.6g}  max {item['max']:.6g}  mean {item['mean']:.6g}"
        first = [v if isinstance(v, str) else f"{v:.6g}" for v in item["first"]]
        more = ["..."] if np.prod(item["shape"]) > _SHOWN else []
        lines.append(f"{text}  [{', '.join(first + more)}]")
    if report["recognised"]:
        lines.append(f"result   {report['recognised']['label']} (score {report['recognised']['score']:.4f})")
    times = report["times_ms"]
    lines += [
        "",
        f"create   {times['create']:10.2f} ms",
        f"run 1    {times['first_run']:10.2f} ms",
        f"run 2..  {times['median']:10.2f} ms median, {times['fastest']:.2f} ms fastest of {times['runs']}",
        "",
    ]
    heap = report["heap"]
    rows = [
        ("weights", heap["weights"], ""),
        (
            "arena",
            heap["arena"],
            f"{heap['arena_ratio']:.3f} x lower bound" if heap["arena"] else "none: allocated one by one",
        ),
        ("lower bound", heap["lower_bound"], "intermediates alive at once"),
        ("inputs, outputs", sum(heap["by_tag"].get(t, 0) for t in ("input", "output", "user")), ""),
        ("tape", heap["tape"], f"{heap['records']} records"),
        ("in use", heap["used"], f"{heap['blocks']} blocks"),
        ("peak in use", heap["peak"], f"{heap['peak_ratio']:.3f} x (weights + lower bound)"),
        ("linear memory", heap["linear"], f"{len(heap['growths'])} growths"),
    ]
    lines.append("heap                     bytes")
    lines += [f"  {name:16} {size:12,}  {note}".rstrip() for name, size, note in rows]
    lines += [f"  grew             {g['before']:12,} -> {g['after']:,}" for g in heap["growths"]]
    return lines


def _file_key(name: str) -> str:
    """A name that an .npz member can have: as it is, but for slashes."""
    return name.replace("/", "_")


def _replay(args: argparse.Namespace) -> int:
    calls = 0
    started = time.perf_counter()
    for path in args.traces:
        recording = trace.load(path)
        heap = trace.ModuleHeap(recording)
        try:
            result = trace.replay(recording, heap, stop=True)
        finally:
            heap.close()
        calls += result.calls
        if result.first is not None:
            first = result.first
            print(f"{Path(path).name}: call {first.call}, {first.op} {first.arg}: (address, memory, break)")
            print(f"  recorded {first.expected}\n  here     {first.got}")
            return 1
        print(f"{result.name:20} {result.calls:8,} calls, 0 differences", flush=True)
    print(f"{len(args.traces)} files, {calls:,} calls, 0 differences in {time.perf_counter() - started:.1f} s")
    return 0


def _info(args: argparse.Namespace) -> int:
    manifest = engine.manifest()
    load_ops()
    names = sorted({f"{f.domain}::{f.name}" if f.domain else f.name for f in registry.registered()})
    report = {
        "onnx-wasm": VERSION,
        "wasmtime": engine.wasmtime_version(),
        "onnx": onnx.__version__,
        "newest opset": onnx.defs.onnx_opset_version(),
        "build": f"{manifest.build_hash & 0xFFFFFFFFFFFFFFFF:016x}",
        "module bytes": engine.module_sizes(),
        "kernels": len(manifest.kernels),
        "operators": names,
    }
    if args.json:
        print(json.dumps(report, indent=2))
        return 0
    for key, value in report.items():
        text = f"{len(names)}: {', '.join(names)}" if key == "operators" else value
        print(f"{key:13} {text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
