"""Time inputs of one length after another, each seen for the first time, here and on onnxruntime-web, in turns.

    python bench/lengths.py --model minilm_l3_fp32 [--models DIR] [--inputs DIR] [--axis 1] [--last 64] [--rounds N]

A round makes a new session, which is not timed, and feeds it the first 1, 2, 3 ... elements of its inputs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from compare import Peer, PeerError, available, commands
from models import add_folders, fetched, find, inputs_of
from onnx_wasm.words import counted
from report import NATIVE, OURS, WEB, Json, ms, table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_folders(parser)
    parser.add_argument("--model", required=True, metavar="ID")
    parser.add_argument("--axis", type=int, default=1, help="of the inputs, along which they grow")
    parser.add_argument("--last", type=int, metavar="N", help="the longest (default: all of the inputs)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--native", action="store_true", help="native onnxruntime too")
    parser.add_argument("--ortweb", type=Path, default=Path(__file__).parent / "ortweb")
    parser.add_argument("--json", type=Path, metavar="OUT", help="every single time")
    options = parser.parse_args()
    inputs = inputs_of(options, parser)
    candidates = commands(options.ortweb)
    if not options.native:
        del candidates[NATIVE]
    versions = available(candidates)
    found, missing = find(options.models or fetched(options.shared, [options.model]), inputs, [options.model])
    for sentence in missing:
        print(sentence, file=sys.stderr)
    if not versions or not found:
        return 1
    [model] = found
    feeds = [{"name": v.name, "dtype": v.dtype, "dims": v.dims, "file": str(v.file.resolve())} for v in model.inputs]
    sizes = list(range(1, (options.last or min(v.dims[options.axis] for v in model.inputs)) + 1))
    peers: dict[str, Peer] = {}
    rounds: dict[str, list[list[float]]] = {name: [] for name in versions}
    try:
        for name in versions:
            peers[name] = Peer(candidates[name])
            with tempfile.TemporaryDirectory() as folder:
                about: Json = {"inputs": feeds, "fetches": model.fetches, "threads": 1, "save": folder}
                peers[name].ask("load", model=str(model.path.resolve()), **about)
        for _ in range(options.rounds):
            for name, peer in peers.items():
                rounds[name].append(peer.ask("lengths", axis=options.axis, sizes=sizes)["ms"])
    except PeerError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        for peer in peers.values():
            peer.close()
    totals = {name: [sum(r) for r in each] for name, each in rounds.items()}
    print(", ".join(f"{name}: {version}" for name, version in versions.items()))
    print(f"{model.id}: {counted(len(sizes), 'length')} along axis {options.axis}, each for the first time; ms in all")
    rows = [["", "median", "least", "most", *(str(n) for n in sizes[:: max(1, len(sizes) // 4)])]]
    for name, total in totals.items():
        each = [statistics.median(r[i] for r in rounds[name]) for i in range(0, len(sizes), max(1, len(sizes) // 4))]
        rows.append([name, *(ms(f(total)) for f in (statistics.median, min, max)), *map(ms, each)])
    print(table(rows))
    if OURS in totals and WEB in totals:
        ratios = sorted(a / b for a, b in zip(totals[OURS], totals[WEB], strict=True))
        print(f"{OURS}/{WEB}: {statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})")
    if options.json:
        options.json.write_text(json.dumps({"versions": versions, "sizes": sizes, "ms": rounds}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
