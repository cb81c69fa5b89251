"""Fusing a node into the record that computes its input.

A record that can take an activation has the arguments ``act`` (i32), ``alpha`` and ``beta`` (f32); one that can add a
tensor of its output's shape before the activation has ``residual`` (ptr). The op that emits such a record says so with
``y.producer = record``.
"""

from __future__ import annotations

from enum import IntEnum

from ..context import Context, Record, Value


class Activation(IntEnum):
    """Codes of kernels_wat/activation.wat.j2."""

    NONE = 0
    RELU = 1
    LEAKY_RELU = 2
    """x < 0 ? alpha * x : x"""
    CLIP = 3
    """min(max(x, alpha), beta)"""
    HARD_SIGMOID = 4
    """min(max(alpha * x + beta, 0), 1)"""
    HARD_SWISH = 5
    """x * min(max(x * alpha + beta, 0), 1)"""
    SIGMOID = 6
    TANH = 7
    SILU = 8
    """x * sigmoid(x)"""


def _there(x: Value, record: Record) -> bool:
    """Whether ``x`` is computed before the record."""
    return max(x.ready, x.root.ready) <= record.position


def fuse_activation(cx: Context, x: Value, act: Activation, alpha: float = 0.0, beta: float = 0.0) -> bool:
    """Let the record that writes ``x`` apply the activation; False if it cannot."""
    record = cx.fusable(x)
    if record is None or record.args.get("act") != Activation.NONE:
        return False
    record.args.update(act=int(act), alpha=alpha, beta=beta)
    return True


def fuse_affine(cx: Context, x: Value, scale: Value | None, shift: Value | None) -> bool:
    """Let the record that writes ``x`` multiply and shift its channels by constants of shape (C,)."""
    record = cx.fusable(x)
    if record is None or record.affine is None or record.args.get("act", Activation.NONE) != Activation.NONE:
        return False
    if record.args.get("residual") is not None:
        return False
    # Channels of another shape of the same elements are others.
    if x.shape[:2] != record.args["y"].shape[:2]:
        return False
    return record.affine(scale, shift)


def fuse_residual(cx: Context, x: Value, other: Value) -> bool:
    """Let the record that writes ``x`` add ``other``, which has its shape and is computed before that record."""
    record = cx.fusable(x)
    if record is None or "residual" not in record.args or record.args["residual"] is not None:
        return False
    if record.args.get("act") != Activation.NONE or other.shape != x.shape or other.dtype != x.dtype:
        return False
    if not _there(other, record):
        return False
    record.args["residual"] = other
    return True


def fuse_bias(cx: Context, x: Value, bias: Value) -> bool:
    """Let the record that writes ``x``, a matrix product, add ``bias`` to every row. The bias has as many elements as
    ``x`` has in its last axis, lies along that axis, and is computed before that record."""
    record = cx.fusable(x)
    if record is None or "c_column" not in record.args or record.args["c"] is not None:
        return False
    if record.args["act"] != Activation.NONE or record.args["residual"] is not None:
        return False
    if not 1 <= bias.rank <= x.rank or bias.dtype != x.dtype or not _there(bias, record):
        return False
    if not x.shape[-1] == bias.shape[-1] == bias.size == record.args["n"]:
        return False
    record.args.update(c=bias, c_scale=1.0, c_row=0, c_column=bias.dtype.itemsize)
    return True
