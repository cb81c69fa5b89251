"""Run a case in this package, and compare with what its peers say."""

from __future__ import annotations

import gc
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

import onnx_wasm as ort

from .builder import FLOATS, Case, Tensor
from .native import NativeCrash, native
from .peers import Array, Elements, NoPeer, Question, Refused, ask, made, reference, watch, wrong
from .refusals import LOOSER, MISSING, STRICTER

# float64: attributes and their defaults are float32, and peers differ in what they make of 1e-5.
RTOL = {"float32": 2e-5, "float64": 3e-8, "float16": 2e-3, "bfloat16": 1.6e-2}
# Relative to the largest element of the tensor: sums cancel.
ATOL = {"float32": 2e-6, "float64": 1e-10, "float16": 2e-3, "bfloat16": 1.6e-2}
NOISE = {"float32": 6e-7, "float64": 1e-13, "float16": 1e-3, "bfloat16": 8e-3}
# Native's own tanh, erf and exp are that far off the truth near zero.
FLOOR = {"float32": 3e-7, "float16": 1e-4, "bfloat16": 1e-4}
Arrays = Mapping[str, Array]


class Mismatch(AssertionError):
    """This package and its peers disagree."""


@cache
def runtime(variant: Any) -> ort.Runtime:
    return ort.Runtime(variant=variant)


def check(case: Case) -> None:
    """Raises Mismatch with what is wrong."""
    if case.spoiled:
        _check_spoiled(case)
        return
    expected = flat({t.name: t.array for t in case.outputs})
    second = _second(case)
    for fuse in ("all", "disabled"):
        rounds = [(case.feeds, expected), (case.feeds, expected)]
        if second is not None:
            rounds.insert(1, second)
        try:
            answers = _run(case, fuse, [feeds for feeds, _ in rounds])
        except ort.OnnxWasmError as error:
            if isinstance(error, ort.UnsupportedModelError) and any(m in str(error) for m in MISSING):
                return
            _fail(case, f"[{fuse}] {type(error).__name__}: {error}")
        for (_, wanted), got in zip(rounds, answers, strict=True):
            _compare(case, fuse, got, wanted, main=wanted is expected)
        for name, again in answers[-1].items():
            if answers[0][name].tobytes() != again.tobytes():
                _fail(case, f"[{fuse}] {name} differs between two runs with the same inputs")


def _run(case: Case, fuse: str, feeds: list[Arrays]) -> list[dict[str, Array]]:
    heap = runtime(case.variant)
    try:
        with ort.InferenceSession.create(
            case.model(), runtime=heap, enable_mem_pattern=case.planned, graph_optimization_level=fuse
        ) as session:
            answers = []
            for fed in feeds:
                outputs = session.run(fed)
                answers.append(flat({n: _taken(t) for n, t in outputs.items()}))
            return answers
    except (ort.KernelTrapError, ort.HeapCorruptionError) as error:
        _fail(case, f"[{fuse}] {type(error).__name__}: {error}")
    except ort.OnnxWasmError:
        raise
    except Exception as error:
        raise Mismatch(f"[{fuse}] {type(error).__name__}: {error}\n{case!r}") from error
    finally:
        if heap.memory().used:
            gc.collect()
            if heap.memory().used:
                held = heap.blocks()
                runtime.cache_clear()
                _fail(case, f"[{fuse}] leaked {held}")
        heap.heap_check()


def _taken(output: Any) -> Any:
    if isinstance(output, list):
        return [_taken(t) for t in output]
    return np.array(output.get_data(release_data=True))


def flat(values: Mapping[str, Any]) -> dict[str, Array]:
    """Sequences as their length and their tensors."""
    found: dict[str, Array] = {}
    for name, value in values.items():
        found[name] = np.asarray(len(value)) if isinstance(value, list) else value
        if isinstance(value, list):
            found |= {f"{name}[{i}]": a for i, a in enumerate(value)}
    return found


def _fail(case: Case, message: str) -> Any:
    raise Mismatch(f"{message}\n{case!r}") from None


