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
    InvalidModelError,
    InvalidTraceError,
    KernelTrapError,
    LeaseError,
    NodeIndexError,
    NodeValueError,
    OnnxWasmError,
    ShapeError,
    UnsupportedModelError,
)
from .heap import Runtime, default_runtime, memory
from .heap_view import HeapView
from .memory_info import Growth, MemoryInfo
from .options import SessionOptions
from .program import ProfileEvent
from .session import InferenceSession, PlanInfo, ValueMetadata
from .tensor import Tensor

__version__ = VERSION

__all__ = [
    "Block",
    "CancelledError",
    "DetachedViewError",
    "DisposedError",
    "EngineError",
    "FeedError",
    "FeedTypeError",
    "Growth",
    "HeapCorruptionError",
    "HeapMemoryError",
    "HeapView",
    "InferenceSession",
    "InvalidModelError",
    "InvalidTraceError",
    "KernelTrapError",
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
    "Tensor",
    "UnsupportedModelError",
    "ValueMetadata",
    "default_runtime",
    "env",
    "memory",
]
