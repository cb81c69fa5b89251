"""Run every backend case of the onnx package, and hold the list of those that pass.

    python tests/conformance.py [--json] [--kind node] [--only SUBSTRING] [--update]

`conformance.txt` lists the cases that pass. A listed case that fails is an error, and so is an unlisted one that
passes: `--update` writes the list anew. The exit code is 0 if the list says what is true.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import numpy_helper

import onnx_wasm as ort
from onnx_wasm import dtypes
from onnx_wasm.engine import Variant

LIST = Path(__file__).parent / "conformance.txt"
KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "light")
RTOL, ATOL = 1e-3, 1e-7
# Whose expected outputs are random numbers: only their shape and type are compared.
RANDOM = {f"test_bernoulli{kind}{form}" for kind in ("", "_double", "_seed") for form in ("", "_expanded")}
# ONNX leaves undefined what a float beyond a fixed-point type's range becomes; what these cases have depends on the
# version of ml_dtypes.
TO_NARROW = re.compile(r"test_cast(like)?_FLOAT(16)?_to_(U?)INT([24])(_expanded)?")
NARROW = {"int4": ml_dtypes.int4, "uint4": ml_dtypes.uint4, "float4e2m1": ml_dtypes.float4_e2m1fn}
NARROW |= {n: getattr(ml_dtypes, n) for n in ("int2", "uint2") if hasattr(ml_dtypes, n)}


@dataclass(frozen=True)
class Case:
    """One model with its inputs and expected outputs, in the graph's order."""

    kind: str
    name: str
    model: onnx.ModelProto
    sets: list[tuple[list[Any], list[Any]]]
    rtol: float
    atol: float

    @property
    def id(self) -> str:
        return f"{self.kind}/{self.name}"


@dataclass(frozen=True)
class Result:
    """What came of a case: "pass" or the reason why not."""

    id: str
    kind: str
    ops: tuple[str, ...]
    reason: str

    @property
    def passed(self) -> bool:
        return self.reason == "pass"


def cases(kinds: Iterable[str] = KINDS, only: str = "") -> Iterator[Case]:
    """The cases of the installed onnx package."""
    from onnx.backend.test import loader

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        for kind in kinds:
            if kind == "light":
                yield from (c for c in _light() if only in c.id)
                continue
            for case in sorted(loader.load_model_tests(kind=kind), key=lambda c: c.name):
                if only not in f"{kind}/{case.name}":
                    continue
                if case.model is not None:
                    model, sets = case.model, case.data_sets
                else:
                    model = onnx.load(Path(case.model_dir) / "model.onnx")
                    sets = list(_stored(Path(case.model_dir), model))
                yield Case(kind, case.name, model, [(list(i), list(o)) for i, o in sets], case.rtol, case.atol)


def _stored(folder: Path, model: onnx.ModelProto) -> Iterator[tuple[list[Any], list[Any]]]:
    for data in sorted(folder.glob("test_data_set_*")):
        yield (
            [
                _read(data / f"input_{i}.pb", v.type)
                for i, v in enumerate(model.graph.input)
                if (data / f"input_{i}.pb").exists()
            ],
            [_read(data / f"output_{i}.pb", v.type) for i, v in enumerate(model.graph.output)],
        )


def _read(path: Path, kind: onnx.TypeProto) -> Any:
    data = path.read_bytes()
    if kind.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if kind.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))


def _light() -> Iterator[Case]:
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    for path in sorted(folder.glob("light_*.onnx")):
        model = onnx.load(path)
        weights = {t.name for t in model.graph.initializer}
        inputs = []
        for value in model.graph.input:
            if value.name not in weights:
                shape = [d.dim_value or 1 for d in value.type.tensor_type.shape.dim]
                count = int(np.prod(shape))
                inputs.append((np.arange(count).reshape(shape) / count).astype(np.float32))
        expected = [
            _read(path.with_name(f"{path.stem}_output_{i}.pb"), v.type) for i, v in enumerate(model.graph.output)
        ]
        yield Case("light", path.stem, model, [(inputs, expected)], RTOL, 1e-5)


def run(case: Case, runtime: ort.Runtime, *, planned: bool = True) -> Result:
    """Run one case in a runtime; nothing may be left in it."""
    ops = tuple(sorted({f"{n.domain}::{n.op_type}" if n.domain else n.op_type for n in case.model.graph.node}))
    try:
        reason = _run(case, runtime, planned)
    except (ort.KernelTrapError, ort.HeapCorruptionError):
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"
    if runtime.memory().used:
        gc.collect()
        assert not runtime.memory().used, f"{case.id} leaks: {runtime.blocks()}"
    return Result(case.id, case.kind, ops, reason)


