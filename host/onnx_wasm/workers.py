"""The threads that a runtime has beside the caller's.

As in a browser, each is an instance of the module of its own on the runtime's memory, in a thread that has called its
export `worker`. What they do together is up to the module (wasm/threads.wat.j2); the host starts and stops them, and
makes an exception of a trap in one of them.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .engine import CURRENT, Instance, TrapError
from .errors import EngineError

MAX_THREADS = 64
# Words and status codes of wasm/README.md.
_WORKERS, _GENERATION, _TRAPPED, _ACTIVE = 104, 108, 112, 192
_WORKER_TRAPPED, _NOT_JOINED = 5, 6
# The engine lets wasm have half of it.
_LEAST_STACK = 1 << 20


class Workers:
    """``count`` worker threads, started when first needed, and again after they were stopped.

    The owner holds a lock around every call, as it does for the instance.
    """

    def __init__(self, instance: Instance, words: NDArray[np.uint32], count: int) -> None:
        self._instance, self._words, self._count = instance, words, count
        self._calls = {name: instance.bind(name, params) for name, params in (("run", "ii"), ("run_record", "iii"))}
        self._join = instance.bind("join")
        self._end_generation = instance.bind("stop_workers", result=False)
        self._threads: list[threading.Thread] = []
        self._failures: list[TrapError] = []
        self._ready = False
        # Without a join: a finaliser may run in any thread, the workers included. At the interpreter's exit see
        # process.py.
        self._finalizer = weakref.finalize(self, _abandon, self._end_generation, self._threads)
        self._finalizer.atexit = False

    def run(self, start: int, end: int) -> int:
        """As the export ``run``; a trap in a worker is a TrapError here, too."""
        status = self._call("run", start, end)
        while status < 0:
            # Joined late, and well: on with the next record.
            record = int(self._words[CURRENT // 4])
            start = record + 4 * (int(self._words[record // 4]) >> 16)
            status = self._call("run", start, end)
        return status

    def run_record(self, record: int, begin: int, end: int) -> int:
        """As the export ``run_record``."""
        return max(self._call("run_record", record, begin, end), 0)

    def _call(self, name: str, *args: int) -> int:
        """The status, or -1: success, but by a join that took long."""
        if not self._ready:
            self._start()
        status = -1
        try:
            status = self._calls[name](*args)
            if status != _NOT_JOINED and status != _WORKER_TRAPPED:
                return status
            status = self._wait() or -1
        except BaseException:
            # Whoever catches it may free what a worker still writes to.
            while not self._settled():
                pass
            raise
        if status == _WORKER_TRAPPED:
            self.stop()
            raise self._failures.pop() if self._failures else TrapError("a worker thread has ended", [])
        return status

    def _wait(self) -> int:
        """Join; at intervals look whether the workers live. A signal's exception gets in here."""
        while (status := self._join()) == _NOT_JOINED:
            if not all(thread.is_alive() for thread in self._threads):
                # One has ended without a word, at work. The others end when they are done.
                self.stop()
                self._words[_ACTIVE // 4] = 0
                return _WORKER_TRAPPED
        return status

    def _settled(self) -> bool:
        """Wait until no worker is at work, through interrupts: they have been reported, or will be."""
        try:
            if self._wait() == _WORKER_TRAPPED:
                self.stop()
        except KeyboardInterrupt:
            return False
        return True

    def _start(self) -> None:
        self.stop()
        self._failures.clear()
        stack = threading.stack_size()
        if 0 < stack < _LEAST_STACK:
            raise EngineError(
                f"worker threads need {_LEAST_STACK:,} bytes of stack; threading.stack_size has been set to {stack:,}"
            )
        words = self._words
        words[_TRAPPED // 4] = 0
        # An interrupt may have left a thread that could not be joined, since it was just being started.
        while self._join() == _NOT_JOINED:
            pass
        generation, number = int(words[_GENERATION // 4]), 0
        try:
            for number in range(1, self._count + 1):
                instance = self._instance.beside()
                args = (_Worker(instance, number, generation), self._failures)
                thread = threading.Thread(target=_work, args=args, name=f"onnx-wasm worker {number}", daemon=True)
                # First, so that an interrupt does not lose it.
                self._threads.append(thread)
                thread.start()
        except RuntimeError as error:
            self.stop()
            raise EngineError(f"worker thread {number} of {self._count} cannot be started: {error}") from None
        words[_WORKERS // 4] = self._count
        self._ready = True

    def stop(self) -> None:
        """End the threads, and wait for that. The next run starts them again."""
        self._ready = False
        if not self._threads:
            return
        self._words[_WORKERS // 4] = 0
        self._end_generation()
        while self._threads:
            # One that was never started cannot be joined; nor can this one, if a finaliser runs in it.
            with contextlib.suppress(RuntimeError):
                self._threads[-1].join()
            self._threads.pop()

    def close(self) -> None:
        """End the threads for good."""
        self.stop()
        self._finalizer.detach()


class _Worker:
    """One worker's calls. It knows nothing of the runtime, which may be collected while the worker sleeps."""

    def __init__(self, instance: Instance, number: int, generation: int) -> None:
        self._instance, self._args = instance, (number, generation)
        self._worker = instance.bind("worker", "ii", result=False)
        self._trapped = instance.bind("worker_trapped", result=False)

    def work(self, failures: list[TrapError]) -> None:
        try:
            self._worker(*self._args)
        except TrapError as error:
            # Without the traceback, which would keep the instance.
            failures.append(TrapError(str(error), error.functions))
            self._trapped()
        finally:
            self._instance.close()


def _work(worker: _Worker, failures: list[TrapError]) -> None:
    worker.work(failures)


def _abandon(end_generation: Callable[..., Any], threads: list[threading.Thread]) -> None:
    if threads:
        # The instance may be closed.
        with contextlib.suppress(EngineError):
            end_generation()
