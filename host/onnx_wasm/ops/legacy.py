"""The forms that operators had before opset 7, where the next ones differ.

Arithmetic then broadcast its second operand only if told to, at an axis; attributes held what became inputs; and
``consumed_inputs`` hinted at work in place, which is decided here without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import dtypes, registry
from ..context import Array, Context, Item, Value
from ..registry import OpDef, ignoring, op
from . import activation, concat, expand, matmul, norm, pad, pool, reshape, resize, shape
from . import binary as _binary  # noqa: F401  (its forms, and those of the next ones, are found by name)
from . import compare as _compare  # noqa: F401
from . import recurrent as _recurrent  # noqa: F401
from . import unary as _unary  # noqa: F401
from ._copy import normal_axis, only
from .cast import cast


def _form(name: str, opset: int) -> OpDef:
    found = registry.find("", name, opset)
    assert found is not None, name
    return found


def _consuming(name: str) -> None:
    form = _form(name, 6)
    fold = form.fold and ignoring(form.fold, "consumed_inputs")
    op(name, since=1, host=tuple(form.host), fold=fold)(ignoring(form.function, "consumed_inputs"))


_CONSUMING = """
    Abs Ceil Elu Exp Floor HardSigmoid InstanceNormalization LeakyRelu Log Max Mean Min Neg Reciprocal Relu Sigmoid Sqrt
    Sum Tanh
