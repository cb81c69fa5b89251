"""Transforms of features, of ai.onnx.ml."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..context import Context, HostView, Value
from ..dtypes import F32, F64, I32, I64, STRING
from ..errors import UnsupportedModelError
from ..registry import op
from ..words import counted
from ._copy import copy, fill
from ._elementwise import cast, flat
from ._ml import ML, floats, table
from .binary import mul, sub
from .gather import gather

_TYPES = (F32, F64, I32, I64)
_NORMS = ("MAX", "L1", "L2")


def _number(cx: Context, x: Value) -> Value:
    if x.dtype not in _TYPES:
        cx.fail(f"type {x.dtype} is not supported", UnsupportedModelError)
    return x


@op("ArrayFeatureExtractor", domain=ML)
def array_feature_extractor(cx: Context, x: Value, y: Value) -> Value:
    """The columns of x (elements of its last axis) that y names."""
    if not x.rank or not y.size:
        cx.fail(f"{x} has no columns to take, or {y} names none")
    if x.known is not None and x.dtype is STRING:
        strings = x.known.reshape(1, -1) if x.rank == 1 else x.known
        return cx.known(strings[..., cx.read(y).reshape(-1)])
    z = gather(cx, x, cx.alias(y, (y.size,)), axis=-1)
    return cx.alias(z, (1, y.size)) if x.rank == 1 else z


@op("Binarizer", domain=ML)
def binarizer(cx: Context, x: Value, *, threshold: float = 0.0) -> Value:
    """1 where x is above the threshold, else 0."""
    return flat(cx, f"ml_binarize_{_number(cx, x).dtype.short}", x, threshold=threshold)


@op("Normalizer", domain=ML)
def normalizer(cx: Context, x: Value, *, norm: str = "MAX") -> Value:
    """Each row over its maximum, the sum of its magnitudes, or the root of the sum of its squares."""
    if norm not in _NORMS:
        cx.fail(f"norm {norm!r} is none of {', '.join(_NORMS)}")
    x = cast(cx, _number(cx, x), F32)
    axis = 1 if x.rank > 1 else 0
    n = x.shape[axis] if x.rank else 1
    inner = math.prod(x.shape[axis + 1 :])
    y = cx.out(x.shape, F32)
    if y.size:
        cx.emit("ml_normalize", units=x.size // n, x=x, y=y, n=n, inner=inner, norm=_NORMS.index(norm))
    return y


@op("Scaler", domain=ML)
def scaler(cx: Context, x: Value, *, offset: Sequence[float] = (), scale: Sequence[float] = ()) -> Value:
    """(x - offset) * scale, with a number for each feature or one for all."""
    x = cast(cx, _number(cx, x), F32)
    features = x.shape[-1] if x.rank else 1
    for name, values in (("offset", offset), ("scale", scale)):
        if len(values) not in (0, 1, features):
            cx.fail(f"{name} has {counted(len(values), 'element')}, must have 1 or {features}")
    if offset:
        x = sub(cx, x, floats(cx, "offset", offset))
    return mul(cx, x, floats(cx, "scale", scale)) if scale else cx.alias(x, x.shape)


@op("Imputer", domain=ML)
def imputer(
    cx: Context,
    x: Value,
    *,
    imputed_value_floats: Sequence[float] = (),
    imputed_value_int64s: Sequence[int] = (),
    replaced_value_float: float = 0.0,
    replaced_value_int64: int = 0,
) -> Value:
    """One value, which may be NaN, replaced: by the same everywhere or by one for each feature."""
    integers = _number(cx, x).dtype.is_integer
    values: Sequence[float] = imputed_value_int64s if integers else imputed_value_floats
    old: float = replaced_value_int64 if integers else replaced_value_float
    features = x.shape[-1] if x.rank else 1
    if len(values) not in (1, features):
        cx.fail(f"{len(values)} imputed values of the input's kind, needs 1 or {features}")
    y = cx.out(x.shape, x.dtype)
    if y.size:
        cx.emit(
            f"ml_impute_{x.dtype.short}",
            units=cx.chunks(x),
            x=x,
            y=y,
            old=table(cx, "old", lambda: np.array([old], x.dtype.numpy)),
            values=table(cx, "values", lambda: np.array(values, x.dtype.numpy)),
            n=x.size,
            count=len(values),
        )
    return y


@op("FeatureVectorizer", domain=ML)
def feature_vectorizer(cx: Context, *xs: Value, inputdimensions: Sequence[int] = ()) -> Value:
    """The inputs as f32 side by side, each cut or filled with zeros to its number of columns."""
    rows = max((x.shape[0] if x.rank > 1 else 1 for x in xs), default=0)
    widths = list(inputdimensions) or [x.size // max(1, rows) for x in xs]
    if len(widths) != len(xs) or any(x.rank not in (1, 2) or (x.rank > 1 and x.shape[0] != rows) for x in xs):
        cx.fail(
            f"{counted(len(xs), 'input')} of {counted(rows, 'row')} each and {len(widths)} inputdimensions must fit"
        )
    y = cx.out((rows, sum(widths)), F32)
    at = 0
    if any(x.size < rows * w for x, w in zip(xs, widths, strict=True)):
        fill(cx, y, None)
    for x, width in zip(xs, widths, strict=True):
        columns = x.size // max(1, rows)
        x = cast(cx, _number(cx, x), F32)
        copy(cx, x, y, [(rows, columns, y.shape[1]), (min(width, columns), 1, 1)], target=at)
        at += width
    return y


@op("OneHotEncoder", domain=ML)
def one_hot_encoder(
    cx: Context, x: Value, *, cats_int64s: Sequence[int] = (), cats_strings: Sequence[str] = (), zeros: int = 1
) -> Value:
    """Along a new last axis, 1 in the column of the category of x; what is none gives zeros, or an error without
    ``zeros``."""
    if x.known is not None and x.known.dtype == object:
        places = {c: i for i, c in reversed(list(enumerate(cats_strings)))}
        found = np.array([places.get(v, -1) for v in x.known.reshape(-1)], np.int64).reshape(x.shape)
        x, cats_int64s = cx.known(found), range(len(cats_strings))
    else:
        x = cast(cx, _number(cx, x), I64)
    width = len(cats_int64s)
    if not width:
        cx.fail("there are no categories of the input's kind")
    keys, places_ = np.unique(np.array(cats_int64s, np.int64), return_index=True)
    y = cx.out((*x.shape, width), F32)
    if y.size:
        cx.emit(
            "ml_one_hot",
            units=cx.chunks(x),
            x=x,
            y=y,
            keys=table(cx, "keys", lambda: keys),
            columns=table(cx, "columns", lambda: np.append(places_, -1).astype(np.int32)),
            n=x.size,
            count=len(keys),
            width=width,
            strict=int(not zeros),
        )
    return y


@op("ZipMap", domain=ML)
def zip_map(
    cx: Context, x: Value, *, classlabels_int64s: Sequence[int] = (), classlabels_strings: Sequence[str] = ()
) -> HostView:
    """Each row as a dictionary from class labels to its numbers."""
    names = tuple(classlabels_strings or classlabels_int64s)
    if x.rank not in (1, 2) or x.shape[-1] != len(names):
        cx.fail(f"{x} must have a column for each of {len(names)} labels")
    columns = len(names)
    return HostView((x,), lambda a: [dict(zip(names, row, strict=True)) for row in a.reshape(-1, columns).tolist()])
