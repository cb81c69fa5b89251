"""DynamicTimeWarping: the cheapest way through a matrix of costs."""

from __future__ import annotations

from ..context import Context, Steps, Value
from ..dtypes import F32, I32, I64, U8
from ..registry import MICROSOFT, op


@op("DynamicTimeWarping", domain=MICROSOFT)
def dynamic_time_warping(cx: Context, x: Value) -> Steps:
    """The places [2, steps] of the path of least total cost through x [M, N] or [1, M, N], from its first element to
    its last, in steps to the next row, the next column, or both; where two of these are equally cheap, to the next
    column, as ONNX Runtime does."""
    if x.dtype is not F32 or x.rank not in (2, 3) or (x.rank == 3 and x.shape[0] != 1):
        cx.fail(f"input must be float32 [M, N] or [1, M, N], got {x!r}")
    rows, columns = x.shape[-2:]
    if not x.size:
        return cx.out((2, 0), I32)
    moves, count = cx.out((rows, columns), U8), cx.out((1,), I64)
    row = cx.work(4 * (columns + 1))
    cx.emit("warping_moves", x=x, moves=moves, row=row, count=count, rows=rows, columns=columns)
    (steps,) = yield count, [moves]
    y = cx.out((2, int(steps)), I32)
    cx.emit("warping_path", moves=moves, y=y, rows=rows, columns=columns, steps=y.shape[1])
    return y
