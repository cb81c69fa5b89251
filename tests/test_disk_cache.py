"""The cache of compiled code: found again, never half, never wrong, never in the way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from onnx_wasm import disk_cache

SCRIPT = """
import onnx_wasm as ort, numpy as np
from onnx_wasm import engine
from wasmtime import Module
compiled = []
plain = Module.__init__
Module.__init__ = lambda self, *args: (compiled.append(1), plain(self, *args))[1]
with ort.Runtime() as runtime, ort.Tensor("float32", np.ones(3, np.float32), runtime=runtime) as tensor:
    assert tensor.data.sum() == 3
print(len(compiled))
"""


def start(folder: Path | str) -> subprocess.Popen[str]:
    environment = {**os.environ, "ONNX_WASM_CACHE": str(folder)}
    return subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True, env=environment)


def compilations(folder: Path | str) -> int:
    """How often a new process compiles the module."""
    process = start(folder)
    out, _ = process.communicate()
    assert process.returncode == 0
    return int(out)


def test_the_second_process_compiles_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    assert compilations(folder) == 1
    [file] = folder.iterdir()
    assert compilations(folder) == 0
    assert [f.name for f in folder.iterdir()] == [file.name]
    if os.name == "posix":
        assert folder.stat().st_mode & 0o777 == 0o700


def test_a_damaged_file_is_compiled_again_and_replaced(tmp_path: Path) -> None:
    assert compilations(tmp_path) == 1
    [file] = tmp_path.iterdir()
    good = file.read_bytes()
    for bad in (good[:-1], good[:100], b"", good[:-1] + bytes([good[-1] ^ 1]), b"x" + good[1:]):
        file.write_bytes(bad)
        assert compilations(tmp_path) == 1
        assert file.read_bytes()[: len(good) // 2] == good[: len(good) // 2]
    assert compilations(tmp_path) == 0


def test_code_that_the_engine_refuses_is_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compilations(tmp_path) == 1
    [file] = tmp_path.iterdir()
    monkeypatch.setenv("ONNX_WASM_CACHE", str(tmp_path))
    disk_cache.store(file.stem, b"whole, but no code")
    assert disk_cache.load(file.stem) == b"whole, but no code"
    assert compilations(tmp_path) == 1
    assert compilations(tmp_path) == 0


def test_processes_that_write_at_once(tmp_path: Path) -> None:
    processes = [start(tmp_path) for _ in range(4)]
    for process in processes:
        out, _ = process.communicate()
        assert (process.returncode, out.strip() in ("0", "1")) == (0, True)
    assert len(list(tmp_path.iterdir())) == 1
    assert compilations(tmp_path) == 0


@pytest.mark.parametrize("kind", ["none", "a file", "missing, below a file"])
def test_without_a_folder_it_works_all_the_same(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "file"
    file.write_text("")
    folder = {"none": "", "a file": str(file), "missing, below a file": str(file / "folder")}[kind]
    assert compilations(folder) == 1
    assert file.read_text() == ""


def test_names_tell_apart_what_code_depends_on() -> None:
    names = {disk_cache.key(w, a, b) for w in (b"1", b"2") for a in "xy" for b in "zw"}
    assert len(names) == 8
    assert disk_cache.key(b"1", "x", "yz") != disk_cache.key(b"1", "xy", "z")


def test_old_files_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNX_WASM_CACHE", str(tmp_path))
    for i in range(10):
        disk_cache.store(f"code{i}", bytes([i]) * 10)
        os.utime(tmp_path / f"code{i}.bin", (i, i))
    disk_cache.store("last", b"1")
    left = sorted(f.stem for f in tmp_path.iterdir())
    assert left == ["code5", "code6", "code7", "code8", "code9", "last"]
    assert disk_cache.load("code9") == b"\x09" * 10
    assert disk_cache.load("code0") is None


def test_kinds_do_not_drive_each_other_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNX_WASM_CACHE", str(tmp_path))
    disk_cache.store("schemas-1", b"kept")
    os.utime(tmp_path / "schemas-1.bin", (1, 1))
    for i in range(10):
        disk_cache.store(f"code{i}", b"code")
    assert disk_cache.load("schemas-1") == b"kept"
    assert len(list(tmp_path.iterdir())) == 7


def test_where_it_is_without_being_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONNX_WASM_CACHE", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert disk_cache.folder() == Path("/somewhere/onnx-wasm")
