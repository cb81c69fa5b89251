"""Operators by name and version. An op registers itself when its file is imported.

``@op("Softmax", since=13)`` declares the form that holds from opset 13 until a later form is declared.
The function's signature is the schema: after the context, positional parameters are the inputs in
ONNX's order (``= None``: optional; ``*xs``: variadic), keyword-only parameters are the attributes with
the specification's defaults.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class OpDef:
    """One form of one operator."""

    domain: str
    name: str
    since: int
    function: Callable[..., Any]
    inputs: tuple[str, ...]
    required: int
    variadic: bool
    attributes: frozenset[str]
    required_attributes: frozenset[str]
    kinds: Mapping[str, str]
    """What each attribute must be: "int", "Sequence[float]", "Graph" ..., as the signature says."""
    host: frozenset[str]
    """Inputs that the function gets as numpy arrays: shapes, axes, indices, that must be known."""
    fold: Callable[..., Any] | None
    """The same function on numpy arrays, for integer and bool shape arithmetic while planning."""
    pure: bool
    """The same inputs always give the same outputs; False for random numbers."""
    generator: bool
    """The function yields for what only a run can tell, or for subgraphs (context.Steps)."""


_OPS: dict[tuple[str, str], list[OpDef]] = {}


def op(
    *names: str,
    since: int = 1,
    domain: str = "",
    host: tuple[str, ...] = (),
    fold: Callable[..., Any] | None = None,
    pure: bool = True,
) -> Callable[[Function], Function]:
    """Register a function as the form of the named operators from version ``since`` on."""

    def register(function: Function) -> Function:
        parameters = list(inspect.signature(function).parameters.values())[1:]
        positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        attributes = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
        for name in names:
            forms = _OPS.setdefault((domain, name), [])
            if any(form.since == since for form in forms):
                raise ValueError(f"{domain or 'ai.onnx'}::{name} from {since} is registered twice")
            forms.append(
                OpDef(
                    domain=domain,
                    name=name,
                    since=since,
                    function=function,
                    inputs=tuple(p.name for p in positional),
                    required=sum(p.default is p.empty for p in positional),
                    variadic=any(p.kind is p.VAR_POSITIONAL for p in parameters),
                    attributes=frozenset(p.name for p in attributes),
                    required_attributes=frozenset(p.name for p in attributes if p.default is p.empty),
                    kinds={p.name: str(p.annotation).removesuffix(" | None") for p in attributes},
                    host=frozenset(host),
                    fold=fold,
                    pure=pure,
                    generator=inspect.isgeneratorfunction(function),
                )
            )
        return function

    return register


def ignoring(function: Callable[..., Any], *names: str) -> Callable[..., Any]:
    """The same function with more attributes, which it does not look at."""

    @functools.wraps(function)
    def wrapped(*args: Any, **attributes: Any) -> Any:
        return function(*args, **{k: v for k, v in attributes.items() if k not in names})

    signature = inspect.signature(function)
    more = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=None) for n in names]
    wrapped.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), *more]
    )
    return wrapped


def find(domain: str, name: str, opset: int) -> OpDef | None:
    """The form of an operator that holds in an opset, or None."""
    forms = [form for form in _OPS.get((domain, name), ()) if form.since <= opset]
    return max(forms, key=lambda form: form.since, default=None)


def registered() -> list[OpDef]:
    """Every form of every operator, sorted."""
    return sorted((f for forms in _OPS.values() for f in forms), key=lambda f: (f.domain, f.name, f.since))


def load(package: ModuleType) -> None:
    """Import every module of a package of ops, which registers what they declare."""
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
