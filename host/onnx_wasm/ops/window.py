"""Window functions and the mel weight matrix."""

from __future__ import annotations

from .. import dtypes
from ..context import Array, Context, Value
from ..dtypes import F64, DType
from ..errors import UnsupportedModelError
from ..registry import op
from ._copy import only
from ._elementwise import NUMBERS, cast

# a0, a1, a2 of a0 + a1 cos(2 pi k / n) + a2 cos(4 pi k / n)
_COEFFICIENTS = {
    "HannWindow": (0.5, -0.5, 0.0),
    "HammingWindow": (25 / 46, -21 / 46, 0.0),
    "BlackmanWindow": (0.42, -0.5, 0.08),
}


def _type(cx: Context, number: int) -> DType:
    dtype = dtypes.from_onnx(number)
    if dtype.short not in NUMBERS:
        cx.fail(f"output_datatype {dtype} is not supported", UnsupportedModelError)
    return dtype


@op(*_COEFFICIENTS, since=17, host=("size",))
def window(cx: Context, size: Array, *, output_datatype: int = 1, periodic: int = 1) -> Value:
    """One period of a sum of cosines, with its end (``periodic`` = 0) or without."""
    n = int(only(cx, "size", size))
    y = cx.out((n,), F64)
    if n:
        a0, a1, a2 = _COEFFICIENTS[cx.node.op_type]
        cx.emit("window_cosine", units=n, y=y, period=n if periodic else n - 1, a0=a0, a1=a1, a2=a2)
    return cast(cx, y, _type(cx, output_datatype))


@op(
    "MelWeightMatrix",
    since=17,
    host=("num_mel_bins", "dft_length", "sample_rate", "lower_edge_hertz", "upper_edge_hertz"),
)
def mel_weight_matrix(
    cx: Context,
    num_mel_bins: Array,
    dft_length: Array,
    sample_rate: Array,
    lower_edge_hertz: Array,
    upper_edge_hertz: Array,
    *,
    output_datatype: int = 1,
) -> Value:
    """Triangles that are even on the mel scale: from the bins of a spectrogram to mel bins."""
    bins, dft = int(only(cx, "num_mel_bins", num_mel_bins)), int(only(cx, "dft_length", dft_length))
    rate = int(only(cx, "sample_rate", sample_rate))
    if bins < 0 or dft < 0 or rate < 1:
        cx.fail(f"num_mel_bins {bins}, dft_length {dft} and sample_rate {rate} must be positive")
    y = cx.out((dft // 2 + 1, bins), F64)
    if y.size:
        cx.emit(
            "window_mel",
            units=bins,
            y=y,
            rows=y.shape[0],
            columns=bins,
            dft=float(dft),
            rate=float(rate),
            lower=float(only(cx, "lower_edge_hertz", lower_edge_hertz)),
            upper=float(only(cx, "upper_edge_hertz", upper_edge_hertz)),
        )
    return cast(cx, y, _type(cx, output_datatype))
