"""RNN, GRU and LSTM, in floats and with weights of 8 bits."""

from __future__ import annotations

from collections.abc import Sequence

from ..context import Context, Value
from ..dtypes import F32, I8, U8
from ..errors import UnsupportedModelError
from ..registry import op
from ._recurrent import Kind, Layer, check, layer, run, wide

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
    cx: Context, made: Layer, initial_c: Value | None, p: Value | None, input_forget: int
) -> tuple[Value | None, ...]:
    check(cx, made.x, "initial_c", initial_c, made.state)
    check(cx, made.x, "P", p, (made.directions, 3 * made.hidden))
    plain = p is None and not input_forget
    return run(
        cx, made, plain=plain, c0=wide(cx, initial_c), p=wide(cx, p), input_forget=int(input_forget != 0)
    )  # fmt: skip


@op("DynamicQuantizeLSTM", domain="com.microsoft")
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
    scale that spans their elements; the products of these numbers are computed in f32."""
    if x.dtype is not F32:
        cx.fail(f"type {x.dtype} of X is not supported", UnsupportedModelError)
    w = _dequantized(cx, "W", w, w_scale, w_zero_point)
    r = _dequantized(cx, "R", r, r_scale, r_zero_point)
    if x.size:
        rounded = cx.out((x.size + 3,), F32)
        cx.emit("rnn_quantize_f32_flat", x=x, y=rounded, n=x.size)
        x = cx.alias(rounded, x.shape)
    made = layer(
        cx, _QUANTIZED_LSTM, x, w, r, b, sequence_lens, initial_h, activations, activation_alpha, activation_beta,
        clip, direction, hidden_size, 0,
    )  # fmt: skip
    return _run_lstm(cx, made, initial_c, p, input_forget)


def _dequantized(cx: Context, name: str, w: Value, scale: Value | None, zero: Value | None) -> Value:
    """Weights [direction, k, n] of 8 bits as f32 [direction, n, k], which is how the other layers have them."""
    if w.rank != 3 or w.dtype not in (I8, U8):
        cx.fail(f"{name} {w!r} must be int8 or uint8 of 3 dimensions", UnsupportedModelError)
    if scale is None:
        cx.fail(f"the scale of {name} is missing")
    d, k, n = w.shape
    for what, part, dtype in (("scale", scale, F32), ("zero point", zero, w.dtype)):
        if part is not None and (part.dtype is not dtype or part.shape not in ((d,), (d, 1), (d, n))):
            cx.fail(f"{what} {part!r} of {name} must be {dtype} of shape {[d]} or {[d, n]}")
    if zero is not None and zero.size != scale.size:
        cx.fail(f"scale {scale!r} and zero point {zero!r} of {name} differ in size")

    def make() -> Value:
        made = cx.out((d, n, k), F32)
        cx.emit(
            f"rnn_dequantize_{w.dtype.short}", units=d * k, stream=("src", n),
            src=w, scale=scale, zero=zero, dst=made, k=k, n=n, step=int(scale.size != d),
        )  # fmt: skip
        return made

    sources = (w, scale) if zero is None else (w, scale, zero)
    return cx.derived(f"rnn_dequantized {zero is None}", sources, make)
