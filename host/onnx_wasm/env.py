"""``ort.env``: what ORT Web calls its environment."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from .engine import Variant, wasmtime_version

VERSION = "0.1.0"
# The heap of onnxruntime-web 1.30's CPU module begins behind its static data and stack.
ORT_WEB_HEAP_BASE = 6_303_872
# 4 GiB - 64 KiB, emscripten's own limit.
MAXIMUM = 0xFFFF0000


@dataclass
class WasmFlags:
    """Settings of the default runtime, taken when it is made; sizes in bytes. `Runtime` says what each means.

    While that runtime is in use setting one raises RuntimeError.
    """

    policy: str = "onnxruntime-web"
    initial: int | str | None = None
    maximum: int | str | None = None
    memory_maximum: int | str | None = None
    heap_base: int | None = None
    geometric_step: float | None = None
    geometric_cap: int | None = None
    linear_step: int | None = None
    variant: Variant = "relaxed"
    num_threads: int = 1
    mem_pattern: bool = True
    trace_allocations: bool = False
    debug: bool = False
    quarantine: int = 16 << 20
    log_events: bool | int = False
    record: bool = False

    def __setattr__(self, name: str, value: Any) -> None:
        # A misspelt flag would be without effect.
        if name not in {f.name for f in fields(self)}:
            raise AttributeError(f"env.wasm has no flag {name!r}; it has {[f.name for f in fields(self)]}")
        # Before anything is made there may be no ``env`` yet.
        if name in vars(self) and value != getattr(self, name) and self is env.wasm:
            env._refuse_late(f"{name} = {value!r}")
        super().__setattr__(name, value)


@dataclass
class Env:
    """The environment of this process."""

    wasm: WasmFlags = field(default_factory=WasmFlags)
    _made: Any = field(default=None, init=False, repr=False, compare=False)
    """The default runtime that was made with these settings; `heap` sets it."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "wasm" and value != vars(self).get(name, value):
            self._refuse_late("... of a new object")
        super().__setattr__(name, value)

    def _refuse_late(self, what: str) -> None:
        """Raise RuntimeError while the default runtime is in use, which would not see a new setting."""
        if self._made is not None and not self._made.closed:
            raise RuntimeError(
                f"env.wasm.{what} comes too late: the default runtime has been made, and would not see it. Set it "
                "before the first use, close the default runtime first (default_runtime().close()), or make a runtime "
                "of your own: Runtime(...)"
            )

    @property
    def versions(self) -> dict[str, str]:
        """Of this package and of what it stands on."""
        import onnx

        return {"onnx_wasm": VERSION, "wasmtime": wasmtime_version(), "onnx": onnx.__version__}


env = Env()
