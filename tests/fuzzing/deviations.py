"""Where peers are known to be wrong, with the reason: for such nodes they are not asked."""

from __future__ import annotations

import numpy as np

from .peers import BF16, Deviation, Question


def special(question: Question) -> bool:
    """NaN or infinities among the inputs."""
    return any(a.dtype.kind not in "iubO" and not np.isfinite(a.astype(np.float64)).all() for a in question.inputs)


def not_a_number(question: Question) -> bool:
    """NaN among the inputs."""
    return any(a.dtype.kind not in "iubO" and np.isnan(a.astype(np.float64)).any() for a in question.inputs)


def negative_zero(question: Question) -> bool:
    """-0 among the inputs."""
    return any(a.dtype.kind not in "iubO" and bool(((a == 0) & np.signbit(a)).any()) for a in question.inputs)


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


def _valid_dilated(question: Question) -> bool:
    return "Pool" in question.op and question.auto_pad == b"VALID" and max(question.dilations or [1]) > 1


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


def _one_row(question: Question) -> bool:
    """Causal attention whose mask has one row for all queries."""
    q, mask = question.input(0), question.input(3)
    if question.op != "Attention" or not question.is_causal or q is None or mask is None or mask.ndim < 2:
        return False
    return bool(mask.shape[-2] == 1 != q.shape[-2])


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


def _vanishes(question: Question) -> bool:
    """Negative numbers of which exp(x) - 1 is 0, as long as it is not computed as one function."""
    x = question.input(0)
    small = x is not None and question.op in ("Elu", "Selu", "Celu")
    return small and bool(((x < 0) & (x > -1e-7)).any())


def _stashed(question: Question) -> bool:
    """A GroupNormalization in float64 whose body casts to float32, which this package does not."""
    double = question.op == "GroupNormalization" and question.inputs[0].dtype == np.float64
    return double and question.opset >= 21 and question.stash_type in (None, 1)


def _unsorted(question: Question) -> bool:
    """A Unique in the order of its input, along an axis that is not the first, or asked for one output."""
    if question.op != "Unique" or question.sorted != 0:
        return False
    return len(question.node.output) == 1 or (question.inputs[0].ndim != 1 and question.axis != 0)


def _overflows(question: Question) -> bool:
    """A product that is 0, or NaN if it overflows before it comes to the 0."""
    x = question.input(0)
    if question.op != "ReduceProd" or x is None or x.dtype.kind in "iu" or not (x == 0).any():
        return False
    wide = np.abs(x.astype(np.float64))
    return bool(np.log(wide[wide > 1]).sum() > np.log(float(np.finfo(np.float32).max)))


def _joins_nothing(question: Question) -> bool:
    """A ConcatFromSequence of tensors of which some are empty and do not fit the others."""
    sequence = question.input(0)
    if question.op != "ConcatFromSequence" or not isinstance(sequence, list):
        return False
    return any(a.size == 0 for a in sequence) and len({a.shape for a in sequence}) > 1


def _level(question: Question) -> bool:
    """An InstanceNormalization of which some instance hardly varies."""
    x = question.input(0)
    if question.op != "InstanceNormalization" or x is None or not x.size:
        return False
    rows = x.astype(np.float64).reshape(*x.shape[:2], -1)
    return bool((np.ptp(rows, axis=-1) < 1e-2 * np.abs(rows).max(-1)).any())


def _unbounded(question: Question) -> bool:
    """A Clip that has a bound of none."""
    given = (question.input(1), question.input(2)) if question.opset >= 11 else (question.min, question.max)
    return question.op == "Clip" and any(bound is None for bound in given)


def _before_backwards(question: Question) -> bool:
    """A Slice that goes backwards from before the first element, which is clamped to the first."""
    x, starts, axes, steps = (question.input(i) for i in (0, 1, 3, 4))
    if question.op != "Slice" or x is None or starts is None or steps is None:
        return False
    axes = np.arange(len(starts)) if axes is None else axes
    return any(step < 0 and start < -x.shape[axis] for start, axis, step in zip(starts, axes, steps, strict=True))


def _shifted(question: Question) -> bool:
    """A last window that is cut short by 2 elements or more, of LpPool by any."""
    x, kernel = question.input(0), question.kernel_shape
    if "Pool" not in question.op or x is None or not kernel or not question.ceil_mode:
        return False
    rank = len(kernel)
    pads = question.pads or [0] * 2 * rank
    strides, dilations = question.strides or [1] * rank, question.dilations or [1] * rank
    rooms = [
        size + before + after - (k - 1) * d - 1
        for size, before, after, k, d in zip(x.shape[2:], pads, pads[rank:], kernel, dilations, strict=False)
    ]
    least = 1 if question.op == "LpPool" else 2
    return any(-room % s >= least for room, s in zip(rooms, strides, strict=True))


