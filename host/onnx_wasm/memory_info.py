"""What a heap says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .words import counted


@dataclass(frozen=True)
class Growth:
    """One growth of linear memory, in bytes; `wanted` is the break that asked for it."""

    before: int
    after: int
    wanted: int


@dataclass(frozen=True)
class MemoryInfo:
    """The state of a heap; sizes in bytes."""

    linear: int
    """Size of linear memory. It never shrinks."""
    maximum: int
    used: int
    """Bytes of blocks in use, their headers and padding included."""
    free: int
    """Bytes inside the heap that are in no block, without those that it has never asked for."""
    peak: int
    """The most that `used` has been."""
    largest_free: int
    blocks: int
    """Number of blocks in use."""
    growths: tuple[Growth, ...]
    """The last 256 growths, oldest first."""
    growth_count: int
    """How often linear memory has grown."""
    tensors: int
    sessions: int
    by_tag: dict[str, int]
    """Bytes asked for by live blocks, by what they are for."""
    quarantine: int = 0
    """Bytes of freed blocks that the debug heap keeps for a while; in neither `used` nor `free`."""

    @property
    def fragmentation(self) -> float:
        """The part of free bytes that is not in the largest free chunk, 0 to 1."""
        return 1 - self.largest_free / self.free if self.free else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON can hold it."""
        fields = {k: v for k, v in vars(self).items() if k != "growths"}
        return {**fields, "fragmentation": self.fragmentation, "growths": [vars(g) for g in self.growths]}

    def __str__(self) -> str:
        tags = ", ".join(f"{tag} {size:,}" for tag, size in sorted(self.by_tag.items())) or "nothing held"
        growths, blocks = counted(self.growth_count, "growth"), counted(self.blocks, "block")
        return (
            f"linear memory {self.linear:,} of at most {self.maximum:,} bytes ({growths}); "
            f"used {self.used:,} in {blocks}, peak {self.peak:,}, free {self.free:,}, "
            f"largest free {self.largest_free:,}{f' ({tags})' if tags else ''}"
        )
