"""The commands ``onnx-wasm heap``: replay, whatif, map."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import cli_args, heap_map, inputs, report, trace
from .errors import OnnxWasmError
from .heap import Runtime
from .heap_policy import PRESETS, HeapPolicy
from .heap_svg import svg
from .heap_timeline import Stage
from .picture import human
from .session import InferenceSession
from .whatif import WhatIf, as_recorded, whatif
from .words import counted, noun


def add(commands: Any) -> None:
    """Add the command to a parser's commands."""
    heap = commands.add_parser("heap", help="the allocator")
    actions = heap.add_subparsers(required=True, metavar="ACTION")
    replay = actions.add_parser("replay", help="replay recordings of an allocator; exit 1 at the first difference")
    replay.add_argument("traces", nargs="+", metavar="TRACE.npz")
    replay.set_defaults(command=_replay)

    what = actions.add_parser("whatif", help="replay a recording under other limits; all presets without options")
    what.add_argument("trace", metavar="TRACE.npz")
    cli_args.add_policy(what, several=True)
    what.add_argument("--json", action="store_true", help="print one JSON object")
    what.set_defaults(command=_whatif, parser=what)

    drawn = actions.add_parser("map", help="run a model once; show what lies where in its heap")
    drawn.add_argument("model", metavar="MODEL")
    cli_args.add_feeds(drawn)
    cli_args.add_policy(drawn, several=False)
    drawn.add_argument("--svg", metavar="OUT.svg", help="write a picture, too")
    drawn.add_argument(
        "--width", type=cli_args.positive, default=96, metavar="N", help="characters a line (default 96)"
    )
    cli_args.add_session(drawn)
    drawn.set_defaults(command=_map, parser=drawn)


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
        print(f"{result.name:20} {result.calls:8,} {noun(result.calls, 'call')}, 0 differences", flush=True)
    files, spent = counted(len(args.traces), "file"), time.perf_counter() - started
    print(f"{files}, {counted(calls, 'call')}, 0 differences in {spent:.1f} s")
    return 0


def _whatif(args: argparse.Namespace) -> int:
    recording = trace.load(args.trace)
    changes = cli_args.changes(args)
    names = args.preset or ([] if changes else list(PRESETS))
    policies = {**as_recorded(recording), **{n: PRESETS[n].policy for n in names}}
    if changes and args.preset:
        policies |= {f"{n}, changed": PRESETS[n].policy.with_(**changes) for n in names}
    elif changes:
        policies["these options"] = HeapPolicy(**changes)
    rows = whatif(recording, policies)
    if args.json:
        print(
            json.dumps({"trace": args.trace, "calls": len(recording.op), "rows": [r.to_dict() for r in rows]}, indent=2)
        )
    else:
        print(f"{recording.name}: {counted(len(recording.op), 'call')}")
        print("\n".join(_table(rows)))
    return 0


def _table(rows: Sequence[WhatIf]) -> list[str]:
    wide = max(len(row.name) for row in rows)
    lines = [f"{'policy':{wide}} {'peak in use':>13} {'linear memory':>13} {'growths':>7} {'slack':>13}  fails at"]
    for row in rows:
        if row.refused:
            lines.append(f"{row.name:{wide}} cannot begin: {row.refused}")
            continue
        sizes = f"{human(row.peak):>13} {human(row.linear):>13} {row.growths:7,} {human(row.slack):>13}"
        lines.append(f"{row.name:{wide}} {sizes}  {_failure(row)}")
    return lines


def _failure(row: WhatIf) -> str:
    failure = row.failure
    if failure is None:
        if row.unknown_after is not None:
            return f"- (call {row.unknown_after:,} failed when recorded: what would have followed is not known)"
        return "-"
    limit = "heap" if failure.limit == "maximum" else "engine"
    return (
        f"call {failure.call:,}{' (as when recorded)' if failure.recorded else ''}: {failure.op} of "
        f"{human(failure.size)}, {human(failure.used)} in use; the {limit}'s limit is {human(failure.limit_bytes)}"
    )


def _map(args: argparse.Namespace) -> int:
    files, shapes = cli_args.given(args)
    policy = cli_args.policy(args)
    out = None if args.svg is None else Path(args.svg)
    if out is not None and not out.parent.is_dir():
        raise OnnxWasmError(f"--svg {args.svg}: {out.parent} is no folder")
    stages: list[Stage] = []
    with Runtime(policy=policy) as runtime:
        runtime.start_events(None)

        def stage(label: str) -> None:
            if runtime.events:
                stages.append(Stage(label, len(runtime.events) - 1))

        failure = _run_once(runtime, args, files, shapes, stage)
        stage("after dispose")
        events = runtime.events
    if not events:
        raise OnnxWasmError(f"{args.model} took nothing from the heap")
    if failure is None:
        stages.append(Stage("at the peak", heap_map.peak_index(events)))
    else:
        refused = [i for i, event in enumerate(events) if event.kind == "fail"][-1:]
        # Where nothing was in use then, nothing came of the rest, either.
        stages = [s for s in stages if s.index not in refused] + [Stage("at the failure", i) for i in refused]
    stages.sort(key=lambda stage: stage.index)
    _print_maps(stages, events, policy.heap_base, args.width)
    if out is not None:
        out.write_text(
            svg(stages, events, base=policy.heap_base, title=f"The heap of {Path(args.model).name}"), "utf-8"
        )
        print(f"\npicture written to {out}")
    if failure is not None:
        raise failure
    return 0


def _run_once(
    runtime: Runtime,
    args: argparse.Namespace,
    files: dict[str, str],
    shapes: dict[str, tuple[int, ...]],
    stage: Callable[[str], None],
) -> MemoryError | None:
    """Create, run and dispose; the error where memory did not suffice."""
    try:
        with InferenceSession.create(args.model, runtime=runtime, **cli_args.session(args)) as session:
            feeds, _, assumed = inputs.feeds(session, files, shapes)
            stage("after creation")
            with inputs.explained(assumed):
                report.dispose(session.run(feeds))
    except MemoryError as error:
        # Its traceback holds the frames, and they what was allocated.
        return error.with_traceback(None)
    return None


def _print_maps(stages: Sequence[Stage], events: Sequence[Any], base: int, width: int) -> None:
    for stage in stages:
        event = events[stage.index]
        print(f"{stage.label}: {human(event.used)} in use of {human(event.linear)} linear memory")
        print(
            heap_map.text_map(
                heap_map.live_at(events, stage.index),
                base=base,
                brk=heap_map.reached(events, stage.index, base),
                linear=event.linear,
                width=width,
                color=sys.stdout.isatty(),
            )
        )
        if stage is not stages[-1]:
            print()
