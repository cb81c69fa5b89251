"""Operators of the com.microsoft domain that fuse or vary those of ai.onnx, but for attention and quantization."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from ..context import Array, Context, Value
from ..dtypes import BOOL, F32, F64, I32
from ..errors import UnsupportedModelError
from ..registry import MICROSOFT, op
from . import activation as activations
from . import binary, constant, gather, pad, reduce, reshape, rownorm, sampling, topk, transpose
from ._copy import wanted
from ._elementwise import FLOATS, broadcast, cast, flat, require
from ._widen import widened
from .conv import conv
from .fusion import Activation, fuse_activation
from .matmul import gemm, multiply


@op("Gelu", domain=MICROSOFT)
def gelu(cx: Context, x: Value) -> Value:
    """x / 2 (1 + erf(x / sqrt(2)))"""
    return flat(cx, f"gelu_{require(cx, x, FLOATS)}", x)


@op("BiasGelu", domain=MICROSOFT)
def bias_gelu(cx: Context, a: Value, b: Value) -> Value:
    """Gelu of a + b."""
    return gelu(cx, binary.add(cx, a, b))


@op("FastGelu", domain=MICROSOFT)
def fast_gelu(cx: Context, x: Value, bias: Value | None = None) -> Value:
    """The approximation of Gelu by tanh, of x + bias."""
    if bias is not None:
        x = binary.add(cx, x, bias)
    return flat(cx, f"gelu_tanh_{require(cx, x, FLOATS)}", x)


@op("QuickGelu", domain=MICROSOFT)
def quick_gelu(cx: Context, x: Value, *, alpha: float = 1.702) -> Value:
    """x sigmoid(alpha x)"""
    return activations.swish(cx, x, alpha=alpha)


@op("BiasAdd", domain=MICROSOFT)
def bias_add(cx: Context, x: Value, bias: Value, skip: Value) -> Value:
    """x + bias + skip"""
    return binary.add(cx, binary.add(cx, x, bias), skip)


@op("BiasSplitGelu", domain=MICROSOFT)
def bias_split_gelu(cx: Context, x: Value, bias: Value) -> Value:
    """The first half of the columns of x + bias times Gelu of the second."""
    half, odd = divmod(x.shape[-1], 2)
    if odd:
        cx.fail(f"{x} must have an even number of columns")
    total = binary.add(cx, x, bias)
    total.producer = None
    left, right = (
        gather.gather(cx, total, cx.known(np.arange(i * half, (i + 1) * half)), axis=x.rank - 1) for i in (0, 1)
    )
    return binary.mul(cx, left, gelu(cx, right))


@op("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
@widened
def fused_matmul(
    cx: Context,
    a: Value,
    b: Value,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Value:
    """alpha times the product of matrices whose axes may be stored in another order."""
    if transBatchA:
        a = _batch_last(cx, a)
    if transBatchB:
        b = _batch_last(cx, b)
    return multiply(cx, a, b, trans_a=bool(transA), trans_b=bool(transB), alpha=alpha)


def _batch_last(cx: Context, x: Value) -> Value:
    """The first axis moved to the last but one."""
    if x.rank < 3:
        return x
    return transpose.transpose(cx, x, perm=[*range(1, x.rank - 1), 0, x.rank - 1])


@op("FusedGemm", domain=MICROSOFT)
@widened
def fused_gemm(
    cx: Context,
    a: Value,
    b: Value,
    c: Value | None = None,
    *,
    activation: str = "",
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Value:
    """Gemm and an activation."""
    y = gemm(cx, a, b, c, alpha=alpha, beta=beta, transA=transA, transB=transB)
    return _activate(cx, y, activation, [p for p in (activation_alpha, activation_beta) if p is not None])


@op("FusedConv", domain=MICROSOFT)
@widened
def fused_conv(
    cx: Context,
    x: Value,
    w: Value,
    b: Value | None = None,
    z: Value | None = None,
    *,
    activation: str = "",
    activation_params: Sequence[float] = (),
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Value:
    """Conv, z added to it, and an activation."""
    y = conv(
        cx, x, w, b,
        auto_pad=auto_pad, dilations=dilations, group=group, kernel_shape=kernel_shape, pads=pads, strides=strides,
    )  # fmt: skip
    if z is not None:
        y = binary.add(cx, y, z)
    return _activate(cx, y, activation, activation_params)


def _activate(cx: Context, y: Value, name: str, given: Sequence[float]) -> Value:
    defaults: dict[str, tuple[float, ...]] = {
        "LeakyRelu": (0.01,),
        "HardSigmoid": (0.2, 0.5),
        "Clip": (-math.inf, math.inf),
    }
    alpha, beta = (*given, *defaults.get(name, ())[len(given) :], 0.0, 0.0)[:2]
    if not name:
        return y
    if name == "Relu":
        return activations.relu(cx, y)
    if name == "Sigmoid":
        return activations.sigmoid(cx, y)
    if name == "Tanh":
        return activations.tanh(cx, y)
    if name == "LeakyRelu":
        return activations.leaky_relu(cx, y, alpha=alpha)
    if name == "HardSigmoid":
        return activations.hard_sigmoid(cx, y, alpha=alpha, beta=beta)
    if name == "Clip":
        if y.dtype is F32 and fuse_activation(cx, y, Activation.CLIP, alpha, beta):
            return y
        return activations.clip_6(cx, y, min=alpha, max=beta)
    cx.fail(f"activation {name!r} is not supported", UnsupportedModelError)


def _simplified(
    cx: Context, x: Value, scale: Value, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> tuple[Value | None, ...]:
    """x over its root of the mean square, and 1 over that."""
    y = rownorm.rms_normalization(cx, x, scale, axis=axis, epsilon=epsilon)
    if not wanted(cx, 1):
        return y, None
    if x.dtype not in (F32, F64):
        cx.fail(f"inv_std_var of {x.dtype} is not supported", UnsupportedModelError)
    (first,) = reduce.normalize_axes(cx, (axis,), x.rank)
    shape = [1 if a >= first else d for a, d in enumerate(x.shape)]
    squares = reduce.reduce_to(cx, "ReduceMean", binary.mul(cx, x, x), range(first, x.rank), shape)
    shifted = binary.add(cx, squares, cx.known(np.array(epsilon, x.dtype.numpy)))
    return y, _rsqrt(cx, shifted)


def _rsqrt(cx: Context, x: Value) -> Value:
    """1 / sqrt(x)"""
    short = require(cx, x, FLOATS)
    return flat(cx, f"reciprocal_{short}", flat(cx, f"sqrt_{short}", x))


# onnxruntime has it in the standard domain, though the standard has not.
op("SimplifiedLayerNormalization")(_simplified)
op("SimplifiedLayerNormalization", domain=MICROSOFT)(_simplified)


def _summed(cx: Context, x: Value, skip: Value, bias: Value | None) -> Value:
    """x + skip + bias, where skip may lack the batch or have one of extent 1."""
    if skip.shape != x.shape and (skip.rank > x.rank or skip.shape[-2:] != x.shape[-2:]):
        cx.fail(f"skip {skip} does not fit {x}")
    if bias is not None:
        x = binary.add(cx, x, bias)
    total = binary.add(cx, x, skip)
    # It is read more than once: what follows may not change it.
    total.producer = None
    return total


@op("SkipLayerNormalization", domain=MICROSOFT)
@widened
def skip_layer_normalization(
    cx: Context,
    x: Value,
    skip: Value,
    gamma: Value,
    beta: Value | None = None,
    bias: Value | None = None,
    *,
    epsilon: float = 1e-12,
) -> tuple[Value | None, ...]:
    """LayerNormalization of x + skip + bias, the mean and 1 / standard deviation, and the sum."""
    total = _summed(cx, x, skip, bias)
    return *rownorm.layer_normalization(cx, total, gamma, beta, axis=-1, epsilon=epsilon), total


@op("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
@widened
def skip_simplified_layer_normalization(
    cx: Context, x: Value, skip: Value, gamma: Value, bias: Value | None = None, *, epsilon: float = 1e-12
) -> tuple[Value | None, ...]:
    """RMSNormalization of x + skip + bias, and the sum."""
    total = _summed(cx, x, skip, bias)
    return rownorm.rms_normalization(cx, total, gamma, epsilon=epsilon), None, None, total


@op("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_normalization(
    cx: Context,
    input_ids: Value,
    segment_ids: Value | None = None,
    word_embedding: Value | None = None,
    position_embedding: Value | None = None,
    segment_embedding: Value | None = None,
    gamma: Value | None = None,
    beta: Value | None = None,
    mask: Value | None = None,
    position_ids: Value | None = None,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int = 1,
) -> tuple[Value | None, ...]:
    """LayerNormalization of the sum of embeddings of words, positions and segments; how many words the mask has."""
    if input_ids.rank != 2:
        cx.fail(f"{input_ids} must have rank 2")
    if word_embedding is None or position_embedding is None or gamma is None or beta is None:
        cx.fail("word_embedding, position_embedding, gamma and beta are required")
    rows = input_ids.shape[1]
    words = gather.gather(cx, word_embedding, input_ids)
    if position_ids is not None:
        places = gather.gather(cx, position_embedding, position_ids)
    else:
        if position_embedding.shape[0] < rows:
            cx.fail(f"{position_embedding} has fewer than {rows} positions")
        places = cx.alias(position_embedding, (rows, position_embedding.shape[1]))
    total = binary.add(cx, words, places)
    if segment_ids is not None and segment_embedding is not None:
        total = binary.add(cx, total, gather.gather(cx, segment_embedding, segment_ids))
    total.producer = None
    return normalized(cx, total, gamma, beta, epsilon), words_of(cx, mask, input_ids), total


def words_of(cx: Context, mask: Value | None, input_ids: Value) -> Value | None:
    """How many elements of each row of the mask are 1, if that is asked for as output 1."""
    if not wanted(cx, 1):
        return None
    batch = input_ids.shape[0]
    if mask is None:
        return cx.known(np.zeros(batch, np.int32))
    if mask.shape != input_ids.shape:
        cx.fail(f"the mask {mask} must have the shape of {input_ids}")
    operands = (cast(cx, mask, I32), cx.known(np.ones((), np.int32)))
    ones, *_ = broadcast(cx, "equal_i32", "ab", operands, BOOL, swaps=True)
    return reduce.reduce_to(cx, "ReduceSum", cast(cx, ones, I32), (1,), (batch,))


@widened
def normalized(cx: Context, x: Value, gamma: Value, beta: Value, epsilon: float) -> Value | None:
    y = cx.out(x.shape, x.dtype)
    if y.size:
        n = x.shape[-1]
        per = max(1, reduce.UNIT // 2 // n)
        cx.emit(
            f"layernorm_{x.dtype.short}", units=-(-(x.size // n) // per),
            x=x, y=y, scale=gamma, bias=beta, mean=None, factor=None,
            n=n, rows=x.size // n, per=per, epsilon=epsilon,
        )  # fmt: skip
    return y


@op("ExpandDims", domain=MICROSOFT, host=("axis",))
def expand_dims(cx: Context, x: Value, axis: Array) -> Value:
    """An axis of extent 1 inserted."""
    return reshape.unsqueeze(cx, x, axis.reshape(-1))


@op("Trilu", domain=MICROSOFT, host=("k",))
def trilu(cx: Context, x: Value, k: Array | None = None, *, upper: int = 1) -> Value:
    """The upper or lower triangle of matrices."""
    return pad.trilu(cx, x, k, upper=upper)


@op("Range", domain=MICROSOFT, host=("start", "limit", "delta"))
def range_(cx: Context, start: Array, limit: Array, delta: Array | None = None) -> Value:
    """From start to below limit; steps of 1 unless given."""
    return constant.range_(cx, start, limit, np.ones((), start.dtype) if delta is None else delta)


@op("Pad", domain=MICROSOFT, host=("pads",))
def pad_(cx: Context, x: Value, pads: Array, value: Value | None = None, *, mode: str = "constant") -> Value:
    """As of ai.onnx; pads may have a leading axis of extent 1."""
    return pad.pad_11(cx, x, pads.reshape(-1), value, mode=mode)


@op("GatherND", domain=MICROSOFT)
def gather_nd(cx: Context, x: Value, indices: Value) -> Value:
    """The slices that tuples of indices name."""
    return gather.gather_nd(cx, x, indices)


@op("CDist", domain=MICROSOFT)
def cdist(cx: Context, a: Value, b: Value, *, metric: str = "sqeuclidean") -> Value:
    """Distances of the rows of a from those of b, squared or not."""
    if metric not in ("sqeuclidean", "euclidean"):
        cx.fail(f"metric {metric!r} is not supported", UnsupportedModelError)
    if a.rank != 2 or b.rank != 2 or a.shape[1] != b.shape[1] or a.dtype is not b.dtype:
        cx.fail(f"{a} and {b} must be matrices of one type with as many columns")
    squared = cx.out((a.shape[0], b.shape[0]), a.dtype)
    if squared.size:
        short = require(cx, a, frozenset({"f32", "f64"}))
        cx.emit(f"cdist_{short}", units=a.shape[0], a=a, b=b, y=squared, rows=b.shape[0], k=a.shape[1])
    return squared if metric == "sqeuclidean" else flat(cx, f"sqrt_{a.dtype.short}", squared)


@op("Unique", domain=MICROSOFT)
def unique(cx: Context, x: Value) -> Generator[Any, Any, Any]:
    """The distinct elements in the order they first occur, which of them each is, how many there are of each."""
    y, _, inverse, counts = yield from topk.unique(cx, x, sorted=0)
    return y, inverse, counts


@op("GridSample", domain=MICROSOFT)
def grid_sample(
    cx: Context, x: Value, grid: Value, *, align_corners: int = 0, mode: str = "bilinear", padding_mode: str = "zeros"
) -> Value:
    """x [N, C, H, W] at the places of grid."""
    return sampling.grid_sample(cx, x, grid, align_corners=align_corners, mode=mode, padding_mode=padding_mode)
