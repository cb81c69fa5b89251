"""What the ops of ai.onnx.ml share: tables made of attributes, labels, transforms of scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..context import Array, Context, HostView, Value
from ..dtypes import F32, F64, I32, I64
from ..errors import UnsupportedModelError
from ._elementwise import cast

ML = "ai.onnx.ml"

# Codes of kernels_wat/ml.wat.j2.
TRANSFORMS = {"NONE": 0, "LOGISTIC": 1, "SOFTMAX": 2, "SOFTMAX_ZERO": 3, "PROBIT": 4}
ALONE = -1


def table(cx: Context, name: str, make: Callable[[], Array]) -> Value:
    """A constant of the node, made of its attributes once per session."""

    def constant() -> Value:
        value = cx.known(make())
        value.const = True
        return value

    return cx.derived((cx.node, name), (), constant)


def floats(cx: Context, name: str, values: Sequence[float]) -> Value:
    """A float attribute as a constant."""
    return table(cx, name, lambda: np.array(values, np.float32))


def transform(cx: Context, name: str) -> int:
    """The code of a post transform."""
    if name not in TRANSFORMS:
        cx.fail(f"post_transform {name!r} is none of {', '.join(TRANSFORMS)}")
    return TRANSFORMS[name]


def matrix(cx: Context, x: Value) -> Value:
    """Features as rows; one row if ``x`` has one axis."""
    if x.dtype not in (F32, F64, I32, I64):
        cx.fail(f"type {x.dtype} is not supported", UnsupportedModelError)
    if x.rank not in (1, 2):
        cx.fail(f"{x} must have shape [batch, features]")
    return cx.alias(x, (1, x.size)) if x.rank == 1 else x


def float_matrix(cx: Context, x: Value) -> Value:
    """Features as rows of f32."""
    return cast(cx, matrix(cx, x), F32)


def label_table(cx: Context, ints: Sequence[int], strings: Sequence[str]) -> Value:
    """The labels that kernels write: integers, or the places of strings."""
    return table(cx, "labels", lambda: np.arange(len(strings)) if strings else np.array(ints, np.int64))


def labels(label: Value, strings: Sequence[str]) -> Value | HostView:
    """The output of labels: what the kernel wrote, or the strings at these places."""
    if not strings:
        return label
    names = np.array(strings, object)
    return HostView((label,), lambda at: names[at])


def finish(cx: Context, scores: Value, post: int, *, second: int = ALONE, outputs: int | None = None) -> Value:
    """f32 scores transformed; a single one becomes those of two classes as ``second`` says (kernels_wat/ml.wat.j2)."""
    rows, k = scores.shape
    y = cx.out((rows, k if outputs is None else outputs), F32)
    if y.size:
        cx.emit(
            "ml_regress",
            units=rows,
            **writing(cx, scores, y),
            k=k,
            outputs=y.shape[1],
            post=post,
            second=second,
            wide=0,
        )
    return y


def writing(cx: Context, scores: Value, y: Value) -> dict[str, Any]:
    """Arguments that the kernels which write scores share."""
    rows, k = scores.shape
    return {"scores": cast(cx, scores, F64), "work": cx.work(8 * rows * (k + 2)), "y": y}
