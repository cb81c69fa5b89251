"""Weights as kernels read them: in panels of columns or rows over all of k, as f32 or as the 8 bits they are stored in.

Each is packed once for the session, and piece by piece where that can be, so that it is not in the heap unpacked too.
"""

from __future__ import annotations

from collections.abc import Callable

from ..context import Context, Quantized, Value
from ..dtypes import F32, I8


def pack_columns(cx: Context, b: Value, k: int, n: int, transposed: bool, scale: float = 1.0) -> Value:
    """A matrix, or several one after the other, in panels of 8 columns over all of k: [matrix][panel][k][8]."""

    def make() -> Value:
        matrices = b.size // (k * n)
        packed = cx.out((matrices, -(-n // 8), k, 8), F32)
        if transposed:
            unit = 8 if n % 8 == 0 or matrices == 1 else n
            rows = matrices * n
            stream = ("src", unit * k * 4)
            cx.emit(
                "pack_b8t_f32_rows", units=-(-rows // unit), stream=stream,
                src=b, dst=packed, k=k, rows=rows, unit=unit, scale=scale,
            )  # fmt: skip
        else:
            stream = ("src", n * 4)
            cx.emit("pack_b8_f32_rows", units=matrices * k, stream=stream, src=b, dst=packed, k=k, n=n, scale=scale)
        return packed

    return cx.derived(("gemm_b8", k, n, transposed, scale), (b,), make)


def stored_columns(b: Value, k: int, n: int, trans_b: bool) -> Quantized | None:
    """What a constant second operand is computed from, if its columns can be computed from that one by one."""
    q = b.quantized
    if q is None or b.shape != ((n, k) if trans_b else (k, n)) or q.values.size != k * n:
        return None
    return q if q.per_tensor or q.axis == (0 if trans_b else 1) else None


def pack_stored(cx: Context, q: Quantized, k: int, n: int, transposed: bool) -> tuple[Value, Value]:
    """A matrix of 8 bits in panels of 8 columns over all of k, [panel][k][8] of i8, and by panel 8 scales and 8 zeros
    of f32."""
    by_rows = transposed != q.transposed

    def make() -> tuple[Value, Value]:
        packed = cx.out((-(-n // 8), k, 8), I8)
        kernel, units, unit = ("pack_b8t_i8_rows", -(-n // 8), 8 * k) if by_rows else ("pack_b8_i8_rows", k, n)
        cx.emit(kernel, units=units, stream=("src", unit), src=q.values, dst=packed, k=k, n=n, flip=_flip(q))
        return packed, _scales(cx, q, 1, n, 8)

    return _once(cx, f"gemm_b8_i8 {k} {n} {by_rows}", q, make)


def pack_rows(cx: Context, w: Value, m: int, k: int, scale: Value | None = None) -> Value:
    """Weights [groups * m, k] in panels of 4 rows over all of k: [group][panel][k][4], rows scaled. What is stored in 8
    bits stays so, and is widened in every run."""
    rows = w.shape[0]
    if scale is None and stays(w):
        return _widened_rows(cx, w, m, k)

    def make() -> Value:
        unit = 4 if m % 4 == 0 or rows == m else m
        packed = cx.out((rows // m * -(-m // 4), k, 4), F32)
        cx.emit(
            "pack_a4_f32_rows", units=-(-rows // unit), stream=("src", unit * k * 4),
            src=w, dst=packed, scale=scale, rows=rows, k=k, unit=unit,
        )  # fmt: skip
        return packed

    return cx.derived(f"conv_a4 {m} {scale is not None}", (w,) if scale is None else (w, scale), make)


def stays(w: Value) -> bool:
    """Whether weights of rows stay as they are stored."""
    q = w.quantized
    return w.const and q is not None and not q.transposed and (q.per_tensor or q.axis == 0)


def _widened_rows(cx: Context, w: Value, m: int, k: int) -> Value:
    q, rows = w.quantized, w.shape[0]
    assert q is not None
    panels = rows // m * -(-m // 4)

    def make() -> tuple[Value, Value]:
        packed = cx.out((panels, k, 4), I8)
        stream = ("src", 4 * k) if m % 4 == 0 or rows == m else None
        cx.emit("pack_a4_i8_rows", units=panels, stream=stream, src=q.values, dst=packed, m=m, k=k, flip=_flip(q))
        return packed, _scales(cx, q, rows // m, m, 4)

    packed, scales = _once(cx, f"conv_a4_i8 {m} {k}", q, make)
    wide = cx.out((panels, k, 4), F32)
    cx.emit("widen_a4_i8", units=panels, src=packed, rows=scales, dst=wide, k=k)
    return wide


def _once(cx: Context, key: str, q: Quantized, make: Callable[[], tuple[Value, Value]]) -> tuple[Value, Value]:
    sources = [v for v in (q.values, q.scale, q.zero) if v is not None]
    return cx.derived(f"{key} {q.scale is None} {q.zero is None}", sources, make)


def _scales(cx: Context, q: Quantized, matrices: int, n: int, width: int) -> Value:
    """What panels of so many rows or columns are widened by: [panel][scale, zero][width]."""
    scales = cx.out((matrices * -(-n // width), 2, width), F32)
    cx.emit(
        "stored_scales_f32", scale=q.scale, zero=q.zero, dst=scales, matrices=matrices, n=n, width=width,
        step=0 if q.per_tensor else 1, flip=_flip(q),
    )  # fmt: skip
    return scales


def _flip(q: Quantized) -> int:
    """The bits that make i8 of what is stored; the zero is moved in the same way."""
    return 0 if q.values.dtype is I8 else 0x80
