"""Rotary position embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..context import Context, Value
from ..dtypes import F32, I64
from ..errors import UnsupportedModelError
from ..registry import MICROSOFT, op
from ..words import counted
from ._widen import only_f32, widened
from .attention import Heads, by_head, by_row
from .binary import mul


def rotate(
    cx: Context,
    x: Heads,
    y: Heads,
    batch: int,
    cos: Value,
    sin: Value,
    *,
    size: int,
    interleaved: bool,
    positions: Value | None = None,
    lengths: Value | None = None,
    more: int = 0,
    by_unit: bool = False,
) -> None:
    """Rotate the first ``size`` elements of every row. A row's position in ``cos`` and ``sin``, which have ``size`` / 2
    columns, is that of ``positions`` (i64, one for all rows, or the first of them), ``lengths`` (i32) + ``more`` for a
    batch's first row, or its number: in its batch, or of all with ``by_unit``."""
    half = size // 2
    if size % 2 or not 0 <= half <= x.size // 2:
        cx.fail(f"the rotary dimension {size} must be even and at most {x.size}")
    if cos.shape != sin.shape or cos.rank < 2 or cos.shape[-1] != half:
        cx.fail(f"the caches {cos} and {sin} must have {counted(half, 'column')}")
    for value in (x.value, cos, sin):
        if value.dtype is not F32:
            cx.fail(f"{value} has type {value.dtype}, not supported", UnsupportedModelError)
    if x.value.size == 0:
        return
    steps = {
        f"{name}_{step}": 4 * getattr(heads, step)
        for name, heads in (("x", x), ("y", y))
        for step in ("batch", "head", "row")
    }
    cx.emit(
        "rotary_f32",
        units=batch * x.rows,
        x=x.start(cx),
        y=y.start(cx),
        cos=cos,
        sin=sin,
        positions=positions,
        lengths=lengths,
        more=more,
        each=int(positions is not None and positions.size == batch * x.rows),
        unit_row=int(by_unit),
        limit=cos.size // max(half, 1),
        rows=x.rows,
        heads=x.heads,
        d=x.size,
        half=half,
        interleaved=int(interleaved),
        **steps,
    )


def _heads(cx: Context, x: Value, num_heads: int, size: int) -> Heads:
    if x.rank == 4:
        return by_head(x)
    if x.rank != 3:
        cx.fail(f"{x} must have rank 3 or 4")
    heads = num_heads or (x.shape[2] // size if size else 0)
    if heads < 1 or x.shape[2] % heads:
        cx.fail(f"the {x.shape[2]} columns of {x} do not divide into {heads} heads")
    return by_row(x, heads)


@op("RotaryEmbedding", since=23)
@widened
def rotary_embedding(
    cx: Context,
    x: Value,
    cos_cache: Value,
    sin_cache: Value,
    position_ids: Value | None = None,
    *,
    interleaved: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> Any:
    """The caches have a row for each position, or without position_ids, for each row of x."""
    heads = _heads(cx, x, num_heads, 0)
    rows = (x.shape[0], heads.rows)
    if (position_ids is not None and position_ids.shape != rows) or (
        position_ids is None and cos_cache.shape[:-1] != rows
    ):
        cx.fail(f"{position_ids or cos_cache} does not fit {x}: {list(rows)} expected")
    y = cx.out(x.shape, x.dtype)
    rotate(
        cx, heads, _heads(cx, y, num_heads, 0), x.shape[0], cos_cache, sin_cache,
        size=rotary_embedding_dim or heads.size,
        interleaved=bool(interleaved),
        positions=position_ids,
        by_unit=True,
    )  # fmt: skip
    return y


@op("RotaryEmbedding", domain=MICROSOFT)
@widened
def ms_rotary_embedding(
    cx: Context,
    x: Value,
    position_ids: Value,
    cos_cache: Value,
    sin_cache: Value,
    *,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Any:
    """position_ids are those of all rows, or that of the first of each batch."""
    if scale != 1 or is_packed_batching:
        cx.fail("scale and is_packed_batching are not supported", UnsupportedModelError)
    heads = _heads(cx, x, num_heads, 2 * cos_cache.shape[-1])
    if position_ids.size != 1 and position_ids.shape != (x.shape[0], heads.rows):
        cx.fail(f"{position_ids} does not fit {x}: one position, or {[x.shape[0], heads.rows]} expected")
    y = cx.out(x.shape, x.dtype)
    rotate(
        cx, heads, _heads(cx, y, heads.heads, 0), x.shape[0], cos_cache, sin_cache,
        size=rotary_embedding_dim or heads.size,
        interleaved=bool(interleaved),
        positions=position_ids,
    )  # fmt: skip
    return y


@op("MRotaryEmbedding", domain=MICROSOFT)
@widened
def multimodal_rotary_embedding(
    cx: Context,
    x: Value,
    position_ids: Value,
    cos_cache: Value,
    sin_cache: Value,
    *,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    mrope_layout: int = 0,
    mrope_section: Sequence[int],
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Any:
    """A row of x has three positions, of time, height and width: position_ids [3, batch, rows]. Each is that of a
    section of the columns of the caches, as onnxruntime's schema describes it."""
    only_f32(cx, x, cos_cache, sin_cache)
    if x.rank == 3 and num_heads < 1:
        cx.fail("num_heads is required for an input of rank 3")
    heads = _heads(cx, x, num_heads, 0)
    size = rotary_embedding_dim or heads.size
    half, (batch, rows) = size // 2, (x.shape[0], heads.rows)
    if position_ids.shape != (3, batch, rows) or position_ids.dtype is not I64:
        cx.fail(f"position_ids {position_ids} must be int64{[3, batch, rows]}")
    if len(mrope_section) != 3 or min(mrope_section) < 0 or sum(mrope_section) != half:
        cx.fail(f"mrope_section {list(mrope_section)} must be three numbers that add up to {half}")
    if mrope_layout not in (0, 1):
        cx.fail(f"mrope_layout is {mrope_layout}, must be 0 or 1")
    if cos_cache.rank != 2 or cos_cache.shape != sin_cache.shape or cos_cache.shape[1] != half:
        cx.fail(f"the caches {cos_cache} and {sin_cache} must have {counted(half, 'column')}")
    cos, sin = (cx.out((batch * rows, half), F32) for _ in range(2))
    if cos.size:
        cx.emit(
            "mrotary_rows_f32", units=batch * rows, positions=position_ids, cos=cos_cache, sin=sin_cache,
            cos_y=cos, sin_y=sin, tokens=batch * rows, half=half, limit=cos_cache.shape[0],
            streams=_streams(mrope_section, mrope_layout == 1),
        )  # fmt: skip
    if scale != 1:
        cos, sin = (mul(cx, v, cx.known(np.array(scale, np.float32))) for v in (cos, sin))
    y = cx.out(x.shape, x.dtype)
    rotate(
        cx, heads, _heads(cx, y, heads.heads, 0), batch, cos, sin,
        size=size, interleaved=bool(interleaved), by_unit=True,
    )  # fmt: skip
    return y


def _streams(sections: Sequence[int], interleaved: bool) -> tuple[int, ...]:
    """Which of the three positions each column is that of: sections one after the other, or height and width in every
    third column from the second and third on."""
    if not interleaved:
        return tuple(i for i, n in enumerate(sections) for _ in range(n))
    columns = [0] * sum(sections)
    for i in (1, 2):
        for c in range(i, min(3 * sections[i], len(columns)), 3):
            columns[c] = i
    return tuple(columns)
