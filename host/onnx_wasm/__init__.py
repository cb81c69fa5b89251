"""ONNX models in a WebAssembly heap, from Python, with ORT Web's names.

import onnx_wasm as ort

session = ort.InferenceSession.create("model.onnx")
out = session.run({"input": array})
out["prob"].data; out["prob"].dispose(); session.dispose()
ort.memory()
"""

from __future__ import annotations

from .blocks import Block
from .env import VERSION, env
from .errors import (
    CancelledError,
    DetachedViewError,
    DisposedError,
    EngineError,
    FeedError,
    FeedTypeError,
    HeapCorruptionError,
    HeapMemoryError,
    HeapPointerError,
    InvalidModelError,
    InvalidTraceError,
    KernelTrapError,
    LeaseError,
    NodeIndexError,
    NodeValueError,
    OnnxWasmError,
    ShapeError,
    UnsupportedModelError,
    UseAfterDisposeError,
)
from .heap import Runtime, default_runtime, memory, use_runtime
from .heap_events import HeapEvent
from .heap_policy import PRESETS, HeapPolicy
from .heap_view import HeapView
from .memory_info import Growth, MemoryInfo
from .options import SessionOptions
from .segment import ProfileEvent
from .session import InferenceSession, PlanInfo, ValueMetadata
from .tensor import Tensor
from .verdicts import HeapDiff, LeakReport, Snapshot

__version__ = VERSION

__all__ = [
    "PRESETS",
    "Block",
    "CancelledError",
    "DetachedViewError",
    "DisposedError",
    "EngineError",
    "FeedError",
    "FeedTypeError",
    "Growth",
    "HeapCorruptionError",
    "HeapDiff",
    "HeapEvent",
    "HeapMemoryError",
    "HeapPointerError",
    "HeapPolicy",
    "HeapView",
    "InferenceSession",
    "InvalidModelError",
    "InvalidTraceError",
    "KernelTrapError",
    "LeakReport",
    "LeaseError",
    "MemoryInfo",
    "NodeIndexError",
    "NodeValueError",
    "OnnxWasmError",
    "PlanInfo",
    "ProfileEvent",
    "Runtime",
    "SessionOptions",
    "ShapeError",
    "Snapshot",
    "Tensor",
    "UnsupportedModelError",
    "UseAfterDisposeError",
    "ValueMetadata",
    "default_runtime",
    "env",
    "memory",
    "use_runtime",
]
