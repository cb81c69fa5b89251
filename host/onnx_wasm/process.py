"""What the process does to all of its runtimes: it forks, and it ends."""

from __future__ import annotations

import atexit
import os
import weakref
from typing import Any

_runtimes: weakref.WeakSet[Any] = weakref.WeakSet()
_forking: list[Any] = []


def register(runtime: Any) -> None:
    """From now on the runtime is looked after."""
    _runtimes.add(runtime)


def _before_fork() -> None:
    """Wait until no thread is in a call: a child gets heaps that are consistent, and locks that it can take. It gets no
    threads, so workers end; either process starts its own when it runs something."""
    for runtime in list(_runtimes):
        for lock in (runtime._gate.lock, runtime._ends):
            lock.acquire()
            _forking.append(lock)
        if not runtime.closed:
            runtime._stop_workers()


def _after_fork() -> None:
    while _forking:
        _forking.pop().release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


@atexit.register
def _at_exit() -> None:
    """End all workers; a ResourceWarning for each runtime in which something was never disposed of."""
    for runtime in list(_runtimes):
        # A daemon thread may be in a call that never ends.
        if not runtime.closed and runtime._gate.lock.acquire(blocking=False):
            try:
                runtime._stop_workers()
                runtime._warn_of_leaks("at exit")
            finally:
                runtime._gate.lock.release()
