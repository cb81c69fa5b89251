"""The test files that README.md and docs/testing.md show: those that pass do, the others print what is shown.

Bytes and addresses are compared, too; where they have changed, ONNX_WASM_TEST_UPDATE=1 writes the new ones into the
page.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from conftest import THREADS

ROOT = Path(__file__).parent.parent
TEXT = "".join((ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "docs/testing.md"))
PASSES = "not run: a test file, which tests/test_testing_docs.py runs"
FAILS = "not run: a test file that fails, which tests/test_testing_docs.py runs"
BLOCK = re.compile(
    r"^<!-- (?P<mark>not run: a test file[^\n]*?) -->\n```python\n(?P<code># (?P<name>test_\w+)\.py\n.*?)^```\n"
    r"(?:\n```text\n(?P<printed>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Example:
    mark: str
    name: str
    code: str
    printed: str | None


EXAMPLES = [Example(m["mark"], m["name"], m["code"], m["printed"]) for m in BLOCK.finditer(TEXT)]


FOLDER = re.compile(r"[^\s()]*/(?=\w+\.py\b)")
UPDATE = os.environ.get("ONNX_WASM_TEST_UPDATE") == "1"


def normal(text: str, *, numbers: bool = THREADS == 1) -> list[str]:
    """Lines without what differs from run to run: folders, the length of rules. Bytes and addresses are the same
    everywhere, but for threads, which need more of them: without ``numbers`` they are left out."""
    text = FOLDER.sub("", text)
    if not numbers:
        text = re.sub(r"0x[0-9a-f]+", "0x0", text)
        text = re.sub(r" *\b(\d+(,\d{3})+|\d{2,} (?=bytes))", " N", text)
        text = re.sub(r"\b(activations|input|output|tape|user|weights|used|peak|free) \d+\b", r"\1 N", text)
    text = re.sub(r"([-_=])\1{2,}", r"\1\1\1", text)
    return [line.rstrip() for line in text.split("\n")]


def test_every_marked_block_is_an_example() -> None:
    assert {e.mark for e in EXAMPLES} == {PASSES, FAILS}
    assert len(EXAMPLES) == TEXT.count("<!-- not run: ")
    assert len({e.name for e in EXAMPLES}) == len(EXAMPLES)
    # What is printed is shown for each that fails, and nothing else is.
    assert all((e.printed is not None) == (e.mark == FAILS) for e in EXAMPLES)
    assert TEXT.count("```text") == sum(e.mark == FAILS for e in EXAMPLES)


@pytest.mark.parametrize("example", [e for e in EXAMPLES if e.mark == PASSES], ids=lambda e: e.name)
def test_it_passes(project: pytest.Pytester, example: Example) -> None:
    (project.path / f"{example.name}.py").write_text(example.code, encoding="utf-8")
    result = project.runpytest_inprocess(f"{example.name}.py")
    outcomes = result.parseoutcomes()
    assert outcomes.keys() == {"passed"}, outcomes


@pytest.mark.parametrize("example", [e for e in EXAMPLES if e.mark == FAILS], ids=lambda e: e.name)
def test_it_prints_what_the_page_shows(project: pytest.Pytester, example: Example) -> None:
    """A line of three dots stands for any lines."""
    (project.path / f"{example.name}.py").write_text(example.code, encoding="utf-8")
    result = project.runpytest_inprocess(f"{example.name}.py")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    printed = "\n".join(normal(str(result.stdout)))
    assert example.printed is not None
    if UPDATE:
        update(example.printed, str(result.stdout).split("\n"))
        return
    for part in re.split(r"^\.\.\.\n", example.printed, flags=re.MULTILINE):
        wanted = "\n".join(normal(part)).strip("\n")
        assert wanted
        how = "where only bytes have changed, run this with ONNX_WASM_TEST_UPDATE=1"
        assert wanted in printed, f"docs/testing.md shows ({how})\n{wanted}\n\nprinted is\n{printed}"
        printed = printed[printed.index(wanted) + len(wanted) :]


def update(shown: str, printed: list[str]) -> None:
    """Put the bytes and addresses that are printed into docs/testing.md."""
    plain = normal("\n".join(printed), numbers=False)
    lines, at = [], 0
    for line in shown.rstrip("\n").split("\n"):
        if line == "..." or line.startswith(("___", "---", "===")):
            lines.append(line)
            continue
        at = plain.index(*normal(line, numbers=False), at)
        lines.append(FOLDER.sub("/home/me/page/", printed[at].rstrip()))
    page = ROOT / "docs" / "testing.md"
    text = page.read_text(encoding="utf-8")
    assert text.count(shown) == 1
    page.write_text(text.replace(shown, "\n".join(lines) + "\n"), encoding="utf-8")
