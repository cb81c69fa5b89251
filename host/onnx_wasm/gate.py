"""One thread at a time in a runtime, and what others leave behind for it.

The last lease of a block may die in any thread and at any moment, even inside a call into the module, so a dying lease
only queues its block; whoever next leaves the gate empties the queue.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from .errors import EngineError

Method = TypeVar("Method", bound=Callable[..., Any])


class Gate:
    """One call into the module at a time; leaving it gives back what leases have queued.

    A KeyboardInterrupt may come between any two instructions of Python, but not within ``with`` for a lock written in
    C. So no Python stands between taking the lock and the ``try`` that lets go of it.
    """

    __slots__ = ("drain", "lock", "queue")

    def __init__(self, queue: deque[Any], drain: Callable[[], None]) -> None:
        self.lock: Any = threading.RLock()
        self.queue = queue
        self.drain = drain

    @property
    def mine(self) -> bool:
        """Whether this thread is inside, as a finaliser may find it."""
        return bool(self.lock._is_owned())

    def try_drain(self) -> None:
        """Give back what is queued, unless somebody is inside, who will on leaving."""
        lock = self.lock
        if lock._is_owned():
            return
        try:
            if lock.acquire(blocking=False):
                self.drain()
        finally:
            try:  # noqa: SIM105
                lock.release()
            except RuntimeError:
                # It was not taken.
                pass


def gated(method: Method) -> Method:
    """The method runs inside the gate of its object."""

    @functools.wraps(method)
    def inside(self: Any, *args: Any, **kwargs: Any) -> Any:
        gate: Gate = self._gate
        if gate.mine:
            raise EngineError("the runtime is already in a call on this thread")
        with gate.lock:
            try:
                result = method(self, *args, **kwargs)
            finally:
                gate.drain()
        # What came after the last look found the gate closed.
        if gate.queue:
            gate.try_drain()
        return result

    return inside  # type: ignore[return-value]
