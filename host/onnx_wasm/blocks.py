"""Allocations, and who keeps them.

A block has *holders* (tensors, sessions) and *leases* (numpy views). It goes back to the heap when it has neither.
"""

from __future__ import annotations

import itertools
from typing import Any, Literal

Tag = Literal["weights", "activations", "input", "output", "tape", "user"]
_tokens = itertools.count()


class Block:
    """One allocation: address and size in bytes, what it is for, and who keeps it."""

    __slots__ = ("address", "holders", "leases", "nbytes", "owner", "runtime", "site", "tag")

    def __init__(self, runtime: Any, address: int, nbytes: int, tag: Tag, owner: str, site: str = "") -> None:
        self.runtime = runtime
        self.address = address
        self.nbytes = nbytes
        self.tag = tag
        self.owner = owner
        self.site = site
        """The Python line that made it, when the runtime traces allocations."""
        self.holders: set[int] = set()
        self.leases: set[int] = set()

    def hold(self) -> int:
        """Keep the block; the answer is the token for `drop`."""
        token = next(_tokens)
        self.holders.add(token)
        return token

    def drop(self, token: int) -> None:
        """Stop keeping it: without holders and leases it is freed."""
        self.holders.discard(token)
        self.runtime._give_back(self)

    def __repr__(self) -> str:
        made = f", made at {self.site}" if self.site else ""
        return f"<Block {self.nbytes:,} bytes at {self.address:#x}, {self.tag}, {self.owner}{made}>"


class Lease:
    """Lives as long as a numpy view of a block, or any array derived from it."""

    __slots__ = ("block", "token")

    def __init__(self, block: Block) -> None:
        self.token = next(_tokens)
        self.block = block
        block.leases.add(self.token)

    def __del__(self) -> None:
        if not hasattr(self, "block"):
            return
        self.block.leases.discard(self.token)
        self.block.runtime._give_back(self.block)
