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
from functools import cached_property
from types import ModuleType
from typing import Any, TypeVar

MICROSOFT = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class OpDef:
    """One form of one operator. What its function's signature says is read when it is first needed: of the hundreds
    that are registered a model uses a few."""

    domain: str
    name: str
    since: int
    function: Callable[..., Any]
    host: frozenset[str]
    """Inputs that the function gets as numpy arrays: shapes, axes, indices, that must be known."""
    fold: Callable[..., Any] | None
    """The same function on numpy arrays, for integer and bool shape arithmetic while planning."""
    pure: bool
    """The same inputs always give the same outputs; False for random numbers."""
    elementwise: bool = False
    """An element of the output depends on those elements of the inputs alone that broadcasting brings to its place."""

    @cached_property
    def _parameters(self) -> tuple[inspect.Parameter, ...]:
        ignored: tuple[str, ...] = getattr(self.function, "_ignored", ())
        more = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=None) for n in ignored]
        return (*inspect.signature(self.function).parameters.values(), *more)[1:]

    @cached_property
    def _positional(self) -> tuple[inspect.Parameter, ...]:
        return tuple(p for p in self._parameters if p.kind is p.POSITIONAL_OR_KEYWORD)

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs, in ONNX's order."""
        return tuple(p.name for p in self._positional)

    @cached_property
    def required(self) -> tuple[int, ...]:
        """Which inputs must be given: those without a default that may not be None."""
        return tuple(
            i
            for i, p in enumerate(self._positional)
            if p.default is p.empty and not str(p.annotation).endswith(" | None")
        )

    @cached_property
    def variadic(self) -> bool:
        """Whether any number of inputs may follow."""
        return any(p.kind is p.VAR_POSITIONAL for p in self._parameters)

    @cached_property
    def attributes(self) -> frozenset[str]:
        """Names of the attributes."""
        return frozenset(self.kinds)

    @cached_property
    def required_attributes(self) -> frozenset[str]:
        """Those without a default."""
        return frozenset(p.name for p in self._parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty)

    @cached_property
    def kinds(self) -> Mapping[str, str]:
        """What each attribute must be: "int", "Sequence[float]", "Graph" ..., as the signature says."""
        attributes = [p for p in self._parameters if p.kind is p.KEYWORD_ONLY]
        return {p.name: str(p.annotation).removesuffix(" | None") for p in attributes}

    @cached_property
    def generator(self) -> bool:
        """The function yields for what only a run can tell, or for subgraphs (context.Steps)."""
        return inspect.isgeneratorfunction(self.function)


_OPS: dict[tuple[str, str], list[OpDef]] = {}


def op(
    *names: str,
    since: int = 1,
    domain: str = "",
    host: tuple[str, ...] = (),
    fold: Callable[..., Any] | None = None,
    pure: bool = True,
    elementwise: bool = False,
) -> Callable[[Function], Function]:
    """Register a function as the form of the named operators from version ``since`` on."""

    def register(function: Function) -> Function:
        for name in names:
            forms = _OPS.setdefault((domain, name), [])
            if any(form.since == since for form in forms):
                raise ValueError(f"{domain or 'ai.onnx'}::{name} from {since} is registered twice")
            forms.append(OpDef(domain, name, since, function, frozenset(host), fold, pure, elementwise))
        return function

    return register


def ignoring(function: Callable[..., Any], *names: str) -> Callable[..., Any]:
    """The same function with more attributes, which it does not look at."""

    @functools.wraps(function)
    def wrapped(*args: Any, **attributes: Any) -> Any:
        return function(*args, **{k: v for k, v in attributes.items() if k not in names})

    wrapped._ignored = names  # type: ignore[attr-defined]
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
