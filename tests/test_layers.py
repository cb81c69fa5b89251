"""The import ladder: each file imports only what is below it."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

from onnx_wasm.engine import WASMTIME_VERSIONS

PACKAGE = Path(__file__).parent.parent / "host" / "onnx_wasm"

# A module may import those on the rungs below its own.
RUNGS: list[set[str]] = [
    {"errors", "heap_layout", "build", "order", "process", "heap_events"},
    {"picture", "words", "layout", "disk_cache", "proto"},
    {"dtypes", "engine", "options", "schemas"},
    {"initializers", "env", "heap_view", "blocks", "gate", "memory_info", "heap_log", "heap_map"},
    {"model", "debug_heap", "verdicts", "heap_policy", "heap_timeline"},
    {"allocator", "workers"},
    {"laboratory"},
    {"heap", "heap_svg"},
    {"context", "trace", "tensor", "testing"},
    {"whatif"},
    {"registry", "faults", "feeds", "functions", "items", "patterns", "transposes"},
    {"signatures", "fold"},
    {"ops"},
    {"prepare"},
    {"lower"},
    {"plan"},
    {"tape"},
    {"weights"},
    {"segment"},
    {"program"},
    {"express"},
    {"session"},
    {"inputs", "report", "cli_args"},
    {"cli_heap"},
    {"cli", "__init__"},
    {"__main__"},
]
MODEL_SIDE = {
    "order",
    "layout",
    "dtypes",
    "proto",
    "schemas",
    "initializers",
    "model",
    "registry",
    "context",
    "functions",
    "signatures",
    "fold",
    "items",
    "patterns",
    "transposes",
    "ops",
    "prepare",
    "lower",
    "plan",
    "tape",
}
HEAP_SIDE = {
    "engine",
    "env",
    "heap",
    "heap_policy",
    "heap_events",
    "heap_map",
    "heap_svg",
    "heap_timeline",
    "blocks",
    "gate",
    "memory_info",
    "allocator",
    "debug_heap",
    "heap_log",
    "laboratory",
    "process",
    "verdicts",
    "heap_layout",
    "heap_view",
    "tensor",
    "feeds",
    "trace",
    "whatif",
    "workers",
    "weights",
    "segment",
    "program",
    "session",
}
OPS_MAY_IMPORT = {"registry", "context", "dtypes", "layout", "initializers", "model", "errors", "ops", "words", "numpy"}


def imports(path: Path) -> tuple[set[str], set[str]]:
    """(modules of the package, top-level names of other packages) that a file imports."""
    own, other = set(), set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            other |= {a.name.split(".")[0] for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            if not node.level:
                other.add((node.module or "").split(".")[0])
            elif path.parent.name == "ops" and node.level == 1:
                own.add("ops")
            elif node.module:
                own.add(node.module.split(".")[0])
            else:
                own |= {
                    a.name for a in node.names if (PACKAGE / a.name).exists() or (PACKAGE / f"{a.name}.py").exists()
                }
    return own, other


def rung(name: str) -> int:
    found = [i for i, names in enumerate(RUNGS) if name in names]
    assert found, f"{name} stands on no rung of the ladder"
    return found[0]


MODULES = sorted(PACKAGE.glob("*.py"))
OPS = sorted((PACKAGE / "ops").glob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.stem)
def test_a_module_imports_only_what_is_below_it(path: Path) -> None:
    own, _ = imports(path)
    mine = rung(path.stem)
    for name in own:
        assert rung(name) < mine, f"{path.stem} imports {name}, which is not below it"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.stem)
def test_the_model_side_never_imports_the_heap_side(path: Path) -> None:
    own, _ = imports(path)
    if path.stem in MODEL_SIDE:
        assert not own & HEAP_SIDE


@pytest.mark.parametrize("path", OPS, ids=lambda p: p.stem)
def test_an_op_only_describes(path: Path) -> None:
    own, other = imports(path)
    assert own <= OPS_MAY_IMPORT
    assert not other & {"ctypes", "mmap", "os", "subprocess", "threading"}
    assert other - sys.stdlib_module_names <= {"numpy", "ml_dtypes", "onnx"}


def test_one_range_of_wasmtime_is_accepted() -> None:
    oldest, newest = WASMTIME_VERSIONS
    text = (PACKAGE.parent.parent / "pyproject.toml").read_text()
    assert set(re.findall(r'"wasmtime([^"]*)"', text)) == {f">={oldest},<{newest + 1}"}


def test_only_the_engine_touches_wasmtime() -> None:
    users = {p.stem for p in [*MODULES, *OPS] if "wasmtime" in imports(p)[1]}
    assert users == {"engine", "build"}


def test_nothing_computes_with_another_runtime() -> None:
    for path in [*MODULES, *OPS]:
        text = path.read_text()
        assert "onnxruntime" not in imports(path)[1], path
        assert "onnx.reference" not in text, path