"""
for _name in _CONSUMING.split():
    _consuming(_name)


for _name in ("GRU", "LSTM", "RNN"):
    _form_7 = _form(_name, 7)
    # Whether Y is made then follows from who reads it.
    op(_name, since=1, host=tuple(_form_7.host))(ignoring(_form_7.function, "output_sequence"))


def _aligned(a: Sequence[int], b: Sequence[int], axis: int | None) -> tuple[int, ...] | None:
    """The shape in which ``b`` lies along the axes of ``a`` from ``axis`` on, or along the last ones."""
    if all(d == 1 for d in b):
        return ()
    first = len(a) - len(b) if axis is None else axis + len(a) if axis < 0 else axis
    behind = len(a) - first - len(b)
    if first < 0 or behind < 0 or any(d not in (1, e) for d, e in zip(b, a[first:], strict=False)):
        return None
    return (*b, *(1,) * behind)


def _told_to_broadcast(name: str) -> None:
    form = _form(name, 7)

    def fold(a: Array, b: Array, *, axis: int | None = None, broadcast: int = 0, consumed_inputs: object = None) -> Any:
        aligned = _aligned(a.shape, b.shape, axis) if broadcast else b.shape if a.shape == b.shape else None
        return NotImplemented if aligned is None or form.fold is None else form.fold(a, b.reshape(aligned))

    @op(name, since=1, fold=fold)
    def lower(
        cx: Context,
        a: Value,
        b: Value,
        *,
        axis: int | None = None,
        broadcast: int = 0,
        consumed_inputs: Sequence[int] | None = None,
    ) -> Value:
        if broadcast:
            aligned = _aligned(a.shape, b.shape, axis)
            if aligned is None:
                where = "the last axes" if axis is None else f"the axes from {axis} on"
                cx.fail(f"{b} does not broadcast to {where} of {a}")
            if aligned != b.shape:
                b = cx.alias(b, aligned)
        elif a.shape != b.shape:
            cx.fail(f"shapes differ, and broadcast is not set: {a}, {b}")
        y: Value = form.function(cx, a, b)
        return y


for _name in ("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor"):
    _told_to_broadcast(_name)


@op("Selu", since=1)
def selu_1(
    cx: Context,
    x: Value,
    *,
    alpha: float = 1.6732,
    gamma: float = 1.0507,
    consumed_inputs: Sequence[int] | None = None,
) -> Value:
    """As now, with fewer digits."""
    return activation.selu(cx, x, alpha=alpha, gamma=gamma)


@op("Clip", since=1)
def clip_1(
    cx: Context,
    x: Value,
    *,
    min: float | None = None,
    max: float | None = None,
    consumed_inputs: Sequence[int] | None = None,
) -> Value:
    """The bounds that are given apply."""
    low, high = (None if v is None else cx.known(np.array(v, x.dtype.numpy)) for v in (min, max))
    return activation.clip(cx, x, low, high)


@op("PRelu", since=1)
def prelu_1(cx: Context, x: Value, slope: Value, *, consumed_inputs: Sequence[int] | None = None) -> Value:
    """One slope, or one for each channel (axis 1)."""
    if slope.size == 1:
        slope = cx.alias(slope, ())
    elif slope.rank == 1 and x.rank > 2:
        slope = cx.alias(slope, (slope.size, *(1,) * (x.rank - 2)))
    return activation.prelu(cx, x, slope)


@op("Gemm", since=1)
def gemm_1(
    cx: Context,
    a: Value,
    b: Value,
    c: Value,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    broadcast: int = 0,
    transA: int = 0,
    transB: int = 0,
) -> Value:
    """As now; C broadcasts only if told to."""
    y = matmul.gemm(cx, a, b, c, alpha=alpha, beta=beta, transA=transA, transB=transB)
    if not broadcast and c.shape != y.shape:
        cx.fail(f"broadcast is not set, and {c} has not the shape {list(y.shape)} of the product")
    return y


@op("BatchNormalization", since=1)
def batchnorm_1(
    cx: Context,
    x: Value,
    scale: Value,
    bias: Value,
    mean: Value,
    var: Value,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    spatial: int = 1,
    is_test: int = 0,
    consumed_inputs: Sequence[int] | None = None,
) -> Value:
    """As from opset 7 on; without ``is_test`` too, as long as nothing reads what training updates."""
    y: Value = norm.batchnorm_7(cx, x, scale, bias, mean, var, epsilon=epsilon, momentum=momentum, spatial=spatial)
    return y


@op("Dropout", since=1)
def dropout_1(
    cx: Context, x: Value, *, ratio: float = 0.5, is_test: int = 0, consumed_inputs: Sequence[int] | None = None
) -> tuple[Value, Value | None]:
    """The input, whether ``is_test`` or not, as from opset 7 on."""
    return shape.dropout_7(cx, x, ratio=ratio)


@op("Reshape", since=1, fold=lambda x, *, shape, consumed_inputs=None: reshape.fold_reshape(x, np.array(shape)))
def reshape_1(cx: Context, x: Value, *, shape: Sequence[int], consumed_inputs: Sequence[int] | None = None) -> Value:
    """The shape is an attribute."""
    return reshape.reshape(cx, x, np.array(shape, np.int64))


@op("Cast", since=1)
def cast_1(cx: Context, x: Value, *, to: str) -> Item:
    """The type has its name in ONNX."""
    try:
        target = {"FLOAT": dtypes.F32, "DOUBLE": dtypes.F64}.get(to) or dtypes.from_name(to.lower())
    except ValueError as error:
        cx.fail(str(error))
    return cast(cx, x, to=target.onnx)


@op("Concat", since=1, fold=lambda *xs, axis=1: concat.fold_concat(*xs, axis=axis))
def concat_1(cx: Context, *xs: Value, axis: int = 1) -> Value:
    """As now; channels are joined unless said otherwise."""
    return concat.concat(cx, *xs, axis=axis)


@op("Split", since=1, host=("split_input",))
def split_1(
    cx: Context, x: Value, split_input: Array | None = None, *, axis: int, split: Sequence[int] | None = None
) -> tuple[Value | None, ...]:
    """The extents are an attribute or an input."""
    extents = split if split_input is None else split_input.reshape(-1).tolist()
    return concat.split_2(cx, x, axis=axis, split=extents)


@op("Tile", since=1, host=("tiles", "axis"))
def tile_1(cx: Context, x: Value, tiles: Array, axis: Array) -> Value:
    """Repeated along one axis."""
    repeats = np.ones(x.rank, np.int64)
    repeats[normal_axis(cx, only(cx, "axis", axis), x.rank)] = only(cx, "tiles", tiles)
    return expand.tile(cx, x, repeats)


@op("Pad", since=1)
def pad_1(cx: Context, x: Value, *, paddings: Sequence[int], mode: str = "constant", value: float = 0.0) -> Value:
    """The attribute had another name."""
    return pad.pad_2(cx, x, pads=paddings, mode=mode, value=value)


@op("Upsample", since=1)
def upsample_1(cx: Context, x: Value, *, height_scale: float, width_scale: float, mode: str = "nearest") -> Value:
    """Only images, by two factors."""
    if x.rank != 4:
        cx.fail(f"{x} has rank {x.rank}, needs 4 (N, C, H, W)")
    mode = "linear" if mode == "bilinear" else mode
    return resize.upsample_7(cx, x, scales=(1.0, 1.0, height_scale, width_scale), mode=mode)


def _whole(cx: Context, p: float) -> int:
    if p != int(p):
        cx.fail(f"p is {p}, must be an integer")
    return int(p)


@op("LpPool", since=1)
def lp_pool_1(
    cx: Context,
    x: Value,
    *,
    kernel_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    auto_pad: str = "NOTSET",
    p: float = 2.0,
) -> Value:
    """As now; p is a float."""
    y: Value = pool.lp_pool(
        cx, x, kernel_shape=kernel_shape, strides=strides, pads=pads, auto_pad=auto_pad, p=_whole(cx, p)
    )
    return y


@op("GlobalLpPool", since=1)
def global_lp_pool_1(cx: Context, x: Value, *, p: float = 2.0) -> Value:
    """As now; p is a float."""
    y: Value = pool.global_lp_pool(cx, x, p=_whole(cx, p))
    return y
