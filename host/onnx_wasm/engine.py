"""The WebAssembly engine: one per process, made when first needed.

All private calls into wasmtime-py live here. They are two: creating and importing a shared
memory (``SharedMemory.size`` and ``_as_extern`` of wasmtime-py 50 raise), and a call path without the
per-argument cost of ``Func.__call__``.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import json
import struct
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import wasmtime
from wasmtime import _ffi as ffi

from . import disk_cache
from .errors import EngineError

PAGE = 65536
_MASK = 0xFFFFFFFF
# The oldest and the newest major version that the tests have run on.
WASMTIME_VERSIONS = (49, 50)
Variant = Literal["relaxed", "strict"]
# The run loop's words (wasm/README.md): status and failing record, offending value and its range, cancel flag, and
# the number of the run, for random numbers.
STATUS, CURRENT, DETAIL, CANCEL, RUN = 64, 68, 72, 96, 100
_BUILT = Path(__file__).parent / "_wasm"


class TrapError(Exception):
    """A wasm trap, with the names of the functions on its stack, innermost first."""

    def __init__(self, message: str, functions: list[str]) -> None:
        super().__init__(message)
        self.functions = functions


class KernelSignature(NamedTuple):
    """A kernel's place in the table and the types of its record's arguments, in order."""

    id: int
    name: str
    args: dict[str, str]


class Manifest(NamedTuple):
    """The kernels of the built module, by name."""

    build_hash: int
    kernels: dict[str, KernelSignature]


@functools.cache
def manifest() -> Manifest:
    """The manifest written beside the built modules."""
    try:
        data = json.loads((_BUILT / "manifest.json").read_text())
    except FileNotFoundError:
        raise EngineError(f"no built module in {_BUILT}: run ./build.sh, or install the package") from None
    kernels = {k["name"]: KernelSignature(i, k["name"], k["args"]) for i, k in enumerate(data["kernels"])}
    return Manifest(data["build_hash"], kernels)


@functools.cache
def wasmtime_version() -> str:
    """The installed version of wasmtime, e.g. "50.0.1"."""
    return importlib.metadata.version("wasmtime")


def module_sizes() -> dict[str, int]:
    """Bytes of the built module, by variant."""
    return {p.stem: p.stat().st_size for p in sorted(_BUILT.glob("*.wasm"))}


_engine_lock = threading.Lock()


@functools.cache
def _engine() -> wasmtime.Engine:
    oldest, newest = WASMTIME_VERSIONS
    version = wasmtime_version()
    if not oldest <= int(version.split(".")[0]) <= newest:
        raise EngineError(
            f"wasmtime {version} has not been tested with this version of onnx-wasm, which runs on wasmtime "
            f'{oldest} to {newest}: pip install "wasmtime>={oldest},<{newest + 1}"'
        )
    config = wasmtime.Config()
    config.shared_memory = True
    config.wasm_threads = True
    config.wasm_relaxed_simd = True
    return wasmtime.Engine(config)


@functools.cache
def _module(variant: Variant) -> wasmtime.Module:
    path = _BUILT / f"{variant}.wasm"
    if not path.exists():
        raise EngineError(f"no built module {path}: run ./build.sh, or install the package")
    wasm = path.read_bytes()
    name = disk_cache.key(wasm, "wasmtime", wasmtime_version(), "shared memory, threads, relaxed SIMD")
    code = disk_cache.load(name)
    if code is not None:
        try:
            return wasmtime.Module.deserialize(_engine(), code)
        except wasmtime.WasmtimeError:
            # Compiled for features that this CPU lacks: wasmtime looks itself.
            pass
    module = wasmtime.Module(_engine(), wasm)
    disk_cache.store(name, bytes(module.serialize()))
    return module


class _SharedMemory(wasmtime.SharedMemory):
    """wasmtime-py 50.0.1 passes a pointer to a pointer in these two places."""

    def size(self) -> int:
        return int(ffi.wasmtime_sharedmemory_size(self.ptr()))

    def _as_extern(self) -> Any:
        union = ffi.wasmtime_extern_union(sharedmemory=self.ptr())
        return ffi.wasmtime_extern_t(ffi.WASMTIME_EXTERN_SHAREDMEMORY, union)


# CFUNCTYPE drops the GIL for the call.
_CALL = ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p
)
# A wasmtime_val_raw_t is 16 bytes; i32, i64 and f64 lie at its start.
_RAW = {"i": "I12x", "I": "q8x", "d": "d8x"}


class Instance:
    """One instance of the module with a shared memory of its own.

    ``initial`` and ``maximum`` are in pages of 64 KiB; the maximum is the engine's limit: past it
    ``memory.grow`` answers -1. Not thread-safe: the owner holds a lock around every call.
    """

    def __init__(self, initial: int, maximum: int, variant: Variant = "relaxed") -> None:
        with _engine_lock:
            engine = _engine()
        kind = wasmtime.MemoryType(wasmtime.Limits(initial, maximum), shared=True)
        try:
            self._memory = _SharedMemory(engine, kind)
        except wasmtime.WasmtimeError as error:
            raise EngineError(f"a shared memory of {initial} to {maximum} pages cannot be made: {error}") from None
        self.address = ctypes.addressof(self._memory.data_ptr().contents)
        """Where byte 0 of the memory lies in this process. Growth never moves it."""
        self._open(variant, owner=True)

    def beside(self) -> Instance:
        """Another instance on the same memory, for another thread."""
        other = Instance.__new__(Instance)
        other._memory, other.address = self._memory, self.address
        other._open(self._variant, owner=False)
        return other

    def _open(self, variant: Variant, *, owner: bool) -> None:
        with _engine_lock:
            engine, module = _engine(), _module(variant)
        self._variant: Variant = variant
        self._store = wasmtime.Store(engine)
        self._exports = wasmtime.Instance(self._store, module, [self._memory]).exports(self._store)
        built = self._exports["build_hash"]
        assert isinstance(built, wasmtime.Global)
        if built.value(self._store) != manifest().build_hash:
            raise EngineError(f"{variant}.wasm and manifest.json in {_BUILT} are of different builds: run ./build.sh")
        self.calls = 0
        """Calls into the module so far."""
        # The finaliser alone keeps the store alive: in a cycle of garbage the store's own could run before the last
        # call of somebody else's.
        self._life = _Life()
        self._finalizer = weakref.finalize(self, _end, self._life, self._store, self._memory if owner else None)
        # At the interpreter's exit a daemon thread may be in a call; the process gives all back anyway.
        self._finalizer.atexit = False

    @property
    def closed(self) -> bool:
        """Whether the memory is gone."""
        return self._life.over

    def memory_size(self) -> int:
        """Bytes of linear memory now."""
        return self._memory.size() * PAGE

    def bind(self, name: str, params: str = "", *, result: bool = True) -> Callable[..., int]:
        """A fast callable for an export: ``params`` has a letter an argument, i = i32, I = i64, d = f64.

        i32 arguments are taken modulo 2**32; the result is an unsigned i32, or 0 without one.
        A trap raises TrapError.
        """
        func = self._exports[name]
        assert isinstance(func, wasmtime.Func)
        entry = ctypes.cast(ffi.dll.wasmtime_func_call_unchecked, ctypes.c_void_p).value
        assert entry is not None
        call = _CALL(entry)
        length = max(len(params), 1)
        raw = (ffi.wasmtime_val_raw * length)()
        trap = ctypes.c_void_p(0)
        function = func._func
        context = ctypes.cast(self._store._context(), ctypes.c_void_p).value
        # Converted now, not in every call.
        pointers = [ctypes.c_void_p(p) for p in (context, ctypes.addressof(function), ctypes.addressof(raw))]
        args = (*pointers, ctypes.c_size_t(length), ctypes.c_void_p(ctypes.addressof(trap)))
        pack = struct.Struct("<" + "".join(_RAW[p] for p in params)).pack_into
        unsigned = ctypes.c_uint32.from_buffer(raw)
        life = self._life
        keep = (self._store, func, function, raw, trap)

        def go(_keep: Any = keep) -> int:
            if life.over:
                raise EngineError(f"{name}: the instance is closed")
            self.calls += 1
            error = call(*args)
            if error:
                raise wasmtime.WasmtimeError._from_ptr(ctypes.cast(error, ctypes.POINTER(ffi.wasmtime_error_t)))
            if trap.value:
                pointer = ctypes.cast(trap.value, ctypes.POINTER(ffi.wasm_trap_t))
                trap.value = None
                raise _trap_error(wasmtime.Trap._from_ptr(pointer))
            return unsigned.value if result else 0

        def invoke(*values: Any, _keep: Any = keep) -> int:
            pack(raw, 0, *[v if k != "i" else v & _MASK for v, k in zip(values, params, strict=True)])
            return go()

        def invoke_1(a: int, _keep: Any = keep) -> int:
            pack(raw, 0, a & _MASK)
            return go()

        def invoke_2(a: int, b: int, _keep: Any = keep) -> int:
            pack(raw, 0, a & _MASK, b & _MASK)
            return go()

        bound: dict[str, Callable[..., int]] = {"": go, "i": invoke_1, "ii": invoke_2}
        return bound.get(params, invoke)

    def close(self) -> None:
        """Drop the store and the memory: the process gets its pages back."""
        self._exports = None  # type: ignore[assignment]
        self._finalizer()


class _Life:
    """Whether an instance's store is closed; outlives the instance."""

    __slots__ = ("over",)

    def __init__(self) -> None:
        self.over = False


def _end(life: _Life, store: wasmtime.Store, memory: _SharedMemory | None) -> None:
    life.over = True
    store.close()
    if memory is not None:
        memory.close()


def _trap_error(trap: wasmtime.Trap) -> TrapError:
    functions = [frame.func_name or f"function {frame.func_index}" for frame in trap.frames]
    message = trap.message.strip().splitlines()[-1]
    return TrapError(message.partition("wasm trap: ")[2] or message, functions)
