"""What the command line feeds: arrays from files, and random ones of shapes given, shared or assumed."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import dtypes
from .errors import FeedError, NodeIndexError, NodeValueError, ShapeError
from .session import InferenceSession, ValueMetadata
from .words import counted, meant

Array = NDArray[Any]
_SEED = 0


def feeds(
    session: InferenceSession, files: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[dict[str, Array], dict[str, str], list[str]]:
    """Arrays by input, where each is from, and what had to be made up about shapes and values."""
    known = {m.name: m for m in session.input_metadata}
    parameters = {i.name: i for i in session._graph.parameters}
    for names, takes in ((shapes, known), (files, parameters)):
        for name in names:
            if name not in takes:
                raise FeedError(f"{name!r} is no input of the model, which takes {list(known)}{meant(name, takes)}")
    fed = {name: _given(session._metadata(parameters[name]), text) for name, text in files.items()}
    notes = {name: text if os.path.lexists(text) else "as given" for name, text in files.items()}
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
        if shape in ((), (1,)) and name not in shapes:
            value = fed[name].reshape(-1)[0].item()
            shown = f"{value:.6g}" if isinstance(value, float) else value
            assumed.append(f"input {name} was made up as {shown}; give --input {name}=...")
    return fed, notes, assumed


@contextlib.contextmanager
def explained(assumed: Sequence[str]) -> Iterator[None]:
    """A run; an error that what was made up may have caused says what that was."""
    try:
        yield
    except (ShapeError, FeedError, NodeValueError, NodeIndexError) as error:
        raise FeedError("; ".join([str(error), *assumed])) from None


def _given(metadata: ValueMetadata, text: str) -> Array:
    """An array from a file or, where there is no such file, of the numbers that the text is."""
    if not os.path.lexists(text):
        try:
            value = json.loads(text)
        except ValueError:
            if text.endswith(".npy"):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), text) from None
            raise FeedError(
                f"input {metadata.name!r}: there is no file {text}, and it is no number or JSON list"
            ) from None
        return _parsed(metadata, text, value)
    return _load(metadata.name, text, metadata)


def _parsed(metadata: ValueMetadata, text: str, value: Any) -> Array:
    """JSON as an array of an input's type; one value for an input of one element has its shape."""
    dtype = dtypes.from_name(metadata.type) if metadata.type else None
    if not metadata.is_tensor or dtype is None or 0 < dtype.bits < 8:
        raise FeedError(f"input {metadata.name!r} of type {metadata.type or 'unknown'} cannot be given as {text}")
    try:
        plain = np.array(value)
        if dtype.numpy is None:
            array, fits = plain.astype(object), plain.dtype.kind == "U"
        else:
            with np.errstate(all="ignore"):
                array = plain.astype(dtype.numpy)
                same = np.isfinite(array) == np.isfinite(plain) if dtype.is_float else array == plain
            fits = plain.dtype.kind in "biuf" and bool(same.all())
    except (TypeError, ValueError, OverflowError):
        # No numbers, rows of different lengths, or more than 64 bits.
        fits = False
    if not fits:
        raise FeedError(f"input {metadata.name!r}: {text} is no array of {dtype}")
    if not array.ndim and metadata.shape and all(d == 1 or isinstance(d, str) for d in metadata.shape):
        array = array.reshape([1] * len(metadata.shape))
    return array


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
