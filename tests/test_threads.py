"""The same bytes whatever the number of threads, and the same errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import onnx_wasm as ort
from graphs import FLOAT, INT32, INT64, model, node
from onnx_wasm import tape
from onnx_wasm.cli import main
from shared_material import model_inputs, model_path

COUNTS = (1, 2, 3)
# The number of the latest record that was shared (wasm/README.md).
JOB = 132
Array = np.ndarray[Any, Any]
chance = np.random.default_rng(5)


def f32(*shape: int) -> Array:
    return chance.normal(0, 1, shape).astype(np.float32)


def i64(high: int, *shape: int) -> Array:
    return chance.integers(0, high, shape)


def u8(*shape: int) -> Array:
    return chance.integers(0, 256, shape).astype(np.uint8)


X, IMAGE, ROWS = f32(5, 3000), f32(2, 8, 30, 37), f32(40, 1001)
SIZES = np.array([1, 1, 1.7, 2.3], np.float32)
SCALE, ZERO = np.float32(0.02), np.uint8(128)
# Name, inputs, attributes; more of a node behind the second "/" of the key. Inputs after a None are left out.
CASES: dict[str, tuple[list[Array | None], dict[str, Any]]] = {
    **{f"{op}": ([X], {}) for op in ("Exp", "Erf", "Tanh", "Relu", "Sin", "Gelu", "IsNaN", "Floor")},
    "Sigmoid/f16": ([X.astype(np.float16)], {}),
    "Exp/f64": ([X.astype(np.float64)], {}),
    "Not": ([X > 0], {}),
    "Add/broadcast": ([f32(7, 1, 901), f32(13, 901)], {}),
    "Mul/row": ([ROWS, f32(40, 1)], {}),
    "Div/int": ([i64(99, 15000), i64(9, 15000) + 1], {}),
    "Equal": ([i64(3, 15001), i64(3, 15001)], {}),
    "Greater/broadcast": ([ROWS, f32(1001)], {}),
    "Where": ([X > 0, X, f32(3000)], {}),
    "Clip": ([X, np.float32(-0.5), np.float32(0.5)], {}),
    "Cast/u8": ([X], {"to": 2}),
    "Cast/f16": ([X], {"to": 10}),
    "Cast/f8": ([X], {"to": 17}),
    "Cast/int4": ([X], {"to": 22}),
    "Cast/bool": ([X], {"to": 9}),
    "MatMul": ([f32(3, 70, 65), f32(3, 65, 130)], {}),
    "MatMul/vector": ([f32(1, 300), f32(300, 700)], {}),
    "Gemm": ([f32(90, 50), f32(110, 50), f32(110)], {"transB": 1, "alpha": 0.5}),
    "Einsum": ([f32(9, 30, 40), f32(9, 40, 30)], {"equation": "bij,bjk->bik"}),
    "Conv/3x3": ([IMAGE, f32(20, 8, 3, 3), f32(20)], {"pads": [1, 1, 1, 1]}),
    "Conv/1x1": ([IMAGE, f32(20, 8, 1, 1)], {}),
    "Conv/small": ([f32(1, 64, 4, 4), f32(90, 64, 3, 3)], {"pads": [1, 1, 1, 1]}),
    "Conv/grouped": ([IMAGE, f32(12, 2, 3, 3)], {"group": 4, "strides": [2, 2]}),
    "Conv/depthwise": ([IMAGE, f32(8, 1, 3, 3), f32(8)], {"group": 8, "pads": [1, 1, 1, 1]}),
    "Conv/depthwise5": ([IMAGE, f32(16, 1, 5, 5)], {"group": 8, "strides": [2, 2], "dilations": [1, 2]}),
    "Conv/1d": ([f32(2, 5, 900), f32(9, 5, 7)], {}),
    "Conv/3d": ([f32(1, 3, 9, 10, 11), f32(7, 3, 3, 3, 3)], {}),
    "ConvTranspose": ([IMAGE, f32(8, 6, 3, 3)], {"strides": [2, 3]}),
    "ConvTranspose/1": ([IMAGE, f32(8, 6, 3, 3)], {}),
    "ConvTranspose/grouped": ([IMAGE, f32(8, 2, 4, 4)], {"strides": [2, 2], "group": 4}),
    "DeformConv": ([f32(2, 4, 12, 13), f32(6, 4, 3, 3), f32(2, 18, 10, 11)], {}),
    "MaxPool": ([IMAGE], {"kernel_shape": [3, 3], "strides": [2, 2]}),
    "MaxPool/u8": ([u8(2, 9, 30, 31)], {"kernel_shape": [3, 2]}),
    "AveragePool": ([IMAGE], {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1]}),
    "LpPool": ([IMAGE], {"kernel_shape": [2, 2]}),
    "GlobalAveragePool": ([IMAGE], {}),
    "Softmax/last": ([ROWS], {"axis": -1}),
    "Softmax/mid": ([IMAGE], {"axis": 1}),
    "LogSoftmax": ([ROWS], {"axis": 0}),
    "LayerNormalization": ([ROWS, f32(1001), f32(1001)], {}),
    "RMSNormalization": ([ROWS, f32(1001)], {}),
    "GroupNormalization": ([IMAGE, f32(8), f32(8)], {"num_groups": 4}),
    "InstanceNormalization": ([IMAGE, f32(8), f32(8)], {}),
    "BatchNormalization": ([IMAGE, f32(8), f32(8), f32(8), f32(8) ** 2 + 1], {}),
    "LRN": ([IMAGE], {"size": 3}),
    "LpNormalization": ([ROWS], {"axis": 1}),
    "ReduceSum/last": ([ROWS, np.array([1])], {}),
    "ReduceMean/first": ([ROWS, np.array([0])], {}),
    "ReduceMax/mid": ([IMAGE, np.array([1, 2])], {}),
    "ReduceLogSumExp": ([ROWS, np.array([1])], {}),
    "ArgMax": ([ROWS], {"axis": 0}),
    "CumSum": ([ROWS, np.array(1)], {}),
    "Transpose": ([IMAGE], {"perm": [0, 2, 3, 1]}),
    "Transpose/u8": ([u8(40, 3, 101)], {"perm": [2, 1, 0]}),
    "Concat": ([ROWS, f32(40, 33), f32(40, 7)], {"axis": 1}),
    "Slice": ([ROWS, np.array([3, 999]), np.array([38, 2]), np.array([0, 1]), np.array([1, -3])], {}),
    "Pad/constant": ([ROWS, np.array([1, 2, 3, 4]), np.float32(7)], {}),
    "Pad/reflect": ([ROWS, np.array([1, 2, 3, 4])], {"mode": "reflect"}),
    "Pad/bool": ([ROWS > 0, np.array([1, 2, 3, 4])], {"mode": "edge"}),
    "Tile": ([f32(9, 31), np.array([5, 7])], {}),
    "Expand": ([f32(30, 1), np.array([30, 555])], {}),
    "Gather": ([f32(50, 123), i64(50, 300)], {}),
    "GatherElements": ([ROWS, i64(40, 40, 1001)], {"axis": 0}),
    "GatherND": ([IMAGE, i64(2, 90, 2)], {}),
    "ScatterElements": ([ROWS, chance.permuted(np.tile(np.arange(40)[:, None], 700), axis=0), f32(40, 700)], {}),
    "ScatterND": ([ROWS, chance.permutation(40)[:, None], f32(40, 1001)], {}),
    "DepthToSpace": ([IMAGE], {"blocksize": 2}),
    "Trilu": ([f32(3, 60, 61)], {}),
    "OneHot": ([i64(9, 900), np.array(9), np.array([0, 1], np.float32)], {}),
    "ReverseSequence": ([f32(30, 20, 9), i64(30, 20) + 1], {}),
    "Compress": ([X, X[0] > 0.3], {"axis": 1}),
    "Resize/linear": ([IMAGE, None, SIZES], {"mode": "linear"}),
    "Resize/cubic": ([IMAGE, None, SIZES], {"mode": "cubic"}),
    "Resize/nearest": ([IMAGE, None, SIZES], {"mode": "nearest"}),
    "Resize/less": ([IMAGE, None, 1 / SIZES], {"mode": "linear", "antialias": 1}),
    "GridSample": ([IMAGE, np.tanh(f32(2, 17, 19, 2))], {"mode": "linear"}),
    "RoiAlign": ([IMAGE, abs(f32(20, 4)) * 9, i64(2, 20)], {"output_height": 5, "output_width": 4}),
    "TopK": ([ROWS, np.array([9])], {}),
    "NonMaxSuppression": ([f32(2, 99, 4), f32(2, 5, 99), np.array([9]), np.float32(0.5), np.float32(0)], {}),
    "LSTM": ([f32(6, 70, 20), f32(2, 96, 20), f32(2, 96, 24)], {"hidden_size": 24, "direction": "bidirectional"}),
    "GRU": ([f32(6, 70, 20), f32(1, 72, 20), f32(1, 72, 24)], {"hidden_size": 24}),
    "ConvInteger": ([u8(2, 8, 20, 21), u8(10, 8, 3, 3), ZERO], {}),
    "MatMulInteger": ([u8(70, 65), u8(65, 130), ZERO, ZERO], {}),
    "QLinearConv": ([u8(2, 8, 20, 21), SCALE, ZERO, u8(10, 8, 3, 3), SCALE, ZERO, np.float32(2), ZERO], {}),
    "QLinearConv/depthwise": (
        [u8(2, 8, 20, 21), SCALE, ZERO, u8(8, 1, 3, 3), SCALE, ZERO, np.float32(2), ZERO],
        {"group": 8},
    ),
    "QLinearMatMul": ([u8(70, 65), SCALE, ZERO, u8(65, 130), SCALE, ZERO, np.float32(2), ZERO], {}),
    "DynamicQuantizeLinear": ([X], {}),
    "QuantizeLinear/int4": ([X, np.float32(0.3)], {"output_dtype": 22}),
    "DequantizeLinear": ([u8(30, 900), SCALE, ZERO], {}),
    "Attention": ([f32(2, 4, 50, 16), f32(2, 4, 70, 16), f32(2, 4, 70, 24)], {}),
    "DFT": ([f32(90, 100, 1)], {}),
    "Det": ([f32(90, 5, 5)], {}),
    "RandomNormalLike": ([X], {"seed": 3.0}),
    "Bernoulli": ([abs(np.tanh(X))], {"seed": 3.0}),
    "Multinomial": ([ROWS], {"seed": 3.0, "sample_size": 99}),
}
OUTPUTS = {"TopK": 2, "LSTM": 3, "GRU": 2, "DynamicQuantizeLinear": 3, "Dropout": 2}
# Axes, scales and the like stay constants where the other inputs are fed.
SMALL = 32


def build(key: str, *, constant: bool) -> tuple[bytes, dict[str, Array]]:
    """One node; with ``constant`` all inputs but the first are weights, so that their packing is shared, too."""
    op_type = key.partition("/")[0]
    inputs, attributes = CASES[key]
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    arrays = {n: np.asarray(x) for n, x in zip(names, inputs, strict=True) if x is not None}
    fed = {n: a for n, a in arrays.items() if n == "x0" or (not constant and a.size > SMALL)}
    outputs = [f"y{i}" for i in range(OUTPUTS.get(op_type, 1))]
    types = {n: (helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in fed.items()}
    weights = {n: a for n, a in arrays.items() if n not in fed}
    data = model([node(op_type, names, outputs, **attributes)], types, outputs, weights, opset=23)
    return data, fed


def contents(result: dict[str, Any]) -> list[bytes]:
    found = [t.get_data().tobytes() for t in result.values()]
    for tensor in result.values():
        tensor.dispose()
    return found


@pytest.fixture(scope="module", params=["relaxed", "strict"])
def runtimes(request: pytest.FixtureRequest) -> Iterator[dict[int, ort.Runtime]]:
    made = {n: ort.Runtime(threads=n, variant=request.param) for n in COUNTS}
    yield made
    for runtime in made.values():
        runtime.heap_check()
        assert runtime.memory().used == 0
        runtime.close()


@pytest.fixture
def sharing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every record is shared that has more than one unit."""
    monkeypatch.setattr(tape, "SHARED_BYTES", 0)