def _run(case: Case, runtime: ort.Runtime, planned: bool) -> str:
    weights = {t.name for t in case.model.graph.initializer}
    with ort.InferenceSession.create(
        case.model.SerializeToString(), runtime=runtime, enable_mem_pattern=planned
    ) as session:
        inputs = [v for v in case.model.graph.input if v.name not in weights]
        for given, expected in case.sets:
            if len(given) > len(inputs):
                inputs = list(case.model.graph.input)
            feeds = {v.name: _feed(x, v, runtime) for v, x in zip(inputs, given, strict=False)}
            outputs = session.run(feeds)
            try:
                got = [_array(outputs[name]) for name in session.output_names]
            finally:
                _dispose([*outputs.values(), *feeds.values()])
            undefined = _undefined(case, given)
            for name, g, e in zip(session.output_names, got, expected, strict=True):
                reason = _difference(g, e, case, undefined)
                if reason:
                    return f"output {name!r}: {reason}"
    return "pass"


def _undefined(case: Case, given: list[Any]) -> np.ndarray | None:
    """Where ONNX does not say what an output is."""
    found = TO_NARROW.fullmatch(case.name)
    if found is None:
        return None
    values = np.trunc(_tensor(given[0]).astype(np.float64))
    bits, unsigned = int(found[4]), bool(found[3])
    least = 0 if unsigned else -(1 << bits - 1)
    return (values < least) | (values >= least + (1 << bits))


def _tensor(value: Any) -> np.ndarray:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def _feed(value: Any, info: onnx.ValueInfoProto, runtime: ort.Runtime) -> Any:
    if isinstance(value, onnx.TensorProto):
        value = numpy_helper.to_array(value)
    if isinstance(value, (list, tuple)):
        return [_feed(v, info, runtime) for v in value]
    if value is None:
        return None
    array = np.asarray(value)
    for name, narrow in NARROW.items():
        if array.dtype == narrow:
            return ort.Tensor(name, _pack(array, dtypes.from_name(name).bits), array.shape, runtime=runtime)
    return array


def _pack(array: np.ndarray, bits: int) -> np.ndarray:
    per_byte = 8 // bits
    flat = array.reshape(-1).view(np.uint8) & ((1 << bits) - 1)
    flat = np.append(flat, np.zeros(-flat.size % per_byte, np.uint8)).reshape(-1, per_byte)
    return (flat << np.arange(0, 8, bits, dtype=np.uint8)).sum(axis=1).astype(np.uint8)


def _array(value: Any) -> Any:
    if value is None or isinstance(value, np.ndarray):
        return value
    if isinstance(value, (list, tuple)):
        return [_array(v) for v in value]
    if isinstance(value, dict):
        return {k: _array(v) for k, v in value.items()}
    data = np.array(value.data)
    bits = dtypes.from_name(value.type).bits
    if value.type in NARROW:
        flat = (data[:, None] >> np.arange(0, 8, bits, dtype=np.uint8)) & ((1 << bits) - 1)
        flat = flat.reshape(-1)[: value.size].astype(np.uint8)
        if value.type.startswith("int"):
            flat = ((flat.astype(np.int8) << (8 - bits)) >> (8 - bits)).astype(np.int8)
        elif value.type == "float4e2m1":
            return flat.view(NARROW[value.type]).reshape(value.dims)
        return flat.astype(NARROW[value.type]).reshape(value.dims)
    return data


def _dispose(values: Iterable[Any]) -> None:
    for value in values:
        if isinstance(value, ort.Tensor):
            value.dispose()
        elif isinstance(value, (list, tuple)):
            _dispose(value)


