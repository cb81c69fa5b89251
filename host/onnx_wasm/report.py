"""What the command line says about a run: outputs, recognised labels, the heap; as JSON and as text."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from . import dtypes
from .memory_info import MemoryInfo
from .segment import ProfileEvent
from .session import PlanInfo
from .tensor import Tensor
from .words import counted

Array = NDArray[Any]
Key = TypeVar("Key")
_SHOWN = 6
# Nodes in a table of times; JSON has all of them.
_NODES = 20


@dataclass(frozen=True)
class Output:
    """A copy of one output outside the heap; ``type`` is ONNX's name."""

    type: str
    array: Array


def outputs(results: Mapping[str, Any]) -> dict[str, Output]:
    """Copies of what a run returned, each by a name of its own: "output[2]" for a part of a sequence or map."""
    return {n: _output(part) for name, result in results.items() for n, part in _parts(name, result)}


def dispose(results: Mapping[str, Any]) -> None:
    """Dispose of every tensor that a run returned."""
    for name, result in results.items():
        for _, part in _parts(name, result):
            if isinstance(part, Tensor):
                part.dispose()


def _parts(name: str, result: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(result, (list, dict)):
        for key, part in result.items() if isinstance(result, dict) else enumerate(result):
            yield from _parts(f"{name}[{key}]", part)
    elif result is not None:
        yield name, result


def _output(part: Any) -> Output:
    if not isinstance(part, Tensor):
        array = np.asarray(part)
        return Output(dtypes.from_numpy(array.dtype).name, array)
    dtype = dtypes.from_name(part.type)
    if 0 < dtype.bits < 8:
        return Output(part.type, _unpack(part.data, dtype, part.dims))
    return Output(part.type, part.data.copy())


# The types of packed elements by ml_dtypes' names; one that the installed version lacks shows its bits.
_UNPACKED = {
    "float4e2m1": "float4_e2m1fn",
    "float6e2m3": "float6_e2m3fn",
    "float6e3m2": "float6_e3m2fn",
}


def _unpack(packed: Array, dtype: dtypes.DType, dims: tuple[int, ...]) -> Array:
    """One element each of a type below 8 bits, as int8, uint8 or float32."""
    import ml_dtypes

    elements = math.prod(dims)
    bits = np.unpackbits(packed.reshape(-1), bitorder="little")[: elements * dtype.bits]
    codes = np.packbits(bits.reshape(elements, dtype.bits), axis=1, bitorder="little").reshape(dims)
    kind = getattr(ml_dtypes, _UNPACKED.get(dtype.name, dtype.name), np.uint8)
    values: Array = codes.view(kind)
    return values.astype(np.float32 if dtype.is_float else np.int8 if dtype.is_signed else np.uint8)


def summary(output: Output) -> dict[str, Any]:
    """Type, shape, range and first elements. Complex and string elements are texts."""
    array = output.array
    found: dict[str, Any] = {"type": output.type, "shape": list(array.shape)}
    flat = array.reshape(-1)
    if array.dtype.kind == "c":
        return {**found, "first": [f"{v.real:.6g}{v.imag:+.6g}j" for v in flat[:_SHOWN]]}
    if array.dtype.kind in "OUS":
        return {**found, "first": [str(v) for v in flat[:_SHOWN]]}
    if array.dtype.kind not in "iub":
        flat = flat.astype(np.float64)
    if flat.size:
        with np.errstate(all="ignore"):
            found.update(min=flat.min().item(), max=flat.max().item(), mean=float(flat.mean(dtype=np.float64)))
    return {**found, "first": flat[:_SHOWN].tolist()}


def recognised(labels: str, scores: Array) -> dict[str, Any] | None:
    """The most likely of a classifier's labels in the first row, if it has as many as the scores have columns."""
    names = [v.strip() for v in labels.split(",") if v.strip()]
    if not names or scores.dtype.kind != "f" or scores.ndim != 2 or not len(scores) or scores.shape[1] != len(names):
        return None
    best = int(scores[0].argmax())
    return {"label": names[best], "score": float(scores[0, best]), "row": 0, "rows": len(scores)}


def heap(memory: MemoryInfo, plan: PlanInfo, *, planned: bool, file_bytes: int) -> dict[str, Any]:
    """The heap while the last outputs are alive. ``planned``: whether intermediates lie in one arena."""
    floor = plan.weight_bytes + plan.lower_bound
    ratio = plan.arena_bytes / plan.lower_bound if plan.lower_bound else 1.0
    return {
        **memory.to_dict(),
        "memory_pattern": planned,
        "model_file": file_bytes,
        "weights": plan.weight_bytes,
        "arena": plan.arena_bytes,
        "lower_bound": plan.lower_bound,
        "arena_ratio": ratio if planned else None,
        "peak_ratio": memory.peak / floor if floor else 1.0,
        "tape": plan.tape_bytes,
        "records": plan.records,
        "segments": plan.segments,
    }


def fed(array: Array, origin: str) -> dict[str, Any]:
    """What an input was fed; the value, too, where it is a single one."""
    found = summary(Output(dtypes.from_numpy(array.dtype).name, array))
    shown = {"type": found["type"], "shape": found["shape"], "from": origin}
    return {**shown, "value": found["first"][0]} if array.size == 1 else shown


def profile(events: Sequence[ProfileEvent]) -> dict[str, Any]:
    """The milliseconds of a profiled run by node and by operator, those that took longest first."""
    total = sum(e.milliseconds for e in events)
    nodes = _shares([((e.node, e.op_type), e.milliseconds) for e in events], total)
    operators = _shares([(e.op_type, e.milliseconds) for e in events], total)
    return {
        "ms": total,
        "nodes": [{"node": node, "op_type": op_type, **times} for (node, op_type), times in nodes],
        "operators": [{"op_type": op_type, **times} for op_type, times in operators],
    }


def _shares(times: Sequence[tuple[Key, float]], total: float) -> list[tuple[Key, dict[str, Any]]]:
    """Records, milliseconds and share of each key, the largest first."""
    found: dict[Key, dict[str, Any]] = {}
    for key, milliseconds in times:
        row = found.setdefault(key, {"records": 0, "ms": 0.0})
        row["records"] += 1
        row["ms"] += milliseconds
    for row in found.values():
        row["share"] = row["ms"] / total if total else 0.0
    return sorted(found.items(), key=lambda item: -item[1]["ms"])


def _profile_lines(found: Mapping[str, Any]) -> list[str]:
    nodes, operators = found["nodes"], found["operators"]
    more = f", the {_NODES} that took longest" if len(nodes) > _NODES else ""
    lines = ["", f"profile  {found['ms']:10.2f} ms of kernels in a run of its own", "", f"      ms  share  node{more}"]
    lines += [f"{n['ms']:8.3f} {n['share']:6.1%}  {n['op_type']} {n['node']}" for n in nodes[:_NODES]]
    lines += ["", "      ms  share  operator"]
    return lines + [
        f"{o['ms']:8.3f} {o['share']:6.1%}  {o['op_type']} ({counted(o['records'], 'record')})" for o in operators
    ]


def input_lines(model: str, variant: str, inputs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What is about to run, on what."""
    lines = [f"model    {model} ({variant})"]
    for name, item in inputs.items():
        value = f" = {_number(item['value'])}" if "value" in item else ""
        lines.append(f"input    {name}: {item['type']}{item['shape']}{value} ({item['from']})")
    return lines


def result_lines(report: Mapping[str, Any]) -> list[str]:
    """What came of it."""
    lines = [_output_line(name, item) for name, item in report["outputs"].items()]
    best = report["recognised"]
    if best:
        row = f", row {best['row']} of {best['rows']}" if best["rows"] > 1 else ""
        lines.append(f"result   {best['label']} (score {best['score']:.4f}{row})")
    times = report["times_ms"]
    lines += [
        "",
        f"create   {times['create']:10.2f} ms",
        f"run 1    {times['first_run']:10.2f} ms",
        f"run 2..  {times['median']:10.2f} ms median, {times['fastest']:.2f} ms fastest of {times['runs']}",
        "",
    ]
    lines += _heap_lines(report["heap"])
    return lines + _profile_lines(report["profile"]) if report["profile"] else lines


def _output_line(name: str, item: Mapping[str, Any]) -> str:
    text = f"output   {name}: {item['type']}{item['shape']}"
    if "mean" in item:
        text += f"  min {_number(item['min'])}  max {_number(item['max'])}  mean {item['mean']:.6g}"
    first = [_number(v) for v in item["first"]]
    more = ["..."] if math.prod(item["shape"]) > _SHOWN else []
    return f"{text}  [{', '.join(first + more)}]"


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _heap_lines(heap: Mapping[str, Any]) -> list[str]:
    if not heap["memory_pattern"]:
        arena = "none: allocated one by one"
    elif heap["arena"]:
        arena = f"{heap['arena_ratio']:.3f} x lower bound"
    else:
        arena = "no intermediates"
    segments = f" in {heap['segments']} segments" if heap["segments"] > 1 else ""
    rows = [
        ("model file", heap["model_file"], ""),
        ("weights", heap["weights"], ""),
        ("arena", heap["arena"], arena),
        ("lower bound", heap["lower_bound"], "intermediates alive at once"),
        ("inputs, outputs", sum(heap["by_tag"].get(t, 0) for t in ("input", "output", "user")), ""),
        ("tape", heap["tape"], f"{counted(heap['records'], 'record')}{segments}"),
        ("in use", heap["used"], f"{counted(heap['blocks'], 'block')}"),
        ("peak in use", heap["peak"], f"{heap['peak_ratio']:.3f} x (weights + lower bound)"),
        ("linear memory", heap["linear"], f"{counted(heap['growth_count'], 'growth')}"),
    ]
    lines = ["heap                     bytes"]
    lines += [f"  {name:16} {size:12,}  {note}".rstrip() for name, size, note in rows]
    return lines + [f"  grew             {g['before']:12,} -> {g['after']:,}" for g in heap["growths"]]


def for_json(value: Any) -> Any:
    """The same, with texts for the numbers that JSON does not have."""
    if isinstance(value, dict):
        return {k: for_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [for_json(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def save(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write an ``.npz`` that ``np.load`` reads without pickle; strings become numpy's."""
    # Not np.savez, whose own parameters ("file") cannot be names of arrays.
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array.astype(str) if array.dtype == object else array)
