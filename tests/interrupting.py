"""Interrupts at a chosen line, and programs of their own that must end well."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import onnx_wasm as ort

PACKAGE = str(Path(ort.__file__).parent)
OWN = ("inside", "try_drain")


def callers(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def interrupted_at(nth: int, action: Callable[[], Any], *, file: str = "", functions: Sequence[str] = ()) -> bool:
    """Whether a KeyboardInterrupt at the nth line that the package runs came before the action's end; with ``file`` or
    ``functions``, that those of these names run."""
    count = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        # In the gate's own two functions the interpreter looks for signals only where the lock is let go of. What a
        # finaliser raises is lost.
        names = {f.f_code.co_name for f in callers(frame)}
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE) or code.co_name in OWN or "__del__" in names:
            return None
        if event == "line" and code.co_filename.endswith(file) and (not functions or code.co_name in functions):
            count += 1
            if count == nth:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


START = """
import threading, time, os, signal
import numpy as np
import graphs, onnx_wasm as ort
x = np.ones((64, 256), np.float32)
session = ort.InferenceSession.create(graphs.mlp(64, sizes=(256, 1024, 256)))

def loop():
    while True:
        session.run({"x": x})["y"].dispose()
"""


def python(code: str) -> None:
    """Run a program after ``START``; it must end well and say nothing."""
    path = os.pathsep.join([str(Path(ort.__file__).parents[1]), str(Path(__file__).parent)])
    done = subprocess.run(
        [sys.executable, "-c", START + code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
