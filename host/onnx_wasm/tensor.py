"""Tensors in the heap, with the names of ORT Web's ``Tensor``."""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import dtypes
from .blocks import Block, call_site
from .dtypes import DType
from .errors import DisposedError, FeedError, FeedTypeError, no_copy
from .heap import Runtime, default_runtime
from .verdicts import BlockInfo
from .words import counted

Array = NDArray[Any]


class Tensor:
    """An n-dimensional array in a runtime's heap.

    ``Tensor("float32", data, dims)`` or ``Tensor(data, dims)``, as in ORT Web. ``data`` is copied into the heap
    once; an array that is a view of this heap is used in place. Numbers in lists are converted, arrays must have the
    element type that is named. Types below 8 bits take their packed bytes.

    Raises TypeError for a type that does not fit, ValueError for dims that do not, MemoryError for no room.
    """

    def __init__(
        self, type: str | Any, data: Any = None, dims: Sequence[int] | None = None, *, runtime: Runtime | None = None
    ) -> None:
        self._block: Block | None = None
        self._strings: Array | None = None
        self._disposed_at = ""
        if not isinstance(type, str):
            if dims is not None:
                raise FeedTypeError("Tensor(data, dims) or Tensor(type, data, dims)")
            type, data, dims = _type_of(type), type, data
        try:
            dtype = dtypes.from_name(type)
        except ValueError as error:
            raise FeedTypeError(str(error)) from None
        if dtype is dtypes.STRING:
            self._hold_strings(data, dims)
            return
        array = _as_array(data, dtype)
        shape = _as_dims(array.shape if dims is None else dims)
        elements = int(np.prod(shape, dtype=object)) if shape else 1
        if array.nbytes != dtype.nbytes(elements):
            raise FeedError(
                f"a {dtype} tensor of dims {list(shape)} has {counted(elements, 'element')}, the data has {array.size}"
            )
        runtime = runtime or default_runtime()
        found = runtime.find_block(array)
        if found is not None and array.dtype.isnative:
            self._attach(found[0], found[1], dtype, shape)
            return
        block = runtime.allocate(array.nbytes, "user", "Tensor")
        self._attach(block, 0, dtype, shape)
        if array.nbytes:
            np.copyto(runtime.view(block, array.shape, array.dtype.newbyteorder("=")), array)

    def _attach(self, block: Block, offset: int, dtype: DType, dims: tuple[int, ...]) -> None:
        self._offset = offset
        self._dtype = dtype
        self._dims = dims
        self._token = block.hold()
        # Last: from here on the finaliser gives it back.
        self._block = block

    def _hold_strings(self, data: Any, dims: Sequence[int] | None) -> None:
        given = np.asarray(data, object)
        shape = _as_dims(given.shape if dims is None else dims)
        if given.size != int(np.prod(shape, dtype=object)):
            raise FeedError(
                f"a string tensor of dims {list(shape)} does not fit data of {counted(given.size, 'element')}"
            )
        self._strings = np.empty(shape, object)
        self._strings.reshape(-1)[:] = [v.decode() if isinstance(v, bytes) else str(v) for v in given.reshape(-1)]
        self._dtype, self._dims = dtypes.STRING, shape

    @classmethod
    def _of_strings(cls, array: Array) -> Tensor:
        return cls("string", array)

    @classmethod
    def _wrap(cls, block: Block, dtype: DType, dims: tuple[int, ...], offset: int = 0) -> Tensor:
        tensor = cls.__new__(cls)
        tensor._strings = None
        tensor._disposed_at = ""
        tensor._attach(block, offset, dtype, dims)
        return tensor

    def _live(self) -> Block:
        if self._strings is not None:
            raise FeedTypeError("a string tensor lies outside the heap: it has no runtime and no address")
        block = self._block
        if block is None:
            raise DisposedError(
                f"The tensor is disposed{f': dispose() was called at {self._disposed_at}' * bool(self._disposed_at)}."
            )
        if block.runtime.closed:
            raise DisposedError("the tensor's runtime is closed")
        return block

    @property
    def type(self) -> str:
        """ORT Web's name of the element type, e.g. "float32"."""
        return self._dtype.name

    @property
    def dims(self) -> tuple[int, ...]:
        return self._dims

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self._dims)

    @property
    def nbytes(self) -> int:
        return self._dtype.nbytes(self.size)

    @property
    def location(self) -> str:
        """ "cpu" while alive, "none" after dispose."""
        if self._strings is not None:
            return "cpu"
        return "cpu" if self._block is not None and not self._block.runtime.closed else "none"

    @property
    def address(self) -> int:
        """Where the tensor begins in linear memory; 0 for one of no bytes."""
        return self._live().address + self._offset

    @property
    def runtime(self) -> Runtime:
        runtime: Runtime = self._live().runtime
        return runtime

    @property
    def data(self) -> Array:
        """A zero-copy numpy view of the tensor in the heap; writing to it writes the tensor.

        The view keeps the memory alive, also after ``dispose``: the block goes back to the heap when the last view is
        gone. Types below 8 bits show their packed bytes, in one dimension. Strings lie outside the heap, in an array
        of objects.
        """
        if self._strings is not None:
            return self._strings
        block = self._live()
        assert self._dtype.numpy is not None
        shape = self._dims if self._dtype.bits >= 8 else (self.nbytes,)
        view: Array = block.runtime.view(block, shape, self._dtype.numpy, self._offset)
        return view

    def get_data(self, release_data: bool = False) -> Array:
        """The data; with ``release_data`` a copy outside the heap, and the tensor is disposed."""
        if not release_data:
            return self.data
        copy: Array = self.data.copy()
        self.dispose()
        return copy

    def reshape(self, dims: Sequence[int]) -> Tensor:
        """A tensor of other dims over the same memory; each of the two is disposed for itself."""
        shape = _as_dims(dims)
        if self._strings is not None:
            return Tensor("string", self._strings, shape)
        block = self._live()
        if int(np.prod(shape, dtype=object)) != self.size:
            raise FeedError(f"dims {list(self._dims)} ({counted(self.size, 'element')}) cannot become {list(shape)}")
        return Tensor._wrap(block, self._dtype, shape, self._offset)

    def dispose(self) -> None:
        """Give the tensor's memory back; it is dead at once. Live views keep the block until they are gone.

        Raises HeapCorruptionError where a debug heap finds that something was written past a block; the tensor is
        disposed of all the same.
        """
        block = self._block
        self._let_go(explicitly=True)
        if block is not None:
            block.runtime._report_faults()

    def _let_go(self, *, explicitly: bool) -> None:
        self._strings = None
        block, self._block = self._block, None
        if block is not None:
            if explicitly and block.runtime.trace_allocations:
                self._disposed_at = call_site()
            try:
                block.drop(self._token, self._disposed_at)
            except BaseException:
                # Interrupted: another call, or the finaliser, does it.
                if block.runtime._knows(block):
                    self._block = block
                raise

    release = dispose
    __reduce__ = no_copy

    def __enter__(self) -> Tensor:
        return self

    def __exit__(self, *_: object) -> None:
        self.dispose()

    def __del__(self) -> None:
        block = getattr(self, "_block", None)
        if block is None or block.runtime.closed:
            return
        # Another tensor over the same block may be disposed of properly.
        last = block.holders == 1
        if block.nbytes and last:
            block.runtime._forgotten.append(BlockInfo.of(block))
        self._let_go(explicitly=False)
        if block.runtime._told:
            return
        warnings.warn(f"tensor was never disposed: {self!r}, {block!r}", ResourceWarning, stacklevel=2, source=self)

    def __array__(self, dtype: np.dtype[Any] | None = None, copy: bool | None = None) -> Array:
        data = self.data
        if copy or (dtype is not None and dtype != data.dtype):
            if copy is False:
                raise ValueError(f"a {self.type} tensor cannot be seen as {dtype} without a copy")
            return data.astype(dtype or data.dtype)
        return data

    def __repr__(self) -> str:
        return f"<Tensor {self._dtype}{list(self._dims)} {self.location}>"


