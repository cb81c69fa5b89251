"""RNN, GRU and LSTM.

What depends on the input alone, X * W^T + bias, is one matrix product for all steps and both directions. One record
then walks the steps (kernels_wat/rnn.wat.j2); its units are the directions, and groups of batch rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, overload

import numpy as np

from ..context import Context, Value
from ..dtypes import BF16, F16, F32, F64, I8, I32, U8, DType
from ..errors import UnsupportedModelError
from ..registry import op
from ._elementwise import cast
from .matmul import TILE_BYTES, gemm, pack_columns

# Batch rows that walk the steps together: enough to make use of a panel of R while it is in the cache.
GROUP = 16
_DIRECTIONS = {"forward": 0, "reverse": 1, "bidirectional": 2}


class Function(IntEnum):
    """Codes of kernels_wat/rnn.wat.j2."""

    SIGMOID = 0
    TANH = 1
    RELU = 2
    AFFINE = 3
    """alpha * x + beta"""
    LEAKY_RELU = 4
    """x < 0 ? alpha * x : x"""
    THRESHOLDED_RELU = 5
    """x < alpha ? 0 : x"""
    SCALED_TANH = 6
    """alpha * tanh(beta * x)"""
    HARD_SIGMOID = 7
    """min(max(alpha * x + beta, 0), 1)"""
    ELU = 8
    """x < 0 ? alpha * (e^x - 1) : x"""
    SOFTSIGN = 9
    """x / (1 + |x|)"""
    SOFTPLUS = 10
    """ln(1 + e^x)"""


# By name in lower case: the code, and the defaults of alpha and beta, None where the function has none.
_FUNCTIONS: dict[str, tuple[Function, float | None, float | None]] = {
    "sigmoid": (Function.SIGMOID, None, None),
    "tanh": (Function.TANH, None, None),
    "relu": (Function.RELU, None, None),
    "affine": (Function.AFFINE, 1.0, 0.0),
    "leakyrelu": (Function.LEAKY_RELU, 0.01, None),
    "thresholdedrelu": (Function.THRESHOLDED_RELU, 1.0, None),
    "scaledtanh": (Function.SCALED_TANH, 1.0, 1.0),
    "hardsigmoid": (Function.HARD_SIGMOID, 0.2, 0.5),
    "elu": (Function.ELU, 1.0, None),
    "softsign": (Function.SOFTSIGN, None, None),
    "softplus": (Function.SOFTPLUS, None, None),
}


@dataclass(frozen=True)
class Layer:
    """The sizes that a node's attributes and inputs agree on."""

    gates: int
    steps: int
    batch: int
    inputs: int
    hidden: int
    directions: int
    reverse: int
    batch_first: bool

    def state_shape(self) -> tuple[int, int, int]:
        if self.batch_first:
            return self.batch, self.directions, self.hidden
        return self.directions, self.batch, self.hidden

    def output_shape(self) -> tuple[int, int, int, int]:
        if self.batch_first:
            return self.batch, self.steps, self.directions, self.hidden
        return self.steps, self.directions, self.batch, self.hidden


def _layer(cx: Context, gates: int, x: Value, r: Value, direction: str, hidden_size: int, layout: int) -> Layer:
    reverse = _DIRECTIONS.get(direction)
    if reverse is None:
        cx.fail(f"direction is {direction!r}, must be one of {', '.join(_DIRECTIONS)}")
    if layout not in (0, 1):
        cx.fail(f"layout is {layout}, must be 0 or 1")
    if x.rank != 3 or r.rank != 3:
        cx.fail(f"X and R must have 3 dimensions, got {x!r} and {r!r}")
    hidden = r.shape[2]
    if hidden_size not in (0, hidden):
        cx.fail(f"hidden_size is {hidden_size}, but R is {r!r}")
    if hidden == 0:
        cx.fail(f"R {r!r} has no hidden units")
    steps, batch = x.shape[1::-1] if layout else x.shape[:2]
    return Layer(gates, steps, batch, x.shape[2], hidden, 2 if reverse == 2 else 1, reverse, bool(layout))