def _second(case: Case) -> tuple[Arrays, Arrays] | None:
    """Other inputs of the same shapes, if the family's graphs are valid for them, and what they give."""
    if not case.movable:
        return None
    feeds = {
        t.name: t.array if t.name in case.fixed else t.array.reshape(-1)[::-1].reshape(t.shape) for t in case.inputs
    }
    feeds = {n: np.ascontiguousarray(a).reshape(a.shape) for n, a in feeds.items()}
    try:
        values = replay(case, feeds)
    except (Refused, NoPeer):
        return None
    return feeds, flat({t.name: values[t.name] for t in case.outputs})


def replay(case: Case, feeds: Arrays, random: np.random.Generator | None = None) -> dict[str, Any]:
    """All tensors by the peers again; with ``random`` everything inexact is shaken by a few roundings."""
    values: dict[str, Any] = {**{t.name: t.array for t in case.weights}, **feeds}
    for step in case.steps:
        shaken = random is not None and not step.outputs[0].exact
        arrays = {n: _shake(values[n], random) if shaken and random is not None else values[n] for n in step.reads}
        constants = frozenset(n for n, t in step.reads.items() if t.const)
        results = ask(Question(step.node, case.opset, arrays, constants))
        for tensor, result in zip(step.outputs, results, strict=True):
            values[tensor.name] = _shake(result, random) if shaken and random is not None else result
    return values


def _shake(array: Any, random: np.random.Generator) -> Any:
    if isinstance(array, Elements):
        return Elements((_shake(a, random) for a in array), array.dtype)
    noise = NOISE.get(array.dtype.name)
    if noise is None:
        return array
    # Of many sizes: what a step makes and the next one reads are both shaken, and must not cancel each other.
    moved = noise * random.choice([-1.0, 1.0], array.shape) * random.uniform(0.5, 1, array.shape)
    # And all of them in one direction, as by the sum that a Softmax divides by.
    moved = moved + noise * random.choice([-1.0, 1.0]) * random.uniform(0.5, 1)
    with np.errstate(all="ignore"):
        return np.asarray((array.astype(np.float64) * (1 + moved)).astype(array.dtype))


def _compare(case: Case, fuse: str, got: Arrays, expected: Arrays, *, main: bool) -> None:
    exact = {n: t.exact for t in case.outputs for n in flat({t.name: t.array})}
    kinds = {n: _kind(case, t) for t in case.outputs for n in flat({t.name: t.array})}
    replays: list[dict[str, Array]] | None = None
    if got.keys() != expected.keys():
        _fail(case, f"[{fuse}] gives {sorted(got)}, not {sorted(expected)}")
    for name, wanted in expected.items():
        array = got[name]
        if array.dtype != wanted.dtype or array.shape != wanted.shape:
            _fail(case, f"[{fuse}] {name} is {array.dtype}{list(array.shape)}, not {wanted.dtype}{list(wanted.shape)}")
        bad = ~_close(array, wanted, exact[name], kinds[name])
        if not bad.any():
            continue
        if not exact[name] and main:
            if replays is None:
                replays = _replays(case)
            bad &= ~_within(array, wanted, [r[name] for r in replays])
        if bad.any() and (exact[name] or main):
            at = tuple(int(i) for i in np.argwhere(np.atleast_1d(bad))[0]) if bad.ndim else ()
            _fail(
                case,
                f"[{fuse}] {name}: {int(bad.sum())} of {bad.size} differ, first at {list(at)}: {array[at]!r}, "
                f"not {wanted[at]!r} (largest {_largest(wanted)}); {'exact' if exact[name] else 'rounded'}",
            )


def _replays(case: Case) -> list[dict[str, Array]]:
    replays = []
    for seed in range(4):
        try:
            replays.append(flat(replay(case, case.feeds, np.random.default_rng(seed))))
        except (Refused, NoPeer):
            continue
    return replays


def _largest(array: Array) -> float:
    wide = np.abs(array.astype(np.float64))
    finite = wide[np.isfinite(wide)]
    return float(finite.max()) if finite.size else 0.0


def _kind(case: Case, output: Tensor) -> str:
    """The least exact type of floats among an output and what it is computed from."""
    found, names = [output.dtype], {output.name}
    for step in reversed(case.steps):
        if not names.isdisjoint(t.name for t in step.outputs):
            names |= step.reads.keys()
            found += [t.dtype for t in step.reads.values()]
    kinds = (k.removeprefix("sequence(").removesuffix(")") for k in found)
    return max((k for k in kinds if k in RTOL), key=RTOL.__getitem__, default="")


