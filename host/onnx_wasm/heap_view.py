"""What a page's own views of the heap do when it grows: ``HEAPF32`` and its kin, as emscripten makes them.

A JavaScript typed array over WebAssembly memory is of the size that the memory had. When a shared memory grows (ORT Web
since 1.22) the array keeps its old length, and sees nothing of what is allocated beyond. When an unshared one grows
(ORT Web up to 1.17) the array is detached: its length is 0 and what held it reads nothing more. Pages that keep such an
array across a run break in these two ways; numpy views of tensors do in neither.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import dtypes
from .errors import DetachedViewError, FeedTypeError

Array = NDArray[Any]


class HeapView:
    """All of linear memory as elements of one type, of the size it has now: index = byte address / size of an element.

    Reads give copies, and writes write the heap, as JavaScript's would: also where no block is. Only [0, length) can be
    reached. Made by `Runtime.heap_view`.
    """

    def __init__(
        self, reservation: NDArray[np.uint8], memory_size: Callable[[], int], type: str, *, shared: bool
    ) -> None:
        try:
            dtype = dtypes.from_name(type)
        except ValueError as error:
            raise FeedTypeError(str(error)) from None
        if dtype.numpy is None or dtype.bits < 8:
            raise FeedTypeError(f"no typed array has elements of type {type}")
        self._reservation = reservation
        self._memory_size = memory_size
        self._dtype = dtype.numpy
        self._bytes = memory_size()
        self.shared = shared

    @property
    def detached(self) -> bool:
        """Whether the memory has grown under an unshared view."""
        return not self.shared and self._memory_size() != self._bytes

    def __len__(self) -> int:
        return 0 if self.detached else self._bytes // self._dtype.itemsize

    def _array(self) -> Array:
        if self.detached:
            raise DetachedViewError(
                f"the memory has grown from {self._bytes:,} to {self._memory_size():,} bytes: this view of "
                "unshared memory is detached; make a new one"
            )
        self._memory_size()
        return self._reservation[: self._bytes].view(self._dtype)

    def __getitem__(self, index: int | slice) -> Any:
        found = self._array()[index]
        return found.copy() if isinstance(index, slice) else found

    def __setitem__(self, index: int | slice, value: Any) -> None:
        self._array()[index] = value

    def __repr__(self) -> str:
        kind = "shared" if self.shared else "detached" if self.detached else "unshared"
        return f"<HeapView {self._dtype} of {len(self):,} elements, {kind}>"
