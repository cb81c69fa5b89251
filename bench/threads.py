"""How much faster models are on several threads than on one, here: two sessions of one process, in turns.

    python bench/threads.py [--threads 2] [--models DIR] [--inputs DIR] [--ids id,id] [--rounds N] [--over MS]

A ratio is formed within a round, of the medians of its two turns; above 1 the threads are faster. The outputs must be
the same to the byte.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from models import Model, add_folders, fetched, find, inputs_of, with_random_weights
from onnx_wasm.words import counted
from peer import OnnxWasm, timed
from report import Json, ms, table

IDLE_S = 0.02
"""Until idle threads have stopped spinning."""


def turn(adapter: OnnxWasm, budget_ms: float) -> list[float]:
    """The times of runs, in ms: as many as fit, one at least."""
    times: list[float] = []
    while sum(times) < budget_ms:
        times.append(timed(adapter))
    return times


def outputs(adapter: OnnxWasm) -> dict[str, bytes]:
    """The bytes of what a run makes."""
    result = adapter.run()
    arrays = adapter.arrays(result)
    adapter.done(result)
    return {name: array.tobytes() for name, array in arrays.items()}


def measure(model: Model, options: argparse.Namespace) -> Json:
    """Times by number of threads, round by round."""
    rounds: dict[str, list[list[float]]] = {"1": [], str(options.threads): []}
    feeds = {v.name: np.fromfile(v.file, v.dtype).reshape(v.dims) for v in model.inputs}
    with contextlib.ExitStack() as stack:
        adapters = [OnnxWasm() for _ in rounds]
        for adapter, threads in zip(adapters, rounds, strict=True):
            adapter.load(str(model.path), feeds, model.fetches, int(threads))
            stack.callback(adapter.runtime.close)
            stack.callback(adapter.session.dispose)
        one, several = map(outputs, adapters)
        for adapter in adapters:
            turn(adapter, options.turn_ms)
        for _ in range(options.rounds):
            for adapter, kept in zip(adapters, rounds.values(), strict=True):
                time.sleep(IDLE_S)
                kept.append(turn(adapter, options.turn_ms))
    medians = [[statistics.median(r) for r in each] for each in rounds.values()]
    ratios = sorted(a / b for a, b in zip(*medians, strict=True))
    return {
        "id": model.id,
        "same": one == several,
        "ms": rounds,
        "median_ms": [statistics.median(m) for m in medians],
        "least_ms": [min(t for r in each for t in r) for each in rounds.values()],
        "ratio": statistics.median(ratios),
        "range": [ratios[len(ratios) // 10], ratios[-1 - len(ratios) // 10]],
    }


def report(results: list[Json], options: argparse.Namespace) -> str:
    """The table, and means over the models that take long enough."""
    rows = [["ms", "1 thread", f"{options.threads} threads", "ratio", "of the least", "outputs"]]
    for r in results:
        low, high = r["range"]
        ratio, least = f"{r['ratio']:.2f} ({low:.2f}-{high:.2f})", f"{r['least_ms'][0] / r['least_ms'][1]:.2f}"
        rows.append([r["id"], *map(ms, r["median_ms"]), ratio, least, "the same" if r["same"] else "DIFFER"])
    long = [r for r in results if r["median_ms"][0] > options.over]
    lines = [table(rows)]
    if long:
        least = [r["least_ms"][0] / r["least_ms"][1] for r in long]
        lines.append(
            f"{counted(len(long), 'model')} over {options.over:g} ms on one thread: {options.threads} threads are "
            f"{statistics.geometric_mean(r['ratio'] for r in long):.2f} times as fast (geometric mean; of the least "
            f"times {statistics.geometric_mean(least):.2f})"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_folders(parser)
    parser.add_argument("--ids", default="", metavar="ID,ID", help="these models (default: all described)")
    parser.add_argument("--threads", type=int, default=2, metavar="N")
    parser.add_argument("--rounds", type=int, default=7, metavar="N")
    parser.add_argument("--turn-ms", type=float, default=150, help="about how long a turn takes (at least 1 run)")
    parser.add_argument("--over", type=float, default=20, metavar="MS", help="models in the mean (default: 20)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="every single time")
    options = parser.parse_args()
    if options.threads < 2 or options.rounds < 1:
        parser.error("--threads is at least 2, --rounds at least 1")
    inputs = inputs_of(options, parser)
    ids = [i for i in options.ids.split(",") if i]
    models, missing = find(options.models or fetched(options.shared, ids), inputs, ids)
    for sentence in missing:
        print(sentence, file=sys.stderr)
    results = []
    randomised = (options.shared / "models" / "random_weights.py").exists()
    for model in models:
        with tempfile.TemporaryDirectory() as folder:
            if randomised:
                model = with_random_weights(model, options.shared, Path(folder))
            results.append(measure(model, options))
        print(f"{model.id}: done", file=sys.stderr)
    if results:
        print(report(results, options))
    if options.json:
        options.json.write_text(json.dumps({"threads": options.threads, "models": results}, indent=1))
    return 1 if missing or not results or not all(r["same"] for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
