"""Conv.

Four ways: as a matrix product whose second operand, the patches of the image, is made block by block
(`conv_f32`, up to three spatial dimensions, any groups); by Winograd's filtering where that is quicker
(`winograd_f32`, 3 or 5 taps along one axis or both); one channel at a time where every channel is a group of its own
(`dwconv_f32`); and plain loops (`conv_direct_*`) for the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..context import Context, Record, Value
from ..dtypes import F32, F64, I8
from ..errors import UnsupportedModelError
from ..registry import op
from ._widen import widened
from .matmul import TILE_BYTES, split_k, stored_flip, stored_scales

# Rows of a block of patches, and its positions if it has all rows of no more than half as many, else half of that.
BLOCK_K, BLOCK_N = 512, 256
# Costs in multiplications, by measurement: of six numbers brought to the points or back, and of a weight at one point.
WINOGRAD_INPUT, WINOGRAD_OUTPUT, WINOGRAD_WEIGHT = 64, 32, 5
# The same of an element of the patch matrix, made row by row or from lines, and of an element of a product.
PATCH_ROWS, PATCH_LINES, PRODUCT = 16, 8, 7
# Filtering must save this much of the plain product.
WINOGRAD_GAIN = 0.9
# Tiles of a block, and what they may take at the points; what all may take, if more, as a share of weights and tensors.
WINOGRAD_TILES, WINOGRAD_BYTES, WINOGRAD_SHARE = 64, 1 << 20, 4
_POINT_BYTES = 576
# How conv_f32 makes the patches.
PATCHES_ROWS, PATCHES_LINES, PATCHES_IMAGE = 0, 1, 2
# What the lines of a block may take.
LINE_BYTES = 98304
# What the copied rows of a depthwise convolution may take.
STRIP_BYTES = 32768


class Geometry(NamedTuple):
    """The spatial dimensions of a convolution, one tuple entry each."""

    input: tuple[int, ...]
    kernel: tuple[int, ...]
    output: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    """Before each dimension; what is needed after it follows."""

    def padded_to(self, rank: int) -> Geometry:
        """The same with leading dimensions of size 1."""
        more = rank - len(self.input)
        ones, zeros = (1,) * more, (0,) * more
        return Geometry(
            ones + self.input,
            ones + self.kernel,
            ones + self.output,
            ones + self.strides,
            ones + self.dilations,
            zeros + self.pads,
        )


def geometry(
    cx: Context,
    size: Sequence[int],
    kernel: Sequence[int],
    *,
    auto_pad: str,
    pads: Sequence[int] | None,
    strides: Sequence[int] | None,
    dilations: Sequence[int] | None,
) -> Geometry:
    """Work out the output's spatial size and the padding from the attributes that Conv and its kin share."""
    rank = len(size)
    strides = tuple(strides or (1,) * rank)
    dilations = tuple(dilations or (1,) * rank)
    pads = tuple(pads or (0,) * (2 * rank))
    if len(strides) != rank or len(dilations) != rank or len(pads) != 2 * rank or len(kernel) != rank:
        cx.fail(
            f"kernel {list(kernel)}, strides {list(strides)}, dilations {list(dilations)} and pads {list(pads)} "
            f"must fit {rank} spatial dimensions"
        )
    if min((*strides, *dilations, *kernel), default=1) < 1:
        cx.fail(f"kernel {list(kernel)}, strides {list(strides)} and dilations {list(dilations)} must be at least 1")
    if min(pads) < 0:
        cx.fail(f"pads {list(pads)} must not be negative")
    extents = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    before: tuple[int, ...]
    if auto_pad in ("NOTSET", "", "VALID"):
        before, after = (pads[:rank], pads[rank:]) if auto_pad != "VALID" else ((0,) * rank, (0,) * rank)
        output = [
            (n + p + q - e) // s + 1 if n + p + q >= e else 0
            for n, p, q, e, s in zip(size, before, after, extents, strides, strict=True)
        ]
        for n, p, q, e in zip(size, before, after, extents, strict=True):
            if n and n + p + q < e:
                cx.fail(f"a kernel that spans {e} does not fit a size of {n} padded by {p} and {q}")
    elif auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        output = [-(-n // s) for n, s in zip(size, strides, strict=True)]
        total = [max((o - 1) * s + e - n, 0) for n, o, e, s in zip(size, output, extents, strides, strict=True)]
        before = tuple(t // 2 if auto_pad == "SAME_UPPER" else t - t // 2 for t in total)
    else:
        cx.fail(f"auto_pad {auto_pad!r} is none of NOTSET, VALID, SAME_UPPER, SAME_LOWER")
    # One window takes no step and one tap spans nothing, however large; scratch is laid out by both.
    strides = tuple(s if o > 1 else 1 for s, o in zip(strides, output, strict=True))
    dilations = tuple(d if k > 1 else 1 for d, k in zip(dilations, kernel, strict=True))
    return Geometry(tuple(size), tuple(kernel), tuple(output), strides, dilations, before)


def check_weights(
    cx: Context,
    x: Value,
    w: Value,
    b: Value | None,
    group: int,
    kernel_shape: Sequence[int] | None,
    *,
    transposed: bool = False,
) -> int:
    """Check that the weights and the bias of a convolution fit x; the number of channels that they make."""
    if x.rank < 3 or w.rank != x.rank:
        form = "[C, M / group, ...]" if transposed else "[M, C / group, ...]"
        cx.fail(f"X must be [N, C, ...] and W {form}, got {x!r} and {w!r}")
    if kernel_shape is not None and tuple(kernel_shape) != w.shape[2:]:
        cx.fail(f"kernel_shape {list(kernel_shape)} is not that of W {w!r}")
    rows, columns = w.shape[0], w.shape[1] * group
    inputs, outputs = (rows, columns) if transposed else (columns, rows)
    if group < 1 or inputs != x.shape[1] or rows % group:
        cx.fail(f"{x!r} and {w!r} do not fit {group} groups")
    if b is not None and b.shape != (outputs,):
        cx.fail(f"B must have shape {[outputs]}, got {b!r}")
    return outputs


@op("Conv", since=1)
@widened
def conv(
    cx: Context,
    x: Value,
    w: Value,
    b: Value | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Value:
    """Convolution of x [N, C, ...] with w [M, C / group, ...]."""
    outputs = check_weights(cx, x, w, b, group, kernel_shape)
    if x.dtype != w.dtype or (b is not None and b.dtype != x.dtype):
        cx.fail(f"operands differ in type: {x.dtype} and {w.dtype}")
    if x.dtype not in (F32, F64):
        cx.fail(f"no convolution of type {x.dtype}", UnsupportedModelError)
    batch, channels = x.shape[:2]
    g = geometry(cx, x.shape[2:], w.shape[2:], auto_pad=auto_pad, pads=pads, strides=strides, dilations=dilations)
    y = cx.out((batch, outputs, *g.output), x.dtype)
    if y.size == 0:
        return y
    if x.dtype != F32 or len(g.input) > 3:
        _emit_direct(cx, x, w, b, y, g, group)
    elif len(g.input) < 3 and group == channels and outputs <= 2 * channels:
        _emit_depthwise(cx, x, w, b, y, g.padded_to(2), group)
    elif way := _filtering(g, channels // group, outputs // group):
        _emit_winograd(cx, x, w, b, y, g, group, way)
    else:
        _emit_product(cx, x, w, b, y, g.padded_to(3), group)
    return y


def _blocks(g: Geometry, channels: int, pointwise: bool) -> tuple[int, int, int, int]:
    """How patches are made, the rows and columns of a block of them, and the bytes of the lines they come from."""
    taps, positions = math.prod(g.kernel), math.prod(g.output)
    k = channels * taps
    block_n = BLOCK_N if k <= BLOCK_K // 2 else BLOCK_N // 2
    nc = _even(positions, block_n)
    rows = (PATCHES_IMAGE if pointwise else PATCHES_ROWS), split_k(k, BLOCK_K), nc, nc * 4 + 64
    (d, k_h, k_w), s_h, o_w = g.kernel, g.strides[1], g.output[2]
    if pointwise or k_h == 1 or (d, g.output[0], g.pads[0]) != (1, 1, 0) or taps > BLOCK_K:
        return rows
    # Whole channels, so that no lines are made twice; a block ends with a row of y that is longer than a block.
    kc = -(-channels // -(-k // (BLOCK_K + BLOCK_K // 4))) * taps
    if o_w > block_n:
        nc = _even(o_w, block_n)
    reached = 1 if o_w > nc else min(g.output[1], (nc + o_w - 2) // o_w + 1)
    reached += (k_h - 1) * g.dilations[1] // s_h
    lines = k_w * s_h * reached * min(o_w, nc) * 4 + 64
    return rows if lines > LINE_BYTES else (PATCHES_LINES, kc, nc, lines)


def _even(n: int, block: int) -> int:
    """The size of blocks of n columns, all about equal and a multiple of 8."""
    return -(-n // -(-n // block) // 8) * 8


def _emit_product(cx: Context, x: Value, w: Value, b: Value | None, y: Value, g: Geometry, group: int) -> None:
    batch, outputs = y.shape[:2]
    m, channels = outputs // group, x.shape[1] // group
    k = channels * math.prod(g.kernel)
    positions = math.prod(g.output)
    pointwise = g.input == g.output and math.prod(g.kernel) == 1 and not any(g.pads) and set(g.strides) == {1}
    if positions == 1 and g.kernel == g.input and not any(g.pads) and set(g.dilations) == {1}:
        pointwise = True
    patches, kc, nc, lines = _blocks(g, channels, pointwise)
    # Few positions: threads share the rows, so that each weight is read by one of them only.
    by_rows = positions <= BLOCK_N and m >= 32
    unit = 16 if by_rows else 32
    per_image = -(-(m if by_rows else positions) // unit)
    record = cx.emit(
        "conv_f32",
        units=batch * group * per_image,
        x=x,
        w=pack_rows(cx, w, m, k),
        y=y,
        bias=b,
        residual=None,
        scratch=cx.scratch(TILE_BYTES + lines + nc // 8 * (kc * 32 + 64)),
        m=m,
        k=k,
        groups=group,
        image_bytes=channels * math.prod(g.input) * 4,
        **_axes("in", g.input),
        **_axes("k", g.kernel),
        **_axes("s", g.strides),
        **_axes("q", g.dilations),
        **_axes("p", g.pads),
        **_axes("o", g.output),
        patches=patches,
        lines=lines,
        kc=kc,
        nc=nc,
        by_rows=int(by_rows),
        unit=unit,
        per_image=per_image,
        act=0,
        alpha=0.0,
        beta=0.0,
    )
    y.producer = record
    _allow_affine(cx, record, w, b, lambda scale: pack_rows(cx, w, m, k, scale))


class Filtering(NamedTuple):
    """How Winograd's filtering computes a convolution: along both axes, or along one with a channel for every tap along
    the other."""

    along: int
    """0: both axes, 1: the width, 2: the height."""
    r: int
    """Taps along an axis."""
    taps: int
    """Channels that each channel of the image becomes."""
    every: int
    """Weights from tap to tap along the axis, if it is one."""

    @property
    def points(self) -> int:
        return 6 if self.along else 36

    @property
    def tile(self) -> tuple[int, int]:
        """Outputs of a tile."""
        side = 7 - self.r
        return (1 if self.along == 1 else side), (1 if self.along == 2 else side)

    def tiles(self, g: Geometry) -> tuple[int, int]:
        (h, w), (side_h, side_w) = g.output, self.tile
        return -(-h // side_h), -(-w // side_w)

    def line_bytes(self, rows: int, cols: int) -> int:
        """What the padded rows take that one channel of so many tiles reads."""
        side_h, side_w = self.tile
        height = rows if self.along == 1 else (rows - 1) * side_h + 6
        width = cols if self.along == 2 else (cols - 1) * side_w + 6
        return height * ((width * 4 + 31) // 16 * 16) + 64

    def cost(self, g: Geometry, channels: int, m: int) -> float:
        """In multiplications of the plain product."""
        tiles = -(-math.prod(self.tiles(g)) // 8) * 8
        channels *= self.taps
        there, back = (1.8, 1) if self.along else (12, 10)
        points = tiles * (WINOGRAD_INPUT * there * channels + WINOGRAD_OUTPUT * back * m)
        products = self.points * (channels + PRODUCT) * m * tiles
        return products + points + WINOGRAD_WEIGHT * self.points * channels * m


def _filtering(g: Geometry, channels: int, m: int) -> Filtering | None:
    """How filtering takes less time than the plain product, if it does, by a count of what both do."""
    if len(g.input) != 2 or {*g.strides, *g.dilations} != {1}:
        return None
    k_h, k_w = g.kernel
    ways = []
    if k_h == k_w and k_h in (3, 5):
        ways.append(Filtering(0, k_h, 1, 1))
    if k_w in (3, 5):
        ways.append(Filtering(1, k_w, k_h, 1))
    if k_h in (3, 5):
        ways.append(Filtering(2, k_h, k_w, k_w))
    patches = PATCH_ROWS if k_h == 1 else PATCH_LINES
    k = channels * k_h * k_w
    most = WINOGRAD_GAIN * ((k + PRODUCT) * m + k * patches) * math.prod(g.output)
    best = min(ways, key=lambda way: way.cost(g, channels, m), default=None)
    return best if best is not None and best.cost(g, channels, m) < most else None


def _emit_winograd(
    cx: Context, x: Value, w: Value, b: Value | None, y: Value, g: Geometry, group: int, way: Filtering
) -> None:
    """The inputs of all images are brought to the points first, or all weights, whichever takes less memory; neither if
    that is much beside what there is."""
    batch, outputs = y.shape[:2]
    m, channels, r = outputs // group, x.shape[1] // group, way.r
    k, panels = channels * math.prod(g.kernel), -(-m // 4)
    channels *= way.taps
    tiles_h, tiles_w = rows, cols = way.tiles(g)
    panel, inputs = way.points * (channels * 16 + 64), way.points * (channels * 32 + 64)
    weights = packed = pack_rows(cx, w, m, k)
    v: Value | None = None
    v_bytes, u_bytes = batch * group * -(-rows * cols // 8) * inputs, group * panels * panel
    most = max(WINOGRAD_BYTES, (cx.weights + x.nbytes + y.nbytes) // WINOGRAD_SHARE)
    target, raw, block_m = None, 1, 8
    image: dict[str, Any] = {"in_h": g.input[0], "in_w": g.input[1], "p_h": g.pads[0], "p_w": g.pads[1]}
    if v_bytes <= min(u_bytes, most):
        per_image, lines, made = -(-m // block_m), 0, 0
        v = cx.work(v_bytes)
        cx.emit(
            "winograd_input_f32", units=batch * group * channels, x=x, v=v,
            scratch=cx.scratch(_POINT_BYTES + way.line_bytes(rows, cols)),
            c=channels, taps=way.taps, **image, rows=rows, cols=cols, m=7 - r, along=way.along,
        )  # fmt: skip
    else:
        room = WINOGRAD_BYTES if u_bytes <= most else most
        rows, cols = _tile_block(rows, cols, room // (inputs // 8))
        per_image = -(-tiles_h // rows) * -(-tiles_w // cols)
        lines = way.line_bytes(rows, cols)
        made = -(-rows * cols // 8) * inputs
        # For one block, weights at the points are needed once.
        if u_bytes <= most and batch * per_image > 1:
            raw, block_m, weights, units = 0, 32, cx.work(u_bytes), group * panels
            if way.along:
                target = cx.emit(
                    f"winograd_weights{r}x1_f32", units=units, w=packed, u=weights,
                    c=channels, taps=way.taps, every=way.every,
                )  # fmt: skip
            else:
                target = cx.emit(
                    f"winograd_weights{r}_f32", units=units, w=packed, u=weights,
                    scratch=cx.scratch(_POINT_BYTES), c=channels,
                )  # fmt: skip
    made += raw * block_m // 4 * panel
    chunk = min(-(-rows * cols // 8) * 8, WINOGRAD_TILES)
    record = cx.emit(
        "winograd_f32",
        units=batch * group * per_image,
        x=x,
        w=weights,
        raw=raw,
        v=v,
        y=y,
        bias=b,
        residual=None,
        scratch=cx.scratch(TILE_BYTES + _POINT_BYTES + way.points * (4 * block_m * chunk + 64) + lines + made),
        r=r,
        m=m,
        c=channels,
        taps=way.taps,
        every=way.every,
        along=way.along,
        groups=group,
        **image,
        o_h=g.output[0],
        o_w=g.output[1],
        tiles_h=tiles_h,
        tiles_w=tiles_w,
        rows=rows,
        cols=cols,
        lines=lines,
        block_m=block_m,
        per_image=per_image,
        act=0,
        alpha=0.0,
        beta=0.0,
    )
    y.producer = record
    _allow_affine(cx, record, w, b, lambda scale: pack_rows(cx, w, m, k, scale), reads_w=target or record)


def _tile_block(rows: int, cols: int, most: int) -> tuple[int, int]:
    """Rows and columns of a block of at most so many tiles, with little left over in panels of 8."""
    most = max(16, min(most, WINOGRAD_TILES) // 8 * 8)
    if cols > most:
        return 1, _even(cols, most)
    return min(
        ((n, cols) for n in range(1, min(rows, most // cols) + 1)),
        key=lambda block: (-(-rows // block[0]) * (-(-block[0] * cols // 8) * 8 + 4), -block[0]),
    )


def _emit_depthwise(cx: Context, x: Value, w: Value, b: Value | None, y: Value, g: Geometry, group: int) -> None:
    batch, outputs = y.shape[:2]
    (k_h, k_w), (s_h, s_w), (q_h, q_w), (o_h, o_w) = g.kernel, g.strides, g.dilations, g.output
    phase = (max(o_w, 4) + (k_w - 1) * q_w // s_w + 3) * 4
    halo = (k_h - 1) * q_h + 1
    strip = max(1, min(o_h, (STRIP_BYTES // (phase * s_w) - halo) // s_h + 1))
    fixed = 8 * k_h + s_w if k_h == k_w and k_h in (3, 5) and s_w <= 2 and (q_h, q_w) == (1, 1) else 0
    record = cx.emit(
        "dwconv_f32",
        units=batch * outputs,
        x=x,
        w=w,
        y=y,
        bias=b,
        residual=None,
        scratch=cx.scratch(32 * k_h * k_w + ((strip - 1) * s_h + halo) * phase * s_w + 64),
        channels=outputs,
        per_input=outputs // group,
        **_axes("in", g.input),
        **_axes("k", g.kernel),
        **_axes("s", g.strides),
        **_axes("q", g.dilations),
        **_axes("p", g.pads),
        **_axes("o", g.output),
        fixed=fixed,
        phase=phase,
        strip=strip,
        act=0,
        alpha=0.0,
        beta=0.0,
    )
    y.producer = record
    _allow_affine(cx, record, w, b, lambda scale: _scaled_rows(cx, w, k_h * k_w, scale))


def _axes(prefix: str, values: Sequence[int]) -> dict[str, Any]:
    return {f"{prefix}_{axis}": v for axis, v in zip("dhw"[-len(values) :], values, strict=True)}


def _scaled_rows(cx: Context, w: Value, k: int, scale: Value) -> Value:
    def make() -> Value:
        scaled = cx.out(w.shape, F32)
        cx.emit(
            "scale_rows_f32", units=w.shape[0], stream=("src", k * 4), makes=("dst", k * 4),
            src=w, dst=scaled, scale=scale, k=k,
        )  # fmt: skip
        return scaled

    return cx.derived("scale_rows", (w, scale), make)


def pack_rows(cx: Context, w: Value, m: int, k: int, scale: Value | None = None) -> Value:
    """Weights [groups * m, k] in panels of 4 rows over all of k: [group][panel][k][4], rows scaled. What is stored in 8
    bits stays so, and is widened in every run."""
    rows = w.shape[0]
    if scale is None and _stays(w):
        return _widened_rows(cx, w, m, k)

    def make() -> Value:
        unit = 4 if m % 4 == 0 or rows == m else m
        packed = cx.out((rows // m * -(-m // 4), k, 4), F32)
        cx.emit(
            "pack_a4_f32_rows", units=-(-rows // unit), stream=("src", unit * k * 4),
            src=w, dst=packed, scale=scale, rows=rows, k=k, unit=unit,
        )  # fmt: skip
        return packed

    return cx.derived(f"conv_a4 {m} {scale is not None}", (w,) if scale is None else (w, scale), make)


def _stays(w: Value) -> bool:
    q = w.quantized
    return w.const and q is not None and not q.transposed and (q.per_tensor or q.axis == 0)


def _widened_rows(cx: Context, w: Value, m: int, k: int) -> Value:
    q, rows = w.quantized, w.shape[0]
    assert q is not None
    panels = rows // m * -(-m // 4)

    def make() -> tuple[Value, Value]:
        packed = cx.out((panels, k, 4), I8)
        stream = ("src", 4 * k) if m % 4 == 0 or rows == m else None
        cx.emit("pack_a4_i8_rows", units=panels, stream=stream, src=q.values, dst=packed, m=m, k=k, flip=stored_flip(q))
        return packed, stored_scales(cx, q, rows // m, m, 4)

    sources = [v for v in (q.values, q.scale, q.zero) if v is not None]
    packed, scales = cx.derived(f"conv_a4_i8 {m} {k} {q.scale is None} {q.zero is None}", sources, make)
    wide = cx.out((panels, k, 4), F32)
    cx.emit("widen_a4_i8", units=panels, src=packed, rows=scales, dst=wide, k=k)
    return wide


def _allow_affine(
    cx: Context,
    record: Record,
    w: Value,
    b: Value | None,
    weights: Callable[[Value], Value],
    *,
    reads_w: Record | None = None,
) -> None:
    """Let a later op scale and shift the channels of y: into the weights, by ``weights``, and the bias. ``reads_w`` is
    the record that reads the weights, if it is another."""
    if not w.const or _stays(w) or not (b is None or b.const):
        return
    total: list[Value] = []
    channels = w.shape[0]

    def combine(bias: Value | None, scale: Value | None, shift: Value | None) -> Value:
        """bias * scale + shift"""

        def make() -> Value:
            result = cx.out((channels,), F32)
            cx.emit("affine_bias_f32", bias=bias, scale=scale, shift=shift, dst=result, n=channels)
            return result

        absent = "".join("01"[v is not None] for v in (bias, scale, shift))
        return cx.derived(f"affine_bias {absent}", [v for v in (bias, scale, shift) if v is not None], make)

    def affine(scale: Value | None, shift: Value | None) -> bool:
        bias = record.args["bias"]
        if scale is not None:
            total[:] = [combine(total[0], scale, None)] if total else [scale]
            (reads_w or record).args["w"] = weights(total[0])
        if shift is not None or (bias is not None and scale is not None):
            record.args["bias"] = combine(bias, scale, shift)
        return True

    record.affine = affine


def _emit_direct(cx: Context, x: Value, w: Value, b: Value | None, y: Value, g: Geometry, group: int) -> None:
    batch, outputs = y.shape[:2]
    spatial = zip(g.input, g.kernel, g.output, g.strides, g.dilations, g.pads, strict=True)
    cx.emit(
        f"conv_direct_{x.dtype.short}",
        units=batch * outputs,
        x=x,
        w=w,
        y=y,
        bias=b,
        m=outputs // group,
        channels=x.shape[1] // group,
        groups=group,
        taps=math.prod(g.kernel),
        positions=math.prod(g.output),
        plane=math.prod(g.input),
        rank=len(g.input),
        geometry=[v for axis in spatial for v in axis],
    )
