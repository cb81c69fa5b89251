"""What takes long to make, on disk, so that only the first process of an installation makes it: compiled code, and what
the onnx package says of operators.

A file is named by all that its contents depend on, and begins with a hash of the rest: one that was cut short or
changed is not used. It comes into place by a rename, so processes that write at once do not meet half of it. The
folder is the user's own; whoever can write there can run code as that user anyway.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import sys
import tempfile
from pathlib import Path

_MAGIC = b"onnx-wasm kept 1\n"
_DIGEST = 32
# Files of other versions and engines are left by updates; more than these are of no use.
_KEPT = 6


def folder() -> Path | None:
    """Where it is kept: ``ONNX_WASM_CACHE`` (empty: nowhere), or the user's folder for caches."""
    given = os.environ.get("ONNX_WASM_CACHE")
    if given is not None:
        return Path(given) if given else None
    try:
        if sys.platform == "win32":
            return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "onnx-wasm"
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Caches" / "onnx-wasm"
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "onnx-wasm"
    except RuntimeError:
        # No home.
        return None


def key(wasm: bytes, *about: str) -> str:
    """The name for code that was compiled from these bytes, by what ``about`` tells, for this CPU."""
    found = hashlib.sha256(wasm)
    for text in (*about, platform.machine(), _cpu()):
        found.update(b"\0" + text.encode())
    return found.hexdigest()[:40]


@functools.cache
def _cpu() -> str:
    """What tells apart CPUs for which different code is made."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    return next((line for line in text.splitlines() if line.startswith(("flags", "Features"))), "")


def load(name: str) -> bytes | None:
    """What was kept under that name, if it is there and whole."""
    place = folder()
    if place is None:
        return None
    try:
        data = (place / f"{name}.bin").read_bytes()
    except OSError:
        return None
    content = memoryview(data)[len(_MAGIC) + _DIGEST :]
    if data[: len(_MAGIC)] != _MAGIC or hashlib.sha256(content).digest() != data[len(_MAGIC) : len(_MAGIC) + _DIGEST]:
        return None
    return bytes(content)


def store(name: str, content: bytes) -> None:
    """Keep bytes under a name; without a folder that can be written nothing happens."""
    place = folder()
    if place is None:
        return
    temporary = ""
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=place, suffix=".tmp")
        with os.fdopen(handle, "wb") as file:
            file.write(_MAGIC + hashlib.sha256(content).digest() + content)
        os.replace(temporary, place / f"{name}.bin")
        temporary = ""
        _tidy(place)
    except OSError:
        pass
    finally:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def _tidy(place: Path) -> None:
    every = sorted(place.glob("*.bin"), key=lambda p: p.stat().st_mtime, reverse=True)
    # Of each kind, by what is before a hyphen.
    for kind in {f.stem.rpartition("-")[0] for f in every}:
        for file in [f for f in every if f.stem.rpartition("-")[0] == kind][_KEPT:]:
            with contextlib.suppress(OSError):
                file.unlink()
