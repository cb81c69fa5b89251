"""Convolutions and pools, with what follows them in networks."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import elementwise
from .builder import Builder, Skip, Tensor, allowed
from .linear import activate, residual


def image(g: Builder, op: str) -> Tensor:
    """A tensor of shape (N, C, D1, ...)."""
    found = g.pick(lambda t: t.dtype in allowed(op, g.opset) and 3 <= t.rank <= 5 and t.array.size > 0)
    if found is not None and not g.chance(15):
        return found
    rank = g.choice([2, 2, 2, 1, 3])
    channels = g.choice([1, 2, 3, 4, 6, 8, 12, 16, 17])
    most = {1: 20, 2: 11, 3: 5}[rank]
    shape = [g.choice([1, 1, 2, 3]), channels, *(g.int(1, most) for _ in range(rank))]
    if g.chance(2):
        shape[0] = 0
    return g.value(shape, g.dtype(op), const=g.chance(5))


def window(g: Builder, shape: tuple[int, ...], *, dilated: bool, kernel: list[int] | None = None) -> dict[str, Any]:
    """kernel_shape, strides, pads, dilations, auto_pad for spatial dims."""
    rank = len(shape)
    kernel = kernel or [g.choice([1, 2, 3, 3, 4, 5]) for _ in range(rank)]
    made: dict[str, Any] = {"kernel_shape": kernel}
    if g.chance(50):
        made["strides"] = [g.choice([1, 2, 2, 3]) for _ in range(rank)]
    if dilated and g.chance(30):
        made["dilations"] = [g.choice([1, 2, 3]) for _ in range(rank)]
    auto = g.choice(["", "", "", "", "SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"])
    if auto:
        made["auto_pad"] = auto
    if auto in ("", "NOTSET") and g.chance(65):
        if g.chance(50):
            pads = [min(k // 2, k - 1) for k in kernel]
            made["pads"] = pads + pads
        else:
            made["pads"] = [g.int(0, k - 1) for k in kernel + kernel]
    return made


def conv(g: Builder) -> Tensor:
    """Conv: dense, grouped, depthwise."""
    x = image(g, "Conv")
    c, spatial = x.shape[1], x.shape[2:]
    group = g.choice([1, 1, 1, c, *[d for d in range(2, c) if c % d == 0]])
    m = group * g.choice([1, 1, 2, 3, 4, 8] if group > 1 else [1, 2, 3, 4, 5, 8, 9, 16, 17])
    if m > 48:
        m = group
    made = window(g, spatial, dilated=True)
    w = g.value([m, c // group, *made["kernel_shape"]], x.dtype, const=not g.chance(15))
    b = g.value([m], x.dtype, const=not g.chance(20)) if g.chance(50) else None
    if g.chance(50):
        del made["kernel_shape"]
    (y,) = g.node("Conv", [x, w, b], group=group if group > 1 else None, **made)
    return y


def conv_transpose(g: Builder) -> Tensor:
    """ConvTranspose with output padding or shape."""
    x = image(g, "ConvTranspose")
    c, spatial = x.shape[1], x.shape[2:]
    group = g.choice([1, 1, *[d for d in range(2, c + 1) if c % d == 0]])
    made = window(g, spatial, dilated=True)
    strides = made.get("strides", [1] * len(spatial))
    w = g.value([c, g.int(1, 4), *made["kernel_shape"]], x.dtype, const=not g.chance(15))
    b = g.value([w.shape[1] * group], x.dtype) if g.chance(50) else None
    if g.chance(30):
        made["output_padding"] = [g.int(0, s - 1) for s in strides]
    (y,) = g.node("ConvTranspose", [x, w, b], group=group if group > 1 else None, **made)
    return y


def batch_norm(g: Builder) -> Tensor:
    """BatchNormalization in inference."""
    x = g.pick(lambda t: t.dtype in allowed("BatchNormalization", g.opset) and 2 <= t.rank <= 5)
    x = x or image(g, "BatchNormalization")
    const = not g.chance(15)
    params = [g.value([x.shape[1]], x.dtype, const=const) for _ in range(3)]
    var = g.value([x.shape[1]], x.dtype, kind="positive", const=const)
    (y,) = g.node("BatchNormalization", [x, *params, var], epsilon=g.choice([None, 1e-3]))
    return y


def channel_affine(g: Builder) -> Tensor:
    """Mul or Add of one number a channel."""
    x = g.pick(lambda t: t.floating and t.rank >= 3)
    if x is None:
        raise Skip("no image")
    p = g.value([x.shape[1], *[1] * (x.rank - 2)], x.dtype, const=not g.chance(20))
    (y,) = g.node(g.choice(["Mul", "Add", "Sub", "Div"]), [x, p])
    return y


def gate(g: Builder) -> Tensor:
    """Squeeze and excitation: a pooled tensor scales channels."""
    x = g.pick(lambda t: t.dtype == "float32" and 3 <= t.rank <= 5)
    if x is None:
        raise Skip("no image")
    (p,) = g.node("GlobalAveragePool", [x])
    (s,) = g.node(g.choice(["Sigmoid", "HardSigmoid", "Relu"]), [p])
    (y,) = g.node("Mul", [x, s] if g.chance(50) else [s, x])
    return y


def pool(g: Builder) -> Tensor:
    """MaxPool, AveragePool, LpPool."""
    op = g.choice(["MaxPool", "MaxPool", "AveragePool", "AveragePool", "LpPool"])
    x = image(g, op)
    dilated = (
        (op == "MaxPool" and g.opset >= 10)
        or (op == "AveragePool" and g.opset >= 19)
        or (g.opset >= 18 and op == "LpPool")
    )
    made = window(g, x.shape[2:], dilated=dilated)
    if g.chance(40) and g.opset >= (18 if op == "LpPool" else 10):
        made["ceil_mode"] = 1
    if op == "AveragePool" and g.chance(40):
        made["count_include_pad"] = 1
    if op == "LpPool" and g.chance(60):
        made["p"] = g.int(1, 3)
    indices = op == "MaxPool" and g.opset >= 8 and g.chance(25) and (x.exact or x.array.size == 0)
    if indices and g.chance(30):
        made["storage_order"] = 1
    outputs = g.node(op, [x], 2 if indices else 1, exact=op == "MaxPool", **made)
    return outputs[0]


def global_pool(g: Builder) -> Tensor:
    """A global pool."""
    op = g.choice(["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
    x = image(g, op)
    (y,) = g.node(op, [x], exact=op == "GlobalMaxPool", **({"p": g.int(1, 3)} if op == "GlobalLpPool" else {}))
    return y


def resize(g: Builder) -> Tensor:
    """Resize or Upsample by factors or to sizes."""
    if g.opset < 11:
        x = image(g, "Upsample")
        scales = g.given(
            np.array([1, 1, *(g.choice([1.0, 2.0, 3.0]) for _ in x.shape[2:])], np.float32), const=True, hidden=True
        )
        mode = g.choice(["nearest", "linear"] if x.rank == 4 else ["nearest"])
        if g.opset < 9:
            (y,) = g.node("Upsample", [x], scales=[float(s) for s in scales.array], mode=mode)
        else:
            (y,) = g.node("Resize" if g.opset == 10 else "Upsample", [x, scales], mode=mode)
        return y
    x = image(g, "Resize")
    mode = g.choice(["nearest", "linear", "cubic"] if x.rank == 4 else ["nearest", "linear"])
    made: dict[str, Any] = {
        "mode": mode,
        "coordinate_transformation_mode": g.choice(["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]),
    }
    if mode == "nearest":
        made["nearest_mode"] = g.choice(["round_prefer_floor", "floor", "ceil", "round_prefer_ceil"])
    if mode == "cubic" and g.chance(40):
        made["exclude_outside"] = 1
    roi = None if g.opset >= 13 else g.given(np.zeros(0, np.float32), const=True, hidden=True)
    if g.chance(50):
        scales = g.given(
            np.array([1, 1, *(g.choice([1.0, 2.0, 0.5, 1.5, 3.0]) for _ in x.shape[2:])], np.float32),
            const=True,
            hidden=True,
        )
        (y,) = g.node("Resize", [x, roi, scales], **made)
    else:
        sizes = g.host([*x.shape[:2], *(g.int(1, 9) for _ in x.shape[2:])])
        empty = None if g.opset >= 13 else g.given(np.zeros(0, np.float32), const=True, hidden=True)
        (y,) = g.node("Resize", [x, roi, empty, sizes], **made)
    return y


STEPS = [
    conv,
    conv,
    conv,
    conv,
    conv_transpose,
    batch_norm,
    batch_norm,
    activate,
    activate,
    residual,
    channel_affine,
    gate,
    pool,
]
POOLS = [pool, pool, pool, global_pool, elementwise.unary, resize]
