"""Tensors that come from attributes, and tensors of counted or repeated values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import dtypes
from ..context import Array, Context, Value
from ..errors import UnsupportedModelError
from ..initializers import Initializer
from ..registry import op
from ._copy import copy, fill, normal_axis, only, width
from ._elementwise import cast
from ._narrow import pack, unpack
from ._shapes import extents

# Integers and bools up to this many elements are known to the host, as they may become shapes.
KNOWN = 4096


@op("Constant")
def constant(
    cx: Context,
    *,
    value: Initializer | None = None,
    value_float: float | None = None,
    value_floats: Sequence[float] | None = None,
    value_int: int | None = None,
    value_ints: Sequence[int] | None = None,
    value_string: str | None = None,
    value_strings: Sequence[str] | None = None,
    sparse_value: Initializer | None = None,
) -> Value:
    """The one attribute that is given."""
    tensor = value if sparse_value is None else sparse_value
    if tensor is not None:
        return weight(cx, tensor)
    given: list[tuple[Any, Any]] = [
        (value_float, np.float32),
        (value_floats, np.float32),
        (value_int, np.int64),
        (value_ints, np.int64),
        (value_string, object),
        (value_strings, object),
    ]
    for content, dtype in given:
        if content is not None:
            result = cx.known(np.array(content, dtype))
            result.const = True
            return result
    cx.fail("has none of the attributes that could hold a value")


def weight(cx: Context, tensor: Initializer) -> Value:
    """The value of a tensor that is an attribute."""
    if tensor.dtype is dtypes.STRING:
        result = cx.known(tensor.array())
        result.const = True
        return result
    result = Value(tensor.shape, tensor.dtype, name=tensor.name, const=True)
    result.source = tensor
    if not tensor.dtype.is_float and tensor.dtype.bits >= 8 and tensor.size <= KNOWN:
        result.known = tensor.array()
    return result


@op("ConstantOfShape", host=("shape",))
def constant_of_shape(cx: Context, shape: Array, *, value: Initializer | None = None) -> Value:
    """One value, 0.0 unless given, repeated."""
    target = extents(cx, "shape", shape)
    if min(target, default=0) < 0:
        cx.fail(f"shape {target} has a negative dimension")
    if value is None:
        y = cx.out(target, dtypes.F32)
        fill(cx, y, None)
        return y
    if value.size != 1:
        cx.fail(f"value has {value.size} elements, needs 1")
    one = weight(cx, value)
    if one.known is not None and math.prod(target) <= KNOWN:
        return cx.known(np.full(target, one.known.reshape(())))
    if one.dtype.bits < 8:
        y = cx.out(target, dtypes.U8)
        fill(cx, y, cx.derived("unpacked", (one,), lambda: unpack(cx, one)))
        return pack(cx, y, one.dtype)
    y = cx.out(target, one.dtype)
    fill(cx, y, one)
    return y


def fold_range(start: Array, limit: Array, delta: Array, *, stash_type: int = 1) -> Array:
    return np.array(range(start.item(), limit.item(), delta.item()), start.dtype)


@op("Range", host=("start", "limit", "delta"), fold=fold_range)
def range_(cx: Context, start: Array, limit: Array, delta: Array, *, stash_type: int = 1) -> Value:
    """start, start + delta, ... up to but without limit; every value is start + i * delta, in the type of start."""
    first, last, step = only(cx, "start", start), only(cx, "limit", limit), only(cx, "delta", delta)
    if step == 0:
        cx.fail("delta is 0")
    dtype = dtypes.from_numpy(start.dtype)
    if dtype.is_integer:
        count = len(range(int(first), int(last), int(step)))
        if count <= KNOWN:
            return cx.known(fold_range(start, limit, delta))
    else:
        # The difference is rounded to the type, as in onnxruntime.
        span = float(start.dtype.type(float(last) - float(first))) / float(step)
        if not math.isfinite(span):
            cx.fail(f"start {first}, limit {last} and delta {step} give no finite count")
        count = max(0, math.ceil(span))
    if dtype not in (dtypes.I16, dtypes.I32, dtypes.I64, dtypes.F32, dtypes.F64, dtypes.F16, dtypes.BF16):
        cx.fail(f"type {dtype} is not implemented", UnsupportedModelError)
    y = cx.out((count,), dtype)
    if count:
        cx.emit(f"range_{dtype.short}", units=cx.chunks(y), y=y, n=count, start=first, delta=step)
    return y


@op("EyeLike")
def eye_like(cx: Context, x: Value, *, dtype: int | None = None, k: int = 0) -> Value:
    """Ones on a diagonal, zeros elsewhere."""
    if x.rank != 2:
        cx.fail(f"{x} has rank {x.rank}, needs 2")
    y = cx.out(x.shape, x.dtype if dtype is None else dtypes.from_onnx(dtype))
    rows, cols = y.shape
    row, col = max(0, -k), max(0, k)
    fill(cx, y, None)
    if row < rows and col < cols:
        count = min(rows - row, cols - col)
        copy(cx, cx.known(np.ones(1, y.dtype.numpy)), y, [(count, 0, cols + 1)], target=row * cols + col)
    return y


def fold_one_hot(indices: Array, depth: Array, values: Array, *, axis: int = -1) -> Array:
    size = int(depth.item())
    if size < 0 or values.shape != (2,):
        raise ValueError(f"depth {size}, values {values.tolist()}")
    axis = axis + indices.ndim + 1 if axis < 0 else axis
    marked = np.expand_dims(np.where(indices < 0, indices + size, indices), axis)
    places = np.arange(size).reshape([size if i == axis else 1 for i in range(indices.ndim + 1)])
    result: Array = np.where(marked == places, values[1], values[0]).astype(values.dtype)
    return result


# How kernels read indices.
_INDICES = {dtypes.I32: 0, dtypes.I64: 1, dtypes.F32: 2}


@op("OneHot", host=("depth",), fold=fold_one_hot)
def one_hot(cx: Context, indices: Value, depth: Array, values: Value, *, axis: int = -1) -> Value:
    """values[1] at each index along a new axis, values[0] elsewhere and for an index outside [-depth, depth)."""
    size = int(only(cx, "depth", depth))
    if size < 1 or values.shape != (2,):
        cx.fail(f"depth is {size}, must be at least 1, and {values} must have shape [2]")
    if indices.dtype not in _INDICES:
        indices = cast(cx, indices, dtypes.F32 if indices.dtype.is_float else dtypes.I64)
    axis = normal_axis(cx, axis, indices.rank + 1)
    y = cx.out((*indices.shape[:axis], size, *indices.shape[axis:]), values.dtype)
    item = width(cx, values)
    fill(cx, y, values)
    if y.size:
        cx.emit(
            f"onehot_b{item}",
            units=indices.size,
            index=indices,
            value=cx.alias(values, (1,), offset=item),
            y=y,
            kind=_INDICES[indices.dtype],
            depth=size,
            inner=math.prod(indices.shape[axis:]),
        )
    return y