def _close(got: Array, wanted: Array, exact: bool, least: str = "") -> Array:
    kind = wanted.dtype.name
    if exact or kind not in FLOATS:
        same = got == wanted
        if not exact and kind in ("uint8", "int8"):
            # A tie that was rounded either way.
            same |= np.abs(got.astype(int) - wanted.astype(int)) <= 1
        return np.asarray(same | (_nan(got) & _nan(wanted)) if kind in FLOATS else same)
    tiny = float(ml_dtypes.finfo(wanted.dtype).tiny)
    kind = least or kind
    with np.errstate(all="ignore"):
        return np.asarray(
            np.isclose(
                got.astype(np.float64),
                wanted.astype(np.float64),
                rtol=RTOL[kind],
                atol=ATOL[kind] * min(_largest(wanted), 1e30) + FLOOR.get(kind, 0) + tiny,
                equal_nan=True,
            )
        )


def _nan(array: Array) -> Array:
    return np.asarray(array != array)


def _within(got: Array, wanted: Array, shaken: list[Array]) -> Array:
    """Elements that lie about as far off as a few roundings can take them."""
    good = np.zeros(wanted.shape, bool)
    if not shaken or any(s.shape != wanted.shape for s in shaken):
        return ~good
    with np.errstate(all="ignore"):
        true, mine = wanted.astype(np.float64), got.astype(np.float64)
        moved = np.max([np.abs(s.astype(np.float64) - true) for s in shaken], axis=0)
        good |= np.abs(mine - true) <= 8 * moved
        # A few roundings decide whether it is a number at all.
        good |= np.isnan(moved) & ~np.isnan(true)
        good |= np.isnan(true) & ~np.all([np.isnan(s.astype(np.float64)) for s in shaken], axis=0)
        return np.asarray(good)


def _says(message: str, parts: str) -> bool:
    """Whether all the parts, with " ... " between them, are found."""
    return all(part in message for part in parts.split(" ... "))


def _check_spoiled(case: Case) -> None:
    names = [t.name for t in case.outputs]
    try:
        answer: dict[str, Array] | None = _run(case, "all", [case.feeds])[0]
        error = ""
    except ort.OnnxWasmError as refusal:
        answer, error = None, f"{type(refusal).__name__}: {refusal}"
    data = case.model()
    try:
        wanted = flat(dict(zip(names, native(data, case.feeds), strict=True)))
    except NativeCrash:
        return
    except Exception as refusal:
        # No kernel for a type is no refusal of the graph.
        silent = any(part in str(refusal) for part in ("NOT_IMPLEMENTED", "converted to MLDataType"))
        if answer is None or silent or any(_says(str(refusal), part) for part, _ in LOOSER):
            return
        try:
            wanted = flat(dict(zip(names, reference(data, case.feeds), strict=True)))
        except Exception:
            _fail(case, f"native refuses, reference too: {str(refusal)[:300]}")
        if "NOT_IMPLEMENTED" in str(refusal):
            # What native cannot run tells nothing of the model, and the reference alone is wrong in known ways.
            return
        if "reference" in _wrong(case):
            return
        if wanted.keys() != answer.keys():
            _fail(case, f"native refuses, reference gives {sorted(wanted)}, not {sorted(answer)}")
        for name in wanted:
            if wanted[name].shape != answer[name].shape or not _close(answer[name], wanted[name], False).all():
                _fail(case, f"native refuses, reference gives another {name}: {str(refusal)[:300]}")
        return
    if answer is None:
        if any(re.search(pattern, error) for pattern, _ in STRICTER) or any(m in error for m in MISSING):
            return
        _fail(case, f"native computes what this package refuses with {error}")
    if wanted.keys() != answer.keys():
        _fail(case, f"gives {sorted(answer)}, native {sorted(wanted)}")
    for name in wanted:
        if wanted[name].shape != answer[name].shape or wanted[name].dtype != answer[name].dtype:
            if "native" in _wrong(case):
                return
            _fail(case, f"{name} is {answer[name].dtype}{answer[name].shape}, not {wanted[name].shape}")


def _wrong(case: Case) -> set[str]:
    """Peers that are known to be wrong about a node of the spoiled graph."""
    names = set(made(case.nodes))
    ran = watch(case.model(), case.feeds, case.opset)
    return wrong(*(q for q in ran if names.issuperset(n for n in q.node.output if n)))