def _check(
    cx: Context,
    layer: Layer,
    x: Value,
    w: Value,
    r: Value,
    b: Value | None,
    lens: Value | None,
    **others: tuple[Value | None, Sequence[int]],
) -> None:
    if x.dtype not in (F32, F64, F16, BF16):
        cx.fail(f"type {x.dtype} of X is not supported", UnsupportedModelError)
    d, n = layer.directions, layer.gates * layer.hidden
    named = {"W": (w, (d, n, layer.inputs)), "R": (r, (d, n, layer.hidden)), "B": (b, (d, 2 * n)), **others}
    for name, (value, shape) in named.items():
        if value is None:
            continue
        if value.shape != tuple(shape):
            cx.fail(f"{name} {value!r} must have shape {list(shape)}")
        if value.dtype is not x.dtype:
            cx.fail(f"{name} {value!r} must be of X's type {x.dtype}")
    if lens is not None and (lens.shape != (layer.batch,) or lens.dtype is not I32):
        cx.fail(f"sequence_lens {lens!r} must be int32 of shape [{layer.batch}]")


def _functions(
    cx: Context, names: Sequence[str], alphas: Sequence[float], betas: Sequence[float], count: int, spare: bool = False
) -> list[int]:
    """The words (code, alpha, beta) of every activation; alphas and betas go to those that have them, in order."""
    if len(names) != count and not (spare and len(names) > count):
        cx.fail(f"{len(names)} activations given, {count} needed")
    alpha, beta = iter(alphas), iter(betas)
    words: list[int] = []
    for name in names[:count]:
        found = _FUNCTIONS.get(name.lower())
        if found is None:
            cx.fail(f"unknown activation {name!r}; known: {', '.join(_FUNCTIONS)}", UnsupportedModelError)
        code, a, b = found
        a = 0.0 if a is None else next(alpha, a)
        b = 0.0 if b is None else next(beta, b)
        words += [int(code), *np.array([a, b], np.float32).view(np.int32).tolist()]
    return words


@overload
def _wide(cx: Context, value: Value) -> Value: ...
@overload
def _wide(cx: Context, value: None) -> None: ...
def _wide(cx: Context, value: Value | None) -> Value | None:
    """A 16-bit value in f32, a constant once per session; others as they are."""
    if value is None or value.dtype not in (F16, BF16):
        return value
    return cx.derived("rnn_f32", (value,), lambda: cast(cx, value, F32))


def _run(
    cx: Context,
    layer: Layer,
    kernel: str,
    x: Value,
    w: Value,
    r: Value,
    b: Value | None,
    lens: Value | None,
    h0: Value | None,
    functions: list[int],
    clip: float,
    *,
    apart: int = 0,
    **extra: Any,
) -> tuple[Value | None, ...]:
    """The records of a layer, and its outputs: those that the node names, None for others."""
    count = 3 if kernel.endswith("lstm") else 2
    wanted = [i < len(cx.node.outputs) and cx.node.outputs[i] != "" for i in range(count)]
    dtype, real = x.dtype, F64 if x.dtype is F64 else F32
    shapes = (layer.output_shape(), layer.state_shape(), layer.state_shape())
    outputs = tuple(cx.out(s, real) if want else None for s, want in zip(shapes, wanted, strict=False))
    if layer.batch and any(wanted):
        _emit(cx, layer, kernel, real, x, w, r, b, lens, h0, outputs, functions, clip, apart, extra)
    if dtype is real:
        return outputs
    return tuple(None if v is None else cast(cx, v, dtype) for v in outputs)


