"""RNN, GRU and LSTM, in floats and with weights of 8 bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from ..context import Context, Value
from ..dtypes import F32, I8, U8
from ..errors import UnsupportedModelError
from ..registry import MICROSOFT, op
from . import qlinear
from ._recurrent import Kind, Layer, check, layer, run, wide
from .expand import expand
from .matmul import gemm
from .quantize import dynamic_quantize
from .transpose import permute

_RNN = Kind("rnn", gates=1, outputs=2, activations=("Tanh",))
_GRU = Kind("gru", gates=3, outputs=2, activations=("Sigmoid", "Tanh"))
_LSTM = Kind("lstm", gates=4, outputs=3, activations=("Sigmoid", "Tanh", "Tanh"))
_QUANTIZED_LSTM = Kind("qlstm", gates=4, outputs=3, activations=("Sigmoid", "Tanh", "Tanh"))


@op("RNN", since=7)
def rnn(
    cx: Context,
    x: Value,
    w: Value,
    r: Value,
    b: Value | None = None,
    sequence_lens: Value | None = None,
    initial_h: Value | None = None,
    *,
    activations: Sequence[str] = ("Tanh", "Tanh"),
    activation_alpha: Sequence[float] = (),
    activation_beta: Sequence[float] = (),
    clip: float = 0.0,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
) -> tuple[Value | None, ...]:
    """h = f(x W + h R + b)"""
    made = layer(
        cx, _RNN, x, w, r, b, sequence_lens, initial_h, activations, activation_alpha, activation_beta,
        clip, direction, hidden_size, layout,
    )  # fmt: skip
    return run(cx, made)


@op("GRU", since=7)
def gru(
    cx: Context,
    x: Value,
    w: Value,
    r: Value,
    b: Value | None = None,
    sequence_lens: Value | None = None,
    initial_h: Value | None = None,
    *,
    activations: Sequence[str] = (),
    activation_alpha: Sequence[float] = (),
    activation_beta: Sequence[float] = (),
    clip: float = 0.0,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: int = 0,
) -> tuple[Value | None, ...]:
    """z = f(..), r = f(..), h = (1 - z) g(x W + (r h) R + b) + z h; r is applied after R if ``linear_before_reset``."""
    made = layer(
        cx, _GRU, x, w, r, b, sequence_lens, initial_h, activations, activation_alpha, activation_beta,
        clip, direction, hidden_size, layout,
    )  # fmt: skip
    if not linear_before_reset or b is None:
        return run(cx, made, rb=None, rb_d=0, linear=int(linear_before_reset != 0))
    # The bias of R for the gate h, the last of the six parts of B.
    both, size = wide(cx, b), wide(cx, b).dtype.itemsize
    last = cx.alias(both, (both.size - 5 * made.hidden,), offset=5 * made.hidden * size)
    return run(cx, made, apart=made.hidden, rb=last, rb_d=6 * made.hidden * size, linear=1)


@op("LSTM", since=7)
def lstm(
    cx: Context,
    x: Value,
    w: Value,
    r: Value,
    b: Value | None = None,
    sequence_lens: Value | None = None,
    initial_h: Value | None = None,
    initial_c: Value | None = None,
    p: Value | None = None,
    *,
    activations: Sequence[str] = (),
    activation_alpha: Sequence[float] = (),
    activation_beta: Sequence[float] = (),
    clip: float = 0.0,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    layout: int = 0,
) -> tuple[Value | None, ...]:
    """i, o, f = f(..), c = f c + i g(..), h = o h(c); ``p`` adds c to the gates, ``input_forget`` is f = 1 - i."""
    made = layer(
        cx, _LSTM, x, w, r, b, sequence_lens, initial_h, activations, activation_alpha, activation_beta,
        clip, direction, hidden_size, layout,
    )  # fmt: skip
    return _run_lstm(cx, made, initial_c, p, input_forget)


def _run_lstm(
    cx: Context, made: Layer, initial_c: Value | None, p: Value | None, input_forget: int, **more: Any
) -> tuple[Value | None, ...]:
    check(cx, made.x, "initial_c", initial_c, made.state)
    check(cx, made.x, "P", p, (made.directions, 3 * made.hidden))
    plain = p is None and not input_forget
    return run(
        cx, made, plain=plain, c0=wide(cx, initial_c), p=wide(cx, p), input_forget=int(input_forget != 0), **more
    )  # fmt: skip


@op("DynamicQuantizeLSTM", domain=MICROSOFT)
def dynamic_quantize_lstm(
    cx: Context,
    x: Value,
    w: Value,
    r: Value,
    b: Value | None = None,
    sequence_lens: Value | None = None,
    initial_h: Value | None = None,
    initial_c: Value | None = None,
    p: Value | None = None,
    w_scale: Value | None = None,
    w_zero_point: Value | None = None,
    r_scale: Value | None = None,
    r_zero_point: Value | None = None,
    *,
    activations: Sequence[str] = (),
    activation_alpha: Sequence[float] = (),
    activation_beta: Sequence[float] = (),
    clip: float = 0.0,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
) -> tuple[Value | None, ...]:
    """An LSTM whose weights, [direction, input, gate], have 8 bits. X and in every step h are rounded to 8 bits, by a
    scale that spans their elements; the products of the integers are exact."""
    if x.dtype is not F32:
        cx.fail(f"type {x.dtype} of X is not supported", UnsupportedModelError)
    for name, weights, scale, zero in (("W", w, w_scale, w_zero_point), ("R", r, r_scale, r_zero_point)):
        _check_stored(cx, name, weights, scale, zero)
    made = layer(
        cx, _QUANTIZED_LSTM, x, w, r, b, sequence_lens, initial_h, activations, activation_alpha, activation_beta,
        clip, direction, hidden_size, 0, stored=True,
    )  # fmt: skip
    assert w_scale is not None
    assert r_scale is not None
    d, rows = made.directions, made.rows
    zeros = qlinear.offsets(cx, _by_column(cx, r_zero_point, d, rows), r.dtype, d * rows)

    def products(bias: Value | None) -> tuple[Value | None, Value]:
        xw = _input_product(cx, made, w_scale, w_zero_point, bias) if made.steps else None
        return xw, _stored_panels(cx, made)

    scales_r = _by_column(cx, r_scale, d, rows)
    return _run_lstm(cx, made, initial_c, p, input_forget, stored=products, r_scales=scales_r, r_zeros=zeros)


def _check_stored(cx: Context, name: str, w: Value, scale: Value | None, zero: Value | None) -> None:
    """Weights [direction, k, n] of 8 bits, whose scale and zero point are per direction or per column."""
    if w.rank != 3 or w.dtype not in (I8, U8):
        cx.fail(f"{name} {w!r} must be int8 or uint8 of 3 dimensions", UnsupportedModelError)
    if scale is None:
        cx.fail(f"the scale of {name} is missing")
    d, _, n = w.shape
    for what, part, dtype in (("scale", scale, F32), ("zero point", zero, w.dtype)):
        if part is not None and (part.dtype is not dtype or part.shape not in ((d,), (d, 1), (d, n))):
            cx.fail(f"{what} {part!r} of {name} must be {dtype} of shape {[d]} or {[d, n]}")
    if zero is not None and zero.size != scale.size:
        cx.fail(f"scale {scale!r} and zero point {zero!r} of {name} differ in size")


@overload
def _by_column(cx: Context, part: Value, d: int, rows: int) -> Value: ...
@overload
def _by_column(cx: Context, part: None, d: int, rows: int) -> None: ...
def _by_column(cx: Context, part: Value | None, d: int, rows: int) -> Value | None:
    """A scale or zero point for every column of every direction."""
    if part is None:
        return None
    if part.size == d:
        one, shape = cx.alias(part, (d, 1)), np.array([d, rows], np.int64)
        part = cx.derived(f"rnn_columns {rows}", (part,), lambda: expand(cx, one, shape))
    return cx.alias(part, (d * rows,))


def _input_product(cx: Context, made: Layer, scale: Value, zero: Value | None, bias: Value | None) -> Value:
    """X * W + bias of all directions, [step, batch, direction, gate]: the panels of directions, one behind the
    other, are those of one matrix, if rows are a multiple of 8 or there is only one direction."""
    d, rows, k = made.directions, made.rows, made.inputs
    w, n = made.w, d * rows
    if not k:
        return gemm(cx, cx.alias(made.x, (made.steps * made.batch, 0)), cx.out((0, n), F32), bias)
    given = made.x
    if made.lens is not None:
        # What no sequence reaches has no part in the range.
        given = cx.out(made.x.shape, F32)
        step = made.batch * k * 4
        cx.emit("rnn_reached", x=made.x, lens=made.lens, y=given, steps=made.steps, batch=made.batch, step=step)
    x, x_scale, x_zero = dynamic_quantize(cx, given)
    if d > 1 and rows % 8:
        w = cx.derived("rnn_beside", (w,), lambda: permute(cx, w, w.shape, (1, 0, 2)))
        packed = qlinear.pack_columns(cx, w, k, n, transposed=False)
    else:
        packed = qlinear.pack_columns(cx, w, k, rows, transposed=False)
    columns = _by_column(cx, scale, d, rows)
    product = qlinear.Product(
        x, w, (made.steps * made.batch, n), made.steps * made.batch, k, n, a_zero=x_zero, dtype=F32, packed=packed,
        b_zero=_by_column(cx, zero, d, rows), scale=qlinear.scales(cx, x_scale, columns, None, n), shift=bias,
    )  # fmt: skip
    return product.emit(cx)


def _stored_panels(cx: Context, made: Layer) -> Value:
    """R as `rnn_product_i8` reads it: gate by gate, so that every gate begins a panel."""
    d, hidden, r = made.directions, made.hidden, made.r
    gates = made.kind.gates
    if hidden % 8 == 0:
        return qlinear.pack_columns(cx, r, hidden, gates * hidden, transposed=False)
    view = (d, hidden, gates, hidden)
    apart = cx.derived("rnn_gates", (r,), lambda: permute(cx, r, view, (0, 2, 1, 3)))
    return qlinear.pack_columns(cx, apart, hidden, hidden, transposed=False)
