"""ConvTranspose and Col2Im.

A transposed convolution is a matrix product, which gives for every place of the input the block that it lays on the
output, and the sum of the blocks where they overlap. The latter is Col2Im.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ..context import Array, Context, Record, Value
from ..dtypes import BF16, F16, F32
from ..errors import UnsupportedModelError
from ..registry import MICROSOFT, op
from ..words import counted
from ._convolution import check_weights
from ._elementwise import FLOATS, NUMBERS, cast, require, same_type
from ._shapes import extents
from .conv import conv
from .transpose import permute

# What the blocks of one product may take, unless those of a single image take more.
_COLUMN_BYTES = 16 << 20


class Blocks(NamedTuple):
    """Where blocks lie on an image, one tuple entry for each spatial axis."""

    blocks: tuple[int, ...]
    kernel: tuple[int, ...]
    output: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    """Before each axis."""


@op("ConvTranspose", since=1)
def conv_transpose(
    cx: Context,
    x: Value,
    w: Value,
    b: Value | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Value:
    """Transposed convolution of x [N, C, ...] with w [C, M / group, ...]."""
    outputs = check_weights(cx, x, w, b, group, kernel_shape, transposed=True)
    dtype = same_type(cx, *(v for v in (x, w, b) if v is not None))
    require(cx, x, FLOATS)
    batch, channels = x.shape[:2]
    g = _geometry(cx, x.shape[2:], w.shape[2:], auto_pad, dilations, output_padding, output_shape, pads, strides)
    if 0 in (batch, outputs, *g.output):
        return cx.out((batch, outputs, *g.output), dtype)
    if dtype in (F16, BF16):
        x, w = cast(cx, x, F32), _constant_cast(cx, w)
        b = None if b is None else _constant_cast(cx, b)
    y = cx.out((batch, outputs, *g.output), x.dtype)
    places, taps = math.prod(g.blocks), math.prod(g.kernel)
    per_image = outputs * taps * places * x.dtype.itemsize
    step = max(1, min(batch, _COLUMN_BYTES // per_image))
    weights = _transposed(cx, w, group)
    records = []
    for first in range(0, batch, step):
        images = min(step, batch - first)
        source = cx.alias(x, (images, channels, places), offset=first * channels * places * x.dtype.itemsize)
        part = y
        if images < batch:
            part = cx.alias(y, (images, *y.shape[1:]), offset=first * math.prod(y.shape[1:]) * x.dtype.itemsize)
        columns = conv(cx, source, weights, None, group=group)
        records.append(emit_col2im(cx, columns, part, g, b))
    if len(records) == 1 and "act" in records[0].args:
        y.producer = records[0]
        _allow_affine(cx, records[0], b)
    return cast(cx, y, dtype) if dtype is not x.dtype else y


@op("ConvTransposeWithDynamicPads", domain=MICROSOFT, host=("pads",))
def conv_transpose_with_dynamic_pads(
    cx: Context,
    x: Value,
    w: Value,
    pads: Array | None = None,
    b: Value | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Value:
    """ConvTranspose of x [N, C, ...] and w [C, M / group, ...] by pads [2 * axes], which ONNX Runtime requires, too."""
    if pads is None:
        cx.fail("Pads is not given")
    y: Value = conv_transpose(
        cx,
        x,
        w,
        b,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        output_padding=output_padding,
        pads=extents(cx, "Pads", pads),
        strides=strides,
    )
    return y


def _constant_cast(cx: Context, w: Value) -> Value:
    return cx.derived("cast f32", (w,), lambda: cast(cx, w, F32))


def _transposed(cx: Context, w: Value, group: int) -> Value:
    """Weights as those of a convolution with kernels of 1: [outputs * taps, C / group, 1]."""
    rows = w.size // w.shape[0] if w.shape[0] else 0
    view = (group, w.shape[0] // group, rows)
    shape = (group * rows, w.shape[0] // group, 1)
    return cx.derived(f"conv_transpose {group}", (w,), lambda: permute(cx, w, view, (0, 2, 1), shape))


def _geometry(
    cx: Context,
    size: Sequence[int],
    kernel: Sequence[int],
    auto_pad: str,
    dilations: Sequence[int] | None,
    output_padding: Sequence[int] | None,
    output_shape: Sequence[int] | None,
    pads: Sequence[int] | None,
    strides: Sequence[int] | None,
) -> Blocks:
    rank = len(size)
    strides = tuple(strides or (1,) * rank)
    dilations = tuple(dilations or (1,) * rank)
    extra = tuple(output_padding or (0,) * rank)
    pads = tuple(pads or (0,) * (2 * rank))
    wanted = None if not output_shape else tuple(output_shape[-rank:])
    if not len(strides) == len(dilations) == len(extra) == rank or len(pads) != 2 * rank:
        cx.fail(
            f"strides {list(strides)}, dilations {list(dilations)}, output_padding {list(extra)} and pads {list(pads)} "
            f"must fit {rank} spatial dimensions"
        )
    if wanted is not None and len(wanted) != rank:
        cx.fail(f"output_shape {list(wanted)} must have {counted(rank, 'dimension')}")
    if min((*strides, *dilations, *kernel)) < 1:
        cx.fail(f"kernel {list(kernel)}, strides {list(strides)} and dilations {list(dilations)} must be at least 1")
    if min((*extra, *pads)) < 0:
        cx.fail(f"output_padding {list(extra)} and pads {list(pads)} must not be negative")
    full = [
        s * (n - 1) + e + d * (k - 1) + 1 if n else 0
        for n, k, s, d, e in zip(size, kernel, strides, dilations, extra, strict=True)
    ]
    before: tuple[int, ...]
    if wanted is None and auto_pad in ("NOTSET", "", "VALID"):
        before = pads[:rank] if auto_pad != "VALID" else (0,) * rank
        after = pads[rank:] if auto_pad != "VALID" else (0,) * rank
        output = tuple(f - p - q for f, p, q in zip(full, before, after, strict=True))
    elif wanted is not None or auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        output = wanted or tuple(n * s for n, s in zip(size, strides, strict=True))
        total = [max(f - o, 0) for f, o in zip(full, output, strict=True)]
        before = tuple(t // 2 if auto_pad == "SAME_UPPER" else t - t // 2 for t in total)
    else:
        cx.fail(f"auto_pad {auto_pad!r} is none of NOTSET, VALID, SAME_UPPER, SAME_LOWER")
    if min(output) < 0:
        cx.fail(f"an output of {full} without padding is smaller than its padding {list(pads)}")
    return Blocks(tuple(size), tuple(kernel), output, strides, dilations, before)


def emit_col2im(cx: Context, columns: Value, y: Value, g: Blocks, bias: Value | None) -> Record:
    """Emit the sum of the blocks in ``columns`` [N, channels * taps, places] into y [N, channels, ...]."""
    batch, channels = y.shape[:2]
    if y.dtype != F32 or len(g.output) > 3:
        short = y.dtype.short
        axes = zip(g.blocks, g.kernel, g.output, g.strides, g.dilations, g.pads, strict=True)
        return cx.emit(
            f"col2im_{'i' + short[1:] if short[0] == 'u' else short}",
            units=batch * channels,
            x=columns,
            y=y,
            bias=bias,
            channels=channels,
            blocks=math.prod(g.blocks),
            taps=math.prod(g.kernel),
            places=math.prod(g.output),
            rank=len(g.output),
            axes=[v for axis in axes for v in axis],
        )
    more = 3 - len(g.output)
    ones, zeros = (1,) * more, (0,) * more
    n_d, n_h, n_w = ones + g.blocks
    k_d, k_h, k_w = ones + g.kernel
    s_d, s_h, s_w = ones + g.strides
    q_d, q_h, q_w = ones + g.dilations
    p_d, p_h, p_w = zeros + g.pads
    o_d, o_h, o_w = ones + g.output
    single = all(k == 1 or (d == 1 and k <= s) for k, d, s in ((k_d, q_d, s_d), (k_h, q_h, s_h)))
    direct = single and (k_w, s_w, q_w, p_w) == (2, 2, 1, 0) and o_w <= 2 * n_w
    phase = ((o_w - 1 + p_w) // s_w + 1) * 4 + 32
    return cx.emit(
        "col2im_rows_f32",
        units=batch * channels * o_d * o_h,
        x=columns,
        y=y,
        scale=None,
        bias=bias,
        residual=None,
        scratch=None if direct or s_w == 1 else cx.scratch(phase * s_w),
        channels=channels,
        in_d=n_d,
        in_h=n_h,
        in_w=n_w,
        k_d=k_d,
        k_h=k_h,
        k_w=k_w,
        s_d=s_d,
        s_h=s_h,
        s_w=s_w,
        q_d=q_d,
        q_h=q_h,
        q_w=q_w,
        p_d=p_d,
        p_h=p_h,
        p_w=p_w,
        o_d=o_d,
        o_h=o_h,
        o_w=o_w,
        phase=phase,
        direct=int(direct),
        act=0,
        alpha=0.0,
        beta=0.0,
    )


def _allow_affine(cx: Context, record: Record, b: Value | None) -> None:
    """Let a later op scale and shift the channels of y, if all of it is constant."""
    if b is not None and not b.const:
        return

    def merged(bias: Value | None, scale: Value | None, shift: Value | None) -> Value:
        """bias * scale + shift"""
        given = [v for v in (bias, scale, shift) if v is not None]

        def make() -> Value:
            result = cx.out(given[0].shape, F32)
            cx.emit("affine_bias_f32", bias=bias, scale=scale, shift=shift, dst=result, n=result.size)
            return result

        absent = "".join("01"[v is not None] for v in (bias, scale, shift))
        return cx.derived(f"affine_bias {absent}", given, make)

    def affine(scale: Value | None, shift: Value | None) -> bool:
        bias, before = record.args["bias"], record.args["scale"]
        if scale is not None:
            record.args["scale"] = scale if before is None else merged(before, scale, None)
        if shift is not None or (bias is not None and scale is not None):
            record.args["bias"] = merged(bias, scale, shift)
        return True

    record.affine = affine


@op("Col2Im", since=18, host=("image_shape", "block_shape"))
def col2im(
    cx: Context,
    x: Value,
    image_shape: Array,
    block_shape: Array,
    *,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Value:
    """The blocks of x [N, C * block, places] summed into images [N, C, ...]."""
    rank = len(image_shape)
    image, block = tuple(int(v) for v in image_shape), tuple(int(v) for v in block_shape)
    steps, holes = tuple(strides or (1,) * rank), tuple(dilations or (1,) * rank)
    pads = tuple(pads or (0,) * (2 * rank))
    if not rank or not len(block) == len(steps) == len(holes) == rank or len(pads) != 2 * rank:
        cx.fail(
            f"image_shape {list(image)}, block_shape {list(block)}, strides {list(steps)}, dilations {list(holes)} and "
            f"pads {list(pads)} do not fit each other"
        )
    if min((*image, *block, *steps, *holes)) < 1:
        cx.fail(f"image {list(image)}, block {list(block)} and strides {list(steps)} must be at least 1")
    count = tuple(
        max((n + pads[i] + pads[rank + i] - d * (k - 1) - 1) // s + 1, 0)
        for i, (n, k, s, d) in enumerate(zip(image, block, steps, holes, strict=True))
    )
    taps = math.prod(block)
    if x.rank not in (2, 3) or x.shape[-2] % taps or x.shape[-1] != math.prod(count):
        cx.fail(f"{x!r} must be [N, C * {taps}, {math.prod(count)}]")
    if x.dtype.short not in NUMBERS:
        cx.fail(f"no sums of type {x.dtype}", UnsupportedModelError)
    channels = x.shape[-2] // taps
    g = Blocks(count, block, image, steps, holes, pads[:rank])
    source = cast(cx, x, F32) if x.dtype in (F16, BF16) else x
    y = cx.out((*(x.shape[:1] if x.rank == 3 else (1,)), channels, *image), source.dtype)
    if y.size:
        emit_col2im(cx, source, y, g, None)
    y = cast(cx, y, x.dtype) if source is not x else y
    return y if x.rank == 3 else cx.alias(y, y.shape[1:])
