"""Allocations, and who keeps them.

A block belongs to whoever allocated it (a session, the runtime, `malloc`'s caller), until that one frees it or gives it
to tensors, its *holders*. *Leases* are numpy views of it. It goes back to the heap when it has none of these.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from .words import counted

Tag = Literal["weights", "activations", "input", "output", "tape", "user"]
_tokens = itertools.count()
_now = time.monotonic
_serials = itertools.count(1)
_PACKAGE = str(Path(__file__).parent) + os.sep
# The line that asked for what another thread does now.
asked_at: ContextVar[str] = ContextVar("asked_at", default="")


class Block:
    """One allocation: address and size in bytes, what it is for, and who keeps it."""

    __slots__ = (
        "_holders",
        "_leases",
        "address",
        "dropped",
        "made",
        "nbytes",
        "owned",
        "owner",
        "pointer",
        "runtime",
        "serial",
        "session",
        "site",
        "tag",
    )

    def __init__(
        self, runtime: Any, address: int, nbytes: int, tag: Tag, owner: str, site: str = "", session: str = ""
    ) -> None:
        self.runtime = runtime
        self.address = address
        self.nbytes = nbytes
        self.tag = tag
        self.owner = owner
        self.session = session
        """Name of the session that it is for, if it is for one."""
        self.site = site
        """The Python line that made it, when the runtime traces allocations."""
        self.serial = next(_serials)
        """Blocks are numbered in the order in which they were made."""
        self.made = _now()
        self.owned = True
        """Whether the one that allocated it keeps it."""
        self.pointer = False
        """Whether a caller of `Runtime.malloc` has its bare address."""
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
        """Keep the block, in place of the one that allocated it; the answer is the token for `drop`."""
        token = next(_tokens)
        if self._holders is None:
            self._holders = set()
        self._holders.add(token)
        self.owned = False
        self.dropped = ""
        return token

    def free(self) -> None:
        """The one that allocated it needs it no more: without leases it goes back to the heap. Once is enough."""
        self.owned = False
        self.runtime._give_back(self)

    def drop(self, token: int, site: str = "") -> None:
        """Stop keeping it: without holders and leases it is freed. ``site`` is where that was asked for."""
        if self._holders is not None:
            self._holders.discard(token)
        if site and self._leases and not self._holders:
            self.dropped = site
            self.runtime._outlived(self)
        self.runtime._give_back(self)

    def __repr__(self) -> str:
        made = f", made at {self.site}" if self.site else ""
        gone = f", disposed of at {self.dropped}" if self.dropped else ""
        return f"<Block {counted(self.nbytes, 'byte')} at {self.address:#x}, {self.tag}, {self.owner}{made}{gone}>"


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
        self.block.runtime._give_back(self.block)


def inside(filename: str) -> bool:
    """Whether a file is one of this package."""
    return filename.startswith(_PACKAGE)


def _outside(depth: int) -> tuple[FrameType, int]:
    """The innermost frame outside this package from ``depth`` callers on, and how many frames it is away from there."""
    frame, level = sys._getframe(depth), 0
    while frame.f_back is not None and inside(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    return frame, level


def call_site() -> str:
    """ "file:line" of the innermost caller outside this package; of the caller in the event loop for what it has
    started in a thread."""
    asked = asked_at.get()
    if asked:
        return asked
    frame, _ = _outside(2)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def stacklevel() -> int:
    """For a `warnings.warn` of the caller: the level of the innermost frame outside this package."""
    return _outside(2)[1] + 1
