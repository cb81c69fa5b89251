"""How long a process takes until it has its first session: processes in a row, each importing and creating once.

    python bench/start.py MODEL.onnx [--rounds N] [--json OUT]

The first process fills the caches of compiled code and of Python's byte code, and is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import json, sys, time
marks = [(time.perf_counter(), time.process_time())]
import numpy, wasmtime
marks.append((time.perf_counter(), time.process_time()))
import onnx_wasm
marks.append((time.perf_counter(), time.process_time()))
session = onnx_wasm.InferenceSession.create(sys.argv[1])
marks.append((time.perf_counter(), time.process_time()))
print(json.dumps([[(c - b) * 1e3 for b, c in zip(a, z)] for a, z in zip(marks, marks[1:])]))
session.dispose()
"""
PARTS = ["numpy, wasmtime", "import onnx_wasm", "create", "in all"]


def once(model: Path) -> list[list[float]]:
    """[wall, CPU] milliseconds of each part, in a process of its own."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", SCRIPT, str(model)]
    out = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, env=environment).stdout
    parts: list[list[float]] = json.loads(out)
    return [*parts, [sum(p[0] for p in parts), sum(p[1] for p in parts)]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=20, metavar="N")
    parser.add_argument("--json", type=Path, metavar="OUT", help="every single time")
    options = parser.parse_args()
    once(options.model)
    rounds = [once(options.model) for _ in range(options.rounds)]
    print(f"{'ms':24}{'wall':>8}{'least':>8}{'CPU':>8}{'least':>8}")
    for i, name in enumerate(PARTS):
        wall, cpu = ([r[i][k] for r in rounds] for k in (0, 1))
        numbers = (statistics.median(wall), min(wall), statistics.median(cpu), min(cpu))
        print(f"{name:24}" + "".join(f"{n:8.1f}" for n in numbers))
    if options.json:
        options.json.write_text(json.dumps({"parts": PARTS, "wall_cpu_ms": rounds}, indent=1))


if __name__ == "__main__":
    main()
