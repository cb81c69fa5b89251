"""Ensembles of decision trees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..context import Array, Context, HostView, Value
from ..dtypes import F16, F32, F64, I64, U8
from ..initializers import Initializer
from ..registry import op
from ._elementwise import cast
from ._ml import ML, label_table, labels, matrix, transform

# Rows of a work unit, at most 32: a tree's nodes stay in the cache for all of them.
ROWS = 32
_NODE = np.dtype([("feature", "<i4"), ("mode", "<i4"), ("true", "<i4"), ("false", "<i4"), ("threshold", "<f8")])
_WEIGHT = np.dtype([("target", "<i4"), ("unused", "<i4"), ("value", "<f8")])
_MODES = {
    "BRANCH_LEQ": 0,
    "BRANCH_LT": 1,
    "BRANCH_GTE": 2,
    "BRANCH_GT": 3,
    "BRANCH_EQ": 4,
    "BRANCH_NEQ": 5,
    "LEAF": 7,
}
_MEMBER, _LEAF, _MISSING = 6, 7, 256
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_POSTS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


class Forest(NamedTuple):
    """The tables that kernels_wat/trees.wat.j2 reads."""

    nodes: Value
    roots: Value
    weights: Value
    members: Value
    features: int
    targets: frozenset[int]
    positive: bool
    branch: int
    """0 if every node tests x <= threshold, 1 if NaN takes the true branch of some, -1 if there are other tests."""


def _pick(values: Sequence[float] | None, tensor: Initializer | None) -> Array:
    if tensor is not None:
        return tensor.array().reshape(-1).astype(np.float64)
    return np.array(values or (), np.float32).astype(np.float64)


def _forest(cx: Context, nodes: Array, roots: Array, weights: Array, members: Array, targets: int) -> Forest:
    inner = nodes[nodes["mode"] & 255 != _LEAF]
    ends = np.concatenate([inner["true"], inner["false"], roots])
    if ends.size and not 0 <= ends.min() <= ends.max() < len(nodes):
        cx.fail("a branch leads to a node that does not exist")
    if inner.size and inner["feature"].min() < 0:
        cx.fail("a feature id is negative")
    if weights.size and not 0 <= weights["target"].min() <= weights["target"].max() < targets:
        cx.fail(f"target or class ids reach from {weights['target'].min()} to {weights['target'].max()}, of {targets}")
    # Each level of the trees; a walk that is longer than there are nodes goes round in circles.
    level = np.unique(roots)
    for _ in range(len(nodes) + 1):
        at = nodes[level]
        at = at[at["mode"] & 255 != _LEAF]
        if not at.size:
            break
        level = np.unique(np.concatenate([at["true"], at["false"]]))
    else:
        cx.fail("a branch leads back to a node above it")

    # The walk through several trees looks at a feature before it knows whether the node is a leaf.
    nodes["feature"][nodes["mode"] & 255 == _LEAF] = 0
    # Below a number is the same as at most the one before it.
    below = (nodes["mode"] & 255 == _MODES["BRANCH_LT"]) & (nodes["threshold"] > -np.inf)
    nodes["threshold"][below] = np.nextafter(nodes["threshold"][below], -np.inf)
    nodes["mode"][below] -= _MODES["BRANCH_LT"]
    inner = nodes[nodes["mode"] & 255 != _LEAF]
    branch = int((inner["mode"] & _MISSING).any()) if not (inner["mode"] & 255).any() else -1

    def constant(array: Array) -> Value:
        value = cx.known(array.view(np.uint8))
        value.const = True
        return value

    return Forest(
        nodes=constant(nodes),
        roots=constant(roots.astype(np.int32)),
        weights=constant(weights),
        members=constant(members.astype(np.float64)),
        features=int(inner["feature"].max()) + 1 if inner.size else 0,
        targets=frozenset(np.unique(weights["target"]).tolist()),
        positive=bool((weights["value"] >= 0).all()),
        branch=branch,
    )


def _by_ids(
    cx: Context,
    nodes: dict[str, Array],
    modes: Sequence[str],
    missing: Sequence[int] | None,
    weighted: tuple[Array, Array, Array, Array],
    targets: int,
) -> Forest:
    """A forest whose nodes and weights name trees and nodes of them by number."""
    count = len(modes)
    if any(len(v) != count for v in nodes.values()):
        cx.fail(f"the nodes_ attributes differ in length: {', '.join(f'{k} {len(v)}' for k, v in nodes.items())}")
    unknown = sorted(set(modes) - set(_MODES))
    if unknown or not count:
        cx.fail(f"nodes_modes has {', '.join(unknown) or 'no elements'}; known modes: {', '.join(_MODES)}")
    tree_of, node_of, target_of, weight_of = weighted
    spread = int(max(nodes["nodeids"].max(), nodes["truenodeids"].max(), nodes["falsenodeids"].max(), 0)) + 1
    codes = nodes["treeids"] * spread + nodes["nodeids"]
    order = np.argsort(codes, kind="stable")

    def find(trees: Array, ids: Array) -> Array:
        wanted = trees * spread + ids
        places = np.minimum(np.searchsorted(codes[order], wanted), count - 1)
        if ids.size and (ids.min() < 0 or ids.max() >= spread or (codes[order][places] != wanted).any()):
            cx.fail("an id names a node that its tree does not have")
        return order[places]

    table = np.zeros(count, _NODE)
    table["feature"] = nodes["featureids"]
    table["threshold"] = nodes["values"]
    table["mode"] = [_MODES[m] for m in modes]
    leaf = table["mode"] == _LEAF
    inner = np.flatnonzero(~leaf)
    for field in ("true", "false"):
        table[field][inner] = find(nodes["treeids"][inner], nodes[field + "nodeids"][inner])
    if missing:
        table["mode"] += np.where(np.array(missing) == 1, _MISSING, 0).astype(np.int32)
    owner = find(tree_of, node_of)
    by_leaf = np.argsort(owner, kind="stable")
    weights = np.zeros(len(owner), _WEIGHT)
    weights["target"], weights["value"] = target_of[by_leaf], weight_of[by_leaf]
    leaves = np.flatnonzero(leaf)
    table["true"][leaves] = np.searchsorted(owner[by_leaf], leaves)
    table["false"][leaves] = np.searchsorted(owner[by_leaf], leaves, "right") - table["true"][leaves]
    roots = np.flatnonzero(np.diff(nodes["treeids"], prepend=nodes["treeids"][0] - 1))
    return _forest(cx, table, roots, weights, np.zeros(0), targets)


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
            branch=forest.branch,
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
        forest = _by_ids(cx, nodes, nodes_modes or (), nodes_missing_value_tracks_true, weighted, n_targets)
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
    if all weights are of one class and none is negative, else above 0."""
    classes = len(classlabels_strings or classlabels_int64s)
    if classes < 2:
        cx.fail(f"{classes} class labels, needs at least 2")

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
        forest = _by_ids(cx, nodes, nodes_modes or (), nodes_missing_value_tracks_true, weighted, classes)
        return forest, _constant(cx, _pick(base_values, base_values_as_tensor))

    forest, base = cx.derived((cx.node, "forest"), (), make)
    x = _features(cx, x)
    scores, has = _run(cx, x, forest, classes, 1)
    label, y = cx.out((x.shape[0],), I64), cx.out(scores.shape, F32)
    post, table = transform(cx, post_transform), label_table(cx, classlabels_int64s, classlabels_strings)
    if y.size:
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
        if count and not 0 <= modes.min() <= modes.max() <= _MEMBER:
            cx.fail(f"nodes_modes reach from {modes.min()} to {modes.max()}, must be in [0, {_MEMBER}]")
        table = np.zeros(count + leaves, _NODE)
        inner, outer = table[:count], table[count:]
        inner["feature"], inner["threshold"], inner["mode"] = nodes_featureids, splits, modes
        inner["true"] = np.array(nodes_truenodeids) + np.where(np.array(nodes_trueleafs) == 1, count, 0)
        inner["false"] = np.array(nodes_falsenodeids) + np.where(np.array(nodes_falseleafs) == 1, count, 0)
        values = np.zeros(0) if membership_values is None else membership_values.array().reshape(-1).astype(np.float64)
        marks = np.flatnonzero(np.isnan(values))
        sets = np.flatnonzero(modes == _MEMBER)
        if len(sets) > len(marks):
            cx.fail(f"membership_values has {len(marks)} sets, the nodes have {len(sets)}")
        begins = np.concatenate([[0], marks[:-1] + 1])[: len(sets)] if len(sets) else np.zeros(0)
        bounds = np.zeros((count, 2), np.int32)
        bounds[sets, 0], bounds[sets, 1] = begins, marks[: len(sets)] - begins
        inner["threshold"][sets] = np.ascontiguousarray(bounds).view(np.float64).reshape(-1)[sets]
        if nodes_missing_value_tracks_true:
            inner["mode"] += np.where(np.array(nodes_missing_value_tracks_true) == 1, _MISSING, 0).astype(np.int32)
        outer["mode"], outer["true"], outer["false"] = _LEAF, np.arange(leaves), 1
        weights = np.zeros(leaves, _WEIGHT)
        weights["target"], weights["value"] = leaf_targetids, leaf_weights.array().reshape(-1).astype(np.float64)
        return _forest(cx, table, np.array(tree_roots), weights, values, n_targets)

    forest = cx.derived((cx.node, "forest"), (), make)
    post = transform(cx, _POSTS[post_transform])
    y = _regress(cx, _features(cx, x), forest, n_targets, aggregate_function, None, post, wide=x.dtype is F64)
    return cast(cx, y, F16) if x.dtype is F16 else y
