"""Reductions over axes, ArgMax and ArgMin."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..context import Array, Context, Value
from ..dtypes import BOOL, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64, DType
from ..errors import UnsupportedModelError
from ..registry import op
from ._elementwise import cast
from ._widen import as_type, widened

# Elements that one work unit reads, about.
UNIT = 16384
ARITHMETIC = (F32, F64, I32, I64, U32, U64)
ORDERED = (*ARITHMETIC, I8, U8, BOOL)

# Codes of `post` in kernels_wat/reduce.wat.j2.
_NOTHING, _MEAN, _ROOT, _LOG = range(4)
_KINDS = {
    "ReduceSum": ("sum", _NOTHING),
    "ReduceMean": ("sum", _MEAN),
    "ReduceMax": ("max", _NOTHING),
    "ReduceMin": ("min", _NOTHING),
    "ReduceProd": ("prod", _NOTHING),
    "ReduceL1": ("abs", _NOTHING),
    "ReduceL2": ("square", _ROOT),
    "ReduceLogSum": ("sum", _LOG),
    "ReduceSumSquare": ("square", _NOTHING),
    "ReduceLogSumExp": ("logsumexp", _NOTHING),
}


def normalize_axes(cx: Context, axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Axes counted from the front, sorted. Fails for one that is out of range or named twice."""
    result = []
    for axis in axes:
        axis = int(axis)
        if not -rank <= axis < rank:
            cx.fail(f"axis {axis} out of range [{-rank}, {rank})")
        result.append(axis % rank)
    if len(set(result)) != len(result):
        cx.fail(f"axes {list(axes)} name an axis twice")
    return tuple(sorted(result))


class Groups(NamedTuple):
    """Dimensions collapsed for the reduction kernels: (size, stride in elements), innermost first."""

    kept: list[tuple[int, int]]
    reduced: list[tuple[int, int]]
    last: bool
    """The innermost group is reduced."""


def group(shape: Sequence[int], axes: Sequence[int]) -> Groups:
    """Merge neighbours that are both kept or both reduced; dimensions of size 1 vanish."""
    groups: list[tuple[int, int, bool]] = []
    stride = 1
    for axis in range(len(shape) - 1, -1, -1):
        size, reduced = shape[axis], axis in axes
        if size != 1:
            if groups and groups[-1][2] == reduced:
                groups[-1] = (groups[-1][0] * size, groups[-1][1], reduced)
            else:
                groups.append((size, stride, reduced))
            stride *= size
    kept = [(n, s) for n, s, reduced in groups if not reduced]
    return Groups(kept, [(n, s) for n, s, reduced in groups if reduced], bool(groups) and groups[0][2])


def dim_words(dims: Sequence[tuple[int, int]], itemsize: int) -> list[int]:
    """The words that `$strided_offset` reads."""
    return [len(dims), *(word for size, stride in dims for word in (size, stride * itemsize))]


