"""Interrupts at a chosen line."""

from __future__ import annotations

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
