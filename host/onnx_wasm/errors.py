"""Every error that this package raises on purpose, under one base class.

Each is also the Python exception of its natural kind, so ``except MemoryError`` works.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn


class OnnxWasmError(Exception):
    """Base class of every error of this package."""


class InvalidModelError(OnnxWasmError, ValueError):
    """The bytes are not a usable ONNX model."""


class InvalidTraceError(OnnxWasmError, ValueError):
    """The file is not a recording of an allocator."""


class UnsupportedModelError(OnnxWasmError, NotImplementedError):
    """The model needs an operator, opset or type that has no implementation here."""


class FeedError(OnnxWasmError, ValueError):
    """A feed or fetch does not fit the model: its name, rank, dimension or value."""


class FeedTypeError(OnnxWasmError, TypeError):
    """A feed or fetch has the wrong type."""


class ShapeError(OnnxWasmError, ValueError):
    """Shapes or attributes of a node do not fit each other."""


class NodeValueError(OnnxWasmError, ValueError):
    """A node met a value outside its domain while running."""


class NodeIndexError(OnnxWasmError, IndexError):
    """A node met an index out of range while running."""


class HeapMemoryError(OnnxWasmError, MemoryError):
    """The heap cannot hold a request. ``held`` is a table of what it held at that moment, as text."""

    held = ""


class DisposedError(OnnxWasmError, ValueError):
    """A disposed tensor, session or closed runtime was used."""


class UseAfterDisposeError(DisposedError):
    """Memory was used through an old view after its tensor was disposed of. Found by the debug heap."""


class HeapPointerError(OnnxWasmError, ValueError):
    """An address was freed that is no block's, or no longer."""


class DetachedViewError(OnnxWasmError, TypeError):
    """A view of unshared memory was used after the memory had grown."""


class LeaseError(OnnxWasmError, BufferError):
    """Something cannot be done while numpy views of the heap are alive."""


class HeapCorruptionError(OnnxWasmError, RuntimeError):
    """The heap's invariants do not hold."""


class KernelTrapError(OnnxWasmError, RuntimeError):
    """A kernel trapped: a defect of this package, never of the input."""


class EngineError(OnnxWasmError, RuntimeError):
    """The WebAssembly engine or the built module cannot be used."""


class CancelledError(OnnxWasmError, RuntimeError):
    """A run was cancelled."""


def check_names(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise TypeError, with all names that there are, for one that there is not."""
    known = sorted(known)
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise TypeError(f"unknown {what} {unknown}; known: {known}")


def no_copy(self: object) -> NoReturn:
    """``__reduce__`` of what stands for memory: a copy or a pickle of it would free that memory once more."""
    raise TypeError(f"{type(self).__name__} objects cannot be copied or pickled; copy the data")


REFUSALS = (InvalidModelError, UnsupportedModelError, ShapeError, NodeValueError, NodeIndexError)
"""What a node raises for inputs that it does not take."""
