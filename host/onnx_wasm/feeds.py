"""What a run is fed: checked against the model's inputs, and described for lowering and for the key of plans."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import dtypes
from .context import EmptyOptional, Item, TensorSequence, Value
from .dtypes import DType
from .errors import FeedError, FeedTypeError, UnsupportedModelError
from .heap import Runtime
from .model import Dimension, Graph, ValueInfo
from .tensor import Tensor
from .words import meant

Array = NDArray[Any]
Feed = Tensor | Array | Sequence[Any] | None
"""A tensor, or a list of them for a sequence, or None for an empty optional."""


@dataclass(eq=False)
class Fed:
    """One tensor of a run: an address in the heap, or an array to copy there."""

    shape: tuple[int, ...]
    dtype: DType
    address: int
    array: Array | None

    @property
    def nbytes(self) -> int:
        return self.dtype.nbytes(math.prod(self.shape))

    def contents(self, runtime: Runtime) -> Array:
        """A copy of the elements, in the machine's byte order."""
        assert self.dtype.numpy is not None
        if self.array is not None:
            return self.array.astype(self.dtype.numpy)
        data = runtime._bytes[self.address : self.address + self.nbytes]
        return data.view(self.dtype.numpy).reshape(self.shape).copy()


class Feeds:
    """All that one run is fed, by input name."""

    def __init__(self, items: Mapping[str, Fed | list[Fed] | None]) -> None:
        self.items = items
        self.tensors: dict[str, Fed] = {}
        """Every tensor of numbers by a name of its own: an input's, or "input[3]" in a sequence."""
        for name, item in items.items():
            for n, fed in _flat(name, item):
                if fed.dtype is not dtypes.STRING:
                    self.tensors[n] = fed

    def key(self) -> Hashable:
        """What a plan depends on: types, shapes, the lengths of sequences, the contents of strings."""
        return tuple(
            (name, -1 if item is None else len(item) if isinstance(item, list) else -2, *map(_key, _feds(item)))
            for name, item in self.items.items()
        )

    def values(self, known: Mapping[str, Array]) -> tuple[dict[str, Item], dict[str, Value]]:
        """Items for lowering by input, and the values among them by tensor name; ``known`` gives contents that plans
        depend on."""
        by_name: dict[str, Value] = {}

        def value(name: str, fed: Fed) -> Value:
            made = by_name[name] = Value(fed.shape, fed.dtype, name=name)
            made.known = fed.array if fed.dtype is dtypes.STRING else known.get(name)
            return made

        items: dict[str, Item] = {}
        for name, item in self.items.items():
            made = [value(n, fed) for n, fed in _flat(name, item)]
            if item is None:
                items[name] = EmptyOptional()
            elif isinstance(item, list):
                items[name] = TensorSequence(tuple(made), made[0].dtype if made else None)
            else:
                items[name] = made[0]
        return items, {n: v for n, v in by_name.items() if v.dtype is not dtypes.STRING}


def _feds(item: Fed | list[Fed] | None) -> list[Fed]:
    return item if isinstance(item, list) else [] if item is None else [item]


def _flat(name: str, item: Fed | list[Fed] | None) -> list[tuple[str, Fed]]:
    if isinstance(item, list):
        return [(f"{name}[{i}]", fed) for i, fed in enumerate(item)]
    return [(name, fed) for fed in _feds(item)]


def _key(fed: Fed) -> Hashable:
    if fed.dtype is dtypes.STRING:
        assert fed.array is not None
        return fed.dtype.onnx, fed.shape, tuple(fed.array.reshape(-1).tolist())
    return fed.dtype.onnx, fed.shape


