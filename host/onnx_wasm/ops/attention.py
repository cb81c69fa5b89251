"""Attention: one record that computes softmax(scale Q K' + mask) V for all heads."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ..context import Context, Record, Value
from ..dtypes import BF16, BOOL, F16, F32, I32, DType
from ..registry import op
from ._copy import copy, wanted
from ._elementwise import cast

# Rows of queries a unit has, and the bytes that its scores may take before it gets fewer.
ROWS, SCORES = 64, 1 << 18
# With fewer query rows, packing K and V costs more than it saves.
DIRECT = 4
# What rows become that have no key to see, or whose weights are not numbers: 0, NaN; NaN, NaN; 0, 0.
EMPTY_IS_ZERO, EMPTY_IS_NAN, NAN_IS_ZERO = range(3)
_NARROW = (F16, BF16)


class Heads(NamedTuple):
    """A tensor seen as (batch, head, row, element): the elements of a row are contiguous, the steps count elements."""

    value: Value
    batch: int
    head: int
    row: int
    heads: int
    rows: int
    size: int
    at: int = 0
    """Where the first element lies."""

    def start(self, cx: Context) -> Value:
        """The value from the first element on."""
        if self.at == 0:
            return self.value
        return cx.alias(self.value, (self.value.size - self.at,), offset=self.at * self.value.dtype.itemsize)


def by_head(x: Value) -> Heads:
    """(batch, heads, rows, size) as it is."""
    _, n, s, h = x.shape
    return Heads(x, n * s * h, s * h, h, n, s, h)


def by_row(x: Value, heads: int) -> Heads:
    """(batch, rows, heads * size), or the same with the last axis split."""
    s = x.shape[1]
    width = math.prod(x.shape[2:])
    return Heads(x, s * width, width // heads, width, heads, s, width // heads)


def gathered(cx: Context, x: Heads, batch: int, *, past: Value | None = None, length: int | None = None) -> Value:
    """(batch, heads, rows, size) dense: the rows of ``past``, then those of ``x``; with ``length``, room for more."""
    before = 0 if past is None else past.shape[2]
    total = before + x.rows if length is None else length
    y = cx.out((batch, x.heads, total, x.size), x.value.dtype)
    if past is not None:
        n = before * x.size
        copy(cx, past, y, [(batch * x.heads, n, total * x.size), (n, 1, 1)])
    place(cx, x, y, batch, before)
    return y


def place(cx: Context, x: Heads, y: Value, batch: int, row: int) -> None:
    """Copy ``x`` to the rows from ``row`` on of ``y``, which is (batch, heads, rows, size)."""
    total = y.shape[-2]
    dims = [
        (batch, x.batch, x.heads * total * x.size),
        (x.heads, x.head, total * x.size),
        (x.rows, x.row, x.size),
        (x.size, 1, 1),
    ]
    copy(cx, x.value, y, dims, source=x.at, target=row * x.size)


def attend(
    cx: Context,
    q: Heads,
    k: Heads,
    v: Heads,
    y: Heads,
    *,
    batch: int,
    scale: float,
    softcap: float = 0.0,
    mask: Value | None = None,
    lengths: Value | None = None,
    more: int = 0,
    offset: int = 0,
    aligned: bool = False,
    left: int = -1,
    right: int = -1,
    sinks: Value | None = None,
    low: float = -math.inf,
    undefined: int = EMPTY_IS_ZERO,
) -> Record | None:
    """Emit the record, unless it has nothing to do.

    ``mask`` is f32 to add or bool, False for scores that become ``low``, and broadcasts to (batch, heads, rows, keys);
    keys beyond its last axis are masked.
    ``lengths`` (i32) plus ``more`` are the keys a batch has. A query at position p, ``offset`` for the first or with
    ``aligned`` the last key for the last, sees those from p - left to p + right.
    """
    if batch * q.heads * q.rows * v.size == 0:
        return None
    if mask is not None and mask.shape and mask.shape[-1] > k.rows:
        cx.fail(f"mask {mask} has more than {k.rows} keys")
    shape = (1,) * (4 - (0 if mask is None else mask.rank)) + (() if mask is None else mask.shape)
    for full, extent in zip((batch, q.heads, q.rows), shape, strict=False):
        if extent not in (1, full):
            cx.fail(f"mask {mask} does not broadcast to {[batch, q.heads, q.rows, k.rows]}")
    item = 1 if mask is not None and mask.dtype is BOOL else 4
    steps = [0 if n == 1 else math.prod(shape[i + 1 :]) * item for i, n in enumerate(shape[:3])]
    kind = 0 if mask is None else 1 if item == 4 else 2
    width = (k.rows + 7) & ~7
    direct = q.rows < DIRECT
    block = max(4, min(ROWS, (q.rows + 3) & ~3, SCORES // 4 // max(width, 1) & ~3))
    floats = 32 + block + width
    if not direct:
        floats = 32 + block + block * q.size + width * q.size + 2 * block * width + -(-v.size // 8) * (8 * width + 16)
    strides = {
        f"{name}_{step}": 4 * getattr(heads, step)
        for name, heads in (("q", q), ("k", k), ("v", v), ("y", y))
        for step in ("batch", "head", "row")
    }
    return cx.emit(
        "attention_f32",
        units=batch * q.heads * -(-q.rows // block),
        q=q.start(cx),
        k=k.start(cx),
        v=v.start(cx),
        y=y.start(cx),
        mask=mask,
        lengths=lengths,
        sinks=sinks,
        scratch=cx.scratch(4 * floats + 64),
        heads=q.heads,
        group=q.heads // k.heads,
        rows=q.rows,
        kv=k.rows,
        d=q.size,
        dv=v.size,
        block=block,
        direct=int(direct),
        **strides,
        scale=scale,
        softcap=softcap,
        mask_kind=kind,
        mask_batch=steps[0],
        mask_head=steps[1],
        mask_row=steps[2],
        mask_columns=shape[-1] if mask is not None else 0,
        more=more,
        offset=offset,
        aligned=int(aligned),
        left=left,
        right=right,
        low=low,
        undefined=undefined,
        width=width,
    )


def wide(cx: Context, x: Value | None) -> Value | None:
    """A 16-bit float as f32."""
    return cast(cx, x, F32) if x is not None and x.dtype in _NARROW else x


def narrow(cx: Context, x: Value | None, dtype: DType) -> Value | None:
    """f32 as ``dtype``."""
    return cast(cx, x, dtype) if x is not None and x.dtype is F32 else x


@op("Attention", since=23)
def attention(
    cx: Context,
    q: Value,
    k: Value,
    v: Value,
    attn_mask: Value | None = None,
    past_key: Value | None = None,
    past_value: Value | None = None,
    nonpad_kv_seqlen: Value | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
) -> Any:
    """The present keys and values are the past ones and the new ones."""
    dtype = q.dtype
    keys, values = ([x for x in pair if x is not None] for pair in ((q, k, past_key), (v, past_value)))
    same = all(x.dtype is dtype for x in keys) and all(x.dtype is v.dtype for x in values)
    plain_mask = attn_mask is None or attn_mask.dtype in (BOOL, dtype)
    if wanted(cx, 3) or not same or not {dtype, v.dtype} <= {F32, *_NARROW} or not plain_mask:
        # The body in ONNX's definition does what the kernel does not.
        return NotImplemented
    if {q.rank, k.rank, v.rank} not in ({3}, {4}):
        cx.fail(f"Q, K and V must all have rank 3, or all rank 4: {q}, {k}, {v}")
    if (past_key is None) != (past_value is None):
        cx.fail("past_key and past_value must be given together")
    if past_key is not None and nonpad_kv_seqlen is not None:
        cx.fail("nonpad_kv_seqlen cannot be combined with past_key")
    if q.rank == 3 and not (q_num_heads and kv_num_heads):
        cx.fail("inputs of rank 3 need q_num_heads and kv_num_heads")
    batch, value_type = q.shape[0], v.dtype
    q, k, v = (cast(cx, x, F32) for x in (q, k, v))
    if q.rank == 4:
        hq, hk, hv = by_head(q), by_head(k), by_head(v)
        y = cx.out((*q.shape[:3], v.shape[3]), F32)
        hy = by_head(y)
    else:
        assert q_num_heads is not None
        assert kv_num_heads is not None
        for x, heads in ((q, q_num_heads), (k, kv_num_heads), (v, kv_num_heads)):
            if x.shape[2] % heads:
                cx.fail(f"the {x.shape[2]} columns of {x} do not divide into {heads} heads")
        hq, hk, hv = by_row(q, q_num_heads), by_row(k, kv_num_heads), by_row(v, kv_num_heads)
        y = cx.out((*q.shape[:2], q_num_heads * hv.size), F32)
        hy = by_row(y, q_num_heads)
    check(cx, batch, hq, hk, hv)
    past = 0
    present_key = present_value = None
    if past_key is not None and past_value is not None:
        for x, h in ((past_key, hk), (past_value, hv)):
            if x.rank != 4 or x.shape[:2] != (batch, h.heads) or x.shape[3] != h.size:
                cx.fail(f"past {x} does not fit {h.value}")
        past = past_key.shape[2]
        present_key = gathered(cx, hk, batch, past=wide(cx, past_key))
        present_value = gathered(cx, hv, batch, past=wide(cx, past_value))
        hk, hv = by_head(present_key), by_head(present_value)
    else:
        present_key, present_value = (
            None if not wanted(cx, i) else cx.alias(x, x.shape) if x.rank == 4 else gathered(cx, h, batch)
            for i, x, h in ((1, k, hk), (2, v, hv))
        )
    right = right_window_size
    if is_causal:
        right = min(right, 0) if right >= 0 else 0
    attend(
        cx, hq, hk, hv, hy,
        batch=batch,
        scale=1 / math.sqrt(hq.size) if scale is None else scale,
        softcap=softcap,
        mask=wide(cx, attn_mask),
        lengths=None if nonpad_kv_seqlen is None else cast(cx, nonpad_kv_seqlen, I32),
        offset=past,
        aligned=nonpad_kv_seqlen is not None,
        left=left_window_size,
        right=right,
    )  # fmt: skip
    return narrow(cx, y, dtype), narrow(cx, present_key, dtype), narrow(cx, present_value, value_type)


def check(cx: Context, batch: int, q: Heads, k: Heads, v: Heads) -> None:
    """Fail unless the three fit together."""
    named = f"{q.value}, {k.value} and {v.value}"
    if k.value.shape[0] != batch or v.value.shape[0] != batch:
        cx.fail(f"{named} have different batches")
    if k.heads == 0 or q.heads % k.heads or v.heads != k.heads:
        cx.fail(f"{q.heads}, {k.heads} and {v.heads} heads of {named} do not fit")
    if k.rows != v.rows or q.size != k.size:
        cx.fail(f"{named} do not fit: keys of {q.size} and {k.size}, {k.rows} keys and {v.rows} values")
