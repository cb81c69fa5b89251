"""Random tensors.

Numbers come from a hash of a seed, the number of the session's run, and the element's index: every run gives others.
With a ``seed`` attribute all sessions give the same numbers in their first run, and in each after it; without one the
seed is drawn when the node is lowered.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

from .. import dtypes
from ..context import Context, Value
from ..dtypes import BOOL, I32, I64, DType
from ..errors import UnsupportedModelError
from ..registry import op
from ._elementwise import FLOATS, NUMBERS, cast, require


def _seed(seed: float | None) -> int:
    if seed is None:
        return random.SystemRandom().getrandbits(63)
    # Spread over 64 bits, as the streams of neighbouring seeds must not overlap.
    bits = int(struct.unpack("<q", struct.pack("<d", seed))[0])
    return (bits * 0x5851F42D4C957F2D + 0x14057B7EF767814F) & (2**63 - 1)


def _random(
    cx: Context, kind: str, shape: Sequence[int], dtype: DType, seed: float | None, base: float, scale: float
) -> Value:
    y = cx.out(shape, dtype)
    if require(cx, y, FLOATS) and y.size:
        cx.emit(
            f"random_{kind}_{dtype.short}",
            units=cx.chunks(y),
            y=y,
            n=y.size,
            seed=_seed(seed),
            base=base,
            scale=scale,
        )
    return y


@op("RandomUniform", pure=False)
def random_uniform(
    cx: Context, *, shape: Sequence[int], dtype: int = 1, seed: float | None = None, low: float = 0.0, high: float = 1.0
) -> Value:
    """Uniform numbers from low up to high."""
    return _random(cx, "uniform", shape, dtypes.from_onnx(dtype), seed, low, high - low)


@op("RandomUniformLike", pure=False)
def random_uniform_like(
    cx: Context, x: Value, *, dtype: int | None = None, seed: float | None = None, low: float = 0.0, high: float = 1.0
) -> Value:
    """Uniform numbers in the shape of x."""
    return _random(cx, "uniform", x.shape, x.dtype if dtype is None else dtypes.from_onnx(dtype), seed, low, high - low)


@op("RandomNormal", pure=False)
def random_normal(
    cx: Context,
    *,
    shape: Sequence[int],
    dtype: int = 1,
    seed: float | None = None,
    mean: float = 0.0,
    scale: float = 1.0,
) -> Value:
    """Normal numbers of a mean and standard deviation."""
    return _random(cx, "normal", shape, dtypes.from_onnx(dtype), seed, mean, scale)


@op("RandomNormalLike", pure=False)
def random_normal_like(
    cx: Context, x: Value, *, dtype: int | None = None, seed: float | None = None, mean: float = 0.0, scale: float = 1.0
) -> Value:
    """Normal numbers in the shape of x."""
    return _random(cx, "normal", x.shape, x.dtype if dtype is None else dtypes.from_onnx(dtype), seed, mean, scale)


@op("Bernoulli", since=15, pure=False)
def bernoulli(cx: Context, x: Value, *, dtype: int | None = None, seed: float | None = None) -> Value:
    """1 with the probability that x gives, else 0."""
    require(cx, x, FLOATS)
    target = x.dtype if dtype is None else dtypes.from_onnx(dtype)
    if target is not BOOL and target.short not in NUMBERS:
        cx.fail(f"dtype {target} is not supported", UnsupportedModelError)
    y = cx.out(x.shape, BOOL)
    if y.size:
        cx.emit(f"random_bernoulli_{x.dtype.short}", units=cx.chunks(x), x=x, y=y, n=x.size, seed=_seed(seed))
    return y if target is BOOL else cast(cx, y, target)


@op("Multinomial", since=7, pure=False)
def multinomial(cx: Context, x: Value, *, dtype: int = 6, sample_size: int = 1, seed: float | None = None) -> Value:
    """Classes drawn with the probabilities whose logarithms, up to a constant, are the rows of x."""
    require(cx, x, FLOATS)
    target = dtypes.from_onnx(dtype)
    if x.rank != 2 or target not in (I32, I64):
        cx.fail(f"{x} must have shape [batch, classes], and dtype {target} be int32 or int64")
    batch, classes = x.shape
    if not classes:
        cx.fail(f"{x} has no classes to draw from")
    y = cx.out((batch, sample_size), target)
    if y.size:
        cx.emit(
            f"random_multinomial_{x.dtype.short}",
            units=batch,
            x=x,
            y=y,
            work=cx.work(8 * batch * classes),
            classes=classes,
            samples=sample_size,
            seed=_seed(seed),
            wide=int(target is I64),
        )
    return y


def drop(cx: Context, x: Value, ratio: float, seed: float | None, *, masked: bool) -> tuple[Value, Value | None]:
    """x with elements dropped by the probability ``ratio``, the others scaled to keep the mean; and which were kept."""
    require(cx, x, FLOATS)
    if not 0 <= ratio < 1:
        cx.fail(f"ratio is {ratio}, must be in [0, 1)")
    y, mask = cx.out(x.shape, x.dtype, reuse=(x,)), cx.out(x.shape, BOOL) if masked else None
    if y.size:
        cx.emit(
            f"random_drop_{x.dtype.short}",
            units=cx.chunks(x),
            x=x,
            y=y,
            mask=mask,
            n=x.size,
            seed=_seed(seed),
            ratio=ratio,
            scale=1 / (1 - ratio),
        )
    return y, mask