@pytest.mark.usefixtures("sharing")
@pytest.mark.parametrize("constant", [False, True], ids=["fed", "weights"])
@pytest.mark.parametrize("key", list(CASES))
def test_results_do_not_depend_on_the_number_of_threads(
    runtimes: dict[int, ort.Runtime], key: str, constant: bool
) -> None:
    data, feeds = build(key, constant=constant)
    results: dict[int, list[list[bytes]]] = {}
    for count, runtime in runtimes.items():
        before = int(runtime._words[JOB // 4])
        with ort.InferenceSession.create(data, runtime=runtime) as session:
            results[count] = [contents(session.run(feeds)) for _ in range(3)]
        assert (count > 1) is (int(runtime._words[JOB // 4]) > before), "nothing was shared"
    assert results[1] == results[2] == results[3]


@pytest.mark.parametrize(
    "id", ["light_squeezenet", "light_shufflenet", "minilm_l3_fp32", "silero_vad_v6", "ppocr_v2_cls"]
)
@pytest.mark.parametrize("all_records", [False, True], ids=["worth it", "all records"])
def test_models_do_not_depend_on_the_number_of_threads(
    id: str, all_records: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if all_records:
        monkeypatch.setattr(tape, "SHARED_BYTES", 0)
    path, feeds = model_path(id), model_inputs(id)
    results = []
    for count, planned in ((1, True), (2, True), (2, False), (3, True)):
        with (
            ort.Runtime(threads=count) as runtime,
            ort.InferenceSession.create(path, runtime=runtime, enable_mem_pattern=planned) as session,
        ):
            for _ in range(2):
                out = session.run(feeds)
                results.append({n: t.get_data(release_data=True).tobytes() for n, t in out.items()})
    # Random numbers and states apart, runs are alike, too.
    assert all(r == results[i % 2] for i, r in enumerate(results))


def test_small_records_are_not_shared() -> None:
    data = model([node("Neg", ["x"], ["y"])], {"x": (FLOAT, ["n"])}, ["y"])
    with ort.Runtime(threads=2) as runtime, ort.InferenceSession.create(data, runtime=runtime) as session:
        for n, jobs in ((5000, 0), (100_000, 1)):
            before = int(runtime._words[JOB // 4])
            session.run({"x": np.ones(n, np.float32)})["y"].dispose()
            assert int(runtime._words[JOB // 4]) - before == jobs


@pytest.mark.usefixtures("sharing")
@pytest.mark.parametrize("watch", ["debug", "log", "profile"])
def test_record_by_record(watch: str) -> None:
    data, feeds = build("Conv/3x3", constant=True)
    results = []
    for count in (1, 2):
        runtime = ort.Runtime(threads=count, debug=watch == "debug", log_events=watch == "log")
        with (
            runtime,
            ort.InferenceSession.create(
                data, runtime=runtime, enable_mem_pattern=False, enable_profiling=watch == "profile"
            ) as session,
        ):
            results.append(contents(session.run(feeds)))
            runtime.heap_check()
    assert results[0] == results[1]


def failing(op_type: str) -> tuple[bytes, dict[str, Array], dict[str, Array], str]:
    """A model, feeds that are wrong in two places, feeds that are not, and the error."""
    n = 40_000
    if op_type == "Gather":
        nodes = [node("Identity", ["i"], ["j"]), node("Gather", ["x", "j"], ["y"])]
        data = model(nodes, {"x": (FLOAT, [50, 8]), "i": (INT64, [n])}, ["y"])
        good = i64(50, n)
        bad = good.copy()
        bad[[n // 2 + 7, n - 3]] = 50, 51
        x = f32(50, 8)
        return (
            data,
            {"x": x, "i": bad},
            {"x": x, "i": good},
            r'Gather "y" \(node 1\): index 50 out of range \[-50, 50\)',
        )
    data = model([node("Div", ["x", "d"], ["y"])], {"x": (INT32, [n]), "d": (INT32, [n])}, ["y"])
    good = i64(9, n).astype(np.int32) + 1
    bad = good.copy()
    bad[n - 5] = 0
    return data, {"x": good, "d": bad}, {"x": good, "d": good}, r'Div "y" \(node 0\): value 0 is outside'


@pytest.mark.usefixtures("sharing")
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("op_type", ["Gather", "Div"])
def test_an_error_in_the_range_of_a_worker(op_type: str, count: int) -> None:
    data, bad, good, message = failing(op_type)
    with ort.Runtime(threads=count) as runtime:
        with ort.InferenceSession.create(data, runtime=runtime) as session:
            for _ in range(10):
                with pytest.raises(ort.OnnxWasmError, match=message):
                    session.run(bad)
                session.run(good)["y"].dispose()
        runtime.heap_check()
        assert runtime.memory().used == 0


def test_a_run_can_be_cancelled() -> None:
    nodes = [node("MatMul", ["x" if not i else f"a{i}", "w"], [f"a{i + 1}"]) for i in range(300)]
    data = model(nodes, {"x": (FLOAT, [400, 400])}, ["a300"], {"w": f32(400, 400) / 400})
    x = f32(400, 400)
    with ort.Runtime(threads=2) as runtime, ort.InferenceSession.create(data, runtime=runtime) as session:
        session.run({"x": x})["a300"].dispose()
        started = threading.Event()

        def cancel() -> None:
            # Again and again: before the run begins a cancellation is forgotten.
            while not started.wait(0.005):
                runtime.cancel()

        canceller = threading.Thread(target=cancel)
        canceller.start()
        try:
            with pytest.raises(ort.CancelledError):
                session.run({"x": x})
        finally:
            started.set()
            canceller.join()
        session.run({"x": x})["a300"].dispose()


@pytest.mark.parametrize("threads", [0, -1, 65, 2.0, "2", None])
def test_a_number_of_threads_that_cannot_be(threads: Any) -> None:
    with pytest.raises(ValueError, match=r"must be a whole number from 1 to 64"):
        ort.Runtime(threads=threads)


def test_more_threads_than_units_or_processors() -> None:
    data, feeds = build("Add/broadcast", constant=False)
    results = []
    for count in (1, 16):
        with (
            ort.Runtime(threads=count) as runtime,
            ort.InferenceSession.create(data, runtime=runtime) as session,
        ):
            results.append(contents(session.run(feeds)))
            assert (f"{count} threads" in repr(runtime)) is (count > 1)
    assert results[0] == results[1]


def test_the_flag_of_the_default_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnx_wasm.heap._default", None)
    monkeypatch.setattr(ort.env, "_made", None)
    monkeypatch.setattr(ort.env.wasm, "num_threads", 2)
    with ort.default_runtime() as runtime:
        assert runtime.threads == 2


def test_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    data, _ = build("Conv/3x3", constant=True)
    path = tmp_path / "conv.onnx"
    path.write_bytes(data)
    assert main(["run", str(path), "--threads", "2", "--runs", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["threads"] == 2
    for wrong in ("0", "65", "two"):
        with pytest.raises(SystemExit):
            main(["run", str(path), "--threads", wrong])
    assert "65 is more than 64" in capsys.readouterr().err


def test_the_marker_of_the_plugin(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        """
import pytest

@pytest.mark.wasm_heap(threads=2)
def test_two(wasm_runtime):
    assert wasm_runtime.threads == 2

@pytest.mark.wasm_heap(threads=99)
def test_too_many(wasm_runtime):
    pass
"""
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "pytest_onnx_wasm", "-p", "no:cacheprovider", str(tmp_path)]
    path = str(Path(ort.__file__).parents[1])
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert "1 passed, 1 error" in done.stdout, done.stdout
    assert "threads 99 must be a whole number from 1 to 64" in done.stdout
