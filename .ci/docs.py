"""Run what the documentation shows: every ```sh and ```python block of README.md, docs/ and examples/.

    python .ci/docs.py FOLDER

Each block runs by itself, from the top of FOLDER, which is a copy of the repository since blocks may write there.
`onnx-wasm` and `python` are those of the environment that runs this script. A comment in front of a block keeps it
out: `<!-- not run: reason -->`, or `<!-- test -->` on the README's test command, which .ci/run runs itself
(`docs.py FOLDER --test-command` prints it).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(
    r"(?:^<!--[ ]*(?P<mark>[^\n]*?)[ ]*-->\n+)?^```(?P<language>\w+)[^\n]*\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
TIMEOUT = 600


@dataclass(frozen=True)
class Block:
    where: str
    mark: str
    language: str
    code: str


def blocks(root: Path) -> list[Block]:
    files = [root / "README.md", *sorted(root.glob("docs/**/*.md")), *sorted(root.glob("examples/**/*.md"))]
    found = []
    for file in files:
        text = file.read_text(encoding="utf-8")
        for match in BLOCK.finditer(text):
            line = text.count("\n", 0, match.start("code")) + 1
            where = f"{file.relative_to(root)}:{line}"
            found.append(Block(where, match["mark"] or "", match["language"], match["code"]))
    return found


def test_command(root: Path) -> str:
    marked = [b for b in blocks(root) if b.mark == "test"]
    if len(marked) != 1 or marked[0].language != "sh" or not marked[0].where.startswith("README.md:"):
        raise SystemExit("README.md must have one ```sh block that follows <!-- test -->")
    return marked[0].code


def run(block: Block, root: Path) -> bool:
    shell = ["bash", "-euo", "pipefail", "-c", block.code]
    command = shell if block.language == "sh" else [sys.executable, "-c", block.code]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    start = time.perf_counter()
    try:
        done = subprocess.run(
            command,
            cwd=root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT,
        )
        code, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired as error:
        code, output = -1, f"{error.stdout or ''}\nstill running after {TIMEOUT} s"
    print(f"{'ok  ' if code == 0 else 'FAIL'} {block.where} ({block.language}, {time.perf_counter() - start:.1f} s)")
    if code:
        print(f"{block.code}\n--- exit code {code}, it printed:\n{output}")
    return code == 0


def main() -> int:
    root = Path(sys.argv[1]).resolve()
    if "--test-command" in sys.argv[2:]:
        print(test_command(root), end="")
        return 0
    failed = ran = 0
    for block in blocks(root):
        if block.language not in ("sh", "python") or block.mark == "test":
            continue
        if block.mark.startswith("not run:"):
            print(f"-    {block.where} ({block.mark})")
            continue
        ran += 1
        failed += not run(block, root)
    print(f"{ran} blocks of the documentation ran, {failed} failed")
    return 1 if failed or not ran else 0


if __name__ == "__main__":
    sys.exit(main())