def _fractional(question: Question) -> bool:
    """Coordinates that depend on the length of the output where that is no integer before it is rounded."""
    modes = (b"align_corners", b"tf_crop_and_resize")
    if question.op != "Resize" or question.coordinate_transformation_mode not in modes:
        return False
    x, scales = question.inputs[0], question.input(2)
    if scales is None or not scales.size:
        return question.keep_aspect_ratio_policy not in (None, b"stretch")
    axes = range(x.ndim) if question.axes is None else question.axes
    return any(float(s) * x.shape[a] % 1 for s, a in zip(scales, axes, strict=True))


def _passes_nothing(question: Question) -> bool:
    """A Loop that has scan outputs and no iteration."""
    count = question.input(0) if question.op == "Loop" else None
    return count is not None and int(count) < 1 and len(question.node.output) > len(question.node.input) - 2


def _beyond(question: Question, *, narrow: bool) -> bool:
    """A reduction of integers whose sum or product float64 may not hold, or, if `narrow`, their own type."""
    powers = {"ReduceSum": 1, "ReduceL1": 1, "ReduceMean": 1, "ReduceL2": 2, "ReduceSumSquare": 2, "ReduceProd": 0}
    x, power = question.input(0), powers.get(question.op)
    if power is None or x is None or x.dtype.kind not in "iu":
        return False
    wide = np.abs(x.astype(np.float64))
    bits = np.log2((wide**power).sum() + 1) if power else np.log2(np.maximum(wide, 1)).sum()
    return bool(bits >= (min(53, np.iinfo(x.dtype).bits - 1) if narrow else 53))


def _collects_nothing(question: Question) -> bool:
    """A Loop without an iteration, of which no shape is declared for what it would collect."""
    if question.op != "Loop":
        return False
    count, going = question.input(0), question.input(1)
    if (count is None or (count > 0).all()) and (going is None or going.all()):
        return False
    collected = question.body.output[len(question.node.input) - 1 :]
    return any(not o.type.tensor_type.HasField("shape") for o in collected)


def _zero_times_infinity(question: Question) -> bool:
    """A PRelu of which some slope is no number, and some element 0."""
    if question.op != "PRelu" or question.inputs[0].dtype.kind in "iu":
        return False
    x, slope = question.inputs
    return bool((x == 0).any()) and not np.isfinite(slope.astype(np.float64)).all()


def _rounds_the_difference(question: Question) -> bool:
    """A OneHot whose values are not exactly what their difference makes of them."""
    if question.op != "OneHot":
        return False
    off, on = question.inputs[2]
    with np.errstate(all="ignore"):
        return bool(off + (on - off) != on)


