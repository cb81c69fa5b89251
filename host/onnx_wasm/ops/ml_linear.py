"""Linear models and support vector machines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..context import Context, HostView, Value
from ..dtypes import F32, F64, I32, I64
from ..registry import op
from ._ml import ML, finish, float_matrix, floats, label_table, labels, table, transform, writing
from .matmul import gemm

_KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")


def _scores(cx: Context, x: Value, coefficients: Sequence[float], intercepts: Sequence[float] | None, k: int) -> Value:
    features = x.shape[1]
    # As onnxruntime: an input of fewer features takes the first coefficients there are, one target after the other.
    coefficients = coefficients[: k * features]
    if len(coefficients) != k * features or (intercepts and len(intercepts) != k):
        cx.fail(
            f"{len(coefficients)} coefficients and {len(intercepts or ())} intercepts do not fit {k} targets of "
            f"{features} features"
        )
    weights = table(cx, f"coefficients {features}", lambda: np.array(coefficients, np.float32).reshape(k, features))
    return gemm(cx, x, weights, floats(cx, "intercepts", intercepts) if intercepts else None, transB=1)


@op("LinearRegressor", domain=ML)
def linear_regressor(
    cx: Context,
    x: Value,
    *,
    coefficients: Sequence[float] = (),
    intercepts: Sequence[float] | None = None,
    post_transform: str = "NONE",
    targets: int = 1,
) -> Value:
    """A linear function of the features for each target."""
    post = transform(cx, post_transform)
    scores = _scores(cx, float_matrix(cx, x), coefficients, intercepts, targets)
    return finish(cx, scores, post) if post else scores


@op("LinearClassifier", domain=ML)
def linear_classifier(
    cx: Context,
    x: Value,
    *,
    classlabels_ints: Sequence[int] = (),
    classlabels_strings: Sequence[str] = (),
    coefficients: Sequence[float],
    intercepts: Sequence[float] | None = None,
    multi_class: int = 0,
    post_transform: str = "NONE",
) -> tuple[Value | HostView, Value]:
    """The class with the largest linear function, or by the sign of a single one, and the scores."""
    x = float_matrix(cx, x)
    names = classlabels_strings or classlabels_ints
    k = len(intercepts) if intercepts else len(coefficients) // max(1, x.shape[1])
    scores = _scores(cx, x, coefficients, intercepts, k)
    if k > 1 and len(names) < k:
        cx.fail(f"{len(names)} class labels for {k} classes")
    if k == 1 and len(names) != 2:
        names, classlabels_ints = (0, 1), (0, 1)
        classlabels_strings = ("0", "1") if classlabels_strings else ()
        outputs, second = 1, -1
    else:
        outputs, second = max(2, k), 1
    label, y = cx.out((x.shape[0],), I64), cx.out((x.shape[0], outputs), F32)
    if y.size:
        cx.emit(
            "ml_classify",
            units=x.shape[0],
            **writing(cx, scores, y),
            label=label,
            labels=label_table(cx, classlabels_ints, classlabels_strings),
            k=k,
            outputs=outputs,
            post=transform(cx, post_transform),
            second=second,
            wide=0,
        )
    return labels(label, classlabels_strings), y


def _kernel(
    cx: Context,
    x: Value,
    vectors: Sequence[float],
    count: int,
    kernel_type: str,
    parameters: Sequence[float] | None,
    add: float = 0.0,
) -> Value:
    if kernel_type not in _KERNELS:
        cx.fail(f"kernel_type {kernel_type!r} is none of {', '.join(_KERNELS)}")
    if len(vectors) != count * x.shape[1]:
        cx.fail(f"{len(vectors)} numbers do not make {count} vectors of {x.shape[1]} features")
    gamma, coef0, degree = parameters or (0.0, 0.0, 0.0)
    y = cx.out((x.shape[0], count), F64)
    if y.size:
        cx.emit(
            "svm_kernel",
            units=x.shape[0],
            x=x,
            vectors=floats(cx, "vectors", vectors),
            y=y,
            count=count,
            features=x.shape[1],
            kind=_KERNELS.index(kernel_type),
            gamma=gamma,
            coef0=coef0,
            degree=degree,
            add=add,
        )
    return y


@op("SVMRegressor", domain=ML)
def svm_regressor(
    cx: Context,
    x: Value,
    *,
    coefficients: Sequence[float] = (),
    kernel_params: Sequence[float] | None = None,
    kernel_type: str = "LINEAR",
    n_supports: int = 0,
    one_class: int = 0,
    post_transform: str = "NONE",
    rho: Sequence[float] = (),
    support_vectors: Sequence[float] = (),
) -> Value:
    """A weighted sum of kernels with the support vectors; 1 or -1 by its sign if ``one_class``."""
    x = float_matrix(cx, x)
    offset = rho[0] if rho else 0.0
    if n_supports:
        kernels = _kernel(cx, x, support_vectors, n_supports, kernel_type, kernel_params)
    else:
        kernels, coefficients = _kernel(cx, x, coefficients, 1, "LINEAR", None), (1.0,)
    if len(coefficients) != kernels.shape[1]:
        cx.fail(f"{len(coefficients)} coefficients for {kernels.shape[1]} support vectors")
    y = cx.out((x.shape[0], 1), F32)
    if y.size:
        cx.emit(
            "svm_sum",
            units=x.shape[0],
            kernels=kernels,
            coefficients=floats(cx, "coefficients", coefficients),
            y=y,
            count=kernels.shape[1],
            rho=offset,
            sign=int(bool(one_class)),
        )
    return y


@op("SVMClassifier", domain=ML)
def svm_classifier(
    cx: Context,
    x: Value,
    *,
    classlabels_ints: Sequence[int] = (),
    classlabels_strings: Sequence[str] = (),
    coefficients: Sequence[float] = (),
    kernel_params: Sequence[float] | None = None,
    kernel_type: str = "LINEAR",
    post_transform: str = "NONE",
    prob_a: Sequence[float] = (),
    prob_b: Sequence[float] = (),
    rho: Sequence[float] = (),
    support_vectors: Sequence[float] = (),
    vectors_per_class: Sequence[int] = (),
) -> tuple[Value | HostView, Value]:
    """The class that wins most pairs, or without support vectors the one with the largest linear function; and the
    probabilities of classes, the scores of pairs, or those functions."""
    x, post = float_matrix(cx, x), transform(cx, post_transform)
    classes, rows = len(classlabels_strings or classlabels_ints), x.shape[0]
    if classes < 2:
        cx.fail(f"{classes} class labels, needs at least 2")
    pairs = classes * (classes - 1) // 2
    votes: Value | None = None
    second = -1
    count = sum(vectors_per_class)
    if count:
        if len(vectors_per_class) != classes or len(coefficients) != (classes - 1) * count or len(rho) != pairs:
            cx.fail(
                f"{len(vectors_per_class)} vectors_per_class, {len(coefficients)} coefficients and {len(rho)} rho "
                f"do not fit {classes} classes and {count} vectors"
            )
        if len(prob_a) != len(prob_b) or len(prob_a) not in (0, pairs):
            cx.fail(f"{len(prob_a)} prob_a and {len(prob_b)} prob_b for {pairs} pairs of classes")
        kernels = _kernel(cx, x, support_vectors, count, kernel_type, kernel_params)
        scores, votes = cx.out((rows, pairs), F64), cx.out((rows, classes), I32)
        if rows:
            cx.emit(
                "svm_pairs",
                units=rows,
                kernels=kernels,
                coefficients=floats(cx, "coefficients", coefficients),
                starts=table(cx, "starts", lambda: np.cumsum([0, *vectors_per_class]).astype(np.int32)),
                rho=floats(cx, "rho", rho),
                scores=scores,
                votes=votes,
                count=count,
                classes=classes,
            )
        if prob_a:
            scores = _probabilities(cx, scores, prob_a, prob_b, classes)
        elif classes == 2:
            second = 1 if post else 2
    else:
        scores = _kernel(cx, x, coefficients, classes, "LINEAR", None, rho[0] if rho else 0.0)
    label = cx.out((rows,), I64)
    if rows:
        cx.emit(
            "svm_label",
            units=rows,
            votes=votes,
            scores=scores,
            label=label,
            labels=label_table(cx, classlabels_ints, classlabels_strings),
            classes=classes,
            positive=int(all(c >= 0 for c in coefficients)),
            certain=int(bool(prob_a)),
        )
    y = finish(cx, scores, post, second=second, outputs=2 if second >= 0 else None)
    return labels(label, classlabels_strings), y


def _probabilities(cx: Context, scores: Value, a: Sequence[float], b: Sequence[float], classes: int) -> Value:
    rows = scores.shape[0]
    y = cx.out((rows, classes), F64)
    if rows:
        cx.emit(
            "svm_probabilities",
            units=rows,
            scores=scores,
            a=floats(cx, "prob_a", a),
            b=floats(cx, "prob_b", b),
            y=y,
            work=cx.work(8 * rows * (2 * classes + 1) * classes),
            classes=classes,
        )
    return y
