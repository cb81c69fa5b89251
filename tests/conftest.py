from __future__ import annotations

import os
import shutil
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import onnx_wasm.ops
import onnx_wasm.testing
from harness import Harness
from onnx_wasm import registry

pytest_plugins = ["pytester"]

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(scope="session")
def harness() -> Harness:
    return Harness()


@pytest.fixture(scope="session")
def strict_harness() -> Harness:
    return Harness("strict")


@pytest.fixture(scope="session")
def operators() -> None:
    """All of them are imported: what a test with pytester imports first is imported once more by the next."""
    registry.load(onnx_wasm.ops)


@pytest.fixture
def project(operators: None, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project of somebody who tests with the plugin; it has ``examples/digits``."""
    shutil.copytree(EXAMPLES / "digits", pytester.path / "examples" / "digits")
    # Where the package runs from the checkout, processes in another folder must find it too.
    package = str(Path(onnx_wasm.__file__).parent.parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([package, os.environ.get("PYTHONPATH", "")]))
    # Where the package is installed pytest finds the plugin by itself. That of hypothesis takes seconds.
    found = entry_points(group="pytest11", name="pytest_onnx_wasm")
    monkeypatch.setenv("PYTEST_ADDOPTS", f"{'' if found else '-p pytest_onnx_wasm '}-p no:hypothesispytest")
    return pytester
