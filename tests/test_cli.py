"""The command line: what it prints, writes and answers, and that it never shows a traceback."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import graphs
import onnx_wasm
from graphs import BOOL, FLOAT, INT64, STRING, model, node
from onnx_wasm import trace
from onnx_wasm.cli import main
from onnx_wasm.engine import WASMTIME_VERSIONS

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
    assert "strings: string[2]  [one, two]" in capsys.readouterr().out


def failure(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The one sentence of a command that fails."""
    assert main(args) == 1
    error = capsys.readouterr().err
    assert error.startswith("onnx-wasm: ")
    assert error.count("\n") == 1
    return error


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--shape", "z=1"], "'z' is no input of the model"),
        (["--input", "z=1"], "'z' is no input of the model, which takes ['x']\n"),
        (["--input", "xx=1"], "'xx' is no input of the model, which takes ['x']; did you mean 'x'?\n"),
        (["--input", "x=some"], "input 'x': there is no file some, and it is no number or JSON list"),
        (["--input", "x=[[1],[2,3]]"], "input 'x': [[1],[2,3]] is no array of float32"),
        (["--input", 'x=["a"]'], """input 'x': ["a"] is no array of float32"""),
        (["--input", "x=1e39"], "input 'x': 1e39 is no array of float32"),
        (["--free-dimension", "bach=2"], "names ['bach']; the model's dimensions are ['batch']"),
        (["--input", "x=nowhere.npy"], "nowhere.npy: No such file or directory"),
        (["--shape", "x=1,17"], "has dimension 16 on axis 1"),
        (["--shape", "x=99999999999,16"], "of shape [99999999999, 16] takes 6,399,999,999,936 bytes"),
        (["--shape", f"x=0,{2**70}"], "of shape [0, 1180591620717411303424]: "),
        (["--save", "nowhere/out"], "--save nowhere/out: nowhere is no folder"),
        (["--save", str(DIGITS)], "this is a folder"),
    ],
)
def test_what_does_not_fit_gets_a_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, args: list[str], message: str
) -> None:
    assert message in failure(capsys, "run", save(tmp_path, graphs.mlp()), *args)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--shape", "x=-1,16"], "argument --shape: 'x=-1,16': dimensions must not be negative"),
        (["--shape", "x=a"], "argument --shape: 'x=a': not whole numbers separated by commas"),
        (["--shape", "x"], "argument --shape: 'x' is not NAME=SIZES"),
        (["--input", "x"], "argument --input: 'x' is not NAME=FILE.npy"),
        (["--free-dimension", "batch"], "argument --free-dimension: 'batch' is not NAME=SIZE"),
        (["--free-dimension", "batch=-1"], "argument --free-dimension: 'batch=-1' is not NAME=SIZE"),
        (["--free-dimension", "n=1", "--free-dimension", "n=2"], "--free-dimension gives 'n' more than once"),
        (["--graph-optimization-level", "most"], "invalid choice: 'most'"),
        (["--runs", "x"], "argument --runs: 'x' is not a whole number"),
        (["--runs", "0"], "argument --runs: 0 is not at least 1"),
        (["--shape", "x=1", "--shape", "x=2"], "--shape gives 'x' more than once"),
        (["--input", "x=1", "--input", "x=2"], "--input gives 'x' more than once"),
        (["--input", "x=1", "--shape", "x=2"], "--input and --shape both give 'x'"),
    ],
)
def test_wrong_arguments_exit_with_2(capsys: pytest.CaptureFixture[str], args: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as exit:
        main(["run", "model.onnx", *args])
    assert exit.value.code == 2
    assert message in capsys.readouterr().err


def test_nothing_is_printed_before_a_name_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = save(tmp_path, graphs.mlp())
    assert main(["run", path, "--input", "y=1"]) == 1
    assert capsys.readouterr().out == ""


def test_values_in_place_of_files(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = {"f": (FLOAT, ["n"]), "i": (INT64, []), "one": (INT64, [1]), "b": (BOOL, ["m"]), "s": (STRING, ["k"])}
    nodes = [node("Identity", [n], [f"y_{n}"]) for n in kinds]
    path = save(tmp_path, model(nodes, kinds, [f"y_{n}" for n in kinds]))
    values = {"f": "[1, 2.5, -3]", "i": "-7", "one": "9", "b": "[true, 0]", "s": '["a", "b"]'}
    args = ["run", path, "--runs", "1", *(a for n, v in values.items() for a in ("--input", f"{n}={v}"))]
    found = report(capsys, *args)
    assert {n: o["first"] for n, o in found["outputs"].items()} == {
        **{"y_f": [1, 2.5, -3], "y_i": [-7], "y_one": [9]},
        **{"y_b": [True, False], "y_s": ["a", "b"]},
    }
    assert {n: (i["type"], i["shape"]) for n, i in found["inputs"].items()} == {
        **{"f": ("float32", [3]), "i": ("int64", []), "one": ("int64", [1])},
        **{"b": ("bool", [2]), "s": ("string", [2])},
    }
    assert (found["inputs"]["i"]["value"], found["inputs"]["i"]["from"]) == (-7, "as given")
    for wrong in ("i=1.5", "i=18446744073709551616", "i=null", "b=[2]", "s=[1]"):
        name, _, value = wrong.partition("=")
        assert f"input '{name}': {value} is no array of " in failure(capsys, "run", path, "--input", wrong)
    # A file of that name is read.
    monkeypatch.chdir(tmp_path)
    with open("5", "wb") as file:
        np.save(file, np.array(6, np.int64))
    assert report(capsys, *[a if a != "i=-7" else "i=5" for a in args])["outputs"]["y_i"]["first"] == [6]


def test_a_value_that_was_made_up_is_shown_and_suspected(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    nodes = [node("Gather", ["x", "i"], ["y"])]
    path = save(tmp_path, model(nodes, {"x": (FLOAT, [1, 2]), "i": (INT64, [])}, ["y"]))
    assert main(["run", path, "--runs", "1"]) == 1
    captured = capsys.readouterr()
    value = re.search(r"^input    i: int64\[\] = ([01]) \(random\)$", captured.out, re.MULTILINE)
    assert value is not None
    assert captured.err.endswith(f"; input i was made up as {value[1]}; give --input i=...\n")
    assert "made up" not in failure(capsys, "run", path, "--input", "i=5")
    path = save(tmp_path, model([node("Abs", ["i"], ["y"])], {"i": (FLOAT, [1])}, ["y"]))
    found = report(capsys, "run", path, "--runs", "1")
    assert [found["inputs"]["i"]["value"]] == found["outputs"]["y"]["first"]


def test_a_profile_by_node_and_by_operator(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    names = [f"r{i}" for i in range(25)]
    nodes = [node("Tanh", [a], [b]) for a, b in itertools.pairwise(["x", *names])]
    path = save(tmp_path, model([*nodes, node("Softmax", ["r24"], ["y"])], {"x": (FLOAT, [4])}, ["y"]))
    args = ["run", path, "--runs", "1", "--profile", "--graph-optimization-level", "disabled"]
    found = report(capsys, *args)["profile"]
    assert {n["node"]: n["op_type"] for n in found["nodes"]} == {**dict.fromkeys(names, "Tanh"), "y": "Softmax"}
    assert {o["op_type"]: o["records"] for o in found["operators"]} == {"Tanh": 25, "Softmax": 1}
    for rows in (found["nodes"], found["operators"]):
        assert sum(r["ms"] for r in rows) == pytest.approx(found["ms"])
        assert sum(r["share"] for r in rows) == pytest.approx(1)
        assert [r["ms"] for r in rows] == sorted((r["ms"] for r in rows), reverse=True)
    assert main(args) == 0
    text = capsys.readouterr().out
    by_node, by_operator = text[text.index("node, the 20") :].split("\n\n")
    assert len(by_node.splitlines()) == 21
    assert sorted(re.findall(r"%  (.*)", by_operator)) == ["Softmax (1 record)", "Tanh (25 records)"]
    assert report(capsys, *args[:4])["profile"] is None


def test_options_of_the_session(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = save(tmp_path, graphs.mlp())
    found = report(capsys, "run", path, "--runs", "1", "--free-dimension", "batch=3")
    assert (found["inputs"]["x"]["shape"], found["inputs"]["x"]["from"]) == ([3, 16], "random")
    records = [
        report(capsys, "run", path, "--runs", "1", "--graph-optimization-level", level)["heap"]["records"]
        for level in ("disabled", "all")
    ]
    assert records == [5, 3]
    assert main(["heap", "map", path, "--free-dimension", "batch=3", "--graph-optimization-level", "basic"]) == 0


def test_files_that_are_no_arrays(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = save(tmp_path, graphs.mlp())
    np.savez(tmp_path / "a.npz", x=np.zeros(1))
    assert "is an archive (.npz?)" in failure(capsys, "run", path, "--input", f"x={tmp_path / 'a.npz'}")
    (tmp_path / "text.npy").write_text("1 2 3")
    assert failure(capsys, "run", path, "--input", f"x={tmp_path / 'text.npy'}").endswith("is no .npy file\n")
    np.save(tmp_path / "objects.npy", np.array([None]), allow_pickle=True)
    error = failure(capsys, "run", path, "--input", f"x={tmp_path / 'objects.npy'}")
    assert "holds Python objects" in error
    assert "allow_pickle" not in error
    np.save(tmp_path / "dates.npy", np.zeros(1, "M8[s]"))
    assert "has no ONNX tensor type" in failure(capsys, "run", path, "--input", f"x={tmp_path / 'dates.npy'}")
    whole = tmp_path / "whole.npy"
    np.save(whole, np.zeros((1, 16), np.float32))
    (tmp_path / "part.npy").write_bytes(whole.read_bytes()[:-4])
    assert "part.npy is damaged" in failure(capsys, "run", path, "--input", f"x={tmp_path / 'part.npy'}")


def test_a_symbol_has_one_size_in_all_inputs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shapes = {"a": (FLOAT, ["n", "?", "?"]), "b": (FLOAT, ["n", "m", 1])}
    path = save(tmp_path, model([node("Add", ["a", "b"], ["y"])], shapes, ["y"]))
    inputs = report(capsys, "run", path, "--runs", "1", "--shape", "a=3,1,2")["inputs"]
    assert inputs["b"] == {
        "type": "float32",
        "shape": [3, 1, 1],
        "from": "random, n = 3 as in a, dimensions m taken as 1",
    }
    np.save(tmp_path / "b.npy", np.zeros((5, 2, 1), np.float32))
    given = ["--input", f"b={tmp_path / 'b.npy'}"]
    assert report(capsys, "run", path, "--runs", "1", *given)["inputs"]["a"]["shape"] == [5, 1, 1]
    error = failure(capsys, "run", path, *given, "--shape", "a=3,1,2")
    assert "dimension n is 3 in input 'a' and 5 in 'b'" in error


def test_a_failure_says_what_was_assumed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    nodes = [node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2])]
    path = save(tmp_path, model(nodes, {"x": (FLOAT, [1, 3, "h", "w"])}, ["y"]))
    assert main(["run", path]) == 1
    captured = capsys.readouterr()
    assert captured.err.endswith("; input x was taken as [1, 3, 1, 1]; give --shape x=...\n")
    assert "input    x: float32[1, 3, 1, 1] (random, dimensions h, w taken as 1)" in captured.out
    assert "--shape" not in failure(capsys, "run", path, "--shape", "x=1,3,1,1")
    path = save(tmp_path, model([node("Relu", ["x"], ["y"])], {"x": (FLOAT, None)}, ["y"]))
    found = report(capsys, "run", path, "--runs", "1")["inputs"]["x"]
    assert found["from"] == "random, rank not declared, taken as a scalar"


def test_saved_outputs_have_their_own_names(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    names = ["a/b", "a_b", "file", "/c"]
    nodes = [node("Add", ["x", f"w{i}"], [n]) for i, n in enumerate(names)]
    weights = {f"w{i}": np.full(2, 10 * i, np.float32) for i in range(4)} | {"s": np.array(["one"], object)}
    data = model([*nodes, node("Identity", ["s"], ["words"])], {"x": (FLOAT, [2])}, [*names, "words"], weights)
    np.save(tmp_path / "x.npy", np.array([1, 2], ">f4"))
    args = ["run", save(tmp_path, data), "--input", f"x={tmp_path / 'x.npy'}", "--save", str(tmp_path / "out")]
    found = report(capsys, *args)
    assert found["inputs"]["x"]["type"] == "float32"
    assert found["saved"] == str(tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz") as arrays:
        assert {n: arrays[n].tolist() for n in names} == {n: [10 * i + 1, 10 * i + 2] for i, n in enumerate(names)}
        assert arrays["words"].tolist() == ["one"]
    assert main(args) == 0
    assert f"outputs written to {tmp_path / 'out.npz'}" in capsys.readouterr().out


def test_elements_of_every_kind(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    helper = onnx.helper
    weights = [
        helper.make_tensor("i4", onnx.TensorProto.INT4, [3], [-8, 7, 1]),
        helper.make_tensor("c", onnx.TensorProto.COMPLEX64, [2], [1 + 2j, 3 - 0.5j]),
        helper.make_tensor("i64", INT64, [2], [2**62 + 1, 1234567]),
        helper.make_tensor("bf", onnx.TensorProto.BFLOAT16, [1], [float("nan")]),
    ]
    nodes = [node("Identity", [w.name], [f"y_{w.name}"]) for w in weights]
    proto = onnx.load_from_string(model([*nodes, node("Relu", ["x"], ["y"])], {"x": (FLOAT, [1])}, []))
    proto.graph.initializer.extend(weights)
    for weight in weights:
        proto.graph.output.append(helper.make_tensor_value_info(f"y_{weight.name}", weight.data_type, weight.dims))
    path = save(tmp_path, proto.SerializeToString())
    outputs = report(capsys, "run", path, "--runs", "1")["outputs"]
    assert outputs["y_i4"] == {"type": "int4", "shape": [3], "min": -8, "max": 7, "mean": 0.0, "first": [-8, 7, 1]}
    assert outputs["y_c"] == {"type": "complex64", "shape": [2], "first": ["1+2j", "3-0.5j"]}
    assert outputs["y_i64"]["first"] == [2**62 + 1, 1234567]
    assert outputs["y_bf"]["type"] == "bfloat16"
    assert outputs["y_bf"]["first"] == ["nan"]
    assert main(["run", path, "--runs", "1"]) == 0
    assert f"y_i64: int64[2]  min 1234567  max {2**62 + 1}" in capsys.readouterr().out


def test_strings_from_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = save(tmp_path, model([node("StringConcat", ["x", "x"], ["y"])], {"x": (STRING, ["n"])}, ["y"]))
    np.save(tmp_path / "x.npy", np.array(["ab", "ü"]))
    found = report(capsys, "run", path, "--runs", "1", "--input", f"x={tmp_path / 'x.npy'}")
    assert found["inputs"]["x"]["type"] == "string"
    assert found["outputs"]["y"]["first"] == ["abab", "üü"]


def test_the_result_is_of_the_first_row_of_what_was_given(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = str(DIGITS / "digits.onnx")
    assert report(capsys, "run", path, "--runs", "1")["recognised"] is None
    digit = np.load(DIGITS / "digit.npy")
    np.save(tmp_path / "two.npy", np.concatenate([digit, np.zeros_like(digit)]))
    args = ["run", path, "--runs", "1", "--input", f"image={tmp_path / 'two.npy'}"]
    found = report(capsys, *args)["recognised"]
    assert (found["label"], found["row"], found["rows"]) == ("2", 0, 2)
    assert main(args) == 0
    assert ", row 0 of 2)" in capsys.readouterr().out


def test_the_heap_is_read_while_the_outputs_are_alive(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    data = graphs.mlp()
    path = save(tmp_path, data)
    heap = report(capsys, "run", path, "--runs", "1", "--shape", "x=4,16")["heap"]
    assert heap["by_tag"]["input"] >= 4 * 16 * 4
    assert heap["by_tag"]["output"] >= 4 * 8 * 4
    assert heap["model_file"] == len(data)
    assert (heap["memory_pattern"], heap["segments"]) == (True, 1)
    assert heap["arena_ratio"] >= 1
    unplanned = report(capsys, "run", path, "--runs", "1", "--no-mem-pattern")["heap"]
    assert (unplanned["memory_pattern"], unplanned["arena_ratio"]) == (False, None)
    assert main(["run", path, "--runs", "1", "--shape", "x=0,16"]) == 0
    assert "allocated one by one" not in capsys.readouterr().out
    assert main(["run", path, "--runs", "1", "--shape", "x=0,16", "--no-mem-pattern"]) == 0
    assert "none: allocated one by one" in capsys.readouterr().out


def test_segments_are_counted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    nodes = [node("NonZero", ["x"], ["i"]), node("Cast", ["i"], ["f"], to=FLOAT), node("Relu", ["f"], ["y"])]
    path = save(tmp_path, model(nodes, {"x": (FLOAT, [4])}, ["y"]))
    assert report(capsys, "run", path, "--runs", "1")["heap"]["segments"] == 2
    assert main(["run", path, "--runs", "1"]) == 0
    assert "records in 2 segments" in capsys.readouterr().out


def test_a_closed_pipe_is_quiet() -> None:
    command = f"{sys.executable} -m onnx_wasm run {DIGITS / 'digits.onnx'} --runs 1"
    environment = {**os.environ, "PYTHONPATH": str(Path(onnx_wasm.__file__).parent.parent)}
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command.split(), stdout=write, stderr=subprocess.PIPE, env=environment, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")


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
    assert "ImageDecoder" not in found["operators"]
    assert not set(found["operators by bodies"]) & set(found["operators"])
    assert set(found["module bytes"]) == {"relaxed", "strict"}
    assert found["wasmtime supported"] == list(WASMTIME_VERSIONS)
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    assert f"({WASMTIME_VERSIONS[0]} to {WASMTIME_VERSIONS[1]} are supported)" in text
    ours = [n.split("::")[1] for n in found["operators"] if n.startswith("com.microsoft::")]
    _, _, listed = text.partition(f"com.microsoft: {len(ours)}\n")
    assert ", ".join(ours) == " ".join(listed.split("\n\n")[0].split())
    assert max(map(len, text.splitlines())) <= 100


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
    assert "1 file, 3 calls, 0 differences" in capsys.readouterr().out
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
        ({"meta": {"start": {"top": None, "top_size": 0, "brk": 8, "memory": 0}}}, "no heap is as its meta.start"),
    ],
)
def test_what_is_no_recording(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    assert main(["heap", "replay", recording(tmp_path / "trace.npz", **changes)]) == 1
    assert message in capsys.readouterr().err


def test_a_file_that_is_no_npz(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "trace.npz").write_text("nothing of the kind")
    for path in (tmp_path / "trace.npz", DIGITS / "digit.npy"):
        error = failure(capsys, "heap", "replay", str(path))
        assert error.endswith("not a recording of an allocator, which is an .npz file\n")
    assert "No such file" in failure(capsys, "heap", "replay", str(tmp_path / "nowhere.npz"))
