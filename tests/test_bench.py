"""Scripts that have nothing to do say so: the benches and the conformance runner."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent


def script(name: str, *args: str, folder: Path) -> tuple[int, str, str]:
    """Exit code, output and errors of a script, with ``folder`` in place of ../shared."""
    environment = {**os.environ, "ONNX_WASM_SHARED": str(folder), "PYTHONPATH": f"{ROOT / 'tests'}:{ROOT / 'host'}"}
    done = subprocess.run([sys.executable, str(ROOT / name), *args], env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["bench/allocator.py"], 2, "no recordings in SHARED/traces: name some"),
        (
            ["bench/kernels.py", "nonsense"],
            2,
            "no set 'nonsense'; there are gemm, gemv, resnet50, squeezenet, depthwise",
        ),
        (["bench/movement.py", "nonsense"], 1, "no case has one of nonsense in its name"),
        (["bench/lengths.py", "--model", "x"], 2, "no folder SHARED/models/inputs: --inputs says what models are fed"),
        (["bench/threads.py"], 2, "no folder SHARED/models/inputs: --inputs says what models are fed"),
        (["bench/threads.py", "--threads", "1"], 2, "--threads is at least 2, --rounds at least 1"),
        (["bench/compare.py"], 2, "no folder SHARED/models/inputs: --inputs says what models are fed"),
        (["tests/conformance.py", "--only", "nonsense"], 1, "no case of node, "),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_nothing_to_do_is_an_error_with_a_sentence(tmp_path: Path, args: list[str], code: int, message: str) -> None:
    got, output, errors = script(*args, folder=tmp_path)
    assert (got, output) == (code, "")
    assert message.replace("SHARED", str(tmp_path)) in " ".join(errors.split())
    assert "Traceback" not in errors


def test_threads_are_compared_with_one(tmp_path: Path) -> None:
    digits = ROOT / "examples" / "digits"
    (tmp_path / "digits.onnx").write_bytes((digits / "digits.onnx").read_bytes())
    (tmp_path / "digits").mkdir()
    np.load(digits / "digit.npy").tofile(tmp_path / "digits" / "image.bin")
    image = {"name": "image", "type": "FLOAT", "dims": [1, 1, 8, 8], "file": "image.bin"}
    (tmp_path / "digits" / "desc.json").write_text(json.dumps({"inputs": [image]}))
    folders = ["--models", str(tmp_path), "--inputs", str(tmp_path), "--json", str(tmp_path / "out.json")]
    code, output, _ = script("bench/threads.py", *folders, "--rounds=2", "--turn-ms=1", "--over=0", folder=tmp_path)
    assert code == 0
    assert re.search(r"^digits +\S+ +\S+ +\d+\.\d\d \(.*\) +\d+\.\d\d +the same$", output, re.MULTILINE), output
    assert "1 model over 0 ms on one thread: 2 threads are " in output
    measured = json.loads((tmp_path / "out.json").read_text())["models"][0]
    assert [len(rounds) for rounds in measured["ms"].values()] == [2, 2]


def test_the_sets_of_kernels_are_listed(tmp_path: Path) -> None:
    code, output, _ = script("bench/kernels.py", "--help", folder=tmp_path)
    assert code == 0
    assert "gemm, gemv, resnet50, squeezenet, depthwise" in " ".join(output.split())
