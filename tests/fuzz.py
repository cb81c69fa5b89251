"""Random graphs against native onnxruntime and the onnx package's reference, for as long as one likes.

    python tests/fuzz.py --minutes 30 [--family conv] [--seed 7] [--out fuzz-failures] [--keep-going]

Prints the smallest graph that fails, and saves it as FAMILY-SEED.onnx with its inputs and expected outputs in .npz. The
exit code is 1 if anything failed.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings

from fuzzing import builder
from fuzzing.builder import Case
from fuzzing.check import Mismatch, check, flat
from fuzzing.families import FAMILIES, cases

QUIET = list(HealthCheck)


def search(family: str, number: int, examples: int) -> tuple[Case, Exception] | None:
    """The smallest failing case among so many, if one fails."""
    worst: list[tuple[Case, Exception]] = []

    def test(case: Case) -> None:
        try:
            check(case)
        except Exception as error:
            worst.append((case, error))
            raise

    run: Any = settings(
        max_examples=examples,
        database=None,
        deadline=None,
        suppress_health_check=QUIET,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink),
    )(given(cases(family))(test))
    try:
        seed(number)(run)()
    except Exception:
        if not worst:
            raise
        return worst[-1]
    return None


def save(case: Case, folder: Path, name: str) -> Path:
    """The model, and what it is fed and should give."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.onnx"
    path.write_bytes(case.model())
    outputs = flat({t.name: t.array for t in case.outputs})
    arrays = {f"in:{n}": a for n, a in case.feeds.items()} | {f"out:{n}": a for n, a in outputs.items()}
    np.savez(folder / f"{name}.npz", **arrays)
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--family", choices=list(FAMILIES), action="append")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--examples", type=int, default=150, help="graphs for each seed of a family")
    parser.add_argument("--out", type=Path, default=Path("fuzz-failures"))
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first failure")
    parser.add_argument(
        "--coverage", action="store_true", help="tell which operators were used, and which steps failed"
    )
    options = parser.parse_args()
    end, number, failures = time.monotonic() + 60 * options.minutes, options.seed, 0
    counts = dict.fromkeys(options.family or FAMILIES, 0)
    while time.monotonic() < end:
        for family in counts:
            found = search(family, number, options.examples)
            counts[family] += options.examples
            if found is not None:
                failures += 1
                case, error = found
                path = save(case, options.out, f"{family}-{number}")
                what = error if isinstance(error, Mismatch) else f"{error!r}\n{case!r}"
                print(f"\n--family {family} --seed {number}: {path}\n{what}", flush=True)
                if not options.keep_going:
                    return 1
            if time.monotonic() >= end:
                break
        number += 1
    print(f"seeds {options.seed} to {number}, graphs: {counts}, failures: {failures}")
    if options.coverage:
        print("nodes:", dict(builder.ADDED.most_common()))
        print("skipped:", *(f"\n  {n} {why}" for why, n in builder.SKIPPED.most_common(80)))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
