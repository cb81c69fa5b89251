"""What the forms of a convolution have in common: its geometry, and its weights as kernels want them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..context import Context, Record, Value
from ..dtypes import F32
from ._panels import stays


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

    def arguments(self) -> dict[str, Any]:
        """As kernels take it: in_, k_ (kernel), s_ (strides), q_ (dilations), p_ (pads) and o_ (output) of each
        dimension, the last of d, h and w."""
        names = "dhw"[-len(self.input) :]
        parts = {
            "in": self.input,
            "k": self.kernel,
            "s": self.strides,
            "q": self.dilations,
            "p": self.pads,
            "o": self.output,
        }
        return {f"{part}_{name}": v for part, vs in parts.items() for name, v in zip(names, vs, strict=True)}


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


def within(g: Geometry) -> tuple[Geometry, list[range]]:
    """The same convolution by the taps of each axis that some window has within the image: those beyond, of a dilation
    as large as the image, are of padding alone. The pads are not negative."""
    taps = []
    for n, k, o, s, q, p in zip(*g, strict=True):
        used = [t for t in range(k) if max(-((t * q - p) // s), 0) <= min((n - 1 + p - t * q) // s, o - 1)]
        first = min(used[0], p // q) if used else 0
        taps.append(range(first, used[-1] + 1) if used else range(k))
    return g._replace(
        kernel=tuple(map(len, taps)),
        dilations=tuple(q if len(t) > 1 else 1 for q, t in zip(g.dilations, taps, strict=True)),
        pads=tuple(p - q * t.start for p, q, t in zip(g.pads, g.dilations, taps, strict=True)),
    ), taps


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


def even(n: int, block: int) -> int:
    """The size of blocks of n columns, all about equal and a multiple of 8."""
    return -(-n // -(-n // block) // 8) * 8


def allow_affine(
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
    if not w.const or stays(w) or not (b is None or b.const):
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