def _type_of(data: Any) -> str:
    array = np.asarray(data)
    if array.dtype == np.float64 and not isinstance(data, (np.ndarray, np.generic)):
        return "float32"
    try:
        return dtypes.from_numpy(array.dtype).name
    except ValueError as error:
        raise FeedTypeError(str(error)) from None


def _as_array(data: Any, dtype: DType) -> Array:
    wanted = dtype.numpy
    assert wanted is not None
    if isinstance(data, Tensor):
        data = data.data
    if isinstance(data, (np.ndarray, np.generic)):
        array = np.asarray(data)
        if array.dtype.newbyteorder("=") != wanted and not (dtype is dtypes.BOOL and array.dtype == np.uint8):
            raise FeedTypeError(f"a {dtype} tensor takes an array of {wanted}, got {array.dtype}")
        return array.view(np.bool_) if array.dtype == np.uint8 and dtype is dtypes.BOOL else array
    try:
        given = np.asarray(data)
        if given.size and given.dtype.kind not in "biufc" and given.dtype != object:
            raise TypeError(f"elements of type {given.dtype}")
        if given.dtype == object and any(v is None for v in given.reshape(-1)):
            # numpy makes it NaN.
            raise TypeError("None is no number")
        array = np.asarray(data, wanted)
    except (TypeError, ValueError, OverflowError) as error:
        raise FeedTypeError(f"the data cannot become a {dtype} tensor: {error}") from None
    return array


def _as_dims(dims: Any) -> tuple[int, ...]:
    try:
        shape = tuple(operator.index(d) for d in dims)
    except TypeError:
        raise FeedTypeError(f"dims must be a sequence of integers, got {dims!r}") from None
    if any(d < 0 for d in shape):
        raise FeedError(f"dims must not be negative, got {list(shape)}")
    return shape
