"""What docs/heap-policies.md shows of the command line is what is printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from onnx_wasm.cli import main

PAGE = (Path(__file__).parent.parent / "docs" / "heap-policies.md").read_text(encoding="utf-8")
RECORDING = re.search(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
# A block without a language is what a terminal shows.
TERMINALS = re.findall(
    r"^```\n(.*?)^```$", "\n".join(re.split(r"^```\w.*?^```$", PAGE, flags=re.M | re.S)), re.M | re.S
)
SHOWN = [part for block in TERMINALS for part in re.split(r"^(?=\$ )", block, flags=re.MULTILINE) if part.strip()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the page's recording is."""
    assert RECORDING is not None
    made = tmp_path_factory.mktemp("page")
    subprocess.run([sys.executable, "-c", RECORDING[1]], cwd=made, check=True)
    return made


def printed(capsys: pytest.CaptureFixture[str], *args: str) -> list[str]:
    assert main(args) == 0
    return [line.rstrip() for line in capsys.readouterr().out.strip().split("\n")]


def test_the_page_shows_what_is_printed(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert len(SHOWN) == 2
    for part in SHOWN:
        command, *lines = part.strip().split("\n")
        program, *args = command.removeprefix("$ ").split()
        assert program == "onnx-wasm"
        assert printed(capsys, *args) == lines


def test_56_bytes_more_fill_the_hole(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert RECORDING is not None
    more = RECORDING[1].replace("parsed = take(200 * MIB)", "parsed = take(200 * MIB + 56)")
    assert more != RECORDING[1]
    subprocess.run([sys.executable, "-c", more], cwd=tmp_path, check=True)
    row = printed(capsys, "heap", "whatif", str(tmp_path / "page.npz"), "--maximum", "700MiB")[-1]
    assert re.fullmatch(r"these options +600\.00 MiB +606\.06 MiB +3 +6\.06 MiB  -", row)
