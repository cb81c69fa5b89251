"""``onnx-wasm heap whatif`` and ``heap map``."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphs
from onnx_wasm import trace
from onnx_wasm.cli import main
from onnx_wasm.heap_policy import MIB, PRESETS

DIGITS = Path(__file__).parent.parent / "examples" / "digits"


@pytest.fixture
def recording(tmp_path: Path) -> str:
    """Three tensors of 8 MiB in a new heap."""
    columns = {"op": [2, 2, 2], "arg": [8 * MIB] * 3, "ptr": [8] * 3, "memory": [16 * MIB] * 3}
    meta = {"start": {"top": None, "top_size": 0, "brk": 6303872, "memory": 16 * MIB}}
    path = tmp_path / "three.npz"
    np.savez(path, meta=json.dumps(meta), **{k: np.array(v, np.uint32) for k, v in columns.items()})
    return str(path)


def rows(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, dict[str, Any]]:
    assert main(["heap", "whatif", *args, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["calls"] == 3
    return {row["name"]: row for row in found["rows"]}


def test_without_options_every_preset_has_a_row(capsys: pytest.CaptureFixture[str], recording: str) -> None:
    found = rows(capsys, recording)
    assert list(found) == ["as recorded", *PRESETS]
    assert found["as recorded"]["linear"] == 481 << 16
    assert found["no-growth"]["failure"] == {
        "call": 1,
        "op": "memalign(64)",
        "size": 8 * MIB,
        "used": 8 * MIB + 8,
        "linear": 16 * MIB,
        "limit": "maximum",
        "limit_bytes": 16 * MIB,
        "recorded": False,
    }


def test_presets_and_options(capsys: pytest.CaptureFixture[str], recording: str) -> None:
    found = rows(capsys, recording, "--preset", "1GiB", "--preset", "exact")
    assert list(found) == ["as recorded", "1GiB", "exact"]
    options = [
        "--initial",
        "17MiB",
        "--maximum",
        "512MiB",
        "--memory-maximum",
        "1GiB",
        "--step",
        "0.5",
        "--cap",
        "8MiB",
    ]
    mine = rows(capsys, recording, *options, "--linear-step", "1MiB")["these options"]
    assert mine["policy"] == {
        "initial": 17 * MIB,
        "maximum": 512 * MIB,
        "memory_maximum": 1024 * MIB,
        "heap_base": 6303872,
        "geometric_step": 0.5,
        "geometric_cap": 8 * MIB,
        "linear_step": MIB,
    }
    changed = rows(capsys, recording, "--preset", "1GiB", "--step", "0")
    assert list(changed) == ["as recorded", "1GiB", "1GiB, changed"]
    assert changed["1GiB"]["policy"] == PRESETS["1GiB"].policy.to_dict()
    assert changed["1GiB, changed"]["policy"] == {**PRESETS["1GiB"].policy.to_dict(), "geometric_step": 0.0}


def test_the_table(capsys: pytest.CaptureFixture[str], recording: str) -> None:
    assert main(["heap", "whatif", recording, "--memory-maximum", "24MiB", "--preset", "1GiB"]) == 0
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "three.npz: 3 calls",
        "policy          peak in use linear memory growths         slack  fails at",
        "as recorded       24.00 MiB     30.06 MiB       2      6.06 MiB  -",
        "1GiB              24.00 MiB     30.06 MiB       2      6.06 MiB  -",
        "1GiB, changed     16.00 MiB     22.06 MiB       1      6.06 MiB  call 2: memalign(64) of 8.00 MiB, "
        "16.00 MiB in use; the engine's limit is 24.00 MiB",
    ]


def test_a_policy_that_cannot_begin_is_a_row_of_the_table(capsys: pytest.CaptureFixture[str], recording: str) -> None:
    assert main(["heap", "whatif", recording, "--maximum", "4MiB"]) == 0
    assert "these options cannot begin: maximum 4194304 must be at least" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--preset", "ios"], "no preset 'ios'; there are onnxruntime-web, 4GiB"),
        (["--maximum", "12M"], "'12M' is no size: a whole number of bytes"),
        (["--step", "-1"], "-1 does not lie in [0, 100]"),
        (["--step", "nan"], "nan does not lie in [0, 100]"),
        (["--step", "much"], "'much' is not a number"),
    ],
)
def test_wrong_options(capsys: pytest.CaptureFixture[str], recording: str, args: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["heap", "whatif", recording, *args])
    assert raised.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_file_that_is_no_recording(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["heap", "whatif", str(DIGITS / "digit.npy")]) == 1
    assert "not a recording of an allocator" in capsys.readouterr().err


def test_a_map_has_three_stages_and_a_picture(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "digits.svg"
    args = ["heap", "map", str(DIGITS / "digits.onnx"), "--input", f"image={DIGITS / 'digit.npy'}"]
    assert main([*args, "--svg", str(out), "--width", "40"]) == 0
    text = capsys.readouterr().out
    stages = [line.split(":")[0] for line in text.splitlines() if "linear memory" in line]
    assert sorted(stages) == ["after creation", "after dispose", "at the peak"]
    parts = dict(zip(stages, text.split("\n\n"), strict=False))
    assert "weights" in parts["after creation"]
    assert "block" not in parts["after dispose"]
    assert len(parts["at the peak"].splitlines()[1]) == 50
    root = ET.fromstring(out.read_text("utf-8"))
    assert "The heap of digits.onnx" in "".join(root.itertext())


def test_a_map_of_a_heap_that_is_too_small_ends_where_it_failed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(graphs.mlp())
    args = ["heap", "map", str(path), "--shape", "x=100000,16", "--maximum", "8MiB", "--svg", str(tmp_path / "out.svg")]
    assert main(args) == 1
    out, err = capsys.readouterr()
    assert [line.split(":")[0] for line in out.splitlines() if "linear memory" in line] == [
        "after creation",
        "at the failure",
        "after dispose",
    ]
    assert "the heap cannot hold 6,400,000 bytes" in err
    root = ET.parse(tmp_path / "out.svg").getroot()
    assert len(root.findall("{*}g[@class='fail']/{*}path")) == 1


def test_a_creation_that_failed_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    for maximum, used, stages in ((6422527, 0, ["at the failure"]), (6430000, 1, ["at the failure", "after dispose"])):
        assert main(["heap", "map", str(DIGITS / "digits.onnx"), "--maximum", str(maximum)]) == 1
        out, err = capsys.readouterr()
        assert [line.split(":")[0] for line in out.splitlines() if "linear memory" in line] == stages
        assert ("weights" in out) == used
        assert "bytes for digits (weights)" in err


def test_a_shape_that_was_assumed_and_does_not_do_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    nodes = [graphs.node("Reshape", ["x", "shape"], ["y"])]
    inputs = {"x": (graphs.FLOAT, ["n"])}
    path.write_bytes(graphs.model(nodes, inputs, ["y"], {"shape": np.array([3, 5], np.int64)}))
    assert main(["heap", "map", str(path)]) == 1
    assert "input x was taken as [1]; give --shape x=..." in capsys.readouterr().err
    assert main(["heap", "map", str(path), "--shape", "x=15"]) == 0


def test_a_map_without_mem_pattern_under_a_preset(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(graphs.convnet())
    assert main(["heap", "map", str(path), "--no-mem-pattern", "--preset", "no-growth"]) == 0
    assert "of 16.00 MiB linear memory" in capsys.readouterr().out


def test_a_smaller_limit_than_the_presets_first_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["heap", "map", str(DIGITS / "digits.onnx"), "--preset", "ios-like", "--maximum", "8MiB"]) == 0
    assert "of 8.00 MiB linear memory" in capsys.readouterr().out


def test_a_map_needs_a_policy_that_a_heap_can_have(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["heap", "map", str(DIGITS / "digits.onnx"), "--preset", "no-growth", "--initial", "32MiB"])
    assert raised.value.code == 2
    assert "initial 33554432 must be at least heap_base" in " ".join(capsys.readouterr().err.split())


def test_a_picture_needs_a_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "nowhere" / "out.svg"
    assert main(["heap", "map", str(DIGITS / "digits.onnx"), "--svg", str(out)]) == 1
    assert f"--svg {out}: {out.parent} is no folder" in capsys.readouterr().err


def test_a_run_records_its_own_calls(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "digits.npz"
    args = ["run", str(DIGITS / "digits.onnx"), "--input", f"image={DIGITS / 'digit.npy'}", "--runs", "2"]
    assert main([*args, "--no-mem-pattern", "--record", str(out)]) == 0
    assert f"calls of the allocator written to {out}" in capsys.readouterr().out
    assert main(["heap", "replay", str(out)]) == 0
    assert "0 differences" in capsys.readouterr().out
    assert main(["heap", "whatif", str(out), "--preset", "2GiB"]) == 0
    assert re.search(r"as recorded .* -\n2GiB .* -\n", capsys.readouterr().out)


def test_a_run_that_runs_out_of_memory_is_recorded_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "digits.npz"
    args = ["run", str(DIGITS / "digits.onnx"), "--shape", "image=20000,1,8,8", "--record", str(out)]
    assert main([*args, "--maximum", "32MiB"]) == 1
    assert "the heap cannot hold" in capsys.readouterr().err
    recording = trace.load(out)
    assert recording.ptr.count(0) == 1
    assert recording.meta["policy"]["maximum"] == 32 << 20
    assert recording.meta["model"] == "digits.onnx"
    assert main(["heap", "whatif", str(out), "--maximum", "1GiB"]) == 0
    as_recorded, wider = capsys.readouterr().out.splitlines()[2:]
    assert "(as when recorded)" in as_recorded
    assert re.search(r" - \(call \d+ failed when recorded: what would have followed is not known\)$", wider)
