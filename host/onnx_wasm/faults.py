"""From what the run loop reports to an exception that names the node."""

from __future__ import annotations

from .context import Record
from .errors import CancelledError, NodeIndexError, NodeValueError, OnnxWasmError

# Status words of wasm/README.md.
OUT_OF_MEMORY, INDEX, DOMAIN, CANCELLED = 1, 2, 3, 4


def where(record: Record | None) -> str:
    """A record's node and kernel."""
    return "the run loop" if record is None else f"{record.node} (kernel {record.kernel})"


def fault_error(record: Record | None, status: int, detail: int, low: int, high: int) -> OnnxWasmError:
    """The exception for a status other than OUT_OF_MEMORY."""
    node = "the run loop" if record is None else str(record.node)
    if status == CANCELLED:
        return CancelledError(f"the run was cancelled before {node}")
    if status == INDEX:
        return NodeIndexError(f"{node}: index {detail} out of range [{low}, {high})")
    if status == DOMAIN:
        expected = f"; it must lie in [{low}, {high})" if low < high else ""
        return NodeValueError(f"{node}: value {detail} is outside the operator's domain{expected}")
    return NodeValueError(f"{node}: status {status}, detail {detail}")
