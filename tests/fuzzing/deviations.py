"""Where peers are known to be wrong, with the reason: for such nodes they are not asked."""

from __future__ import annotations

import numpy as np

from .peers import Deviation, Question


def special(question: Question) -> bool:
    """NaN or infinities among the inputs."""
    return any(a.dtype.kind not in "iubO" and not np.isfinite(a.astype(np.float64)).all() for a in question.inputs)


def subnormal(question: Question) -> bool:
    """Subnormal numbers among the inputs."""
    return any(
        a.dtype.kind == "f" and bool(((a != 0) & (np.abs(a) < np.finfo(a.dtype).tiny)).any()) for a in question.inputs
    )


def _overhangs(question: Question) -> bool:
    """A window that is larger than the padded image."""
    x, kernel = question.input(0), question.kernel_shape
    if not kernel and question.op in ("Conv", "ConvInteger", "QLinearConv"):
        w = question.input(3 if question.op == "QLinearConv" else 1)
        kernel = None if w is None else w.shape[2:]
    if x is None or not kernel or question.auto_pad in (b"SAME_UPPER", b"SAME_LOWER"):
        return False
    rank = len(kernel)
    pads = question.pads or [0] * 2 * rank
    dilations = question.dilations or [1] * rank
    return any(
        (k - 1) * d + 1 > size + before + after
        for k, d, size, before, after in zip(kernel, dilations, x.shape[2:], pads, pads[rank:], strict=False)
    )


def _same_dilated(question: Question) -> bool:
    same = question.auto_pad in (b"SAME_UPPER", b"SAME_LOWER")
    return "Pool" in question.op and same and max(question.dilations or [1]) > 1


def _same_gaps(question: Question) -> bool:
    """SAME padding of windows that leave gaps."""
    pools = "Pool" in question.op
    if (not pools and question.op != "ConvTranspose") or question.auto_pad not in (b"SAME_UPPER", b"SAME_LOWER"):
        return False
    kernel = question.kernel_shape if pools else question.inputs[1].shape[2:]
    strides = question.strides or [1] * len(kernel)
    dilations = question.dilations or [1] * len(kernel)
    return any((k - 1) * d + 1 < s for k, d, s in zip(kernel, dilations, strides, strict=False))


def _far_backwards(question: Question) -> bool:
    ends, steps = question.input(2), question.input(4)
    if question.op != "Slice" or ends is None or steps is None:
        return False
    return bool((np.isin(ends, (2**31 - 1, 2**63 - 1)) & (steps < 0)).any())


def _outside(question: Question) -> bool:
    """A dilated maximum of which all taps may lie in the padding."""
    return question.op == "MaxPool" and max(question.dilations or [1]) > 1 and any(question.pads or ())


def _divides_by_zero(question: Question) -> bool:
    scale = question.input(1)
    return question.op == "QuantizeLinear" and scale is not None and bool((scale == 0).any())


def _offset(question: Question) -> bool:
    """Causal attention to a past, with other numbers of queries and of new keys."""
    q, k = question.input(0), question.input(1)
    if question.op != "Attention" or not question.is_causal or q is None or k is None or question.input(4) is None:
        return False
    return bool(q.shape[-2] != k.shape[-2])


def _nothing(question: Question) -> bool:
    axes = question.input(1)
    return question.op == "Squeeze" and axes is not None and axes.size == 0


def _heeds(question: Question) -> bool:
    """A Loop without a condition, whose body computes one, which is to be ignored."""
    if question.op != "Loop" or question.input(1) is not None:
        return False
    return bool(question.body.output[0].name != question.body.input[1].name)


def _squeezes(question: Question) -> bool:
    split = question.input(1)
    return question.op == "SplitToSequence" and split is not None and split.ndim == 0 and question.keepdims == 0


def _erf_of_doubles(question: Question) -> bool:
    erf = question.op == "Erf" or (question.op == "Gelu" and question.approximate != b"tanh")
    return erf and question.inputs[0].dtype == np.float64