def check_feeds(
    graph: Graph,
    feeds: Any,
    runtime: Runtime,
    dimensions: Callable[[ValueInfo], tuple[Dimension, ...] | None],
) -> Feeds:
    """Feeds that fit the graph's inputs. Raises FeedError and FeedTypeError, which name the input and what it takes."""
    if not isinstance(feeds, Mapping):
        raise FeedTypeError(f"feeds must map input names to tensors or arrays, got {type(feeds).__name__}")
    declared = {i.name: i for i in graph.inputs}
    for name in feeds:
        if name not in declared and name not in graph.overridable:
            close = meant(name, [*declared, *graph.overridable])
            raise FeedError(f"{name!r} is no input of the model, which takes {list(declared)}{close}")
    missing = [n for n, i in declared.items() if n not in feeds and not i.optional]
    if missing:
        raise FeedError(f"inputs not fed: {missing}; the model takes {list(declared)}")
    items: dict[str, Fed | list[Fed] | None] = {}
    for info in graph.parameters:
        if info.name in feeds or info.name in declared:
            items[info.name] = _check_feed(info, feeds.get(info.name), runtime, dimensions(info))
    return Feeds(items)


def _check_feed(
    info: ValueInfo, feed: Any, runtime: Runtime, shape: tuple[Dimension, ...] | None
) -> Fed | list[Fed] | None:
    if info.kind == "map":
        raise UnsupportedModelError(f"input {info.name!r} is a map; feed the model that takes tensors instead")
    if feed is None and info.optional:
        return None
    if info.kind == "sequence":
        if not isinstance(feed, (list, tuple)):
            raise FeedTypeError(f"input {info.name!r} is a sequence: a list of tensors, got {type(feed).__name__}")
        return [_check_tensor(info, f, runtime, shape) for f in feed]
    return _check_tensor(info, feed, runtime, shape)


def _check_tensor(info: ValueInfo, feed: Any, runtime: Runtime, shape: tuple[Dimension, ...] | None) -> Fed:
    fed = _fed(info, feed, runtime)
    if info.dtype is not None and fed.dtype is not info.dtype:
        raise FeedTypeError(f"input {info.name!r} takes {info.dtype}, got {fed.dtype}")
    if shape is not None and len(shape) != len(fed.shape):
        raise FeedError(
            f"input {info.name!r} has rank {len(shape)} ({show(shape)}), got rank {len(fed.shape)} ({list(fed.shape)})"
        )
    for axis, (wanted, got) in enumerate(zip(shape or (), fed.shape, strict=False)):
        if isinstance(wanted, int) and wanted != got:
            raise FeedError(
                f"input {info.name!r} has dimension {wanted} on axis {axis} ({show(shape)}), got {list(fed.shape)}"
            )
    return fed


def _fed(info: ValueInfo, feed: Any, runtime: Runtime) -> Fed:
    if isinstance(feed, Tensor):
        if feed._dtype is dtypes.STRING:
            return Fed(feed.dims, dtypes.STRING, 0, feed.data.copy())
        block = feed._live()
        if block.runtime is runtime:
            return Fed(feed.dims, feed._dtype, feed.address, None)
        return Fed(feed.dims, feed._dtype, 0, feed.data)
    if not isinstance(feed, (np.ndarray, np.generic)):
        raise FeedTypeError(f"input {info.name!r} must be a Tensor or a numpy array, got {type(feed).__name__}")
    array = np.asarray(feed)
    try:
        dtype = dtypes.from_numpy(array.dtype)
    except ValueError as error:
        raise FeedTypeError(f"input {info.name!r}: {error}") from None
    if dtype is dtypes.STRING:
        return Fed(array.shape, dtype, 0, _as_strings(info, array))
    found = runtime.find_block(array) if array.dtype.isnative else None
    if found is None:
        return Fed(array.shape, dtype, 0, array)
    return Fed(array.shape, dtype, found[0].address + found[1], None)


def _as_strings(info: ValueInfo, array: Array) -> Array:
    if info.dtype is not dtypes.STRING:
        raise FeedTypeError(f"input {info.name!r} takes {info.dtype}, got string")
    strings = np.empty(array.shape, object)
    strings.reshape(-1)[:] = [v.decode() if isinstance(v, bytes) else str(v) for v in array.reshape(-1).tolist()]
    return strings


def show(shape: Sequence[Dimension] | None) -> str:
    """A declared shape as text."""
    return "[" + ", ".join("?" if d is None else str(d) for d in shape or ()) + "]"