DEVIATIONS: list[Deviation] = [
    Deviation(
        "native",
        "computes integers and float64 in float32",
        lambda q: q.op == "Shrink" and (q.inputs[0].dtype.kind in "iu" or q.inputs[0].dtype == np.float64),
    ),
    Deviation("both", "loses the sign of what is almost 0", _vanishes),
    Deviation(
        "reference",
        "takes what comes after the rows for what comes before the columns",
        lambda q: q.op == "MaxPool" and q.opset < 8 and len(set(q.pads or ())) > 1,
    ),
    Deviation(
        "reference",
        "normalises by what it would learn from the input, too",
        lambda q: q.op == "BatchNormalization" and q.opset < 14,
    ),
    Deviation(
        "native",
        "multiplies x with a logistic function that is off by 6e-8",
        lambda q: q.op == "Swish" and q.inputs[0].dtype == np.float32 and bool((np.abs(q.inputs[0]) > 4).any()),
    ),
    Deviation("reference", "sorts all the same, or picks along the first axis", _unsorted),
    Deviation(
        "native",
        "truncates sums of float32, which may lie below the integer that they should be",
        lambda q: q.op in ("Resize", "Upsample") and q.inputs[0].dtype == np.int32 and q.mode in (b"linear", b"cubic"),
    ),
    Deviation("both", "the order of factors decides between 0 and NaN", _overflows),
    Deviation(
        "reference",
        "every group gets the first group's biases",
        lambda q: q.op == "ConvTranspose" and (q.group or 1) > 1 and q.input(2) is not None,
    ),
    Deviation("native", "makes 0 of -0", lambda q: q.op == "Where" and negative_zero(q)),
    Deviation(
        "native", "NaN is never the maximum", lambda q: q.op in ("Hardmax", "ArgMax", "ArgMin") and not_a_number(q)
    ),
    Deviation(
        "reference",
        "has no form that flattens",
        lambda q: q.op in ("Hardmax", "Softmax", "LogSoftmax") and q.opset < 13,
    ),
    Deviation("native", "has no shape for what a loop without iterations only passes on", _passes_nothing),
    Deviation(
        "native",
        "what NaN is as an integer",
        lambda q: q.op == "ReduceLogSum" and q.inputs[0].dtype.kind == "i" and bool((q.inputs[0] < 0).any()),
    ),
    Deviation("native", "gives an empty tensor for some windows that do not fit, refuses others", _overhangs),
    Deviation("reference", "windows without regard to dilations", _valid_dilated),
    Deviation("both", "SAME padding without regard to dilations", _same_dilated),
    Deviation("native", "NaN counts or not by its place", lambda q: q.op in ("ReduceMax", "ReduceMin") and special(q)),
    Deviation(
        "both",
        "NaN counts or not by its place",
        lambda q: q.op.startswith("Scatter") and q.reduction in (b"max", b"min") and not_a_number(q),
    ),
    Deviation("native", "a NaN counts or not by its place", lambda q: "MaxPool" in q.op and special(q)),
    Deviation("reference", "a NaN never counts", lambda q: "MaxPool" in q.op and special(q)),
    Deviation("native", "the mean of nothing is 0, not NaN", lambda q: q.op == "ReduceMean" and q.empty),
    Deviation("reference", "computes off + hit * (on - off)", _rounds_the_difference),
    Deviation("reference", "runs no iteration without a condition", lambda q: q.op == "Loop" and q.input(1) is None),
    Deviation("reference", "adds a dimension", lambda q: q.op == "QLinearConv" and q.inputs[0].ndim != 4),
    Deviation("both", "SAME pads that would be negative are negative or 0 as it comes", _same_gaps),
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
        "reference", "rounds integers", lambda q: q.op in ("Resize", "Upsample") and q.inputs[0].dtype.kind in "iu"
    ),
    Deviation("native", "subtracts infinities", lambda q: q.op.endswith("Normalization") and special(q)),
    Deviation("reference", "multiplies values by 0 where they are off", lambda q: q.op == "OneHot" and special(q)),
    Deviation("reference", "infinity passes where no bound is given", lambda q: q.op == "Clip" and special(q)),
    Deviation("native", "ends by a condition that is to be ignored", _heeds),
    Deviation("native", "aligns the last query with the last key, not with the past", _offset),
    Deviation("reference", "makes the causal mask of as many rows as the other mask has", _one_row),
    Deviation(
        "reference",
        "shows scores with the softcap in them",
        lambda q: q.op == "Attention" and bool(q.softcap) and not q.qk_matmul_output_mode and len(q.node.output) > 3,
    ),
    Deviation(
        "native",
        "shows the lowest number for scores that are masked, ONNX's body negative infinity",
        lambda q: q.op == "Attention" and q.qk_matmul_output_mode == 2 and q.input(3) is not None,
    ),
    Deviation(
        "both",
        "takes 2 / pi in float32",
        lambda q: q.op == "Gelu" and q.approximate == b"tanh" and q.inputs[0].dtype == np.float64,
    ),
    Deviation("native", "takes an empty list of axes for one that is not given", _nothing),
    Deviation("native", "minds keepdims although a split is given, if that is a scalar", _squeezes),
    Deviation("native", "divides by 0 where all is equal", lambda q: q.op == "MeanVarianceNormalization"),
    Deviation("both", "leaves open which NaN are equal", lambda q: q.op == "Unique" and special(q)),
    Deviation("native", "the sign of NaN is 0", lambda q: q.op == "Sign" and special(q)),
    Deviation("reference", "leaves out a dimension", lambda q: q.op.startswith("Global") and q.inputs[0].ndim != 4),
    Deviation(
        "reference",
        "the logarithm of 0 as an integer",
        lambda q: q.op == "ReduceLogSum" and q.inputs[0].dtype.kind in "iu",
    ),
    Deviation("both", "weighs an infinity by 0", lambda q: q.op in ("Resize", "Upsample") and special(q)),
    Deviation("reference", "passes over NaN", lambda q: q.op == "AveragePool" and special(q)),
    Deviation(
        "reference",
        "inserts at the end as if that were the beginning",
        lambda q: q.op == "SequenceInsert" and q.input(2) is not None,
    ),
    Deviation(
        "reference",
        "takes the root of the scale in float64, the body that defines it in float32",
        lambda q: q.op == "Attention" and q.inputs[0].dtype == np.float64,
    ),
    Deviation(
        "native",
        "adds x * scale and bias - mean * scale, which cancel where all is equal",
        _level,
    ),
    Deviation(
        "native",
        "0 where the logistic function of a double is less than the least float",
        lambda q: q.op == "Sigmoid" and q.inputs[0].dtype == np.float64 and bool((q.inputs[0] < -80).any()),
    ),
    Deviation(
        "native",
        "2e-8 off the logistic function, however small that is",
        lambda q: q.op == "Sigmoid" and q.inputs[0].dtype == np.float32 and bool((q.inputs[0] < -8).any()),
    ),
    Deviation("native", "leaves out empty tensors, whatever their shape", _joins_nothing),
    Deviation("native", "gives a scalar a dimension", lambda q: q.op == "NonZero" and q.inputs[0].ndim == 0),
    Deviation("native", "crashes", lambda q: q.op == "Unique" and q.empty),
    Deviation("native", "flushes subnormal numbers", lambda q: q.op == "OneHot" and subnormal(q)),
    Deviation("reference", "does not check that windows fit", _overhangs),
    Deviation("native", "places by the rounded length, unlike the cases of the onnx package", _fractional),
    Deviation(
        "reference",
        "cubic weights in float32 by its own default coefficient",
        lambda q: (
            q.op == "Resize" and q.mode == b"cubic" and q.cubic_coeff_a is None and q.inputs[0].dtype == np.float64
        ),
    ),
    Deviation("reference", "pads windows that are cut short on both sides", _shifted),
    Deviation("reference", "passes over NaN", lambda q: q.op == "LpPool" and special(q)),
    Deviation("reference", "adds signed numbers", lambda q: q.op == "LpNormalization" and q.p == 1),
    Deviation(
        "reference",
        "sums uint32 in uint64",
        lambda q: q.op == "ReduceSumSquare" and q.inputs[0].dtype == np.uint32,
    ),
    Deviation(
        "reference",
        "the mean of no integers is the cast of a NaN",
        lambda q: q.op == "ReduceMean" and q.empty and q.inputs[0].dtype.kind in "iu",
    ),
    Deviation(
        "reference",
        "mean and deviation are of the input's type, not of stash_type",
        lambda q: q.op == "LayerNormalization" and q.inputs[0].dtype != np.float32 and len(q.node.output) > 1,
    ),
    Deviation("both", "computes float64 in float32, as stash_type allows", _stashed),
    Deviation("native", "infers the shape of what is not there, by as much as it knows", _collects_nothing),
    Deviation(
        "native",
        "computes integers in float64, and saturates",
        lambda q: _beyond(q, narrow=q.op not in ("ReduceMean", "ReduceL2")),
    ),
    Deviation(
        "reference",
        "computes means and roots of sums that overflowed",
        lambda q: _beyond(q, narrow=True),
    ),
    Deviation(
        "native",
        "NaN is never the maximum",
        lambda q: q.op in ("Softmax", "LogSoftmax") and q.inputs[0].dtype == np.float64 and not_a_number(q),
    ),
    Deviation("both", "multiplies 0 by its slope", _zero_times_infinity),
    Deviation(
        "native",
        "before opset 12 the mask of a Dropout that drops nothing says that it drops all",
        lambda q: q.op == "Dropout" and q.opset < 12 and len(q.node.output) > 1,
    ),
    Deviation("reference", "a start before the first element is none, backwards", _before_backwards),
    Deviation(
        "native",
        "bounds of float32 in place of those of 16 bits, which it computes in float32",
        lambda q: (
            _unbounded(q)
            and special(q)
            and (q.inputs[0].dtype == BF16 or (q.inputs[0].dtype == np.float16 and q.opset < 12))
        ),
    ),
    Deviation(
        "reference",
        "computes integers in float64",
        lambda q: (
            q.op == "Shrink"
            and q.inputs[0].dtype.kind in "iu"
            and bool((abs(q.inputs[0].astype(float)) >= 2**53).any())
        ),
    ),
]
