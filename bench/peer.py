"""One runtime under measurement, in a process of its own: JSON lines in, JSON lines out.

`python peer.py onnx-wasm` or `python peer.py native`; ortweb/peer.mjs speaks the same:

    {"do": "hello"}            -> {"version": ...}
    {"do": "load", "model", "inputs", "fetches", "threads", "save"}
                               -> {"create_ms", "first_ms", "created": {"linear", "peak"},
                                   "outputs": [{name, dtype, dims}]}
    {"do": "run", "times": n}  -> {"ms": [...]}
    {"do": "lengths", "axis": a, "sizes": [...]}
                               -> {"ms": [...]}, of a new session, fed the first n elements along that axis
    {"do": "memory"}           -> {"linear": bytes, "peak": bytes, "needed": bytes}, each may be null

`created` is the memory after creation, feeds and all; `needed` are the bytes of weights, of feeds and outputs, and of
the intermediate tensors that are alive at once. `save` is a folder that gets output i of the first run as raw elements
in `i.bin`. A failure answers {"error": ...}.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

Arrays = dict[str, np.ndarray[Any, Any]]


class Adapter(Protocol):
    version: str

    def load(self, model: str, feeds: Arrays, fetches: list[str] | None, threads: int) -> None: ...
    def again(self) -> None: ...
    def feed(self, feeds: Arrays) -> None: ...
    def run(self) -> Any: ...
    def arrays(self, result: Any) -> Arrays: ...
    def done(self, result: Any) -> None: ...
    def memory(self) -> dict[str, int | None]: ...


class OnnxWasm:
    """This package. Feeds lie in the heap before the clock starts; disposing of the outputs is part of a run."""

    def __init__(self) -> None:
        self.ort = importlib.import_module("onnx_wasm")
        self.create = self.ort.InferenceSession.create
        self.version = f"onnx-wasm {getattr(self.ort, '__version__', '(no version)')}"

    def load(self, model: str, feeds: Arrays, fetches: list[str] | None, threads: int) -> None:
        self.runtime = self.ort.Runtime(**({"threads": threads} if threads > 1 else {}))
        self.model, self.fetches = model, fetches
        self.session = self.create(model, runtime=self.runtime)
        self.feed(feeds)
        self.fed_and_made = 0

    def again(self) -> None:
        self.session.dispose()
        self.session = self.create(self.model, runtime=self.runtime)

    def feed(self, feeds: Arrays) -> None:
        self.feeds = {
            name: self.ort.Tensor(str(a.dtype), a, list(a.shape), runtime=self.runtime) for name, a in feeds.items()
        }

    def run(self) -> Any:
        return self.session.run(self.feeds, self.fetches) if self.fetches else self.session.run(self.feeds)

    def arrays(self, result: Any) -> Arrays:
        self.fed_and_made = sum(t.data.nbytes for t in (*self.feeds.values(), *result.values()))
        return {name: np.array(tensor.data).reshape(tensor.dims) for name, tensor in result.items()}

    def done(self, result: Any) -> None:
        for tensor in result.values():
            tensor.dispose()

    def memory(self) -> dict[str, int | None]:
        info, plan = self.runtime.memory(), self.session.plan_info
        needed = plan.weight_bytes + plan.lower_bound + self.fed_and_made if plan else None
        return {"linear": info.linear, "peak": info.peak, "needed": needed}


class Native:
    """onnxruntime's own CPU provider."""

    def __init__(self) -> None:
        self.ort = importlib.import_module("onnxruntime")
        self.version = f"onnxruntime {self.ort.__version__}"
        self.ort.set_default_logger_severity(3)

    def load(self, model: str, feeds: Arrays, fetches: list[str] | None, threads: int) -> None:
        options = self.ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        self.model, self.options = model, options
        self.again()
        self.feed(feeds)
        self.fetches = fetches or [output.name for output in self.session.get_outputs()]

    def again(self) -> None:
        self.session = self.ort.InferenceSession(self.model, self.options, providers=["CPUExecutionProvider"])

    def feed(self, feeds: Arrays) -> None:
        self.feeds = feeds

    def run(self) -> Any:
        return self.session.run(self.fetches, self.feeds)

    def arrays(self, result: Any) -> Arrays:
        return dict(zip(self.fetches, result, strict=True))

    def done(self, result: Any) -> None:
        pass

    def memory(self) -> dict[str, int | None]:
        return {"linear": None, "peak": None, "needed": None}


ADAPTERS: dict[str, Callable[[], Adapter]] = {"onnx-wasm": OnnxWasm, "native": Native}


def timed(adapter: Adapter) -> float:
    start = time.perf_counter()
    adapter.done(adapter.run())
    return (time.perf_counter() - start) * 1e3


def load(adapter: Adapter, command: dict[str, Any], feeds: Arrays) -> dict[str, Any]:
    start = time.perf_counter()
    adapter.load(command["model"], feeds, command["fetches"], command["threads"])
    created = time.perf_counter()
    memory = adapter.memory()
    first = time.perf_counter()
    result = adapter.run()
    ran = time.perf_counter()
    outputs = adapter.arrays(result)
    adapter.done(result)
    for index, array in enumerate(outputs.values()):
        np.ascontiguousarray(array).tofile(Path(command["save"]) / f"{index}.bin")
    return {
        "create_ms": (created - start) * 1e3,
        "first_ms": (ran - first) * 1e3,
        "created": memory,
        "outputs": [{"name": n, "dtype": str(a.dtype), "dims": list(a.shape)} for n, a in outputs.items()],
    }


def lengths(adapter: Adapter, feeds: Arrays, axis: int, sizes: list[int]) -> dict[str, Any]:
    adapter.again()
    ms = []
    for n in sizes:
        adapter.feed({name: np.ascontiguousarray(a.take(range(n), axis)) for name, a in feeds.items()})
        ms.append(timed(adapter))
    adapter.feed(feeds)
    return {"ms": ms}


def main() -> None:
    adapter: Adapter | None = None
    feeds: Arrays = {}
    for line in sys.stdin:
        command = json.loads(line)
        reply: dict[str, Any]
        try:
            if adapter is None:
                adapter = ADAPTERS[sys.argv[1]]()
            match command["do"]:
                case "hello":
                    reply = {"version": adapter.version}
                case "load":
                    feeds = {
                        v["name"]: np.fromfile(v["file"], v["dtype"]).reshape(v["dims"]) for v in command["inputs"]
                    }
                    reply = load(adapter, command, feeds)
                case "lengths":
                    reply = lengths(adapter, feeds, command["axis"], command["sizes"])
                case "run":
                    reply = {"ms": [timed(adapter) for _ in range(command["times"])]}
                case "memory":
                    reply = dict(adapter.memory())
                case other:
                    reply = {"error": f"no such command: {other}"}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
