"""What happens in a heap: one event for each call of the allocator and each growth of the memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

EventKind = Literal["alloc", "free", "fail", "grow"]


@dataclass(frozen=True, slots=True)
class HeapEvent:
    """One call of the allocator, or one growth; sizes and addresses in bytes."""

    kind: EventKind
    """``fail`` is an allocation that was answered with 0; a growth comes before the allocation that asked for it."""
    time: float
    """Seconds since the log began."""
    address: int
    """Of the block; 0 for ``fail`` and ``grow``."""
    nbytes: int
    """As asked for; for ``grow`` the size of linear memory afterwards."""
    used: int
    """Bytes of blocks in use afterwards, headers and padding included."""
    linear: int
    """Size of linear memory afterwards."""
    tag: str = ""
    """What the block is for: weights, activations, input, output, tape, user."""
    owner: str = ""
    """Session and tensor that the block is for."""
    session: str = ""
    """Name of the session alone."""
    node: str = ""
    """The node that was running, of a tape's own allocations."""
    site: str = ""
    """The Python line that made the call, where the runtime traces allocations."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {name: getattr(self, name) for name in self.__slots__}
