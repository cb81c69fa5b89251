"""Records of elementwise kernels, for the ops that are made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ..context import Array, Context, Record, Value
from ..dtypes import BOOL, DType
from ..errors import UnsupportedModelError
from ._shapes import Shape, broadcast_shape, rows

FLOATS = frozenset({"f32", "f64", "f16", "bf16"})
SIGNED = frozenset({"i8", "i16", "i32", "i64"})
UNSIGNED = frozenset({"u8", "u16", "u32", "u64"})
INTEGERS = SIGNED | UNSIGNED
NUMBERS = FLOATS | INTEGERS


def arrays(function: Callable[..., Any]) -> Callable[..., Array]:
    """A fold that gives an array for rank 0 too, where numpy gives a scalar."""
    return lambda *inputs: np.asarray(function(*inputs))


def require(cx: Context, x: Value, allowed: frozenset[str]) -> str:
    """The short name of the type of ``x``, if the op has it."""
    short = x.dtype.short
    if short not in allowed:
        cx.fail(f"type {x.dtype} of {x.name or 'an input'} is not supported", UnsupportedModelError)
    return short


def same_type(cx: Context, *values: Value) -> DType:
    """The one type of all values."""
    dtype = values[0].dtype
    for value in values[1:]:
        if value.dtype is not dtype:
            cx.fail(f"inputs have different types: {', '.join(str(v) for v in values)}")
    return dtype


def flat(cx: Context, kernel: str, x: Value, dtype: DType | None = None, **args: Any) -> Value:
    """y = f(x) element by element."""
    y = cx.out(x.shape, dtype or x.dtype, reuse=(x,) if dtype is None or dtype.bits == x.dtype.bits else ())
    if y.size:
        cx.emit(kernel, units=cx.chunks(y), x=x, y=y, n=y.size, **args).flat = True
    return y


def broadcast(
    cx: Context, kernel: str, names: str, values: Sequence[Value], dtype: DType, *, swaps: bool = False, **args: Any
) -> tuple[Value, Record | None]:
    """y = f(values) over the shape they broadcast to, and the record unless it has nothing to do.

    ``names`` has a letter a value: the kernel's arguments, in its order. A kernel that ``swaps`` is commutative, and
    has no code for a first operand that stays while the second moves along a row.
    """
    shape = broadcast_shape(cx, *values)
    y = cx.out(shape, dtype, reuse=[v for v in values if v.shape == shape and v.dtype.bits == dtype.bits])
    if not y.size:
        return y, None
    order, numbers, lists = _walk(
        names, tuple([v.shape for v in values]), tuple([v.dtype.itemsize for v in values]), shape, y.size, swaps
    )
    record: dict[str, Any] = {name: values[k] for name, k in zip(names, order, strict=True)}
    emitted = cx.emit(kernel, units=cx.chunks(y), **record, y=y, n=y.size, **numbers, **args, **lists)
    # Integers report a division by 0.
    emitted.flat = dtype.is_float or not kernel.startswith(("div_", "mod_", "fmod_"))
    return y, emitted


@lru_cache(256)
def _walk(
    names: str, shapes: tuple[Shape, ...], widths: tuple[int, ...], out: Shape, size: int, swaps: bool
) -> tuple[tuple[int, ...], dict[str, Any], dict[str, Any]]:
    """Which operand each name stands for, and the numbers and lists of the record by which they are walked."""
    walk = rows(shapes, out, size)
    order = tuple(range(len(shapes)))
    if swaps and walk.operands[0].step < walk.operands[1].step:
        order = order[::-1]
    numbers: dict[str, Any] = {"inner": walk.inner, "mid": walk.mid, "rank": len(walk.dims)}
    lists: dict[str, Any] = {"dims": walk.dims}
    for name, k in zip(names, order, strict=True):
        operand, width = walk.operands[k], widths[k]
        numbers["i" + name], numbers["m" + name] = operand.step * width, operand.row * width
        lists["o" + name] = tuple(s * width for s in operand.groups)
    return order, numbers, lists


def cast(cx: Context, x: Value, to: DType) -> Value:
    """x in another number type; x itself if it has that."""
    if to is x.dtype:
        return x
    source = "u8" if x.dtype is BOOL else x.dtype.short
    if to is BOOL:
        kernel = f"cast_{_signed(source)}_bool"
    elif source[0] in "iu" and to.is_integer:
        if x.dtype.bits == to.bits:
            return cx.alias(x, x.shape, to)
        kernel = f"cast_{source if x.dtype.bits < to.bits else _signed(source)}_{_signed(to.short)}"
    else:
        kernel = f"cast_{source}_{to.short}"
    return flat(cx, kernel, x, to)


def _signed(short: str) -> str:
    return "i" + short[1:] if short[0] == "u" else short
