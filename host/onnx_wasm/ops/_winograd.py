"""Convolution by Winograd's filtering (kernels_wat/_winograd.wat.j2): when it pays, and its records."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ..context import Context, Value
from ._convolution import Geometry, allow_affine, even
from ._panels import pack_rows
from .matmul import TILE_BYTES

# Costs in multiplications, by measurement: of six numbers brought to the points or back, and of a weight at one point.
INPUT, OUTPUT, WEIGHT = 64, 32, 5
# The same of an element of every q-th column that is gathered, for each column that is passed over, up to so many.
GATHER, PASSED = 5, 64
# The same of an element of the patch matrix, made row by row or from lines, and of an element of a product.
PATCH_ROWS, PATCH_LINES, PRODUCT = 16, 8, 7
# Filtering must save this much of the plain product.
GAIN = 0.9
# Tiles that are brought to the points together: at most so many, and as many as take so many bytes, but at least 16.
TILES, BYTES = 64, 1 << 20
# What all tiles or all weights may take at the points: BYTES, or this part of all weights and of the layer's tensors.
SHARE = 4
# Units that threads can share, if there are tiles for so many.
UNITS = 4
# What a kernel needs for one tile on its way to the points and back; kernels_wat/_winograd.wat.j2 has it as TMP.
POINT_BYTES = 576


class Way(NamedTuple):
    """Filtering along both axes, or along one with a channel for every tap along the other."""

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
        """Rows and columns of tiles of an image's largest phase."""
        (h, w), (q_h, q_w), (side_h, side_w) = g.output, g.dilations, self.tile
        return -(-h // (q_h * side_h)), -(-w // (q_w * side_w))

    def line_bytes(self, rows: int, cols: int) -> int:
        """What the padded rows take that one channel of so many tiles reads."""
        side_h, side_w = self.tile
        height = rows if self.along == 1 else (rows - 1) * side_h + 6
        width = cols if self.along == 2 else (cols - 1) * side_w + 6
        return height * ((width * 4 + 31) // 16 * 16) + 64


class Filtering(NamedTuple):
    """How a layer is filtered: in blocks of tiles, whose inputs are brought to the points block by block, or all before
    (``inputs_first``); and so the weights, block of rows by block for each block of tiles, or all before."""

    way: Way
    inputs_first: bool
    weights_first: bool
    rows: int
    cols: int
    """Tiles of a block; of the image where inputs come first."""
    per_image: int
    """Units of an image."""
    cost: float = math.inf
    """In multiplications of the plain product."""

    @property
    def block_m(self) -> int:
        """Rows of weights that are multiplied together: few, where they are brought to the points in scratch."""
        return 32 if self.weights_first else 8


def filtering(cx: Context, x: Value, y: Value, g: Geometry, group: int) -> Filtering | None:
    """How filtering takes less time than the plain product, if it does, by a count of what both do. ``g`` has two
    dimensions."""
    if {*g.strides} != {1}:
        return None
    batch, outputs = y.shape[:2]
    m, channels = outputs // group, x.shape[1] // group
    k_h, k_w = g.kernel
    ways = []
    if k_h == k_w and k_h in (3, 5):
        ways.append(Way(0, k_h, 1, 1))
    if k_w in (3, 5):
        ways.append(Way(1, k_w, k_h, 1))
    if k_h in (3, 5):
        ways.append(Way(2, k_h, k_w, k_w))
    k = channels * k_h * k_w
    patches = PATCH_ROWS if k_h == 1 else PATCH_LINES
    plain = batch * group * ((k + PRODUCT) * m + k * patches) * math.prod(g.output)
    budget = max(BYTES, (cx.weights + x.nbytes + y.nbytes) // SHARE)
    images = batch * group * math.prod(g.dilations)
    found = [_filtered(way, g, images, group, channels * way.taps, m, budget) for way in ways]
    best = min(found, key=lambda f: f.cost, default=None)
    return best if best is not None and best.cost < GAIN * plain else None


def _filtered(way: Way, g: Geometry, images: int, group: int, channels: int, m: int, budget: int) -> Filtering:
    """The tiles of all images are brought to the points first, or all weights, whichever takes less memory; neither if
    that is much beside what there is."""
    tiles_h, tiles_w = way.tiles(g)
    panel, tile = _panel_bytes(way, channels), _tile_bytes(way, channels)
    all_tiles, all_weights = images * _round(tiles_h * tiles_w) * tile, group * -(-m // 4) * panel
    if all_tiles <= min(all_weights, budget):
        how = Filtering(way, True, False, tiles_h, tiles_w, -(-m // 8))
        return how._replace(cost=_cost(how, images, channels, m, g.dilations[1]))
    weights_first = all_weights <= budget
    most = (BYTES if weights_first else budget) // tile
    if weights_first:
        most = min(most, _round(-(-images * tiles_h * tiles_w // UNITS)))
    rows, cols = _block(tiles_h, tiles_w, most)
    blocks = -(-tiles_h // rows) * -(-tiles_w // cols)
    how = Filtering(way, False, weights_first, rows, cols, blocks)
    return how._replace(cost=_cost(how, images * blocks, channels, m, g.dilations[1]))


def _cost(how: Filtering, blocks: int, channels: int, m: int, every: int) -> float:
    """Of so many blocks of tiles of ``every``-th columns, in multiplications of the plain product."""
    way = how.way
    there, back = ((12, 10 if way.r == 3 else 7), (1.8, 1), (1.7, 1))[way.along]
    tiles = blocks * _round(how.rows * how.cols)
    products = way.points * (channels + PRODUCT) * m * tiles
    gather = GATHER * min(every - 1, PASSED) * math.prod(way.tile)
    points = tiles * ((INPUT * there + gather) * channels + OUTPUT * back * m)
    weights = WEIGHT * way.points * channels * m * (1 if how.weights_first else blocks)
    return products + points + weights


def _round(tiles: int) -> int:
    """Tiles in whole panels."""
    return -(-tiles // 8) * 8


def _panel_bytes(way: Way, channels: int) -> int:
    """A panel of 4 rows of weights at the points."""
    return way.points * (channels * 16 + 64)


def _tile_bytes(way: Way, channels: int) -> int:
    """An eighth of a panel of 8 tiles at the points."""
    return way.points * (channels * 4 + 8)


def _block(rows: int, cols: int, most: int) -> tuple[int, int]:
    """Rows and columns of a block of at most so many tiles, with little left over in panels of 8."""
    most = max(16, min(most, TILES) // 8 * 8)
    if cols > most:
        return 1, even(cols, most)
    return min(
        ((n, cols) for n in range(1, min(rows, most // cols) + 1)),
        key=lambda block: (-(-rows // block[0]) * (_round(block[0] * cols) + 4), -block[0]),
    )


def emit_filtered(
    cx: Context, x: Value, w: Value, b: Value | None, y: Value, g: Geometry, group: int, how: Filtering
) -> None:
    """The records of a convolution that is filtered."""
    batch, outputs = y.shape[:2]
    way, rows, cols, block_m = how.way, how.rows, how.cols, how.block_m
    m, channels, r = outputs // group, x.shape[1] // group, way.r
    k, panels = channels * math.prod(g.kernel), -(-m // 4)
    channels *= way.taps
    tiles_h, tiles_w = way.tiles(g)
    panel, tile = _panel_bytes(way, channels), _tile_bytes(way, channels)
    (in_h, in_w), (p_h, p_w), (q_h, q_w) = g.input, g.pads, g.dilations
    image: dict[str, Any] = {"in_h": in_h, "in_w": in_w, "p_h": p_h, "p_w": p_w, "q_h": q_h, "q_w": q_w}
    images = batch * group * q_h * q_w
    weights = packed = pack_rows(cx, w, m, k)
    v, target, made, lines = None, None, 0, 0
    if how.inputs_first:
        v = cx.work(images * _round(rows * cols) * tile)
        cx.emit(
            "winograd_input_f32", units=images * channels, x=x, v=v,
            scratch=cx.scratch(POINT_BYTES + way.line_bytes(rows, cols)),
            c=channels, taps=way.taps, **image, rows=rows, cols=cols, m=7 - r, along=way.along,
        )  # fmt: skip
    else:
        lines = way.line_bytes(rows, cols)
        made = _round(rows * cols) * tile
    if how.weights_first:
        weights, units = cx.work(group * panels * panel), group * panels
        if way.along:
            target = cx.emit(
                f"winograd_weights{r}x1_f32", units=units, w=packed, u=weights,
                c=channels, taps=way.taps, every=way.every,
            )  # fmt: skip
        else:
            target = cx.emit(
                f"winograd_weights{r}_f32", units=units, w=packed, u=weights,
                scratch=cx.scratch(POINT_BYTES), c=channels,
            )  # fmt: skip
    else:
        made += block_m // 4 * panel
    chunk = min(_round(rows * cols), TILES)
    products = way.points * (4 * block_m * chunk + 64)
    record = cx.emit(
        "winograd_f32",
        units=images * how.per_image,
        x=x,
        w=weights,
        raw=int(not how.weights_first),
        v=v,
        y=y,
        bias=b,
        residual=None,
        scratch=cx.scratch(TILE_BYTES + POINT_BYTES + products + lines + made),
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
        chunk=chunk,
        lines=lines,
        block_m=block_m,
        per_image=how.per_image,
        act=0,
        alpha=0.0,
        beta=0.0,
    )
    if q_w > 1:
        # Rows of y are not written in one piece.
        return
    y.producer = record
    allow_affine(cx, record, w, b, lambda scale: pack_rows(cx, w, m, k, scale), reads_w=target or record)
