"""What a page's own views of the heap do when it grows: ``HEAPF32`` and its kin, as emscripten makes them.

A JavaScript typed array over WebAssembly memory is of the size that the memory had. When a shared memory grows (ORT Web
since 1.22) the array keeps its old length, and sees nothing of what is allocated beyond. When an unshared one grows
(ORT Web up to 1.17) the array is detached: its length is 0 and what held it reads nothing more. Pages that keep such an
array across a run break in these two ways; numpy views of tensors do in neither.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import dtypes
from .errors import DetachedViewError, DisposedError, FeedTypeError
from .words import counted

Array = NDArray[Any]


# What emscripten calls its views, by the names of their elements.
NAMES = {
    "HEAP8": "int8",
    "HEAPU8": "uint8",
    "HEAP16": "int16",
    "HEAPU16": "uint16",
    "HEAP32": "int32",
    "HEAPU32": "uint32",
    "HEAPF32": "float32",
    "HEAPF64": "float64",
    "HEAP64": "int64",
    "HEAPU64": "uint64",
}


class HeapView:
    """All of linear memory as elements of one type, of the size it has now: index = byte address / size of an element.

    Reads give copies, and writes write the heap, as JavaScript's would: also where no block is. Only [0, length) can be
    reached, by whole numbers and slices. Made by `Runtime.heap_view`.
    """

    def __init__(
        self,
        reservation: NDArray[np.uint8],
        memory_size: Callable[[], int],
        lock: AbstractContextManager[Any],
        dtype: str | np.dtype[Any] | type[Any],
        *,
        shared: bool,
    ) -> None:
        self._dtype = _element(dtype)
        self._reservation = reservation
        self._memory_size = memory_size
        # While it is held, the memory does not go.
        self._lock = lock
        self._bytes = memory_size()
        self.shared = shared

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of an element."""
        return self._dtype

    @property
    def detached(self) -> bool:
        """Whether the memory has grown under an unshared view."""
        return not self.shared and self._memory_size() != self._bytes

    @property
    def nbytes(self) -> int:
        """Bytes that can be reached."""
        return 0 if self.detached else self._bytes

    def __len__(self) -> int:
        return self.nbytes // self._dtype.itemsize

    def _array(self, index: int | slice) -> Array:
        if not isinstance(index, (int, np.integer, slice)) or isinstance(index, bool):
            raise FeedTypeError(f"a typed array takes whole numbers and slices, got {index!r}")
        if self.detached:
            raise DetachedViewError(
                f"the memory has grown from {self._bytes:,} to {self._memory_size():,} bytes: this view of "
                "unshared memory is detached; make a new one"
            )
        self._memory_size()
        return self._reservation[: self._bytes].view(self._dtype)

    def __getitem__(self, index: int | slice) -> Any:
        with self._lock:
            found = self._array(index)[index]
            return found.copy() if isinstance(index, slice) else found

    def __setitem__(self, index: int | slice, value: Any) -> None:
        with self._lock:
            self._array(index)[index] = value

    def set(self, values: Any, offset: int = 0) -> None:
        """Write values from element ``offset`` on, as JavaScript's ``set``. Raises IndexError where they do not fit, as
        its RangeError."""
        array = np.asarray(values, self._dtype).reshape(-1)
        if not 0 <= offset <= len(self) - array.size:
            raise IndexError(f"{counted(array.size, 'element')} from {offset} on do not fit into {len(self)}")
        self[offset : offset + array.size] = array

    def __repr__(self) -> str:
        try:
            self._memory_size()
            kind = "shared" if self.shared else "detached" if self.detached else "unshared"
            return f"<HeapView {self._dtype} of {counted(len(self), 'element')}, {kind}>"
        except DisposedError:
            return f"<HeapView {self._dtype} of a closed runtime>"


def _element(dtype: str | np.dtype[Any] | type[Any]) -> np.dtype[Any]:
    """The type of an element by ONNX's name, numpy's, or emscripten's name of the view."""
    name = NAMES.get(dtype, dtype) if isinstance(dtype, str) else np.dtype(dtype).name
    try:
        found = dtypes.from_name(name)
    except ValueError as error:
        raise FeedTypeError(f"{error}; or one of {', '.join(NAMES)}") from None
    if found.numpy is None or found.bits < 8:
        raise FeedTypeError(f"no typed array has elements of type {name}")
    return found.numpy