def _emit(
    cx: Context,
    layer: Layer,
    kernel: str,
    dtype: DType,
    x: Value,
    w: Value,
    r: Value,
    b: Value | None,
    lens: Value | None,
    h0: Value | None,
    outputs: Sequence[Value | None],
    functions: list[int],
    clip: float,
    apart: int,
    extra: dict[str, Any],
) -> None:
    size = dtype.itemsize
    n, rows = layer.gates * layer.hidden, layer.steps * layer.batch
    state, width = layer.hidden * size, layer.directions * layer.hidden * size
    xw = None
    if rows:
        bias = _bias(cx, b, layer.directions, n, apart)
        a = cx.alias(_wide(cx, x), (rows, layer.inputs))
        xw = gemm(cx, a, cx.alias(_wide(cx, w), (layer.directions * n, layer.inputs)), bias, transB=1)
    r = _wide(cx, r)
    padded = -(-layer.hidden // 2) * 2
    if dtype is F32:
        # Gate by gate, so that every gate begins a panel.
        padded = -(-layer.hidden // 8) * 8
        r = pack_columns(cx, r, layer.hidden, layer.hidden, transposed=True)
    # A quantized state has one scale for the whole batch.
    quantized = kernel == "qlstm"
    group = layer.batch if layer.batch < 2 * GROUP or quantized else GROUP
    groups = -(-layer.batch // group)
    unit_bytes = group * (2 + quantized + layer.gates) * padded * size + -(-group // 4) * 4 * state + TILE_BYTES
    unit_bytes = -(-unit_bytes // 64) * 64
    # In rows of xw: from step to step, and from batch row to batch row.
    step, row = (1, layer.steps) if layer.batch_first else (layer.batch, 1)
    if layer.batch_first:
        y_t, y_b, y_d, s_b, s_d = width, layer.steps * width, state, width, state
    else:
        y_t, y_b, y_d, s_b, s_d = layer.batch * width, state, layer.batch * state, state, layer.batch * state
    if kernel.endswith("lstm"):
        extra = {"c0": extra.pop("c0"), "y_c": outputs[2], **extra}
    cx.emit(
        f"{kernel}_{dtype.short}",
        units=layer.directions * groups,
        xw=xw,
        r=r,
        lens=lens,
        h0=_wide(cx, h0),
        y=outputs[0] if rows else None,
        y_h=outputs[1],
        scratch=cx.scratch(layer.directions * groups * unit_bytes),
        steps=layer.steps,
        batch=layer.batch,
        hidden=layer.hidden,
        group=group,
        groups=groups,
        unit_bytes=unit_bytes,
        reverse=layer.reverse,
        x_t=step * layer.directions * n * size,
        x_b=row * layer.directions * n * size,
        x_d=n * size,
        y_t=y_t,
        y_b=y_b,
        y_d=y_d,
        s_b=s_b,
        s_d=s_d,
        plain=int(_plain(kernel, functions) and clip == 0 and not extra.get("input_forget") and not extra.get("p")),
        clip=clip if clip > 0 else math.inf,
        functions=functions,
        **extra,
    )


def _plain(kernel: str, functions: Sequence[int]) -> bool:
    """Whether the activations are those that the kernel has code of its own for."""
    if kernel == "rnn":
        return False
    default = [Function.SIGMOID, Function.TANH] if kernel == "gru" else [Function.SIGMOID, Function.TANH, Function.TANH]
    codes = list(functions[::3])
    return codes == default * (len(codes) // len(default))


def _bias(cx: Context, b: Value | None, directions: int, n: int, apart: int) -> Value | None:
    """Both biases added up, but for the last ``apart`` of the second."""
    b = _wide(cx, b)
    if b is None:
        return None

    def make() -> Value:
        total = cx.out((directions * n,), b.dtype)
        cx.emit(f"rnn_bias_{b.dtype.short}", units=directions, src=b, dst=total, n=n, apart=apart)
        return total

    return cx.derived(f"rnn_bias {n} {apart}", (b,), make)


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
    hidden_size: int = 0,
    layout: int = 0,
) -> tuple[Value | None, ...]:
    """h = f(x W + h R + b)"""
    layer = _layer(cx, 1, x, r, direction, hidden_size, layout)
    _check(cx, layer, x, w, r, b, sequence_lens, initial_h=(initial_h, layer.state_shape()))
    functions = _functions(cx, activations, activation_alpha, activation_beta, layer.directions, spare=True)
    return _run(cx, layer, "rnn", x, w, r, b, sequence_lens, initial_h, functions, clip)


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
    hidden_size: int = 0,
    layout: int = 0,
    linear_before_reset: int = 0,
) -> tuple[Value | None, ...]:
    """z = f(..), r = f(..), h = (1 - z) g(x W + (r h) R + b) + z h; r is applied after R if ``linear_before_reset``."""
    layer = _layer(cx, 3, x, r, direction, hidden_size, layout)
    _check(cx, layer, x, w, r, b, sequence_lens, initial_h=(initial_h, layer.state_shape()))
    default = ("Sigmoid", "Tanh") * layer.directions
    functions = _functions(cx, activations or default, activation_alpha, activation_beta, 2 * layer.directions)
    apart, rb = 0, None
    if linear_before_reset and b is not None:
        b = _wide(cx, b)
        apart, size = layer.hidden, b.dtype.itemsize
        rb = cx.alias(b, (b.size - 5 * apart,), offset=5 * apart * size)
    return _run(
        cx, layer, "gru", x, w, r, b, sequence_lens, initial_h, functions, clip, apart=apart,
        rb=rb, rb_d=6 * apart * (1 if rb is None else rb.dtype.itemsize), linear=int(linear_before_reset != 0),
    )  # fmt: skip


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
    hidden_size: int = 0,
    input_forget: int = 0,
    layout: int = 0,
) -> tuple[Value | None, ...]:
    """i, o, f = f(..), c = f c + i g(..), h = o h(c); ``p`` adds c to the gates, ``input_forget`` is f = 1 - i."""
    layer = _layer(cx, 4, x, r, direction, hidden_size, layout)
    _check(
        cx, layer, x, w, r, b, sequence_lens,
        initial_h=(initial_h, layer.state_shape()), initial_c=(initial_c, layer.state_shape()),
        P=(p, (layer.directions, 3 * layer.hidden)),
    )  # fmt: skip
    default = ("Sigmoid", "Tanh", "Tanh") * layer.directions
    functions = _functions(cx, activations or default, activation_alpha, activation_beta, 3 * layer.directions)
    return _run(
        cx, layer, "lstm", x, w, r, b, sequence_lens, initial_h, functions, clip,
        c0=_wide(cx, initial_c), p=_wide(cx, p), input_forget=int(input_forget != 0),
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
    hidden_size: int = 0,
    input_forget: int = 0,
) -> tuple[Value | None, ...]:
    """An LSTM whose weights, [direction, input, gate], have 8 bits. X and in every step h are rounded to 8 bits, by a
    scale that spans their elements; the products of these numbers are computed in f32."""
    if x.dtype is not F32:
        cx.fail(f"type {x.dtype} of X is not supported", UnsupportedModelError)
    w = _dequantized(cx, "W", w, w_scale, w_zero_point)
    r = _dequantized(cx, "R", r, r_scale, r_zero_point)
    layer = _layer(cx, 4, x, r, direction, hidden_size, 0)
    _check(
        cx, layer, x, w, r, b, sequence_lens,
        initial_h=(initial_h, layer.state_shape()), initial_c=(initial_c, layer.state_shape()),
        P=(p, (layer.directions, 3 * layer.hidden)),
    )  # fmt: skip
    default = ("Sigmoid", "Tanh", "Tanh") * layer.directions
    functions = _functions(cx, activations or default, activation_alpha, activation_beta, 3 * layer.directions)
    if x.size:
        rounded = cx.out((x.size + 3,), F32)
        cx.emit("rnn_quantize_f32_flat", x=x, y=rounded, n=x.size)
        x = cx.alias(rounded, x.shape)
    return _run(
        cx, layer, "qlstm", x, w, r, b, sequence_lens, initial_h, functions, clip,
        c0=initial_c, p=p, input_forget=int(input_forget != 0),
    )  # fmt: skip


def _dequantized(cx: Context, name: str, w: Value, scale: Value | None, zero: Value | None) -> Value:
    """Weights [direction, k, n] of 8 bits as f32 [direction, n, k], which is how the other layers have them."""
    if w.rank != 3 or w.dtype not in (I8, U8):
        cx.fail(f"{name} {w!r} must be int8 or uint8 of 3 dimensions", UnsupportedModelError)
    if scale is None:
        cx.fail(f"the scale of {name} is missing")
    d, k, n = w.shape
    for part, dtype in ((scale, F32), (zero, w.dtype)):
        if part is not None and (part.dtype is not dtype or part.shape not in ((d,), (d, 1), (d, n))):
            cx.fail(
                f"scale and zero point of {name} must be {F32} and {w.dtype} of shape {[d]} or {[d, n]}, got {part!r}"
            )
    step = int(scale.size == d * n and n > 1)
    if zero is not None and zero.size != scale.size:
        cx.fail(f"scale {scale!r} and zero point {zero!r} of {name} differ in shape")

    def make() -> Value:
        made = cx.out((d, n, k), F32)
        if made.size:
            cx.emit(
                f"rnn_dequantize_{w.dtype.short}", units=d * k, stream=("src", n),
                src=w, scale=scale, zero=zero, dst=made, k=k, n=n, step=step,
            )  # fmt: skip
        return made

    sources = (w, scale) if zero is None else (w, scale, zero)
    return cx.derived(f"rnn_dequantized {zero is None}", sources, make)
