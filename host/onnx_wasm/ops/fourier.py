"""DFT and STFT."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ..context import Array, Context, Value
from ..dtypes import F64
from ..registry import op
from ..words import counted
from ._copy import normal_axis, only
from ._elementwise import FLOATS, require

# Lanes are shared out over at most so many work units, as each has memory of its own.
UNITS = 16


class _Tables(NamedTuple):
    roots: Value
    chirp: Value | None
    filter: Value | None
    m: int


def _roots(cx: Context, n: int) -> Value:
    def make() -> Value:
        roots = cx.out((n, 2), F64)
        cx.emit("fourier_roots", units=n, y=roots, n=n, chirp=0)
        return roots

    return cx.derived(f"fourier_roots {n}", (), make)


def _tables(cx: Context, n: int) -> _Tables:
    if n & (n - 1) == 0:
        return _Tables(_roots(cx, n), None, None, n)
    m = 1 << (2 * n - 2).bit_length()
    roots = _roots(cx, m)

    def make() -> tuple[Value, Value]:
        chirp, filter = cx.out((n, 2), F64), cx.out((m, 2), F64)
        cx.emit("fourier_roots", units=n, y=chirp, n=n, chirp=1)
        work = cx.work(32 * m)
        cx.emit("fourier_filter", chirp=chirp, roots=roots, work=work, y=filter, n=n, m=m)
        return chirp, filter

    chirp, filter = cx.derived(f"fourier_chirp {n}", (roots,), make)
    return _Tables(roots, chirp, filter, m)


def _emit(cx: Context, x: Value, y: Value, window: Value | None, n: int, lanes: int, **args: Any) -> None:
    if y.size == 0:
        return
    tables = _tables(cx, n)
    per = -(-lanes // UNITS)
    units = -(-lanes // per)
    work = cx.work(units * 32 * tables.m)
    cx.emit(
        f"fourier_{x.dtype.short}",
        units=units,
        x=x,
        y=y,
        window=window,
        roots=tables.roots,
        chirp=tables.chirp,
        filter=tables.filter,
        work=work,
        n=n,
        m=tables.m,
        have=args.pop("have"),
        outputs=args.pop("outputs"),
        complex=int(x.shape[-1] == 2),
        ycomplex=int(y.shape[-1] == 2),
        inverse=args.pop("inverse"),
        hermitian=args.pop("hermitian"),
        lanes=lanes,
        per=per,
        **args,
    )


def _dft(cx: Context, x: Value, length: Array | None, axis: int, inverse: int, onesided: int) -> Value:
    require(cx, x, FLOATS)
    axis = normal_axis(cx, axis, x.rank)
    if axis == x.rank - 1 or x.shape[-1] not in (1, 2):
        cx.fail(f"axis {axis} of {x}: the last axis must hold the real and imaginary parts, and is not transformed")
    hermitian = bool(onesided and inverse)
    n = 2 * (x.shape[axis] - 1) if hermitian else x.shape[axis]
    if length is not None:
        n = int(only(cx, "dft_length", length))
    if n < 1:
        cx.fail(f"dft_length is {n}, must be positive")
    outputs = n // 2 + 1 if onesided and not inverse else n
    have = min(x.shape[axis], n // 2 + 1 if hermitian else n)
    parts = 1 if hermitian else 2
    y = cx.out((*x.shape[:axis], outputs, *x.shape[axis + 1 : -1], parts), x.dtype)
    inner, c = math.prod(x.shape[axis + 1 : -1]), x.shape[-1]
    _emit(
        cx,
        x,
        y,
        None,
        n,
        math.prod(x.shape[:axis]) * inner,
        have=have,
        outputs=outputs,
        inverse=int(bool(inverse)),
        hermitian=int(hermitian),
        inner=inner,
        xouter=x.shape[axis] * inner * c,
        xinner=c,
        xstep=inner * c,
        youter=outputs * inner * parts,
        yinner=parts,
        ystep=inner * parts,
    )
    return y


@op("DFT", since=20, host=("dft_length", "axis"))
def dft(
    cx: Context,
    x: Value,
    dft_length: Array | None = None,
    axis: Array | None = None,
    *,
    inverse: int = 0,
    onesided: int = 0,
) -> Value:
    """The discrete Fourier transform along an axis, or its inverse; ``onesided`` leaves out the half of the spectrum
    that the symmetry of a real signal gives."""
    return _dft(cx, x, dft_length, -2 if axis is None else int(only(cx, "axis", axis)), inverse, onesided)


@op("DFT", since=17, host=("dft_length",))
def dft_17(
    cx: Context, x: Value, dft_length: Array | None = None, *, axis: int = 1, inverse: int = 0, onesided: int = 0
) -> Value:
    """The axis is an attribute."""
    return _dft(cx, x, dft_length, axis, inverse, onesided)


@op("STFT", since=17, host=("frame_step", "frame_length"))
def stft(
    cx: Context,
    signal: Value,
    frame_step: Array,
    window: Value | None = None,
    frame_length: Array | None = None,
    *,
    onesided: int = 1,
) -> Value:
    """Transforms of frames of the signal, ``frame_step`` apart, each multiplied by the window."""
    require(cx, signal, FLOATS)
    if signal.rank == 2:
        signal = cx.alias(signal, (*signal.shape, 1))
    if signal.rank != 3 or signal.shape[-1] not in (1, 2):
        cx.fail(f"{signal} must have shape [batch, length, 1 or 2]")
    step = int(only(cx, "frame_step", frame_step))
    batch, length, c = signal.shape
    n = length
    if frame_length is not None:
        n = int(only(cx, "frame_length", frame_length))
    elif window is not None:
        n = window.size
    if step < 1 or n < 1:
        cx.fail(f"frame_step is {step} and frame_length {n}, must be positive")
    if window is not None and (window.size != n or window.dtype != signal.dtype):
        cx.fail(f"window is {window}, must have {counted(n, 'element')} of the signal's type")
    frames = (length - n) // step + 1 if length >= n else 0
    outputs = n // 2 + 1 if onesided else n
    y = cx.out((batch, frames, outputs, 2), signal.dtype)
    _emit(
        cx,
        signal,
        y,
        window,
        n,
        batch * frames,
        have=n,
        outputs=outputs,
        inverse=0,
        hermitian=0,
        inner=frames,
        xouter=length * c,
        xinner=step * c,
        xstep=c,
        youter=frames * outputs * 2,
        yinner=outputs * 2,
        ystep=2,
    )
    return y
