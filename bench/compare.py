"""Time the same models here, on onnxruntime-web in Node and on native onnxruntime, and print ratios.

    python bench/compare.py [--models DIR] [--inputs DIR] [--ids id,id] [--rounds N] [--threads 1] [--json OUT]

Each runtime is a process that stays alive for all rounds of a model; they take turns, so that a slow spell of the
machine meets all of them, and a ratio is formed within a round. A runtime that is not installed is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from models import Model, add_folders, fetched, find, inputs_of, with_random_weights
from report import NATIVE, OURS, WEB, Json, first_table, memory_table, summary, times_table

HERE = Path(__file__).resolve().parent
WARM_MS = 500


class PeerError(Exception):
    """What a peer answered instead of a result."""


class Peer:
    """A runtime's process. `close` ends it, which is the only way to get back what a WASM memory has grown to."""

    def __init__(self, command: list[str]) -> None:
        try:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        except FileNotFoundError as error:
            raise PeerError(f"{command[0]} not found") from error

    def ask(self, do: str, **arguments: Any) -> Json:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise PeerError(f"its process ended with code {self.process.wait()}")
        reply: Json = json.loads(line)
        if "error" in reply:
            raise PeerError(reply["error"])
        return reply

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


def commands(ortweb: Path) -> dict[str, list[str]]:
    python = [sys.executable, str(HERE / "peer.py")]
    return {
        OURS: [*python, "onnx-wasm"],
        WEB: ["node", str(HERE / "ortweb" / "peer.mjs"), str(ortweb)],
        NATIVE: [*python, "native"],
    }


def available(candidates: dict[str, list[str]]) -> dict[str, str]:
    """The runtimes that answer, with their versions."""
    versions = {}
    for name, command in candidates.items():
        try:
            peer = Peer(command)
        except PeerError as error:
            print(f"{name}: left out: {error}", file=sys.stderr)
            continue
        try:
            versions[name] = peer.ask("hello")["version"]
        except PeerError as error:
            print(f"{name}: left out: {error}", file=sys.stderr)
        finally:
            peer.close()
    return versions


class Progress:
    """One line on stderr, rewritten in place on a terminal and left out of a log."""

    def __init__(self) -> None:
        self.live = sys.stderr.isatty()

    def show(self, text: str) -> None:
        if self.live:
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)

    def line(self, text: str) -> None:
        print(f"\r\033[K{text}" if self.live else text, file=sys.stderr, flush=True)


def measure(model: Model, candidates: dict[str, list[str]], options: argparse.Namespace, progress: Progress) -> Json:
    """One model on every runtime. A runtime that fails on it is reported and left out of its rounds."""
    result: Json = {"id": model.id, "random_weights": model.random_weights, "peers": {}, "failed": {}}
    peers: dict[str, Peer] = {}
    outputs: dict[str, dict[str, np.ndarray[Any, Any]]] = {}
    times: dict[str, int] = {}
    feeds = [{"name": v.name, "dtype": v.dtype, "dims": v.dims, "file": str(v.file.resolve())} for v in model.inputs]
    try:
        for name, command in candidates.items():
            progress.show(f"{model.id}: loading on {name}")
            try:
                with tempfile.TemporaryDirectory() as folder:
                    peers[name] = peer = Peer(command)
                    loaded = peer.ask(
                        "load",
                        model=str(model.path.resolve()),
                        inputs=feeds,
                        fetches=model.fetches,
                        threads=options.threads,
                        save=folder,
                    )
                    outputs[name] = _read(loaded.pop("outputs"), Path(folder))
                if options.memory:
                    result["peers"][name] = {**loaded, "ms": [[loaded["first_ms"]]]}
                    continue
                # A JavaScript engine recompiles what is hot while it runs: warm up before counting.
                last = peer.ask("run", times=3)["ms"][-1]
                last = peer.ask("run", times=_fit(WARM_MS, last))["ms"][-1]
                times[name] = _fit(options.turn_ms, last)
                result["peers"][name] = {**loaded, "ms": []}
            except PeerError as error:
                result["failed"][name] = str(error)
                progress.line(f"{model.id}: {name} failed: {error}")
        for turn in range(0 if options.memory else options.rounds):
            for name in result["peers"]:
                progress.show(f"{model.id}: round {turn + 1} of {options.rounds}, {name}")
                result["peers"][name]["ms"].append(peers[name].ask("run", times=times[name])["ms"])
                if options.threads > 1:
                    time.sleep(0.02)  # until this runtime's idle threads have stopped spinning
        for name in result["peers"]:
            result["peers"][name].update(peers[name].ask("memory"))
    except PeerError as error:
        result["failed"]["rounds"] = str(error)
        progress.line(f"{model.id}: given up: {error}")
        result["peers"] = {}
    finally:
        for peer in peers.values():
            peer.close()
    _summarise(result, outputs)
    return result


