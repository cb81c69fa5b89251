"""The test files that README.md and docs/testing.md show: those that pass do, the others print what is shown."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

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


def normal(text: str) -> list[str]:
    """Lines without what differs from run to run, and from one release to the next: addresses, folders, numbers of
    bytes, the length of rules. Other tests know the bytes."""
    text = re.sub(r"0x[0-9a-f]+", "0x0", text)
    text = re.sub(r"[^\s()]*/(?=\w+\.py\b)", "", text)
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
    for part in re.split(r"^\.\.\.\n", example.printed, flags=re.MULTILINE):
        wanted = "\n".join(normal(part)).strip("\n")
        assert wanted
        assert wanted in printed
        printed = printed[printed.index(wanted) + len(wanted) :]
