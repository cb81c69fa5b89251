"""MaxUnpool."""

from __future__ import annotations

from collections.abc import Sequence

from ..context import Array, Context, Value
from ..dtypes import I64
from ..registry import op
from ._copy import copy, fill, width
from ._copy import strides as steps_of


@op("MaxUnpool", since=9, host=("output_shape",))
def max_unpool(
    cx: Context,
    x: Value,
    indices: Value,
    output_shape: Array | None = None,
    *,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Value:
    """The elements of x at the places that MaxPool found them; the indices count through the whole unpadded output."""
    rank = x.rank - 2
    steps, borders = tuple(strides or (1,) * rank), tuple(pads or (0,) * (2 * rank))
    if rank < 1 or indices.shape != x.shape or not len(kernel_shape) == len(steps) == rank or len(borders) != 2 * rank:
        cx.fail(f"{x!r}, {indices!r}, kernel_shape {list(kernel_shape)}, strides and pads do not fit each other")
    if indices.dtype is not I64:
        cx.fail(f"I must be int64, got {indices!r}")
    inner = [
        (n - 1) * s + k - borders[i] - borders[rank + i]
        for i, (n, s, k) in enumerate(zip(x.shape[2:], steps, kernel_shape, strict=True))
    ]
    natural = (*x.shape[:2], *inner)
    shape = natural if output_shape is None else tuple(int(v) for v in output_shape)
    if len(shape) != x.rank or any(n < m for n, m in zip(shape, natural, strict=True)):
        cx.fail(f"output_shape {list(shape)} must be at least {list(natural)} of {x!r}")
    y = cx.out(natural, x.dtype)
    fill(cx, y, None)
    if x.size:
        size = width(cx, x)
        # One row of indices, which counts through all of y.
        cx.emit(
            f"scatter_elements_b{size}",
            index=indices,
            updates=x,
            y=y,
            wide=1,
            rows=1,
            n=x.size,
            step=0,
            axis=y.size,
            stride=size,
            rank=1,
            dims=[1, 0, 0],
        )
    if shape == natural:
        return y
    framed = cx.out(shape, x.dtype)
    fill(cx, framed, None)
    copy(cx, y, framed, zip(natural, steps_of(natural), steps_of(shape), strict=True))
    return framed
