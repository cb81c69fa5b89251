"""What RNN, GRU and LSTM have in common.

What depends on the input alone, X * W^T + bias, is one matrix product for all steps and both directions. One record
then walks the steps (kernels_wat/rnn.wat.j2); its units are the directions, and groups of batch rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, overload

import numpy as np

from ..context import Context, Value
from ..dtypes import BF16, F16, F32, F64, I32
from ..errors import UnsupportedModelError
from ._elementwise import cast
from ._panels import pack_columns
from .matmul import TILE_BYTES, gemm

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


class Kind(NamedTuple):
    """One of the operators: its kernel, gates and outputs, and the activations of a direction by default."""

    kernel: str
    gates: int
    outputs: int
    activations: tuple[str, ...]


class Layer(NamedTuple):
    """The inputs that every kind has, and the sizes and attributes that the node gives."""

    kind: Kind
    x: Value
    w: Value
    r: Value
    b: Value | None
    lens: Value | None
    h0: Value | None
    steps: int
    batch: int
    inputs: int
    hidden: int
    directions: int
    reverse: int
    batch_first: bool
    functions: tuple[int, ...]
    """(code, alpha, beta) of every activation of every direction, floats as bits."""
    clip: float

    @property
    def rows(self) -> int:
        """Rows of all gates of one direction in W and R."""
        return self.kind.gates * self.hidden

    @property
    def state(self) -> tuple[int, int, int]:
        """The shape of the initial and last states."""
        if self.batch_first:
            return self.batch, self.directions, self.hidden
        return self.directions, self.batch, self.hidden

    @property
    def output(self) -> tuple[int, int, int, int]:
        """The shape of Y."""
        if self.batch_first:
            return self.batch, self.steps, self.directions, self.hidden
        return self.steps, self.directions, self.batch, self.hidden


def layer(
    cx: Context,
    kind: Kind,
    x: Value,
    w: Value,
    r: Value,
    b: Value | None,
    lens: Value | None,
    h0: Value | None,
    activations: Sequence[str],
    alphas: Sequence[float],
    betas: Sequence[float],
    clip: float,
    direction: str,
    hidden_size: int | None,
    layout: int,
    *,
    stored: bool = False,
) -> Layer:
    """The layer that a node describes, all of it checked. Weights that are ``stored`` in 8 bits have their last axes
    exchanged, and types of their own."""
    reverse = _DIRECTIONS.get(direction)
    if reverse is None:
        cx.fail(f"direction is {direction!r}, must be one of {', '.join(_DIRECTIONS)}")
    if layout not in (0, 1):
        cx.fail(f"layout is {layout}, must be 0 or 1")
    if x.rank != 3 or r.rank != 3:
        cx.fail(f"X and R must have 3 dimensions, got {x!r} and {r!r}")
    if x.dtype not in (F32, F64, F16, BF16):
        cx.fail(f"type {x.dtype} of X is not supported", UnsupportedModelError)
    hidden = r.shape[1 if stored else 2]
    if hidden_size not in (None, hidden) or hidden == 0:
        cx.fail(f"hidden_size is {hidden_size}, but R is {r!r}")
    steps, batch = x.shape[1::-1] if layout else x.shape[:2]
    directions = 2 if reverse == 2 else 1
    functions = _functions(cx, kind, activations or kind.activations * directions, alphas, betas, directions)
    made = Layer(
        kind, x, w, r, b, lens, h0, steps, batch, x.shape[2], hidden, directions, reverse, bool(layout),
        functions, clip if clip > 0 else math.inf,
    )  # fmt: skip
    if stored:
        check(cx, w, "W", w, (directions, made.inputs, made.rows))
        check(cx, r, "R", r, (directions, hidden, made.rows))
    else:
        check(cx, x, "W", w, (directions, made.rows, made.inputs))
        check(cx, x, "R", r, (directions, made.rows, hidden))
    check(cx, x, "B", b, (directions, 2 * made.rows))
    check(cx, x, "initial_h", h0, made.state)
    if lens is not None and (lens.shape != (batch,) or lens.dtype is not I32):
        cx.fail(f"sequence_lens {lens!r} must be int32 of shape [{batch}]")
    return made


def check(cx: Context, x: Value, name: str, value: Value | None, shape: Sequence[int]) -> None:
    """Demand that an input, if given, has a shape and the type of ``x``."""
    if value is None:
        return
    if value.shape != tuple(shape):
        cx.fail(f"{name} {value!r} must have shape {list(shape)}")
    if value.dtype is not x.dtype:
        cx.fail(f"{name} {value!r} must be of X's type {x.dtype}")


def _functions(
    cx: Context, kind: Kind, names: Sequence[str], alphas: Sequence[float], betas: Sequence[float], directions: int
) -> tuple[int, ...]:
    """Alphas and betas go to the activations that have them, in order."""
    count = len(kind.activations) * directions
    # The default of an RNN is two names, whatever its direction.
    if len(names) != count and not (kind.kernel == "rnn" and len(names) > count):
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
    return tuple(words)


@overload
def wide(cx: Context, value: Value) -> Value: ...
@overload
def wide(cx: Context, value: None) -> None: ...
def wide(cx: Context, value: Value | None) -> Value | None:
    """A 16-bit value in f32, a constant once per session; others as they are."""
    if value is None or value.dtype not in (F16, BF16):
        return value
    return cx.derived("rnn_f32", (value,), lambda: cast(cx, value, F32))


def run(
    cx: Context,
    made: Layer,
    *,
    plain: bool = True,
    apart: int = 0,
    stored: Callable[[Value | None], tuple[Value | None, Value]] | None = None,
    **extra: Any,
) -> tuple[Value | None, ...]:
    """The records of a layer, and its outputs: those that the node names, None for others.

    ``plain`` says that ``extra``, the kernel's own arguments, keeps it from no short cut; ``apart``, how many rows of
    the second bias are not added to the first. ``stored`` makes the product with the input plus a bias, and R as the
    kernel wants it, where weights are stored in 8 bits.
    """
    names = cx.node.outputs
    wanted = [i < len(names) and names[i] != "" for i in range(made.kind.outputs)]
    real = F64 if made.x.dtype is F64 else F32
    shapes = (made.output, made.state, made.state)
    outputs = tuple(cx.out(s, real) if want else None for s, want in zip(shapes, wanted, strict=False))
    if made.batch and any(wanted):
        _emit(cx, made, outputs, plain, apart, stored, extra)
    if made.x.dtype is real:
        return outputs
    return tuple(None if v is None else cast(cx, v, made.x.dtype) for v in outputs)


def _emit(
    cx: Context,
    made: Layer,
    outputs: Sequence[Value | None],
    plain: bool,
    apart: int,
    stored: Callable[[Value | None], tuple[Value | None, Value]] | None,
    extra: dict[str, Any],
) -> None:
    x, r, kernel, hidden = wide(cx, made.x), wide(cx, made.r), made.kind.kernel, made.hidden
    size, columns = x.dtype.itemsize, made.directions * made.rows
    xw = None
    if stored is not None:
        xw, r = stored(_bias(cx, made.b, columns, made.rows, apart))
    elif made.steps:
        a = cx.alias(x, (made.steps * made.batch, made.inputs))
        bias = _bias(cx, made.b, columns, made.rows, apart)
        xw = gemm(cx, a, cx.alias(wide(cx, made.w), (columns, made.inputs)), bias, transB=1)
    padded = -(-hidden // 2) * 2
    if x.dtype is F32:
        # Gate by gate, so that every gate begins a panel.
        padded = -(-hidden // 8) * 8
        if stored is None:
            r = pack_columns(cx, r, hidden, hidden, transposed=True)
    # A quantized state has one scale for the whole batch.
    quantized = stored is not None
    group = made.batch if made.batch < 2 * GROUP or quantized else GROUP
    groups = -(-made.batch // group)
    state, width = hidden * size, made.directions * hidden * size
    unit_bytes = group * (2 + quantized + made.kind.gates) * padded * size + TILE_BYTES
    if not quantized:
        unit_bytes += -(-group // 4) * 4 * state
    unit_bytes = -(-unit_bytes // 64) * 64
    if made.batch_first:
        x_t, x_b = 1, made.steps
        y_t, y_b, y_d, s_b, s_d = width, made.steps * width, state, width, state
    else:
        x_t, x_b = made.batch, 1
        y_t, y_b, y_d, s_b, s_d = made.batch * width, state, made.batch * state, state, made.batch * state
    if made.kind.outputs == 3:
        extra = {"y_c": outputs[2], **extra}
    cx.emit(
        f"{kernel}_{x.dtype.short}",
        units=made.directions * groups,
        xw=xw,
        r=r,
        lens=made.lens,
        h0=wide(cx, made.h0),
        y=outputs[0] if made.steps else None,
        y_h=outputs[1],
        scratch=cx.work(made.directions * groups * unit_bytes),
        steps=made.steps,
        batch=made.batch,
        hidden=hidden,
        group=group,
        groups=groups,
        unit_bytes=unit_bytes,
        reverse=made.reverse,
        x_t=x_t * columns * size,
        x_b=x_b * columns * size,
        x_d=made.rows * size,
        y_t=y_t,
        y_b=y_b,
        y_d=y_d,
        s_b=s_b,
        s_d=s_d,
        plain=int(plain and _is_default(made)),
        clip=made.clip,
        functions=made.functions,
        **extra,
    )


def _is_default(made: Layer) -> bool:
    codes = [int(_FUNCTIONS[name.lower()][0]) for name in made.kind.activations]
    return made.clip == math.inf and made.functions[::3] == tuple(codes * made.directions)


def _bias(cx: Context, b: Value | None, columns: int, rows: int, apart: int) -> Value | None:
    """Both biases added up, but for the last ``apart`` rows of the second."""
    if b is None:
        return None
    source = wide(cx, b)

    def make() -> Value:
        total = cx.out((columns,), source.dtype)
        cx.emit(
            f"rnn_bias_{source.dtype.short}", units=columns // rows, src=source, dst=total, n=rows, apart=apart
        )  # fmt: skip
        return total

    return cx.derived(f"rnn_bias {rows} {apart}", (source,), make)
