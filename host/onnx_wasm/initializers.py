"""The weights that a model brings: shape and type at once, contents when asked."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import dtypes
from .dtypes import DType
from .errors import InvalidModelError, UnsupportedModelError
from .proto import SparseTensorProto, TensorProto
from .words import counted

Array = NDArray[Any]


class ExternalData(NamedTuple):
    """Where the contents of weights outside the model come from."""

    folder: Path | None
    given: Mapping[str, bytes]

    def read(self, location: str, offset: int, length: int, described: str) -> memoryview:
        """Bytes of a file beside the model, as a memory map, or of what was given for its location."""
        if location in self.given:
            data = memoryview(self.given[location])
            if len(data) < offset + length:
                raise InvalidModelError(f"{described}: the bytes given for it are shorter than {offset + length}")
            return data[offset : offset + length]
        if self.folder is None:
            raise InvalidModelError(
                f"{described}: a model given as bytes has no folder to find it in; give its path, or external_data"
            )
        path = (self.folder / location).resolve()
        if not location or not path.is_relative_to(self.folder.resolve()):
            raise InvalidModelError(f"{described} must lie in the model's folder")
        if not length:
            return memoryview(b"")
        try:
            if not path.is_file() and path.exists():
                raise InvalidModelError(f"{described}: {path} is no file")
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < offset + length:
                    raise InvalidModelError(f"{described}: {path} is shorter than {counted(offset + length, 'byte')}")
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise InvalidModelError(f"{described} cannot be opened: {error.strerror}: {path}") from None
        return memoryview(mapped)[offset : offset + length]


class Initializer:
    """A weight: its shape and type now, its contents when asked. External data stays a memory map."""

    def __init__(self, proto: TensorProto, files: ExternalData, where: str) -> None:
        self.name = proto.name
        self.shape: tuple[int, ...] = tuple(proto.dims)
        self._proto = proto
        self._files = files
        self._where = where
        if any(d < 0 for d in self.shape):
            raise InvalidModelError(f"{where}: tensor {proto.name!r} has negative dimensions {list(self.shape)}")
        try:
            self.dtype: DType = dtypes.from_onnx(proto.data_type)
        except ValueError as error:
            raise InvalidModelError(f"{where}: tensor {proto.name!r}: {error}") from None

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.dtype.nbytes(self.size)

    def array(self) -> Array:
        """The contents in numpy's type for the element (packed bytes below 8 bits), C-contiguous."""
        return self._single if self.size == 1 else self._array()

    @cached_property
    def _single(self) -> Array:
        """Kept, since operators ask for the one number of an attribute whenever they are lowered."""
        array = self._array().copy()
        array.flags.writeable = False
        return array

    def _array(self) -> Array:
        if 0 < self.dtype.bits < 8:
            return self._packed()
        try:
            if self._proto.data_location == TensorProto.EXTERNAL:
                return np.frombuffer(self._external(), self.dtype.numpy).reshape(self.shape)
            return _elements(self._proto, self.dtype).reshape(self.shape)
        except InvalidModelError:
            raise
        except Exception as error:
            raise InvalidModelError(
                f"{self._where}: tensor {self.name!r} ({self.dtype}{list(self.shape)}) cannot be read: {error}"
            ) from error

    def _packed(self) -> Array:
        data = self._external() if self._proto.data_location == TensorProto.EXTERNAL else self._proto.raw_data
        if not data and self._proto.int32_data:
            data = bytes(v & 0xFF for v in self._proto.int32_data)
            if self.dtype.bits == 6:
                # One element each, other than in the narrower types.
                bits = np.unpackbits(np.frombuffer(data, np.uint8)[:, None], axis=1, bitorder="little")[:, :6]
                data = np.packbits(bits, bitorder="little").tobytes()
        packed = np.frombuffer(data, np.uint8)
        if packed.size != self.nbytes:
            raise InvalidModelError(
                f"{self._where}: tensor {self.name!r} ({self.dtype}{list(self.shape)}) has "
                f"{counted(packed.size, 'byte')}, needs {self.nbytes}"
            )
        return packed

    def _external(self) -> memoryview:
        entries = {e.key: e.value for e in self._proto.external_data}
        location = entries.get("location", "")
        described = f"{self._where}: external data {location!r} of tensor {self.name!r}"
        try:
            offset = int(entries.get("offset", 0))
            length = int(entries.get("length", self.nbytes))
        except ValueError as error:
            raise InvalidModelError(f"{described}: {error}") from None
        if length != self.nbytes or offset < 0:
            raise InvalidModelError(
                f"{described} has offset {offset} and length {length}, needs {counted(self.nbytes, 'byte')}"
            )
        return self._files.read(location, offset, length, described)


class SparseInitializer(Initializer):
    """One of which the model has only some elements and their places; the others are 0."""

    def __init__(self, proto: SparseTensorProto, files: ExternalData, where: str) -> None:
        super().__init__(proto.values, files, where)
        self._values = Initializer(proto.values, files, where)
        self._indices = Initializer(proto.indices, files, where)
        self.shape = tuple(proto.dims)
        what = f"{where}: sparse tensor {self.name!r}"
        if self.dtype.bits < 8:
            raise UnsupportedModelError(f"{what} of type {self.dtype} is not supported")
        count = self._values.shape
        if any(d < 0 for d in self.shape) or len(count) != 1:
            raise InvalidModelError(f"{what}: shape {list(self.shape)}, and values of shape {list(count)}")
        indices = self._indices
        if indices.dtype is not dtypes.I64 or indices.shape not in (count, (*count, len(self.shape))):
            raise InvalidModelError(
                f"{what}: indices are {indices.dtype}{list(indices.shape)}, must be int64 of shape {list(count)} or "
                f"{[*count, len(self.shape)]}"
            )

    def _array(self) -> Array:
        indices = self._indices.array()
        try:
            if indices.ndim == 2:
                indices = np.ravel_multi_index(tuple(indices.T), self.shape)
            array = np.zeros(self.size, self.dtype.numpy)
            if indices.size and indices.min() < 0:
                raise IndexError(f"index {indices.min()} is negative")
            array[indices] = self._values.array()
        except (ValueError, IndexError) as error:
            raise InvalidModelError(
                f"{self._where}: sparse tensor {self.name!r} ({self.dtype}{list(self.shape)}): {error}"
            ) from None
        return array.reshape(self.shape)


def _elements(proto: TensorProto, dtype: DType) -> Array:
    """The elements that lie in the tensor itself, all in a row; see onnx.proto on the fields."""
    if proto.HasField("segment"):
        raise ValueError("it is a segment")
    if dtype is dtypes.STRING:
        texts = np.empty(len(proto.string_data), object)
        texts[:] = [text.decode() for text in proto.string_data]
        return texts
    if proto.HasField("raw_data"):
        return np.frombuffer(proto.raw_data, dtype.numpy)
    assert dtype.numpy is not None
    if dtype in (dtypes.F32, dtypes.C64):
        return np.array(proto.float_data, np.float32).view(dtype.numpy)
    if dtype in (dtypes.F64, dtypes.C128):
        return np.array(proto.double_data, np.float64).view(dtype.numpy)
    if dtype is dtypes.I64:
        return np.array(proto.int64_data, np.int64)
    if dtype in (dtypes.U32, dtypes.U64):
        return np.array(proto.uint64_data, np.uint64).astype(dtype.numpy)
    # The bits of a type that is no integer, too.
    bits = np.array(proto.int32_data, np.int32).astype(f"u{dtype.itemsize}")
    return bits.view(dtype.numpy)
