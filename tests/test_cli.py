"""The command line: what it prints, writes and answers, and that it never shows a traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import graphs
from graphs import FLOAT, INT64, STRING, model, node
from onnx_wasm import trace
from onnx_wasm.cli import main

DIGITS = Path(__file__).parent.parent / "examples" / "digits"


def save(folder: Path, data: bytes) -> str:
    path = folder / "model.onnx"
    path.write_bytes(data)
    return str(path)


def report(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    assert main([*args, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_run_reports_outputs_times_and_the_heap(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    saved = tmp_path / "out.npz"
    args = ["run", str(DIGITS / "digits.onnx"), "--input", f"image={DIGITS / 'digit.npy'}", "--runs", "2"]
    found = report(capsys, *args, "--save", str(saved))
    assert found["recognised"]["label"] == "2"
    assert found["times_ms"]["runs"] == 2
    assert found["heap"]["peak"] >= found["heap"]["weights"] + found["heap"]["lower_bound"] > 0
    (name, shown), *_ = found["outputs"].items()
    with np.load(saved) as arrays:
        np.testing.assert_allclose(arrays[name].reshape(-1)[:6], shown["first"])
    assert main(args) == 0
    text = capsys.readouterr().out
    for word in ("result   2", "run 1", "weights", "arena", "lower bound", "peak in use", "linear memory"):
        assert word in text


def test_inputs_that_are_not_given_are_random_and_said_to_be(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = save(tmp_path, graphs.mlp())
    found = report(capsys, "run", path, "--runs", "1")["inputs"]["x"]
    assert found["shape"] == [1, 16]
    assert found["from"] == "random, dimensions batch taken as 1"
    assert report(capsys, "run", path, "--runs", "1", "--shape", "x=3,16")["outputs"]["y"]["shape"] == [3, 8]


def test_without_mem_pattern_there_is_no_arena(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = save(tmp_path, graphs.convnet())
    assert report(capsys, "run", path, "--runs", "1")["heap"]["arena"] > 0
    assert report(capsys, "run", path, "--runs", "1", "--no-mem-pattern")["heap"]["arena"] == 0


def test_outputs_that_are_no_tensors_of_numbers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    weights = {"words": np.array(["one", "two"], object), "n": np.array(1)}
    nodes = [
        node("Identity", ["words"], ["strings"]),
        node("SequenceConstruct", ["x", "x"], ["sequence"]),
        node("Optional", [], ["nothing"], type=onnx.helper.make_tensor_type_proto(FLOAT, [1])),
    ]
    path = save(tmp_path, model(nodes, {"x": (FLOAT, [2])}, ["strings", "sequence", "nothing"], weights))
    outputs = report(capsys, "run", path, "--runs", "1")["outputs"]
    assert list(outputs) == ["strings", "sequence[0]", "sequence[1]"]
    assert outputs["strings"]["first"] == ["one", "two"]
    assert main(["run", path, "--runs", "1"]) == 0
    assert "strings: object[2]  [one, two]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--shape", "x=-1,16"], "dimensions must not be negative"),
        (["--shape", "x=a"], "not integers separated by commas"),
        (["--shape", "z=1"], "'z' is no input of the model"),
        (["--shape", "x"], "'x' is not NAME=VALUE"),
        (["--input", "x=nowhere.npy"], "nowhere.npy"),
        (["--shape", "x=1,17"], "has dimension 16 on axis 1"),
    ],
)
def test_wrong_arguments_get_a_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, args: list[str], message: str
) -> None:
    assert main(["run", save(tmp_path, graphs.mlp()), *args]) == 1
    error = capsys.readouterr().err
    assert error.startswith("onnx-wasm: ")
    assert message in error


def test_inputs_that_have_no_random_value(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["run", save(tmp_path, model([node("Identity", ["x"], ["y"])], {"x": (STRING, [1])}, ["y"]))]) == 1
    assert "input 'x' of type string needs --input" in capsys.readouterr().err
    proto = onnx.load_from_string(model([node("SequenceLength", ["x"], ["y"])], {"x": (INT64, [1])}, ["y"]))
    element = onnx.helper.make_tensor_type_proto(INT64, [1])
    proto.graph.input[0].type.CopyFrom(onnx.helper.make_sequence_type_proto(element))
    assert main(["run", save(tmp_path, proto.SerializeToString())]) == 1
    assert "input 'x' is no tensor" in capsys.readouterr().err


def test_info(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, "info")
    assert {"Conv", "Gemm", "com.microsoft::MatMulNBits"} <= set(found["operators"])
    assert set(found["module bytes"]) == {"relaxed", "strict"}
    assert main(["info"]) == 0
    assert "wasmtime" in capsys.readouterr().out


def recording(path: Path, **changes: Any) -> str:
    """A recording of three calls in a heap that nothing has been allocated from."""
    columns = {"op": [0, 1, 2], "arg": [100, 0, 1000], "ptr": [0, 0, 0], "memory": [16 << 20] * 3, **changes}
    base = 6303872
    meta = {"start": {"top": None, "top_size": 0, "brk": base, "memory": 16 << 20}, **changes.get("meta", {})}
    columns.pop("meta", None)
    np.savez(path, meta=json.dumps(meta), **{k: np.array(v) for k, v in columns.items()})
    return str(path)


def right(path: Path) -> list[int]:
    """The addresses that this heap answers."""
    loaded = trace.load(recording(path))
    heap = trace.ModuleHeap(loaded)
    first = heap.malloc(100)
    heap.free(first)
    second = heap.memalign(64, 1000)
    heap.close()
    return [first, first, second]


def test_replay_finds_the_first_difference(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "trace.npz"
    addresses = right(path)
    assert main(["heap", "replay", recording(path, ptr=addresses)]) == 0
    assert "1 files, 3 calls, 0 differences" in capsys.readouterr().out
    assert main(["heap", "replay", recording(path, ptr=[*addresses[:2], addresses[2] + 8])]) == 1
    assert "call 2, memalign(64) 1000" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arg": [100, 1, 1000]}, "call 1 frees allocation 1 of 1 made before it"),
        ({"op": [0, 1, 3]}, "call 2 has the unknown operation 3"),
        ({"op": [0, 1]}, r"its columns have different lengths [2, 3]"),
        ({"meta": {"start": {}}}, "not a recording of an allocator"),
        ({"meta": {"start": {"top": None, "top_size": 0, "brk": 8, "memory": 16 << 20}}}, "begins with break 8"),
    ],
)
def test_what_is_no_recording(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    assert main(["heap", "replay", recording(tmp_path / "trace.npz", **changes)]) == 1
    assert message in capsys.readouterr().err


def test_a_file_that_is_no_npz(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "trace.npz").write_text("nothing of the kind")
    assert main(["heap", "replay", str(tmp_path / "trace.npz")]) == 1
    assert "not a recording of an allocator" in capsys.readouterr().err
