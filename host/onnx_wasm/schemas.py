"""What the onnx package's schemas say of operators.

To ask them all of that package must be imported; what every session asks for is kept on disk beside the compiled code.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from . import disk_cache, proto

FORMAT = 2
# Of ONNX Runtime's own operators, which are in no schema of the onnx package.
_OWN = {"com.microsoft": 1}


class Parameter(NamedTuple):
    """An input of an operator."""

    name: str
    types: frozenset[str]
    """As schemas spell them: "tensor(float)"."""
    variable: str
    """Inputs that share it have one type; "" if this one need not agree with any."""


class Inputs(NamedTuple):
    """Those of one version of an operator."""

    parameters: tuple[Parameter, ...]
    repeats: bool
    """Whether the last one may be given any number of times."""


def defs() -> Any:
    """The module onnx.defs."""
    from onnx import defs

    return defs


def newest_opset() -> int:
    """The newest opset of ai.onnx that the onnx package knows."""
    return newest_opsets()[""]


def newest_opsets() -> dict[str, int]:
    """The newest opset of every domain that is known, ai.onnx as ""."""
    return {**_kept()["newest"], **_OWN}


@cache
def inputs_of(op_type: str, opset: int) -> Inputs | None:
    """The inputs of an operator of ai.onnx; None if there is none of that name in that opset."""
    kept = _kept()
    versions = [v for v in kept["operators"].get(op_type, ()) if v[0] <= opset]
    if not versions or opset > kept["newest"][""]:
        return None
    _, repeats, parameters = max(versions, key=lambda v: int(v[0]))
    return Inputs(tuple(Parameter(n, _types(i), v) for n, i, v in parameters), repeats)


@cache
def _types(index: int) -> frozenset[str]:
    return frozenset(_kept()["types"][index])


@cache
def _kept() -> dict[str, Any]:
    """ "newest", opsets by domain; and of ai.onnx "types", sets of types, and "operators", by name, of each version
    [since, repeats, [[name, index in "types", variable] of each input]]."""
    name = _name()
    data = disk_cache.load(name) if name else None
    if data is None:
        data = json.dumps(_read()).encode()
        if name:
            disk_cache.store(name, data)
    kept: dict[str, Any] = json.loads(data)
    return kept


def _name() -> str | None:
    """A name for what the installed onnx package says; another version's is another."""
    files = sorted(f for folder in proto.folders() for f in Path(folder).glob("onnx_cpp2py_export*"))
    if not files:
        return None
    about = hashlib.sha256(str(FORMAT).encode())
    for file in files:
        status = file.stat()
        about.update(f"\0{file}\0{status.st_size}\0{status.st_mtime_ns}".encode())
    return f"schemas-{about.hexdigest()[:32]}"


def _given(text: str) -> str:
    """The type of an optional that is there."""
    return text[len("optional(") : -1] if text.startswith("optional(") else text


def _read() -> dict[str, Any]:
    module = defs()
    variadic = module.OpSchema.FormalParameterOption.Variadic
    types: dict[tuple[str, ...], int] = {}
    operators: dict[str, list[Any]] = {}
    for schema in module.get_all_schemas_with_history():
        if schema.domain:
            continue
        variables = {t.type_param_str for t in schema.type_constraints}
        parameters = []
        for p in schema.inputs:
            allowed = tuple(sorted({_given(t) for t in p.types}))
            alike = p.type_str in variables and (p.is_homogeneous or p.option != variadic)
            parameters.append([p.name, types.setdefault(allowed, len(types)), p.type_str if alike else ""])
        repeats = bool(parameters) and schema.inputs[-1].option == variadic
        operators.setdefault(schema.name, []).append([schema.since_version, repeats, parameters])
    newest = {domain: last for domain, (_, last) in module.C.schema_version_map().items()}
    return {"newest": newest, "types": list(types), "operators": operators}
