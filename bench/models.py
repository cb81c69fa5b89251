"""The models that are timed: where they lie, what they are fed, and random weights for those that have constants."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

# Element types as desc.json spells them, in numpy's spelling.
DTYPES = {
    "FLOAT": "float32",
    "DOUBLE": "float64",
    "FLOAT16": "float16",
    "BOOL": "bool",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
}


@dataclass(frozen=True)
class Input:
    """One feed: raw little-endian elements in a file."""

    name: str
    dtype: str
    dims: list[int]
    file: Path


@dataclass(frozen=True)
class Model:
    id: str
    path: Path
    inputs: list[Input]
    fetches: list[str] | None  # None: every output
    random_weights: bool = False


def add_folders(parser: argparse.ArgumentParser) -> None:
    """The options that say where models and what they are fed lie."""
    parser.add_argument(
        "--models",
        type=Path,
        help="folder with ID.onnx or ID/ID.onnx (default: those of --shared, fetched once into $ONNX_WASM_MODELS)",
    )
    parser.add_argument("--inputs", type=Path, help="folder with ID/desc.json (default: in --shared)")
    parser.add_argument(
        "--shared",
        type=Path,
        default=Path(os.environ.get("ONNX_WASM_SHARED", Path(__file__).resolve().parents[2] / "shared")),
        help="folder with models/fetch_models.py, random_weights.py and inputs/",
    )


def inputs_of(options: argparse.Namespace, parser: argparse.ArgumentParser) -> Path:
    """The folder that says what models are fed; an error of the parser where there is none."""
    inputs: Path = options.inputs or options.shared / "models" / "inputs"
    if not inputs.is_dir():
        parser.error(f"no folder {inputs}: --inputs says what models are fed")
    return inputs


def fetched(shared: Path, only: list[str]) -> Path:
    """The folder that trained models lie in after `shared`'s script has fetched those that were not there."""
    folder = Path(os.environ.get("ONNX_WASM_MODELS", Path.home() / ".cache" / "onnx-wasm-test" / "models"))
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(shared / "models" / "fetch_models.py"), str(folder)]
    command += ["--cache", str(folder.parent / "packages"), *(["--only", ",".join(only)] if only else [])]
    print(f"fetching models into {folder}", file=sys.stderr)
    if subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL).returncode:
        raise SystemExit(f"models could not be fetched; --models says where they lie: {' '.join(command)}")
    return folder


def find(models: Path, inputs: Path, only: list[str]) -> tuple[list[Model], list[str]]:
    """The models that `inputs` describes and `models` holds (as ID.onnx or ID/ID.onnx), and a sentence for a miss."""
    found: list[Model] = []
    missing: list[str] = []
    described = {path.parent.name: path for path in sorted(inputs.glob("*/desc.json"))}
    for id in only or described:
        if id not in described:
            missing.append(f"{id}: no {inputs / id / 'desc.json'}")
            continue
        path = next((p for p in (models / f"{id}.onnx", models / id / f"{id}.onnx") if p.exists()), None)
        if path is None:
            missing.append(f"{id}: no {id}.onnx in {models}")
            continue
        found.append(_describe(id, path, described[id]))
    return found, missing


def _describe(id: str, path: Path, desc: Path) -> Model:
    content: dict[str, Any] = json.loads(desc.read_text())
    unknown = [v["type"] for v in content["inputs"] if v["type"] not in DTYPES]
    if unknown:
        raise SystemExit(f"{desc}: type {unknown[0]!r} is none of {', '.join(DTYPES)}")
    feeds = [Input(v["name"], DTYPES[v["type"]], v["dims"], desc.parent / v["file"]) for v in content["inputs"]]
    outputs = content.get("outputs", [])
    tensors = [v["name"] for v in outputs if v.get("file")]
    return Model(id, path, feeds, tensors if len(tensors) < len(outputs) else None)


def with_random_weights(model: Model, shared: Path, folder: Path) -> Model:
    """A copy of a light_* network in `folder` with seeded random weights; any other model as it is."""
    if not model.id.startswith("light_"):
        return model
    import onnx

    script = _load(shared / "models" / "random_weights.py")
    target = folder / f"{model.id}.onnx"
    onnx.save(script.randomise(onnx.load(model.path)), target)
    return Model(model.id, target, model.inputs, None, random_weights=True)


def _load(path: Path) -> ModuleType:
    if not path.exists():
        raise SystemExit(f"--random-weights needs {path}; say where it is with --shared")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
