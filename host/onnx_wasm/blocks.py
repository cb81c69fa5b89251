"""Allocations, and who keeps them.

A block has *holders* (tensors, sessions) and *leases* (numpy views). It goes back to the heap when it has neither.
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path
from typing import Any, Literal

Tag = Literal["weights", "activations", "input", "output", "tape", "user"]
_tokens = itertools.count()
_now = time.monotonic
_serials = itertools.count(1)
_PACKAGE = str(Path(__file__).parent)


class Block:
    """One allocation: address and size in bytes, what it is for, and who keeps it."""

    __slots__ = (
        "_holders",
        "_leases",
        "address",
        "dropped",
        "made",
        "nbytes",
        "owner",
        "runtime",
        "serial",
        "site",
        "tag",
    )

    def __init__(self, runtime: Any, address: int, nbytes: int, tag: Tag, owner: str, site: str = "") -> None:
        self.runtime = runtime
        self.address = address
        self.nbytes = nbytes
        self.tag = tag
        self.owner = owner
        self.site = site
        """The Python line that made it, when the runtime traces allocations."""
        self.serial = next(_serials)
        """Blocks are numbered in the order in which they were made."""
        self.made = _now()
        self._holders: set[int] | None = None
        self._leases: dict[int, str] | None = None
        self.dropped = ""
        """The Python line that let it go while views of it lived, when the runtime traces allocations."""

    @property
    def age(self) -> float:
        """Seconds since it was made."""
        return time.monotonic() - self.made

    @property
    def holders(self) -> int:
        """How many tensors keep it."""
        return len(self._holders) if self._holders else 0

    @property
    def leases(self) -> int:
        """How many views keep it; arrays derived from a view share its lease."""
        return len(self._leases) if self._leases else 0

    @property
    def views(self) -> list[str]:
        """Where each view that keeps it was made, when the runtime traces allocations."""
        return list((self._leases or {}).values())

    def hold(self) -> int:
        """Keep the block; the answer is the token for `drop`."""
        token = next(_tokens)
        if self._holders is None:
            self._holders = set()
        self._holders.add(token)
        return token

    def drop(self, token: int, site: str = "") -> None:
        """Stop keeping it: without holders and leases it is freed. ``site`` is where that was asked for."""
        if self._holders is not None:
            self._holders.discard(token)
        if site and self._leases and not self._holders:
            self.dropped = site
            self.runtime._outlived(self)
        self.runtime._give_back(self, quietly=not site)

    def __repr__(self) -> str:
        made = f", made at {self.site}" if self.site else ""
        gone = f", disposed of at {self.dropped}" if self.dropped else ""
        return f"<Block {self.nbytes:,} bytes at {self.address:#x}, {self.tag}, {self.owner}{made}{gone}>"


class Lease:
    """Lives as long as a numpy view of a block, or any array derived from it."""

    __slots__ = ("block", "token")

    def __init__(self, block: Block, site: str = "") -> None:
        self.token = next(_tokens)
        self.block = block
        if block._leases is None:
            block._leases = {}
        block._leases[self.token] = site

    def __del__(self) -> None:
        if not hasattr(self, "block"):
            return
        if self.block._leases is not None:
            self.block._leases.pop(self.token, None)
        self.block.runtime._give_back(self.block, quietly=True)


def call_site() -> str:
    """ "file:line" of the innermost caller outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def stacklevel() -> int:
    """For a `warnings.warn` of the caller: the level of the innermost frame outside this package."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    return level