def _fit(budget_ms: float, run_ms: float) -> int:
    return max(1, min(200, round(budget_ms / max(run_ms, 1e-3))))


def _read(outputs: list[Json], folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    return {
        v["name"]: np.fromfile(folder / f"{index}.bin", v["dtype"]).reshape(v["dims"])
        for index, v in enumerate(outputs)
    }


def _summarise(result: Json, outputs: dict[str, dict[str, np.ndarray[Any, Any]]]) -> None:
    rounds = {name: [statistics.median(ms) for ms in peer["ms"]] for name, peer in result["peers"].items()}
    for name, medians in rounds.items():
        result["peers"][name]["median_ms"] = statistics.median(medians)
        if NATIVE in outputs and name != NATIVE:
            result["peers"][name]["error"] = _error(outputs[name], outputs[NATIVE])
    result["ratios"] = {}
    for a, b in itertools.combinations(rounds, 2):
        per_round = sorted(x / y for x, y in zip(rounds[a], rounds[b], strict=True))
        result["ratios"][f"{a}/{b}"] = {
            "median": statistics.median(per_round),
            "low": per_round[len(per_round) // 10],
            "high": per_round[-1 - len(per_round) // 10],
        }


def _error(actual: dict[str, np.ndarray[Any, Any]], expected: dict[str, np.ndarray[Any, Any]]) -> float:
    """The largest difference of any output, relative to that output's largest element; inf if not comparable."""
    worst = 0.0
    for name, wanted in expected.items():
        got = actual.get(name)
        if got is None or got.shape != wanted.shape:
            return math.inf
        if not wanted.size:
            continue
        a, b = got.astype(np.float64), wanted.astype(np.float64)
        if not np.array_equal(np.isnan(a), np.isnan(b)):
            return math.inf
        scale = float(np.nanmax(np.abs(b), initial=0)) or 1.0
        worst = max(worst, float(np.nanmax(np.abs(a - b), initial=0)) / scale)
    return worst


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_folders(parser)
    parser.add_argument("--ids", "--only", default="", metavar="ID,ID", help="these models (default: all described)")
    parser.add_argument("--rounds", type=int, default=10, metavar="N")
    parser.add_argument("--threads", type=int, default=1, metavar="N")
    parser.add_argument(
        "--turn-ms", type=float, default=100, help="about how long one runtime's turn takes (at least 1 run)"
    )
    parser.add_argument(
        "--random-weights",
        action=argparse.BooleanOptionalAction,
        help="for the light_* networks, whose own are constants (default: if --shared has the script for it)",
    )
    parser.add_argument("--ortweb", type=Path, default=HERE / "ortweb", help="folder with node_modules/onnxruntime-web")
    parser.add_argument("--memory", action="store_true", help="only the table of memory: one run, nothing timed")
    parser.add_argument("--json", type=Path, metavar="OUT", help="every single time, and the machine")
    options = parser.parse_args()
    if options.rounds < 1 or options.threads < 1:
        parser.error("--rounds and --threads are at least 1")
    options.inputs = inputs_of(options, parser)
    options.ids = [i for i in options.ids.split(",") if i]
    if options.random_weights is None:
        options.random_weights = (options.shared / "models" / "random_weights.py").exists()
    return options


def main() -> int:
    options = parse()
    candidates = commands(options.ortweb)
    versions = available(candidates)
    if not versions:
        print("no runtime is available", file=sys.stderr)
        return 1
    models, missing = find(options.models or fetched(options.shared, options.ids), options.inputs, options.ids)
    for sentence in missing:
        print(sentence, file=sys.stderr)
    progress = Progress()
    results = []
    for model in models:
        with tempfile.TemporaryDirectory() as folder:
            if options.random_weights:
                progress.show(f"{model.id}: random weights")
                model = with_random_weights(model, options.shared, Path(folder))
            results.append(measure(model, {name: candidates[name] for name in versions}, options, progress))
        progress.line(f"{model.id}: done")
    names = list(versions)
    print(", ".join(f"{name}: {version}" for name, version in versions.items()))
    if results and not options.memory:
        print(
            f"{options.threads} thread(s), {options.rounds} rounds: medians, and the range of the middle 80 % of ratios"
        )
        print(f"\n{times_table(results, names)}\n\n{first_table(results, names)}")
    if results and (OURS in names or WEB in names):
        print(f"\n{memory_table(results)}")
    if not options.memory and (text := summary(results)):
        print(f"\n{text}")
    if options.json:
        machine = {"platform": platform.platform(), "processor": _processor(), "cores": os.cpu_count()}
        document = {"versions": versions, "threads": options.threads, "machine": machine, "models": results}
        options.json.write_text(json.dumps(document, indent=1))
    return 1 if missing or not results or any(r["failed"] for r in results) else 0


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


if __name__ == "__main__":
    sys.exit(main())
