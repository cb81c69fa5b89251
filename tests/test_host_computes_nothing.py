"""Every tensor value is computed in WebAssembly: the host only moves bytes, and reads shapes, indices and conditions.

All that the host sees of the heap goes through two arrays of the runtime. Here they are arrays of a class that records
every numpy function applied to them, or to anything made from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import conformance
import graphs
import onnx_wasm as ort
from shared_material import model_inputs, model_path

Array = np.ndarray[Any, Any]
# On the words of tapes: has a record allocated something; the arena's address is added to offsets.
BOOKKEEPING = {("logical_or", "uint32"), ("add", "uint32")}


class Watched(np.ndarray):
    """An array that records what is computed with it."""

    seen: list[tuple[str, str]]

    def __array_finalize__(self, parent: Any) -> None:
        self.seen = getattr(parent, "seen", [])

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        self.seen += [(ufunc.__name__, i.dtype.name) for i in inputs if isinstance(i, Watched)]
        plain = [np.asarray(i) if isinstance(i, Watched) else i for i in inputs]
        out = kwargs.pop("out", None)
        if out is not None:
            kwargs["out"] = tuple(np.asarray(o) if isinstance(o, Watched) else o for o in out)
        return getattr(ufunc, method)(*plain, **kwargs)


def watched(array: Array, seen: list[tuple[str, str]]) -> Watched:
    made = array.view(Watched)
    made.seen = seen
    return made


@pytest.fixture
def runtime() -> Iterator[ort.Runtime]:
    with ort.Runtime() as runtime:
        yield runtime


def watch(runtime: ort.Runtime) -> list[tuple[str, str]]:
    seen: list[tuple[str, str]] = []
    runtime._bytes = watched(runtime._bytes, seen)
    runtime._words = watched(runtime._words, seen)
    return seen


def run(session: ort.InferenceSession, feeds: dict[str, Any]) -> None:
    for tensor in session.run(feeds).values():
        tensor.dispose()


def test_the_watch_sees_arithmetic(runtime: ort.Runtime) -> None:
    seen = watch(runtime)
    part = runtime._bytes[1 << 20 : (1 << 20) + 64].view(np.float32).reshape(4, 4).copy()
    _ = part @ part, np.exp(part), part.sum(), part + 1
    assert {name for name, _ in seen} == {"matmul", "exp", "add"}
    assert {dtype for _, dtype in seen} == {"float32"}


@pytest.mark.parametrize("planned", [True, False])
@pytest.mark.parametrize("id", ["magika_v3_3", "minilm_l3_fp32", "ppocr_v2_cls", "oww_hey_jarvis"])
def test_a_run_of_a_real_model_computes_nothing_on_the_host(id: str, planned: bool, runtime: ort.Runtime) -> None:
    seen = watch(runtime)
    feeds = {n: watched(a, seen) for n, a in model_inputs(id).items()}
    with ort.InferenceSession.create(model_path(id), runtime=runtime, enable_mem_pattern=planned) as session:
        for _ in range(3):
            run(session, feeds)
    assert set(seen) <= BOOKKEEPING


def test_a_fused_network_computes_nothing_on_the_host(runtime: ort.Runtime) -> None:
    seen = watch(runtime)
    x = watched(np.ones((1, 3, 12, 12), np.float32), seen)
    with ort.InferenceSession.create(graphs.convnet(), runtime=runtime) as session:
        run(session, {"x": x})
    assert set(seen) <= BOOKKEEPING


def test_no_node_case_computes_floats_on_the_host(runtime: ort.Runtime) -> None:
    seen = watch(runtime)
    for case in conformance.cases(["node"], "_"):
        if case.id not in conformance.listed():
            continue
        seen.clear()
        conformance.run(case, runtime)
        computed = {(name, dtype) for name, dtype in seen if "float" in dtype or "complex" in dtype}
        assert not computed, f"{case.id}: {computed}"