def emit_reduction(cx: Context, kernel: str, x: Value, y: Value, axes: Sequence[int], **args: Any) -> None:
    """Reduce ``x`` over ``axes`` into ``y`` with the pair of kernels ``<kernel>_last`` and ``<kernel>_mid``."""
    if y.size == 0:
        return
    item = x.dtype.itemsize
    groups = group(x.shape, axes)
    if x.size == 0:
        # Nothing is read: every output is the identity.
        words = [0]
        cx.emit(
            f"{kernel}_last",
            units=1,
            x=x,
            y=y,
            n=0,
            runs=0,
            outputs=y.size,
            per=y.size,
            **args,
            kept=words,
            reduced=words,
        )
        return
    count = x.size // y.size
    if groups.last:
        n = groups.reduced[0][0]
        per = max(1, UNIT // count)
        cx.emit(
            f"{kernel}_last",
            units=-(-y.size // per),
            x=x,
            y=y,
            n=n,
            runs=count // n,
            outputs=y.size,
            per=per,
            **args,
            kept=dim_words(groups.kept, item),
            reduced=dim_words(groups.reduced[1:], item),
        )
        return
    (inner, _), *kept = groups.kept or [(1, 1)]
    (n, stride), *reduced = groups.reduced or [(1, 0)]
    block = min(inner, max(64, UNIT // count & ~63))
    units = y.size // inner * -(-inner // block)
    cx.emit(
        f"{kernel}_mid",
        units=units,
        x=x,
        y=y,
        n=n,
        stride=stride * item,
        runs=count // n,
        inner=inner,
        block=block,
        **args,
        kept=dim_words(kept, item),
        reduced=dim_words(reduced, item),
    )


def reduce_to(cx: Context, name: str, x: Value, axes: Sequence[int], shape: Sequence[int]) -> Value:
    """What the operator ``name`` gives for sorted axes from the front, in the given shape."""
    kind, post = _KINDS[name]
    count = math.prod(x.shape[a] for a in axes)
    types: tuple[DType, ...] = ORDERED if kind in ("max", "min") else (F32, F64) if kind == "logsumexp" else ARITHMETIC
    if x.dtype not in types:
        cx.fail(f"has no form for {x.dtype}", UnsupportedModelError)
    if count == 1 and post in (_NOTHING, _MEAN) and kind not in ("abs", "square"):
        return cx.alias(x, shape)
    if count == 0 and post == _MEAN and x.dtype.is_integer:
        cx.fail(f"the mean over no elements of {x} is undefined")
    wide = _type_of_sum(x.dtype, post)
    if wide is not x.dtype:
        return cast(cx, reduce_to(cx, name, as_type(cx, x, wide), axes, shape), x.dtype)
    y = cx.out(shape, x.dtype)
    args = {} if kind == "logsumexp" else {"post": post, "count": count}
    kernel = kind if kind == "logsumexp" else f"reduce_{kind}"
    short = "u8" if x.dtype is BOOL else x.dtype.short
    emit_reduction(cx, f"{kernel}_{short}", x, y, axes, **args)
    return y


def _type_of_sum(dtype: DType, post: int) -> DType:
    """Means, roots and logarithms of integers may fit where the sum does not."""
    if post == _NOTHING or not dtype.is_integer:
        return dtype
    if post == _ROOT or (post == _LOG and dtype.is_signed):
        return F64
    # What a cast makes of -infinity, the logarithm of 0, is not the lowest unsigned number.
    return I64 if dtype.is_signed else U64


def _reduce(cx: Context, x: Value, axes: Sequence[int] | None, keepdims: int, noop: int = 0) -> Value:
    if axes is None or len(axes) == 0:
        axes = () if noop else range(x.rank)
    axes = normalize_axes(cx, axes, x.rank)
    if keepdims:
        shape = [1 if a in axes else d for a, d in enumerate(x.shape)]
    else:
        shape = [d for a, d in enumerate(x.shape) if a not in axes]
    return reduce_to(cx, cx.node.op_type, x, axes, shape)


@widened
def reduce_by_attribute(cx: Context, x: Value, *, axes: Sequence[int] | None = None, keepdims: int = 1) -> Value:
    """Reductions whose axes are an attribute."""
    return _reduce(cx, x, axes, keepdims)


@widened
def reduce_by_input(
    cx: Context, x: Value, axes: Array | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Value:
    """Reductions whose axes are an input."""
    return _reduce(cx, x, None if axes is None else axes.reshape(-1).tolist(), keepdims, noop_with_empty_axes)


def _fold_by_attribute(
    function: Callable[..., Any], x: Array, *, axes: Sequence[int] | None = None, keepdims: int = 1
) -> Array:
    return np.asarray(function(x, axis=tuple(axes) if axes else None, keepdims=bool(keepdims), dtype=x.dtype))


def _fold_by_input(
    function: Callable[..., Any],
    x: Array,
    axes: Array | None = None,
    *,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
) -> Array:
    if axes is not None and axes.size:
        over: tuple[int, ...] | None = tuple(axes.reshape(-1).tolist())
    else:
        over = () if noop_with_empty_axes else None
    return np.asarray(function(x, axis=over, keepdims=bool(keepdims), dtype=x.dtype))


_FOLDS = {
    "ReduceSum": np.add.reduce,
    "ReduceProd": np.multiply.reduce,
    "ReduceMax": np.maximum.reduce,
    "ReduceMin": np.minimum.reduce,
}
for _name in _KINDS:
    _function = _FOLDS.get(_name)
    op(_name, since=1, fold=_function and partial(_fold_by_attribute, _function))(reduce_by_attribute)
    op(
        _name,
        since=13 if _name == "ReduceSum" else 18,
        host=("axes",),
        fold=_function and partial(_fold_by_input, _function),
    )(reduce_by_input)


@op("ArgMax", "ArgMin")
@widened
def argmax(cx: Context, x: Value, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Value:
    """Index of the extreme along an axis: the first, or the last of equals; a NaN is more extreme than any number."""
    (axis,) = normalize_axes(cx, (axis,), x.rank)
    if x.dtype in (I16, U16):
        x = cast(cx, x, I32)
    if x.dtype not in ORDERED[:-1]:
        cx.fail(f"has no form for {x.dtype}", UnsupportedModelError)
    n = x.shape[axis]
    inner = math.prod(x.shape[axis + 1 :])
    y = cx.out([*x.shape[:axis], *([1] if keepdims else []), *x.shape[axis + 1 :]], I64)
    if y.size and n == 0:
        cx.fail(f"axis {axis} of {x} has no elements to choose from")
    if y.size:
        per = max(1, UNIT // n)
        cx.emit(
            f"{cx.node.op_type.lower()}_{x.dtype.short}",
            units=-(-y.size // per),
            x=x,
            y=y,
            n=n,
            inner=inner,
            outputs=y.size,
            per=per,
            last=select_last_index,
        )
    return y


@op("Hardmax", since=13)
@widened
def hardmax(cx: Context, x: Value, *, axis: int = -1) -> Value:
    """1 at the first maximum along the axis, 0 elsewhere."""
    (axis,) = normalize_axes(cx, (axis,), x.rank)
    return _hardmax(cx, x, x.shape[axis], math.prod(x.shape[axis + 1 :]))


@op("Hardmax", since=1)
@widened
def hardmax_flat(cx: Context, x: Value, *, axis: int = 1) -> Value:
    """Hardmax over all axes from ``axis`` on."""
    (axis,) = normalize_axes(cx, (axis,), x.rank)
    return _hardmax(cx, x, math.prod(x.shape[axis:]), 1)


def _hardmax(cx: Context, x: Value, n: int, inner: int) -> Value:
    if x.dtype not in (F32, F64):
        cx.fail(f"has no form for {x.dtype}", UnsupportedModelError)
    y = cx.out(x.shape, x.dtype)
    if y.size:
        cx.emit(f"hardmax_{x.dtype.short}", units=x.size // (n * inner), x=x, y=y, n=n, inner=inner)
    return y
