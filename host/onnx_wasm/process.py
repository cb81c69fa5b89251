"""What the process does to all of its runtimes: it forks, and it ends."""

from __future__ import annotations

import atexit
import os
import warnings
import weakref
from typing import Any

_runtimes: weakref.WeakSet[Any] = weakref.WeakSet()
_forking: list[Any] = []


def register(runtime: Any) -> None:
    """From now on the runtime is looked after."""
    _runtimes.add(runtime)


def _before_fork() -> None:
    """Wait until no thread is in a call: a child gets heaps that are consistent, and locks that it can take.

    A thread in one runtime may wait for another's lock; so no lock is waited for while another one is held. A child
    gets no threads, so workers end; either process starts its own when it runs something.
    """
    runtimes = list(_runtimes)
    locks = [r._gate.lock for r in runtimes] + [r._ends for r in runtimes]
    while True:
        for lock in locks:
            if not lock.acquire(blocking=False):
                break
            _forking.append(lock)
        else:
            break
        _after_fork()
        with lock:
            pass
    for runtime in runtimes:
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
    errors: list[ResourceWarning] = []
    for runtime in list(_runtimes):
        # A daemon thread may be in a call that never ends.
        if runtime.closed or not runtime._gate.lock.acquire(blocking=False):
            continue
        try:
            runtime._stop_workers()
            text = runtime._leak_warning("at exit")
        finally:
            runtime._gate.lock.release()
        if text:
            runtime._told = True
            try:
                warnings.warn(text, ResourceWarning, stacklevel=2)
            except ResourceWarning as error:
                # Warnings may be errors; the next runtime's turn comes all the same.
                errors.append(error)
    if errors:
        raise errors[0]
