"""What the heap's accounts cost: the ledger of the host, the counters of the module, and what is only there when asked.

    python bench/accounting.py [--model light_squeezenet.onnx]

Prints nanoseconds an event (an allocation or a free), and the share of a run. Ratios are of one run of this script.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper

import onnx_wasm as ort
from onnx_wasm import heap_layout

ROUNDS, NUMBER = 15, 20_000
CHAIN = 200


def nanoseconds(call: Callable[[], object], number: int = NUMBER) -> float:
    """The fastest of some rounds."""
    return min(timeit.repeat(call, number=number, repeat=ROUNDS)) / number * 1e9


def host() -> dict[str, float]:
    """Nanoseconds an event that the host asks for, above the bare call of the module's allocator."""
    found = {}
    settings: dict[str, dict[str, Any]] = {
        "ledger (always on)": {},
        "ledger, lines of Python": {"trace_allocations": True},
        "ledger, log of events": {"log_events": True},
        "ledger, recording": {"record": True},
        "debug heap": {"debug": True},
    }
    for name, given in settings.items():
        with ort.Runtime(**given) as runtime:
            bare = runtime._allocator
            call = nanoseconds(lambda bare=bare: bare._free(bare._aligned_new(64, 1000)))
            pair = nanoseconds(lambda runtime=runtime: runtime._release(runtime._allocate(1000, "user", "x")), 5000)
            found[name] = (pair - call) / 2
    return found


def chain() -> bytes:
    """Many small nodes, none of which can work in place."""
    nodes = [
        helper.make_node("MatMul", [f"v{i}", f"v{max(i - 1, 0)}"], [f"v{i + 1}"], name=f"n{i}") for i in range(CHAIN)
    ]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("v0", TensorProto.FLOAT, [4, 4])],
        [helper.make_tensor_value_info(f"v{CHAIN}", TensorProto.FLOAT, [4, 4])],
    )
    data: bytes = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]).SerializeToString()
    return data


def module() -> tuple[float, int]:
    """Nanoseconds an event of a tape, the allocator's own work included, and how many a run has."""
    x, times = np.full((4, 4), 0.25, np.float32), []
    events = 0
    for planned in (True, False):
        with (
            ort.Runtime() as runtime,
            ort.InferenceSession.create(
                chain(), runtime=runtime, enable_mem_pattern=planned, graph_optimization_level="disabled"
            ) as session,
        ):

            def run(session: ort.InferenceSession = session) -> None:
                session.run({"v0": x})[f"v{CHAIN}"].dispose()

            run()
            times.append(nanoseconds(run, 500))
            before = runtime._allocator.word(heap_layout.ALLOCATIONS)
            run()
            events = 2 * (runtime._allocator.word(heap_layout.ALLOCATIONS) - before)
    return (times[1] - times[0]) / (events - 2), events


def share(model: Path, planned: bool, ledger: float, tape: float) -> str:
    """What part of a model's run its accounts take."""
    with (
        ort.Runtime() as runtime,
        ort.InferenceSession.create(model, runtime=runtime, enable_mem_pattern=planned) as session,
    ):
        feeds = {
            i.name: np.zeros([d if isinstance(d, int) else 1 for d in i.shape], np.dtype(i.type))
            for i in session.input_metadata
        }

        def run() -> None:
            for tensor in session.run(feeds).values():
                tensor.dispose()

        run()
        before = runtime._allocator.word(heap_layout.ALLOCATIONS)
        run()
        events = 2 * (runtime._allocator.word(heap_layout.ALLOCATIONS) - before)
        spent = statistics.median(timeit.repeat(run, number=1, repeat=20)) * 1e9
        outputs = 2 * len(session.output_names)
    accounts = outputs * ledger + (events - outputs) * tape
    return (
        f"{model.stem}, {'planned' if planned else 'one by one'}: {events} events in {spent / 1e6:.2f} ms; "
        f"ledger and the tape's malloc and free: {accounts / spent:.4%} of the run, {accounts / events:.0f} ns an event"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, help="a model to relate the cost to; its inputs are zeros")
    args = parser.parse_args()
    costs = host()
    for name, cost in costs.items():
        print(f"host   {name:26} {cost:8.0f} ns an event")
    tape, events = module()
    print(f"module malloc, free and counters  {tape:8.0f} ns an event, {events} events a run")
    if args.model is not None:
        for planned in (True, False):
            print(share(args.model, planned, costs["ledger (always on)"], tape))
    return 0


if __name__ == "__main__":
    sys.exit(main())
