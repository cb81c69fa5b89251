"""Convolution by Winograd's filtering (kernels_wat/winograd.wat.j2): when it pays, and its records."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ..context import Context, Value
from ._convolution import Geometry, allow_affine, even, pack_rows
from .matmul import TILE_BYTES

# Costs in multiplications, by measurement: of six numbers brought to the points or back, and of a weight at one point.
INPUT, OUTPUT, WEIGHT = 64, 32, 5
# The same of an element of the patch matrix, made row by row or from lines, and of an element of a product.
PATCH_ROWS, PATCH_LINES, PRODUCT = 16, 8, 7
# Filtering must save this much of the plain product.
GAIN = 0.9
# Tiles of a block, and what they may take at the points; what all may take, if more, as a share of weights and tensors.
TILES, BYTES, SHARE = 64, 1 << 20, 4
_POINT_BYTES = 576


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
        points = tiles * (INPUT * there * channels + OUTPUT * back * m)
        products = self.points * (channels + PRODUCT) * m * tiles
        return products + points + WEIGHT * self.points * channels * m


def filtering(g: Geometry, channels: int, m: int) -> Filtering | None:
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
    most = GAIN * ((k + PRODUCT) * m + k * patches) * math.prod(g.output)
    best = min(ways, key=lambda way: way.cost(g, channels, m), default=None)
    return best if best is not None and best.cost(g, channels, m) < most else None


def emit_winograd(
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
    most = max(BYTES, (cx.weights + x.nbytes + y.nbytes) // SHARE)
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
        room = BYTES if u_bytes <= most else most
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
    chunk = min(-(-rows * cols // 8) * 8, TILES)
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
    allow_affine(cx, record, w, b, lambda scale: pack_rows(cx, w, m, k, scale), reads_w=target or record)


def _tile_block(rows: int, cols: int, most: int) -> tuple[int, int]:
    """Rows and columns of a block of at most so many tiles, with little left over in panels of 8."""
    most = max(16, min(most, TILES) // 8 * 8)
    if cols > most:
        return 1, even(cols, most)
    return min(
        ((n, cols) for n in range(1, min(rows, most // cols) + 1)),
        key=lambda block: (-(-rows // block[0]) * (-(-block[0] * cols // 8) * 8 + 4), -block[0]),
    )
