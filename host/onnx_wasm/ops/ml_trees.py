"""Ensembles of decision trees."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..context import Array, Context, HostView, Value
from ..dtypes import F16, F32, F64, I64, U8
from ..initializers import Initializer
from ..registry import op
from ._elementwise import cast
from ._forest import LEAF, MEMBER, MISSING, NODE, WEIGHT, Forest, by_ids, forest_of
from ._ml import ML, label_table, labels, matrix, transform

# Rows of a work unit, at most 32: a tree's nodes stay in the cache for all of them.
ROWS = 32
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_POSTS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def _pick(values: Sequence[float] | None, tensor: Initializer | None) -> Array:
    if tensor is not None:
        return tensor.array().reshape(-1).astype(np.float64)
    return np.array(values or (), np.float32).astype(np.float64)


def _run(cx: Context, x: Value, forest: Forest, targets: int, aggregate: int) -> tuple[Value, Value]:
    """Scores in f64, and which of them any tree contributed to."""
    if x.shape[1] < forest.features:
        cx.fail(f"{x} has {x.shape[1]} features, the trees test feature {forest.features - 1}")
    rows = x.shape[0]
    scores, has = cx.out((rows, targets), F64), cx.out((rows, targets), U8)
    if rows:
        cx.emit(
            f"trees_{x.dtype.short}",
            units=-(-rows // ROWS),
            x=x,
            y=scores,
            has=has,
            nodes=forest.nodes,
            roots=forest.roots,
            weights=forest.weights,
            members=forest.members if forest.members.size else None,
            rows=rows,
            per=ROWS,
            features=x.shape[1],
            trees=forest.roots.size // 4,
            targets=targets,
            aggregate=max(1, aggregate),
            narrow=int(x.dtype is not F64),
            tests=forest.tests,
            missing=int(forest.missing),
        )
    return scores, has


def _features(cx: Context, x: Value) -> Value:
    if x.dtype is F16:
        x = cast(cx, x, F32)
    x = matrix(cx, x)
    return x if x.dtype in (F32, F64) else cast(cx, x, F32)


def _constant(cx: Context, array: Array) -> Value:
    value = cx.known(array)
    value.const = True
    return value


def _regress(
    cx: Context, x: Value, forest: Forest, targets: int, aggregate: int, base: Value | None, post: int, wide: bool
) -> Value:
    scores, _ = _run(cx, x, forest, targets, aggregate)
    rows = x.shape[0]
    y = cx.out((rows, targets), F64 if wide else F32)
    if rows:
        narrow = int(x.dtype is not F64)
        divisor = float(forest.roots.size // 4) if aggregate == 0 else 1.0
        cx.emit("trees_base", units=rows, scores=scores, base=base, k=targets, divisor=divisor, narrow=narrow)
        work = cx.work(8 * rows * (targets + 2))
        cx.emit(
            "ml_regress",
            units=rows,
            scores=scores,
            work=work,
            y=y,
            k=targets,
            outputs=targets,
            post=post,
            second=-1,
            wide=int(wide),
        )
    return y


def _classify_one(
    cx: Context, scores: Value, base: Value, y: Value, label: Value, table: Value, post: int, narrow: int
) -> None:
    rows = y.shape[0]
    if not rows:
        return
    if base.size:
        cx.emit("trees_base", units=rows, scores=scores, base=base, k=1, divisor=1.0, narrow=narrow)
    cx.emit(
        "ml_classify",
        units=rows,
        scores=scores,
        work=cx.work(8 * rows * 3),
        y=y,
        label=label,
        labels=table,
        k=1,
        outputs=1,
        post=post,
        second=-1,
        wide=0,
    )


def _ints(values: Sequence[int] | None) -> Array:
    return np.array(values or (), np.int64)


@op("TreeEnsembleRegressor", domain=ML)
def tree_ensemble_regressor(
    cx: Context,
    x: Value,
    *,
    aggregate_function: str = "SUM",
    base_values: Sequence[float] | None = None,
    base_values_as_tensor: Initializer | None = None,
    n_targets: int = 1,
    nodes_falsenodeids: Sequence[int] | None = None,
    nodes_featureids: Sequence[int] | None = None,
    nodes_hitrates: Sequence[float] | None = None,
    nodes_hitrates_as_tensor: Initializer | None = None,
    nodes_missing_value_tracks_true: Sequence[int] | None = None,
    nodes_modes: Sequence[str] | None = None,
    nodes_nodeids: Sequence[int] | None = None,
    nodes_treeids: Sequence[int] | None = None,
    nodes_truenodeids: Sequence[int] | None = None,
    nodes_values: Sequence[float] | None = None,
    nodes_values_as_tensor: Initializer | None = None,
    post_transform: str = "NONE",
    target_ids: Sequence[int] | None = None,
    target_nodeids: Sequence[int] | None = None,
    target_treeids: Sequence[int] | None = None,
    target_weights: Sequence[float] | None = None,
    target_weights_as_tensor: Initializer | None = None,
) -> Value:
    """For each target the sum, average, minimum or maximum of what the leaves that a row comes to give it."""
    if aggregate_function not in _AGGREGATES:
        cx.fail(f"aggregate_function {aggregate_function!r} is none of {', '.join(_AGGREGATES)}")

    def make() -> tuple[Forest, Value | None]:
        nodes = {
            "treeids": _ints(nodes_treeids),
            "nodeids": _ints(nodes_nodeids),
            "featureids": _ints(nodes_featureids),
            "truenodeids": _ints(nodes_truenodeids),
            "falsenodeids": _ints(nodes_falsenodeids),
            "values": _pick(nodes_values, nodes_values_as_tensor),
        }
        weighted = (
            _ints(target_treeids),
            _ints(target_nodeids),
            _ints(target_ids),
            _pick(target_weights, target_weights_as_tensor),
        )
        forest = by_ids(cx, nodes, nodes_modes or (), nodes_missing_value_tracks_true, weighted, n_targets)
        base = _pick(base_values, base_values_as_tensor)
        return forest, _constant(cx, base) if len(base) == n_targets else None

    forest, base = cx.derived((cx.node, "forest"), (), make)
    aggregate, post = _AGGREGATES.index(aggregate_function), transform(cx, post_transform)
    return _regress(cx, _features(cx, x), forest, n_targets, aggregate, base, post, wide=False)


@op("TreeEnsembleClassifier", domain=ML)
def tree_ensemble_classifier(
    cx: Context,
    x: Value,
    *,
    base_values: Sequence[float] | None = None,
    base_values_as_tensor: Initializer | None = None,
    class_ids: Sequence[int] | None = None,
    class_nodeids: Sequence[int] | None = None,
    class_treeids: Sequence[int] | None = None,
    class_weights: Sequence[float] | None = None,
    class_weights_as_tensor: Initializer | None = None,
    classlabels_int64s: Sequence[int] = (),
    classlabels_strings: Sequence[str] = (),
    nodes_falsenodeids: Sequence[int] | None = None,
    nodes_featureids: Sequence[int] | None = None,
    nodes_hitrates: Sequence[float] | None = None,
    nodes_hitrates_as_tensor: Initializer | None = None,
    nodes_missing_value_tracks_true: Sequence[int] | None = None,
    nodes_modes: Sequence[str] | None = None,
    nodes_nodeids: Sequence[int] | None = None,
    nodes_treeids: Sequence[int] | None = None,
    nodes_truenodeids: Sequence[int] | None = None,
    nodes_values: Sequence[float] | None = None,
    nodes_values_as_tensor: Initializer | None = None,
    post_transform: str = "NONE",
) -> tuple[Value | HostView, Value]:
    """The class with the largest sum of leaf weights, and the sums. Of two classes the second's sum decides: above 0.5
    if all weights are of one class and none is negative, else above 0. Of a single one only strings are labels; else
    the label is whether the sum is above 0, as ONNX Runtime has it."""
    classes = len(classlabels_strings or classlabels_int64s)
    if not classes:
        cx.fail("there are no class labels")

    def make() -> tuple[Forest, Value]:
        nodes = {
            "treeids": _ints(nodes_treeids),
            "nodeids": _ints(nodes_nodeids),
            "featureids": _ints(nodes_featureids),
            "truenodeids": _ints(nodes_truenodeids),
            "falsenodeids": _ints(nodes_falsenodeids),
            "values": _pick(nodes_values, nodes_values_as_tensor),
        }
        weighted = (
            _ints(class_treeids),
            _ints(class_nodeids),
            _ints(class_ids),
            _pick(class_weights, class_weights_as_tensor),
        )
        forest = by_ids(cx, nodes, nodes_modes or (), nodes_missing_value_tracks_true, weighted, classes)
        return forest, _constant(cx, _pick(base_values, base_values_as_tensor))

    forest, base = cx.derived((cx.node, "forest"), (), make)
    x = _features(cx, x)
    scores, has = _run(cx, x, forest, classes, 1)
    label, y = cx.out((x.shape[0],), I64), cx.out(scores.shape, F32)
    post, table = transform(cx, post_transform), label_table(cx, classlabels_int64s, classlabels_strings)
    if classes == 1:
        if base.size > 1:
            cx.fail(f"{base.size} base values for one class")
        table = table if classlabels_strings else cx.known(np.array([0, 1], np.int64))
        _classify_one(cx, scores, base, y, label, table, post, int(x.dtype is not F64))
    elif y.size:
        cx.emit(
            "trees_classify",
            units=x.shape[0],
            scores=scores,
            has=has,
            base=base if base.size else None,
            bases=base.size,
            y=y,
            label=label,
            labels=table,
            k=classes,
            post=post,
            binary=int(classes == 2 and len(forest.targets) == 1),
            positive=int(forest.positive),
        )
    return labels(label, classlabels_strings), y


@op("TreeEnsemble", since=5, domain=ML)
def tree_ensemble(
    cx: Context,
    x: Value,
    *,
    aggregate_function: int = 1,
    leaf_targetids: Sequence[int],
    leaf_weights: Initializer,
    membership_values: Initializer | None = None,
    n_targets: int = 1,
    nodes_falseleafs: Sequence[int],
    nodes_falsenodeids: Sequence[int],
    nodes_featureids: Sequence[int],
    nodes_hitrates: Initializer | None = None,
    nodes_missing_value_tracks_true: Sequence[int] | None = None,
    nodes_modes: Initializer,
    nodes_splits: Initializer,
    nodes_trueleafs: Sequence[int],
    nodes_truenodeids: Sequence[int],
    post_transform: int = 0,
    tree_roots: Sequence[int],
) -> Value:
    """For each target the aggregate of what the leaves that a row comes to give it."""
    if not 0 <= aggregate_function < 4 or not 0 <= post_transform < 5:
        cx.fail(f"aggregate_function is {aggregate_function}, of [0, 4); post_transform {post_transform}, of [0, 5)")

    def make() -> Forest:
        modes = nodes_modes.array().reshape(-1).astype(np.int32)
        count, leaves = len(modes), len(leaf_targetids)
        splits = nodes_splits.array().reshape(-1).astype(np.float64)
        branches = (nodes_truenodeids, nodes_trueleafs, nodes_falsenodeids, nodes_falseleafs, nodes_featureids, splits)
        if any(len(b) != count for b in branches) or leaf_weights.size != leaves:
            cx.fail("the nodes_ attributes, or the leaf_ attributes, differ in length")
        if count and not 0 <= modes.min() <= modes.max() <= MEMBER:
            cx.fail(f"nodes_modes reach from {modes.min()} to {modes.max()}, must be in [0, {MEMBER}]")
        table = np.zeros(count + leaves, NODE)
        inner, outer = table[:count], table[count:]
        inner["feature"], inner["threshold"], inner["mode"] = nodes_featureids, splits, modes
        inner["true"] = np.array(nodes_truenodeids) + np.where(np.array(nodes_trueleafs) == 1, count, 0)
        inner["false"] = np.array(nodes_falsenodeids) + np.where(np.array(nodes_falseleafs) == 1, count, 0)
        values = np.zeros(0) if membership_values is None else membership_values.array().reshape(-1).astype(np.float64)
        marks = np.flatnonzero(np.isnan(values))
        sets = np.flatnonzero(modes == MEMBER)
        if len(sets) > len(marks):
            cx.fail(f"membership_values has {len(marks)} sets, the nodes have {len(sets)}")
        begins = np.concatenate([[0], marks[:-1] + 1])[: len(sets)] if len(sets) else np.zeros(0)
        bounds = np.zeros((count, 2), np.int32)
        bounds[sets, 0], bounds[sets, 1] = begins, marks[: len(sets)] - begins
        inner["threshold"][sets] = np.ascontiguousarray(bounds).view(np.float64).reshape(-1)[sets]
        if nodes_missing_value_tracks_true:
            inner["mode"] += np.where(np.array(nodes_missing_value_tracks_true) == 1, MISSING, 0).astype(np.int32)
        outer["mode"], outer["true"], outer["false"] = LEAF, np.arange(leaves), 1
        weights = np.zeros(leaves, WEIGHT)
        weights["target"], weights["value"] = leaf_targetids, leaf_weights.array().reshape(-1).astype(np.float64)
        return forest_of(cx, table, np.array(tree_roots), weights, values, n_targets)

    forest = cx.derived((cx.node, "forest"), (), make)
    post = transform(cx, _POSTS[post_transform])
    y = _regress(cx, _features(cx, x), forest, n_targets, aggregate_function, None, post, wide=x.dtype is F64)
    return cast(cx, y, F16) if x.dtype is F16 else y
