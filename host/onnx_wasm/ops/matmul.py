"""MatMul and Gemm.

f32 goes through the panels of kernels_wat/pack.wat.j2. A constant second operand is packed once; any other is packed in
blocks as the product needs them. One packed layout serves every number of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from ..context import Context, Record, Value
from ..dtypes import F32, F64, I32, I64, U32, U64
from ..errors import UnsupportedModelError
from ..layout import dense
from ..registry import op
from ..words import counted
from ._attended import attended
from ._operands import Operand, operand
from ._panels import pack_columns, pack_stored, stored_columns
from ._widen import widened

# Sizes of the blocks that fit the first and second cache level.
BLOCK_K = 256
BLOCK_M = 128
BLOCK_N = 256
BLOCK_N_PACKED = 1024
TILE_BYTES = 128
# How gemm_f32 finds its second operand.
LAYOUT_PANELS, LAYOUT_ROWS, LAYOUT_TRANSPOSED, LAYOUT_COLUMN, LAYOUT_STORED = range(5)

_PLAIN = (F64, I32, U32, I64, U64)
Batch = tuple[int, int, int]
"""A batch dimension: size, and the steps of a and b, in matrices unless they are said to be of another unit."""


def split_k(k: int, block: int = BLOCK_K) -> int:
    """The size of blocks of k, all about equal and a multiple of 4."""
    blocks = max(1, -(-k // block))
    return max(4, -(-k // blocks // 4) * 4) if k else 4


def _block_k(m: int) -> int:
    """For a second operand in panels: with few rows, what counts is that panels are read in one go."""
    return 2048 if m <= 8 else 1024 if m <= 64 else 512


@op("MatMul", since=1)
@widened
def matmul(cx: Context, a: Value, b: Value) -> Value:
    """numpy.matmul."""
    y = attended(cx, a, b)
    return multiply(cx, a, b) if y is None else y


def multiply(
    cx: Context, a: Value, b: Value, *, trans_a: bool = False, trans_b: bool = False, alpha: float = 1.0
) -> Value:
    """alpha times the matrix product, of operands whose last two axes may be stored exchanged."""
    if not a.shape or not b.shape:
        cx.fail(f"operands must have at least one dimension, got {a!r} and {b!r}")
    trans_a, trans_b = trans_a and a.rank > 1, trans_b and b.rank > 1
    found = _product(a.shape, b.shape, trans_a, trans_b)
    if isinstance(found, str):
        cx.fail(found.format(a=repr(a), b=repr(b)))
    if a.rank > 1 and b.rank > 1 and not (trans_a or trans_b):
        moved = _Moved.of(cx, a, b)
        if moved is not None:
            return moved.multiply(cx, found, alpha)
    shape, m, k, n, batch = found
    return _emit(cx, a, b, shape, m, k, n, batch=batch, trans_a=trans_a, trans_b=trans_b, alpha=alpha)


class _Moved(NamedTuple):
    """A product of which one operand, or both, are read where their elements were moved from."""

    a: Value
    b: Value
    at_a: Operand | None
    at_b: Operand | None

    @classmethod
    def of(cls, cx: Context, a: Value, b: Value) -> _Moved | None:
        at_a, at_b = operand(cx, a), None if b.const else operand(cx, b)
        # A single row or column is read as one run.
        if at_a is not None and a.shape[-2] == 1 and at_a.transposed and at_a.step != 1:
            at_a = None
        if at_b is not None and b.shape[-1] == 1 and not at_b.transposed and at_b.step != 1:
            at_b = None
        return None if at_a is None and at_b is None else cls(a, b, at_a, at_b)

    def multiply(self, cx: Context, product: _Product, alpha: float) -> Value:
        a, b, at_a, at_b = self
        (m, k), n = a.shape[-2:], b.shape[-1]
        shape, dims = product.shape, product.shape[:-2]
        trans_a, lda = (at_a.transposed, at_a.step) if at_a is not None else (False, k)
        trans_b, ldb = (at_b.transposed, at_b.step) if at_b is not None else (False, n)
        a_steps = _matrices(a.shape, len(dims)) if at_a is None else _padded(at_a.batch, len(dims))
        b_steps = _matrices(b.shape, len(dims)) if at_b is None else _padded(at_b.batch, len(dims))
        batch = _merged(dims, a_steps, b_steps)
        rows = 1 if at_a is None else m * lda
        if len(batch) == 1 and batch[0][1:] == (rows, 0) and not trans_a:
            m, batch = m * batch[0][0], []
        return _emit(
            cx,
            a if at_a is None else at_a.value,
            b if at_b is None else at_b.value,
            shape, m, k, n,
            batch=batch, trans_a=trans_a, trans_b=trans_b, alpha=alpha,
            lda=lda, ldb=ldb, a_unit=None if at_a is None else 4, b_unit=None if at_b is None else 4,
        )  # fmt: skip


class _Product(NamedTuple):
    """The shape of a product, the sizes of each of its matrices, and its batch as `_collapse` gives it."""

    shape: tuple[int, ...]
    m: int
    k: int
    n: int
    batch: tuple[Batch, ...]


@lru_cache(256)
def _product(a_shape: tuple[int, ...], b_shape: tuple[int, ...], trans_a: bool, trans_b: bool) -> _Product | str:
    """Of operands of these shapes; what is wrong, about {a} and {b}, if they do not fit."""
    a_rank, b_rank = len(a_shape), len(b_shape)
    a_shape = a_shape if a_rank > 1 else (1, *a_shape)
    b_shape = b_shape if b_rank > 1 else (*b_shape, 1)
    m, k = a_shape[:-3:-1] if trans_a else a_shape[-2:]
    rows, n = b_shape[:-3:-1] if trans_b else b_shape[-2:]
    if rows != k:
        return f"{{a}} and {{b}} do not fit: {counted(k, 'column')} and {counted(rows, 'row')}"
    rank = max(len(a_shape), len(b_shape)) - 2
    a_batch = (1,) * (rank + 2 - len(a_shape)) + a_shape[:-2]
    b_batch = (1,) * (rank + 2 - len(b_shape)) + b_shape[:-2]
    batch = []
    for p, q in zip(a_batch, b_batch, strict=True):
        if p != q and p != 1 and q != 1:
            return f"the batch dimensions of {{a}} and {{b}} do not broadcast: {p} and {q}"
        batch.append(q if p == 1 else p)
    shape = (*batch, *((m,) if a_rank > 1 else ()), *((n,) if b_rank > 1 else ()))
    if math.prod(b_batch) == 1 and not trans_a:
        m *= math.prod(batch)
        batch, a_batch, b_batch = [], (), ()
    return _Product(shape, m, k, n, tuple(_collapse(batch, a_batch, b_batch)))


@op("Gemm", since=7)
@widened
def gemm(
    cx: Context,
    a: Value,
    b: Value,
    c: Value | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Value:
    """alpha * A' * B' + beta * C."""
    if a.rank != 2 or b.rank != 2:
        cx.fail(f"A and B must be matrices, got {a!r} and {b!r}")
    m, k = a.shape[::-1] if transA else a.shape
    rows, n = b.shape[::-1] if transB else b.shape
    if rows != k:
        cx.fail(f"{a!r} and {b!r} do not fit: {counted(k, 'column')} and {counted(rows, 'row')}")
    strides = (0, 0)
    if c is not None:
        if c.rank > 2 or any(d not in (1, full) for d, full in zip(c.shape[::-1], (n, m), strict=False)):
            cx.fail(f"C {c!r} does not broadcast to {[m, n]}")
        rows_c, columns_c = (1, 1, *c.shape)[-2:]
        size = a.dtype.itemsize
        strides = (columns_c * size if rows_c != 1 else 0, size if columns_c != 1 else 0)
        if beta == 0:
            c = None
    return _emit(
        cx, a, b, (m, n), m, k, n,
        trans_a=bool(transA), trans_b=bool(transB), alpha=alpha, c=c, beta=beta, c_strides=strides,
    )  # fmt: skip


def _collapse(dims: Sequence[int], a_dims: Sequence[int], b_dims: Sequence[int]) -> list[Batch]:
    """Batch dimensions of dense operands, neighbours merged where possible."""
    return _merged(dims, _matrices((*a_dims, 1, 1), len(dims)), _matrices((*b_dims, 1, 1), len(dims)))


def _matrices(shape: Sequence[int], rank: int) -> tuple[int, ...]:
    """Of a dense operand: matrices from one to the next along each of ``rank`` batch dimensions."""
    dims = shape[:-2]
    return _padded([0 if n == 1 else step for n, step in zip(dims, dense(dims), strict=True)], rank)


def _padded(steps: Sequence[int], rank: int) -> tuple[int, ...]:
    return (0,) * (rank - len(steps)) + tuple(steps)


def _merged(dims: Sequence[int], a_steps: Sequence[int], b_steps: Sequence[int]) -> list[Batch]:
    merged: list[Batch] = []
    for size, a_step, b_step in zip(reversed(dims), reversed(a_steps), reversed(b_steps), strict=True):
        if size == 1:
            continue
        if merged:
            last, a_last, b_last = merged[-1]
            if a_step == a_last * last and b_step == b_last * last:
                merged[-1] = (last * size, a_last, b_last)
                continue
        merged.append((size, a_step, b_step))
    return merged[::-1]


def _emit(
    cx: Context,
    a: Value,
    b: Value,
    shape: Sequence[int],
    m: int,
    k: int,
    n: int,
    *,
    batch: Sequence[Batch] = (),
    trans_a: bool = False,
    trans_b: bool = False,
    alpha: float = 1.0,
    c: Value | None = None,
    beta: float = 1.0,
    c_strides: tuple[int, int] = (0, 0),
    lda: int | None = None,
    ldb: int | None = None,
    a_unit: int | None = None,
    b_unit: int | None = None,
) -> Value:
    """Emit a product. ``lda``, ``ldb``: elements from row to row of what is stored, if it is not dense; steps of the
    batch are then multiples of ``a_unit``, ``b_unit`` bytes instead of matrices."""
    if a.dtype != b.dtype or (c is not None and c.dtype != a.dtype):
        cx.fail(f"operands differ in type: {a.dtype} and {b.dtype}")
    if a.dtype != F32 and a.dtype not in _PLAIN:
        cx.fail(f"no matrix product of type {a.dtype}", UnsupportedModelError)
    y = cx.out(shape, a.dtype)
    if y.size == 0:
        return y
    matrices = math.prod(size for size, _, _ in batch)
    if a.dtype != F32:
        _emit_plain(cx, a, b, y, m, k, n, matrices, batch, trans_a, trans_b, alpha, c, beta, c_strides)
        return y
    operand, columns, b_bytes = b, None, k * n * 4
    stored = stored_columns(b, k, n, trans_b) if alpha == 1 and not (n == 1 and m > 1) else None
    if n == 1 and m > 1 and not trans_a:
        layout = LAYOUT_COLUMN
    elif stored is not None:
        layout, (operand, columns) = LAYOUT_STORED, pack_stored(cx, stored, k, n, trans_b)
    elif b.const and k:
        layout, operand, b_bytes = LAYOUT_PANELS, pack_columns(cx, b, k, n, trans_b, alpha), k * 32 * -(-n // 8)
    else:
        layout = LAYOUT_TRANSPOSED if trans_b else LAYOUT_ROWS
    blocks = _blocks(m, k, n, matrices, layout, tuple(batch), a_unit or m * k * 4, b_unit or b_bytes)
    record = cx.emit(
        "gemm_f32",
        units=blocks.units,
        a=a,
        b=operand,
        columns=columns,
        y=y,
        c=c,
        residual=None,
        scratch=cx.scratch(blocks.scratch),
        **blocks.numbers,
        lda=(lda or (m if trans_a else k)) * 4,
        ldb=(ldb or (k if trans_b else n)) * 4,
        trans_a=int(trans_a),
        b_scale=alpha,
        c_scale=beta,
        c_row=c_strides[0],
        c_column=c_strides[1],
        act=0,
        alpha=0.0,
        beta=0.0,
    )
    y.producer = record
    if y.rank == 2 and c is None:
        record.affine = _shift_columns(record)
    return y


class _Blocks(NamedTuple):
    """How gemm_f32 cuts a product."""

    units: int
    scratch: int
    numbers: dict[str, Any]
    """Those of the record that say so, and the sizes."""


@lru_cache(256)
def _blocks(
    m: int, k: int, n: int, matrices: int, layout: int, batch: tuple[Batch, ...], a_unit: int, b_unit: int
) -> _Blocks:
    kc = max(k, 4) if m == 1 else split_k(k, _block_k(m) if layout == LAYOUT_PANELS else BLOCK_K)
    block_m = min(BLOCK_M, -(-m // 4) * 4)
    block_n = BLOCK_N_PACKED if layout == LAYOUT_PANELS else min(BLOCK_N, -(-n // 8) * 8)
    scratch = TILE_BYTES + block_m * kc * 4
    if layout in (LAYOUT_ROWS, LAYOUT_TRANSPOSED, LAYOUT_STORED):
        if m == 1:
            # All of k at once, so fewer columns.
            block_n = min(block_n, max(8, 65536 // (kc * 4) // 8 * 8))
        scratch += block_n // 8 * (kc * 32 + 64)
    by_rows = m >= 2 * 32 or matrices >= 8 or layout == LAYOUT_COLUMN
    if layout == LAYOUT_STORED and n >= 2 * 64:
        # Each column is then computed from what is stored by one thread only.
        by_rows = False
    unit = 64
    if by_rows:
        unit = 32 if matrices < 8 else -(-m // 4) * 4
    per_matrix = -(-(m if by_rows else n) // unit)
    numbers = {
        "m": m,
        "n": n,
        "k": k,
        "kc": kc,
        "block_m": block_m,
        "block_n": block_n,
        "layout": layout,
        "by_rows": int(by_rows),
        "unit": unit,
        "per_matrix": per_matrix,
        "batch": tuple(_batch_words(batch, a_unit, b_unit)),
    }
    return _Blocks(matrices * per_matrix, scratch, numbers)


def _shift_columns(record: Record) -> Callable[[Value | None, Value | None], bool]:
    def affine(scale: Value | None, shift: Value | None) -> bool:
        if scale is not None or shift is None or record.args["c"] is not None:
            return False
        record.args.update(c=shift, c_scale=1.0, c_row=0, c_column=4)
        return True

    return affine


def _batch_words(batch: Sequence[Batch], a_unit: int, b_unit: int) -> list[int]:
    return [
        len(batch),
        *(size for size, _, _ in batch),
        *(a * a_unit for _, a, _ in batch),
        *(b * b_unit for _, _, b in batch),
    ]


def _emit_plain(
    cx: Context,
    a: Value,
    b: Value,
    y: Value,
    m: int,
    k: int,
    n: int,
    matrices: int,
    batch: Sequence[Batch],
    trans_a: bool,
    trans_b: bool,
    alpha: float,
    c: Value | None,
    beta: float,
    c_strides: tuple[int, int],
) -> None:
    if y.dtype != F64 and (alpha != 1 or (c is not None and beta != 1)):
        cx.fail(f"alpha and beta must be 1 for type {y.dtype}, got {alpha} and {beta}", UnsupportedModelError)
    size = y.dtype.itemsize
    cx.emit(
        f"gemm_{y.dtype.short}",
        units=matrices * m,
        a=a,
        b=b,
        y=y,
        c=c,
        m=m,
        n=n,
        k=k,
        a_row=size if trans_a else k * size,
        a_column=m * size if trans_a else size,
        b_row=size if trans_b else n * size,
        b_column=k * size if trans_b else size,
        c_row=c_strides[0],
        c_column=c_strides[1],
        ab_scale=alpha,
        c_scale=beta,
        batch=_batch_words(batch, m * k * size, k * n * size),
    )


def product(cx: Context, a: Value, b: Value, *, trans_a: bool = False, trans_b: bool = False) -> Value:
    """One product for each matrix of (batch, m, k) and (batch, k, n), or of (batch, k, m) and (batch, n, k)."""
    batch, m, k = a.shape if not trans_a else (a.shape[0], a.shape[2], a.shape[1])
    n = b.shape[1 if trans_b else 2]
    collapsed = _collapse((batch,), (batch,), (batch,))
    return _emit(cx, a, b, (batch, m, n), m, k, n, trans_a=trans_a, trans_b=trans_b, batch=collapsed)
