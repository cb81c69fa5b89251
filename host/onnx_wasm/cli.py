"""The command ``onnx-wasm``."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from . import cli_args, cli_heap, engine, inputs, registry, report
from .env import VERSION, env
from .errors import OnnxWasmError
from .functions import defined_by_bodies
from .heap import Runtime
from .model import INTERNAL
from .prepare import load_ops
from .schemas import newest_opset
from .session import InferenceSession

_WIDTH = 100


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; the exit code is 0, 1 for a difference or an error, 2 for wrong arguments."""
    try:
        try:
            return _main(argv)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader has seen enough; the interpreter must not find the pipe closed once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _main(argv: Sequence[str] | None) -> int:
    args = _parser().parse_args(argv)
    try:
        result: int = args.command(args)
    except BrokenPipeError:
        raise
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error))
    except OnnxWasmError as error:
        return _fail(str(error))
    except MemoryError as error:
        return _fail(f"out of memory: {error}" if str(error) else "out of memory")
    except KeyboardInterrupt:
        return 130
    return result


def _fail(message: str) -> int:
    print(f"onnx-wasm: {message}", file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="onnx-wasm", description="ONNX models in a WebAssembly heap.")
    parser.add_argument("--version", action="version", version=f"onnx-wasm {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="run a model; show its outputs, times and heap")
    run.add_argument("model", metavar="MODEL")
    cli_args.add_feeds(run)
    run.add_argument(
        "--runs", type=cli_args.positive, default=10, metavar="N", help="runs after the first (default 10)"
    )
    run.add_argument("--save", metavar="OUT.npz", help="write the outputs of the last run to a file")
    run.add_argument("--json", action="store_true", help="print one JSON object")
    cli_args.add_session(run)
    run.add_argument(
        "--profile", action="store_true", help="after the other runs one more, timed by node and by operator"
    )
    run.add_argument(
        "--variant", choices=("relaxed", "strict"), default="relaxed", help="of the module (default relaxed)"
    )
    run.add_argument("--threads", type=cli_args.threads, default=1, metavar="N", help="share the work (default 1)")
    run.add_argument(
        "--record", metavar="OUT.npz", help="write every call of the allocator to a file, for heap replay and whatif"
    )
    cli_args.add_policy(run, several=False)
    run.set_defaults(command=_run, parser=run)

    cli_heap.add(commands)

    info = commands.add_parser("info", help="versions, kernels and operators")
    info.add_argument("--json", action="store_true", help="print one JSON object")
    info.set_defaults(command=_info)
    return parser


def _writable(option: str, text: str) -> Path:
    """The file that an option names, which will be written."""
    path = Path(text if text.endswith(".npz") else f"{text}.npz")
    if not path.parent.is_dir():
        raise OnnxWasmError(f"{option} {text}: {path.parent} is no folder")
    if Path(text).is_dir() or path.is_dir():
        raise OnnxWasmError(f"{option} {text}: this is a folder; give the name of a file")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise OnnxWasmError(f"{option} {text}: {path} cannot be written")
    return path


def _run(args: argparse.Namespace) -> int:
    files, shapes = cli_args.given(args)
    save = _writable("--save", args.save) if args.save else None
    record = _writable("--record", args.record) if args.record else None
    options = cli_args.session(args)
    planned = options["enable_mem_pattern"]
    with (
        Runtime(
            variant=args.variant, policy=cli_args.policy(args), threads=args.threads, record=record is not None
        ) as runtime,
        ExitStack() as end,
    ):
        if record is not None:
            # Also where memory does not suffice: that is what one wants to look at.
            end.callback(runtime.save_recording, record, model=Path(args.model).name, memory_pattern=planned)
        started = time.perf_counter()
        with InferenceSession.create(args.model, runtime=runtime, **options) as session:
            created = (time.perf_counter() - started) * 1e3
            feeds, notes, assumed = inputs.feeds(session, files, shapes)
            fed = {n: report.fed(a, notes[n]) for n, a in feeds.items()}
            if not args.json:
                print("\n".join(report.input_lines(args.model, args.variant, fed)), flush=True)
            with inputs.explained(assumed):
                times, results = _time(session, feeds, args.runs)
            memory, plan = runtime.memory(), session.plan_info
            assert plan is not None
            outputs = report.outputs(results)
            report.dispose(results)
            profile = _profile(session, feeds) if args.profile else None
            labels = session.model_metadata.get("labels", "") if files.keys() >= set(session.input_names) else ""
    found = {
        "model": args.model,
        "variant": args.variant,
        "threads": args.threads,
        "inputs": fed,
        "outputs": {n: report.summary(o) for n, o in outputs.items()},
        "recognised": report.recognised(labels, next((o.array for o in outputs.values()), np.empty(0))),
        "times_ms": {
            "create": created,
            "first_run": times[0],
            "median": statistics.median(times[1:]),
            "fastest": min(times[1:]),
            "runs": len(times) - 1,
        },
        "heap": report.heap(memory, plan, planned=planned, file_bytes=Path(args.model).stat().st_size),
        "profile": profile,
        "saved": None if save is None else str(save),
        "recorded": None if record is None else str(record),
    }
    if save is not None:
        report.save(save, {n: o.array for n, o in outputs.items()})
    if args.json:
        print(json.dumps(report.for_json(found), indent=2))
    else:
        print("\n".join(report.result_lines(found)))
        if save is not None:
            print(f"\noutputs written to {save}")
        if record is not None:
            print(f"\ncalls of the allocator written to {record}")
    return 0


def _profile(session: InferenceSession, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Where the time of one more run goes."""
    session.start_profiling()
    report.dispose(session.run(feeds))
    return report.profile(session.end_profiling())


def _time(session: InferenceSession, feeds: Mapping[str, Any], runs: int) -> tuple[list[float], dict[str, Any]]:
    """Milliseconds of every run, and what the last one returned, alive."""
    times: list[float] = []
    results: dict[str, Any] = {}
    progress = sys.stderr.isatty()
    try:
        for i in range(runs + 1):
            report.dispose(results)
            started = time.perf_counter()
            results = session.run(feeds)
            times.append((time.perf_counter() - started) * 1e3)
            if progress:
                print(f"\rrun {i} of {runs} ", end="", file=sys.stderr, flush=True)
    finally:
        if progress:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
    return times, results


def _qualified(domain: str, name: str) -> str:
    return f"{domain}::{name}" if domain else name


def _info(args: argparse.Namespace) -> int:
    manifest = engine.manifest()
    load_ops()
    names: dict[str, list[str]] = {}
    for domain, name in sorted({(f.domain, f.name) for f in registry.registered() if f.domain != INTERNAL}):
        names.setdefault(domain, []).append(name)
    bodies = sorted(_qualified(d, n) for d, n in defined_by_bodies() if n not in names.get(d, ()))
    oldest, newest = engine.WASMTIME_VERSIONS
    found = {
        "onnx-wasm": VERSION,
        "wasmtime": engine.wasmtime_version(),
        "wasmtime supported": [oldest, newest],
        "onnx": env.versions["onnx"],
        "newest opset": newest_opset(),
        "build": f"{manifest.build_hash & 0xFFFFFFFFFFFFFFFF:016x}",
        "module bytes": engine.module_sizes(),
        "kernels": len(manifest.kernels),
        "operators": [_qualified(domain, n) for domain, inner in names.items() for n in inner],
        "operators by bodies": bodies,
    }
    if args.json:
        print(json.dumps(found, indent=2))
        return 0
    sizes = ", ".join(f"{name} {size:,}" for name, size in engine.module_sizes().items())
    shown = {
        **found,
        "wasmtime": f"{found['wasmtime']} ({oldest} to {newest} are supported)",
        "module bytes": sizes,
        "operators": sum(map(len, names.values())),
    }
    del shown["wasmtime supported"], shown["operators by bodies"]
    for key, value in shown.items():
        print(f"{key:13} {value}")
    for domain, inner in names.items():
        print(f"\n{domain or 'ai.onnx'}: {len(inner)}")
        print(textwrap.fill(", ".join(inner), _WIDTH, initial_indent="  ", subsequent_indent="  "))
    if bodies:
        print(f"\nby the bodies that ONNX gives them: {len(bodies)}")
        print(textwrap.fill(", ".join(bodies), _WIDTH, initial_indent="  ", subsequent_indent="  "))
    return 0


if __name__ == "__main__":
    sys.exit(main())