def _difference(got: Any, expected: Any, case: Case, undefined: np.ndarray | None = None) -> str:
    """ "" or how an output differs where it is defined."""
    if isinstance(expected, onnx.TensorProto):
        expected = numpy_helper.to_array(expected)
    if isinstance(expected, (list, tuple)):
        if not isinstance(got, list) or len(got) != len(expected):
            return f"a sequence of {len(expected)} expected, got {type(got).__name__}"
        return next((d for g, e in zip(got, expected, strict=True) if (d := _difference(g, e, case))), "")
    if expected is None:
        return "" if got is None else "no value expected"
    expected = np.asarray(expected)
    if not isinstance(got, np.ndarray):
        return f"a tensor expected, got {type(got).__name__}"
    if got.shape != expected.shape:
        return f"shape {list(got.shape)}, expected {list(expected.shape)}"
    if expected.dtype.kind in "OUS":
        return "" if got.astype(str).tolist() == expected.astype(str).tolist() else "strings differ"
    if got.dtype != expected.dtype:
        return f"type {got.dtype}, expected {expected.dtype}"
    if case.name in RANDOM:
        return ""
    rtol = max(case.rtol, 2**-6) if expected.dtype == ml_dtypes.bfloat16 else case.rtol
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    if expected.dtype.kind in "iub":
        same = got == expected
        if expected.dtype.kind != "b":
            same |= np.abs(got.astype(wide) - expected.astype(wide)) <= case.atol + rtol * np.abs(expected.astype(wide))
    else:
        same = np.isclose(got.astype(wide), expected.astype(wide), rtol=rtol, atol=case.atol, equal_nan=True)
    if undefined is not None:
        assert not undefined.all(), case.name
        same |= undefined
    if same.all():
        return ""
    at = tuple(int(i) for i in np.argwhere(~np.atleast_1d(same))[0])
    index = at if expected.ndim else ()
    return (
        f"{int((~same).sum())} of {same.size} differ, first at {list(index)}: {got[index]}, expected {expected[index]}"
    )


def results(
    kinds: Iterable[str] = KINDS,
    only: str = "",
    *,
    planned: bool = True,
    variant: Variant = "relaxed",
    threads: int = 1,
    progress: bool = False,
) -> list[Result]:
    """Run the cases, all in one runtime."""
    found = []
    with ort.Runtime(variant=variant, threads=threads) as runtime:
        for case in cases(kinds, only):
            found.append(run(case, runtime, planned=planned))
            if progress and len(found) % 20 == 0:
                print(
                    f"\r{len(found)} cases, {sum(r.passed for r in found)} pass ", end="", file=sys.stderr, flush=True
                )
        if progress:
            print("\r\033[K", end="", file=sys.stderr)
        runtime.heap_check()
    return found


def listed() -> set[str]:
    """The ids of the cases that must pass."""
    return set(LIST.read_text().split()) if LIST.exists() else set()


def by_kind(found: list[Result]) -> dict[str, dict[str, int]]:
    """Passes and failures of each kind."""
    counts: dict[str, Counter[str]] = {}
    for r in found:
        counts.setdefault(r.kind, Counter({"pass": 0, "fail": 0}))["pass" if r.passed else "fail"] += 1
    return {kind: dict(count) for kind, count in counts.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the onnx package's backend cases.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--kind", action="append", choices=KINDS, help="only this kind (may be repeated)")
    parser.add_argument("--only", default="", metavar="SUBSTRING", help="only cases whose id has this in it")
    parser.add_argument("--update", action="store_true", help="write the list of passing cases")
    parser.add_argument("--no-mem-pattern", action="store_true", help="without the planned arena")
    parser.add_argument("--variant", choices=("relaxed", "strict"), default="relaxed", help="of the module")
    parser.add_argument("--threads", type=int, default=1, metavar="N")
    args = parser.parse_args()
    kinds = args.kind or KINDS
    found = results(
        kinds,
        args.only,
        planned=not args.no_mem_pattern,
        variant=args.variant,
        threads=args.threads,
        progress=sys.stderr.isatty(),
    )
    if not found:
        print(f"no case of {', '.join(kinds)} has {args.only!r} in its id", file=sys.stderr)
        return 1
    ids = {r.id for r in found}
    passed, must = {r.id for r in found if r.passed}, listed() & ids
    if args.update:
        LIST.write_text("".join(f"{i}\n" for i in sorted(passed | (listed() - ids))))
        must = passed
    lost, gained = sorted(must - passed), sorted(passed - must)
    failures = {r.id: r.reason for r in found if not r.passed}
    by_op = {}
    for r in found:
        for op in r.ops:
            count = by_op.setdefault(op, {"pass": 0, "fail": 0})
            count["pass" if r.passed else "fail"] += 1
    if args.json:
        report = {"by_kind": by_kind(found), "by_op": dict(sorted(by_op.items())), "failures": failures}
        print(json.dumps({**report, "lost": lost, "gained": gained}, indent=1))
    else:
        for kind, count in by_kind(found).items():
            print(f"{kind:20} {count['pass']:5} of {sum(count.values())} pass")
        print(f"{'all':20} {len(passed):5} of {len(found)} pass")
        for id, reason in failures.items():
            print(f"  {id}: {reason}")
        for id in lost:
            print(f"LOST    {id}: it is listed in {LIST.name} and fails")
        for id in gained:
            print(f"GAINED  {id}: it passes and is not listed in {LIST.name} (--update)")
    return 1 if lost or gained else 0


if __name__ == "__main__":
    sys.exit(main())
