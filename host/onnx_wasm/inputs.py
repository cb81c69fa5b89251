"""What the command line feeds: arrays from files, and random ones of shapes given, shared or assumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import dtypes
from .errors import FeedError
from .session import InferenceSession, ValueMetadata
from .words import counted

Array = NDArray[Any]
_SEED = 0


def feeds(
    session: InferenceSession, files: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[dict[str, Array], dict[str, str], list[str]]:
    """Arrays by input, where each is from, and what had to be assumed about shapes."""
    for name in shapes:
        if name not in session.input_names:
            raise FeedError(f"{name!r} is no input of the model, which takes {session.input_names}")
    known = {m.name: m for m in session.input_metadata}
    fed = {name: _load(name, file, known.get(name)) for name, file in files.items()}
    notes = dict(files)
    sizes = _sizes(session.input_metadata, {**shapes, **{n: a.shape for n, a in fed.items()}})
    unranked = {i.name for i in session._graph.inputs if i.shape is None}
    limit = session.runtime.maximum
    chance = np.random.default_rng(_SEED)
    assumed = []
    for name, metadata in known.items():
        if name in fed:
            continue
        if name in shapes:
            shape, note = shapes[name], "random, shape as given"
        else:
            shape, note, guessed = _shape(metadata, sizes, ranked=name not in unranked)
            if guessed:
                assumed.append(f"input {name} was taken as {list(shape)}; give --shape {name}=...")
        fed[name], notes[name] = _random(chance, metadata, shape, limit), note
    return fed, notes, assumed


def _load(name: str, file: str, metadata: ValueMetadata | None) -> Array:
    with open(file, "rb") as opened:
        magic = opened.read(6)
    if magic[:2] == b"PK":
        raise FeedError(f"input {name!r}: {file} is an archive (.npz?); --input takes a .npy file of one array")
    if magic != b"\x93NUMPY":
        raise FeedError(f"input {name!r}: {file} is no .npy file")
    try:
        array: Array = np.load(file, allow_pickle=False)
    except (ValueError, EOFError, OverflowError, TypeError) as error:
        if "pickle" in str(error):
            raise FeedError(
                f"input {name!r}: {file} holds Python objects; it takes numbers, or strings as an array of str"
            ) from None
        raise FeedError(f"input {name!r}: {file} is damaged: {error}") from None
    dtype = dtypes.from_name(metadata.type).numpy if metadata and metadata.type else None
    if array.dtype.kind == "V" and dtype is not None and dtype.kind == "V" and array.dtype.itemsize == dtype.itemsize:
        # numpy's files do not name the types that it does not know, such as bfloat16.
        return array.view(dtype)
    try:
        dtypes.from_numpy(array.dtype)
    except ValueError as error:
        raise FeedError(f"input {name!r}: {file}: {error}") from None
    return array


def _sizes(inputs: Sequence[ValueMetadata], given: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, str]]:
    """Sizes of symbolic dimensions, each with the input that gave it. Raises FeedError where two inputs disagree."""
    sizes: dict[str, tuple[int, str]] = {}
    for metadata in inputs:
        shape = given.get(metadata.name, ())
        if len(shape) != len(metadata.shape):
            continue
        for symbol, size in zip(metadata.shape, shape, strict=True):
            # Exporters write "?" for any dimension that they do not know: such a name links nothing.
            if not isinstance(symbol, str) or not any(c.isalpha() for c in symbol):
                continue
            first, source = sizes.setdefault(symbol, (size, metadata.name))
            if first != size and source != metadata.name:
                raise FeedError(f"dimension {symbol} is {first} in input {source!r} and {size} in {metadata.name!r}")
    return sizes


def _shape(
    metadata: ValueMetadata, sizes: Mapping[str, tuple[int, str]], *, ranked: bool
) -> tuple[tuple[int, ...], str, bool]:
    """The shape of a random input, a note on it, and whether some of it is a guess."""
    if not ranked:
        return (), "random, rank not declared, taken as a scalar", True
    unknown = list(dict.fromkeys(d for d in metadata.shape if isinstance(d, str)))
    taken = [f"{d} = {sizes[d][0]} as in {sizes[d][1]}" for d in unknown if d in sizes]
    guessed = [d or "?" for d in unknown if d not in sizes]
    shape = tuple(d if isinstance(d, int) else sizes.get(d, (1, ""))[0] for d in metadata.shape)
    note = ["random", *taken, *([f"dimensions {', '.join(guessed)} taken as 1"] if guessed else [])]
    return shape, ", ".join(note), bool(guessed)


def _random(chance: np.random.Generator, metadata: ValueMetadata, shape: tuple[int, ...], limit: int) -> Array:
    if not metadata.is_tensor:
        raise FeedError(f"input {metadata.name!r} is no tensor; the command line feeds tensors only")
    dtype = dtypes.from_name(metadata.type) if metadata.type else dtypes.STRING
    if dtype.numpy is None:
        raise FeedError(f"input {metadata.name!r} of type {metadata.type or 'unknown'} needs --input")
    if dtype.bits < 8:
        raise FeedError(f"input {metadata.name!r} is of type {dtype}, which the command line cannot feed")
    elements = int(np.prod(shape, dtype=object))
    if dtype.nbytes(elements) > limit:
        raise FeedError(
            f"input {metadata.name!r} of shape {list(shape)} takes {counted(dtype.nbytes(elements), 'byte')}; "
            f"the heap holds at most {limit:,}"
        )
    try:
        if dtype.is_float:
            return chance.random(shape, np.float32).astype(dtype.numpy)
        return chance.integers(0, 2, shape).astype(dtype.numpy)
    except ValueError as error:
        # More dimensions than numpy has, or, with a dimension of 0, larger ones.
        raise FeedError(f"input {metadata.name!r} of shape {list(shape)}: {error}") from None
