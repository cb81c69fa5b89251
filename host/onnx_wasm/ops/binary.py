"""Arithmetic, bits and extrema of two and more tensors, with numpy's broadcasting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..context import Array, Context, Quantized, Value
from ..dtypes import BOOL, F32, F64, I64, DType
from ..registry import op
from ._elementwise import FLOATS, INTEGERS, NUMBERS, UNSIGNED, arrays, broadcast, cast, flat, require, same_type
from .expand import expand
from .fusion import Activation, fuse_affine, fuse_bias, fuse_residual

# Kernels of integers that are the same for both signs carry the signed name.
_SIGNLESS = {f"u{bits}": f"i{bits}" for bits in (8, 16, 32, 64)}


def _arithmetic(cx: Context, name: str, a: Value, b: Value) -> Value:
    """One of add, sub, mul, div."""
    dtype = same_type(cx, a, b)
    short = require(cx, a, NUMBERS)
    swaps = name in ("add", "mul")
    if dtype is not F32:
        kernel = f"{name}_{short if name == 'div' else _SIGNLESS.get(short, short)}"
        return broadcast(cx, kernel, "ab", (a, b), dtype, swaps=swaps)[0]
    y, record = broadcast(
        cx, f"{name}_f32", "ab", (a, b), dtype, swaps=swaps, act=int(Activation.NONE), alpha=0.0, beta=0.0
    )
    y.producer = record
    return y


def _per_channel(x: Value, c: Value) -> bool:
    """Whether c is a constant with one element for each channel (axis 1) of x, or for all."""
    if x.dtype is not F32 or x.rank < 3 or not c.const or c.dtype is not F32 or c.rank > x.rank:
        return False
    channels = x.shape[1]
    if c.size == 1:
        return True
    return c.size == channels and c.rank >= x.rank - 1 and c.shape[c.rank - x.rank + 1] == channels


def _affine(cx: Context, x: Value, c: Value, *, scales: bool, inverse: str = "") -> bool:
    """Fold x * c or x + c over channels into the record of x; ``inverse`` is the kernel for 1 / c or -c first."""
    if not _per_channel(x, c):
        return False
    record = cx.fusable(x)
    if record is None or record.affine is None or (scales and not _ordinary(cx, c, divides=bool(inverse))):
        return False
    if inverse:
        c = cx.derived(inverse, (c,), lambda: flat(cx, inverse, c))
    c = cx.alias(c, (c.size,))
    if c.size != x.shape[1]:
        c = cx.derived(f"channels {x.shape[1]}", (c,), lambda: expand(cx, c, np.array([x.shape[1]], np.int64)))
    return fuse_affine(cx, x, c, None) if scales else fuse_affine(cx, x, None, c)


def _ordinary(cx: Context, c: Value, *, divides: bool) -> bool:
    """Whether c, or 1 / c, is finite: infinite weights would add up to NaN where what they stand for is infinite."""
    if c.known is None and (c.source is None or c.size != c.root.size):
        return True
    values = cx.read(c).reshape(-1).tolist()
    return all(abs(v) > 1e-37 for v in values) if divides else all(abs(v) < 1e37 for v in values)


def _div_fold(a: Array, b: Array) -> Any:
    """Truncates toward zero; a division by 0 is left to the run, which reports it."""
    if not np.all(b):
        return NotImplemented
    return np.asarray((a - np.fmod(a, b)) // b)


def _mod_fold(a: Array, b: Array, *, fmod: int = 0) -> Any:
    if not np.all(b):
        return NotImplemented
    return np.asarray(np.fmod(a, b) if fmod else np.mod(a, b))


@op("Add", since=7, fold=arrays(np.add), elementwise=True)
def add(cx: Context, a: Value, b: Value) -> Value:
    """a + b"""
    if a.dtype is F32 and b.dtype is F32:
        if a.shape == b.shape:
            if fuse_residual(cx, a, b):
                return a
            if fuse_residual(cx, b, a):
                return b
        for x, c in ((a, b), (b, a)):
            if fuse_bias(cx, x, c) or _affine(cx, x, c, scales=False):
                return x
    return _arithmetic(cx, "add", a, b)


@op("Sub", since=7, fold=arrays(np.subtract), elementwise=True)
def sub(cx: Context, a: Value, b: Value) -> Value:
    """a - b"""
    if _affine(cx, a, b, scales=False, inverse="neg_f32"):
        return a
    return _arithmetic(cx, "sub", a, b)


@op("Mul", since=7, fold=arrays(np.multiply), elementwise=True)
def mul(cx: Context, a: Value, b: Value) -> Value:
    """a b"""
    if _affine(cx, a, b, scales=True):
        return a
    if _affine(cx, b, a, scales=True):
        return b
    y = _arithmetic(cx, "mul", a, b)
    for x, scale in ((a, b), (b, a)):
        y.quantized = y.quantized or _scaled(cx, x, scale)
    return y


def _scaled(cx: Context, x: Value, scale: Value) -> Quantized | None:
    """What x * scale is stored as, if x is a constant of 8 bits that was cast, and the scale goes along one axis."""
    q = x.quantized
    if q is None or q.scale is not None or not scale.const or scale.dtype is not F32 or scale.rank > x.rank:
        return None
    shape = (1,) * (x.rank - scale.rank) + scale.shape
    axes = [axis for axis, d in enumerate(shape) if d != 1]
    if len(axes) > 1 or any(shape[axis] != x.shape[axis] for axis in axes):
        return None
    return Quantized(q.values, cx.alias(scale, (scale.size,)), None, axes[0] if axes else -1, q.transposed)


@op("Div", since=7, fold=_div_fold, elementwise=True)
def div(cx: Context, a: Value, b: Value) -> Value:
    """a / b; integers truncate toward zero, and report a divisor of 0."""
    if _affine(cx, a, b, scales=True, inverse="reciprocal_f32"):
        return a
    return _arithmetic(cx, "div", a, b)


@op("Mod", since=10, fold=_mod_fold)
def mod(cx: Context, a: Value, b: Value, *, fmod: int = 0) -> Value:
    """The remainder with the divisor's sign, or with fmod, the dividend's."""
    dtype = same_type(cx, a, b)
    short = require(cx, a, NUMBERS)
    kernel = "fmod" if fmod and short not in UNSIGNED else "mod"
    return broadcast(cx, f"{kernel}_{short}", "ab", (a, b), dtype)[0]


def _pow_fold(a: Array, b: Array) -> Any:
    if not (np.issubdtype(a.dtype, np.integer) and np.issubdtype(b.dtype, np.integer)) or np.any(b < 0):
        return NotImplemented
    return np.asarray(np.power(a, b.astype(a.dtype)))


@op("Pow", since=7, fold=_pow_fold, elementwise=True)
def pow_(cx: Context, x: Value, y: Value) -> Value:
    """x to the power y in the type of x, computed in one that holds y."""
    short = require(cx, x, NUMBERS)
    require(cx, y, NUMBERS)
    if x.dtype.is_float:
        exponent = _fixed(cx, y) if y.size == 1 and y.rank <= x.rank else None
        # x^2 rounds once either way.
        if exponent == 2:
            return _arithmetic(cx, "mul", x, x)
        with np.errstate(over="ignore"):
            fits = exponent is not None and exponent == np.asarray(exponent).astype(x.dtype.numpy).item()
        wide = x.dtype if fits or x.dtype is F64 or y.dtype is x.dtype else F64 if _exceeds_f32(y.dtype) else F32
    elif y.dtype is x.dtype:
        wide = x.dtype
    else:
        wide = F64 if y.dtype.is_float else I64
    if wide is x.dtype:
        return broadcast(cx, f"pow_{short}", "ab", (x, cast(cx, y, wide)), wide)[0]
    z = broadcast(cx, f"pow_{wide.short}", "ab", (cast(cx, x, wide), cast(cx, y, wide)), wide)[0]
    return cast(cx, z, x.dtype)


def _exceeds_f32(dtype: DType) -> bool:
    return dtype is F64 or (dtype.is_integer and dtype.bits > 16)


def _fixed(cx: Context, x: Value) -> float | None:
    """The one number that the model fixes x to be."""
    if x.known is None and not (x.const and x.source is not None):
        return None
    number: float = cx.read(x).item()
    return number


def _extremum(name: str, kernel: str, fold: Callable[..., Any]) -> None:
    def folded(*xs: Array) -> Array:
        result = xs[0]
        for x in xs[1:]:
            result = np.asarray(fold(result, x))
        return result

    @op(name, since=6, fold=folded, elementwise=True)
    def lower(cx: Context, *xs: Value) -> Value:
        dtype = same_type(cx, *xs)
        short = require(cx, xs[0], NUMBERS)
        y = xs[0]
        for x in xs[1:]:
            y, _ = broadcast(cx, f"{kernel}_{short}", "ab", (y, x), dtype, swaps=short != "u64")
        return y if len(xs) > 1 else cx.alias(y, y.shape)


_extremum("Max", "max", np.maximum)
_extremum("Min", "min", np.minimum)


def _sum_fold(*xs: Array) -> Array:
    result = xs[0]
    for x in xs[1:]:
        result = np.asarray(result + x)
    return result


@op("Sum", since=6, fold=_sum_fold, elementwise=True)
def sum_(cx: Context, *xs: Value) -> Value:
    """The sum of all inputs, from the left."""
    require(cx, xs[0], FLOATS)
    y = xs[0]
    for x in xs[1:]:
        y = add(cx, y, x)
    return y if len(xs) > 1 else cx.alias(y, y.shape)


@op("Mean", since=6)
def mean(cx: Context, *xs: Value) -> Value:
    """The mean of all inputs."""
    require(cx, xs[0], FLOATS)
    count = cx.known(np.array(len(xs), xs[0].dtype.numpy))
    return _arithmetic(cx, "div", sum_(cx, *xs), count)


def _bitwise(name: str, kernel: str, types: frozenset[str], since: int, fold: Callable[..., Any]) -> None:
    @op(name, since=since, fold=arrays(fold))
    def lower(cx: Context, a: Value, b: Value) -> Value:
        dtype = same_type(cx, a, b)
        require(cx, a, types)
        return broadcast(cx, f"{kernel}_{dtype.bits}", "ab", (a, b), dtype, swaps=True)[0]


for _name, _fold in (("And", np.bitwise_and), ("Or", np.bitwise_or), ("Xor", np.bitwise_xor)):
    _bitwise(_name, _name.lower(), frozenset({BOOL.short}), 7, _fold)
    _bitwise(f"Bitwise{_name}", _name.lower(), INTEGERS, 18, _fold)


@op("BitShift", since=11)
def bit_shift(cx: Context, x: Value, y: Value, *, direction: str) -> Value:
    """x shifted by y bits: to the right, signed types keep their sign."""
    dtype = same_type(cx, x, y)
    short = require(cx, x, INTEGERS)
    if direction not in ("LEFT", "RIGHT"):
        cx.fail(f"direction is {direction!r}, must be 'LEFT' or 'RIGHT'")
    return broadcast(cx, f"shift_{direction.lower()}_{short}", "ab", (x, y), dtype)[0]