DEVIATIONS: list[Deviation] = [
    Deviation("native", "computes integers in float32", lambda q: q.op == "Shrink" and q.inputs[0].dtype.kind in "iu"),
    Deviation("native", "NaN is never the maximum", lambda q: q.op in ("Hardmax", "ArgMax", "ArgMin") and special(q)),
    Deviation("native", "gives an empty tensor for some windows that do not fit, refuses others", _overhangs),
    Deviation("native", "SAME padding without regard to dilations", _same_dilated),
    Deviation("reference", "SAME padding without regard to dilations", _same_dilated),
    Deviation("native", "NaN counts or not by its place", lambda q: q.op in ("ReduceMax", "ReduceMin") and special(q)),
    Deviation("native", "a NaN counts or not by its place", lambda q: "MaxPool" in q.op and special(q)),
    Deviation("reference", "a NaN never counts", lambda q: "MaxPool" in q.op and special(q)),
    Deviation("native", "the mean of nothing is 0, not NaN", lambda q: q.op == "ReduceMean" and q.empty),
    Deviation(
        "reference", "computes off + hit * (on - off)", lambda q: q.op == "OneHot" and (special(q) or subnormal(q))
    ),
    Deviation("reference", "runs no iteration without a condition", lambda q: q.op == "Loop" and q.input(1) is None),
    Deviation("reference", "adds a dimension", lambda q: q.op == "QLinearConv" and q.inputs[0].ndim != 4),
    Deviation("native", "SAME pads that would be negative are negative or 0 as it comes", _same_gaps),
    Deviation("reference", "SAME pads that would be negative are negative or 0 as it comes", _same_gaps),
    Deviation("reference", "leaves out the last channel", lambda q: q.op == "LRN"),
    Deviation("reference", "keeps the shape of empty tensors", lambda q: q.op == "Unique" and q.empty),
    Deviation("native", "an end of INT_MAX is the start, backwards", _far_backwards),
    Deviation("native", "running sums never lose an infinity", lambda q: q.op == "LRN" and special(q)),
    Deviation(
        "native",
        "leaves sums of nothing uninitialized",
        lambda q: q.op in ("MatMulInteger", "QLinearMatMul") and 0 in q.inputs[0].shape[-1:],
    ),
    Deviation("native", "the maximum of nothing is the lowest number", _outside),
    Deviation("reference", "the maximum of nothing is 0", _outside),
    Deviation("reference", "shapes of scan outputs, and which types there are", lambda q: q.op in ("Loop", "Scan")),
    Deviation("reference", "leaves open what an infinity is as an integer", _divides_by_zero),
    Deviation("reference", "adds the zero point before it rounds", lambda q: q.op.startswith("QLinear")),
    Deviation("reference", "no more than 8 digits", _erf_of_doubles),
    Deviation(
        "reference",
        "adds every element times a weight, which may be 0: infinities become NaN",
        lambda q: q.op in ("Resize", "Upsample") and special(q),
    ),
    Deviation(
        "reference", "rounds integers", lambda q: q.op in ("Resize", "Upsample") and q.inputs[0].dtype.kind in "iu"
    ),
    Deviation("native", "subtracts infinities", lambda q: q.op.endswith("Normalization") and special(q)),
    Deviation("reference", "infinity passes where no bound is given", lambda q: q.op == "Clip" and special(q)),
    Deviation("reference", "takes 1/6 in float32", lambda q: q.op == "HardSwish" and q.inputs[0].dtype == np.float64),
    Deviation("native", "ends by a condition that is to be ignored", _heeds),
    Deviation("native", "aligns the last query with the last key, not with the past", _offset),
    Deviation(
        "native",
        "takes 2 / pi in float32",
        lambda q: q.op == "Gelu" and q.approximate == b"tanh" and q.inputs[0].dtype == np.float64,
    ),
    Deviation("native", "takes an empty list of axes for one that is not given", _nothing),
    Deviation("native", "minds keepdims although a split is given, if that is a scalar", _squeezes),
    Deviation("native", "divides by 0 where all is equal", lambda q: q.op == "MeanVarianceNormalization"),
    Deviation("native", "leaves open which NaN are equal", lambda q: q.op == "Unique" and special(q)),
    Deviation("reference", "leaves open which NaN are equal", lambda q: q.op == "Unique" and special(q)),
    Deviation("native", "the sign of NaN is 0", lambda q: q.op == "Sign" and special(q)),
    Deviation("reference", "leaves out a dimension", lambda q: q.op.startswith("Global") and q.inputs[0].ndim != 4),
    Deviation(
        "reference",
        "the logarithm of 0 as an integer",
        lambda q: q.op == "ReduceLogSum" and q.inputs[0].dtype.kind in "iu",
    ),
    Deviation("native", "weighs an infinity by 0", lambda q: q.op in ("Resize", "Upsample") and special(q)),
    Deviation("reference", "weighs an infinity by 0", lambda q: q.op in ("Resize", "Upsample") and special(q)),
    Deviation("reference", "passes over NaN", lambda q: q.op == "AveragePool" and special(q)),
    Deviation("native", "crashes", lambda q: q.op == "Unique" and q.empty),
    Deviation("native", "flushes subnormal numbers", lambda q: q.op == "OneHot" and subnormal(q)),
    Deviation("reference", "does not check that windows fit", _overhangs),
]

# What this package refuses on purpose although native computes it: (part of the message, reason).
STRICTER = [
    (": position has shape", "native takes the first of several positions in a sequence, which ONNX has one of"),
    ("does not fit in spatial dimension", "native gives something for some windows that do not fit"),
    ("is longer than axis", "native leaves out what a condition of Compress has too many"),
    ("is none of none, add", "native takes an unknown reduction for none"),
    ("cannot be joined along axis", "native leaves empty tensors out of a Concat, whatever their shape"),
]

# What this package computes although native refuses it: (part of native's message, reason).
LOOSER = [
    ("output_padding", "more output padding than a stride is more zeros"),
    ("pool_attributes.h:88", "padding as wide as the window is padding all the same"),
    ("axes_tensor->", "a scalar is as good as a vector of one axis"),
    ("SetOutputSize", "a pool of no channels is no channels"),
    ("axes_tensor !", 'an input named "" is one that is not given'),
    ("Op (Loop) [TypeInferenceError]", "a count or condition of shape [1] is as good as a scalar"),
    ("of operator (DequantizeLinear)", "a scale of another float type is a scale"),
    ("must be a scalar", "a scale or zero point of shape [1] is as good as a scalar"),
]

# Types that are still missing: part of the message.
MISSING = ("alpha and beta must be 1 for type", 'Erf "', "has no form for")
