from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

import onnx_wasm as ort
from ml_models import check, one_node, ours

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
POSTS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")
FEATURES = 5


def forest(
    prefix: str, ids: list[int], *, trees: int = 6, depth: int = 3, seed: int = 0, positive: bool = False
) -> dict[str, Any]:
    """The attributes of random complete trees, whose leaves give a weight to each of ``ids``."""
    rng = np.random.default_rng(seed)
    inner, count = 2**depth - 1, 2 ** (depth + 1) - 1
    at = np.tile(np.arange(count), trees)
    leaf = at >= inner
    owners = np.repeat(np.flatnonzero(leaf), len(ids))
    tree = np.repeat(np.arange(trees), count)
    weights = rng.normal(size=owners.size) / 4
    # Thresholds that features hit exactly, and others.
    values = np.where(rng.random(at.size) < 0.5, rng.integers(-2, 3, at.size), rng.normal(size=at.size))
    return {
        "nodes_treeids": tree.tolist(),
        "nodes_nodeids": at.tolist(),
        "nodes_featureids": np.where(leaf, 0, rng.integers(0, FEATURES, at.size)).tolist(),
        "nodes_values": np.where(leaf, 0, values).astype(np.float32).tolist(),
        "nodes_modes": np.where(leaf, "LEAF", rng.choice(MODES, at.size)).tolist(),
        "nodes_truenodeids": np.where(leaf, 0, 2 * at + 1).tolist(),
        "nodes_falsenodeids": np.where(leaf, 0, 2 * at + 2).tolist(),
        "nodes_missing_value_tracks_true": rng.integers(0, 2, at.size).tolist(),
        f"{prefix}_treeids": tree[owners].tolist(),
        f"{prefix}_nodeids": at[owners].tolist(),
        f"{prefix}_ids": ids * int(leaf.sum()),
        f"{prefix}_weights": (abs(weights) if positive else weights).astype(np.float32).tolist(),
    }


def rows(dtype: Any, count: int = 70) -> np.ndarray:
    rng = np.random.default_rng(count)
    x = np.round(rng.normal(size=(count, FEATURES)) * 4) / 2
    x = x.astype(dtype)
    if x.dtype.kind == "f":
        x[rng.random(x.shape) < 0.1] = np.nan
    return x


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("based", [False, True])
def test_regressor(dtype: Any, targets: int, aggregate: str, based: bool) -> None:
    attributes = forest("target", list(range(targets)), seed=targets)
    if based:
        attributes["base_values"] = [0.5, -0.25, 1.0][:targets]
    for post in POSTS:
        check(
            "TreeEnsembleRegressor",
            rows(dtype),
            ["y"],
            n_targets=targets,
            aggregate_function=aggregate,
            post_transform=post,
            **attributes,
        )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("mode", ["BRANCH_LEQ", "BRANCH_LT"])
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("trees", [3, 4, 11])
def test_trees_of_one_test(dtype: Any, mode: str, missing: bool, trees: int) -> None:
    """Which are walked four at a time; rows of NaN apart, if that goes down true branches."""
    attributes = forest("target", [0, 1], trees=trees, depth=4)
    attributes["nodes_modes"] = ["LEAF" if m == "LEAF" else mode for m in attributes["nodes_modes"]]
    attributes["nodes_values"][1:5] = [np.inf, -np.inf, 0.0, -0.0]
    if not missing:
        del attributes["nodes_missing_value_tracks_true"]
    x = rows(dtype, 75)
    x[40:43] = np.array([[np.inf], [-np.inf], [-0.0]])
    check("TreeEnsembleRegressor", x, ["y"], n_targets=2, **attributes)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.int32])
@pytest.mark.parametrize(
    ("labels", "ids"), [([0, 1], [0, 1]), ([5, 7], [0]), ([5, 7], [1]), ([3, 1, 2], [0, 1, 2]), ([4, 3, 2, 1], [1, 3])]
)
@pytest.mark.parametrize("positive", [False, True])
def test_classifier(dtype: Any, labels: list[int], ids: list[int], positive: bool) -> None:
    attributes = forest("class", ids, seed=len(labels), positive=positive)
    for post in POSTS:
        for bases in (0, 1, len(labels)):
            if bases == 1 and len(labels) > 2:
                continue
            base = {"base_values": [0.1, 0.2, 0.3, 0.4][:bases]} if bases else {}
            check(
                "TreeEnsembleClassifier",
                rows(dtype),
                ["label", "y"],
                classlabels_int64s=labels,
                post_transform=post,
                **attributes,
                **base,
            )


def test_labels_of_two_classes_are_the_models() -> None:
    # Where onnxruntime answers 1 and 0.
    attributes = forest("class", [0, 1])
    x = rows(np.float32)
    got = ours(one_node("TreeEnsembleClassifier", x, ["label", "y"], classlabels_int64s=[5, 7], **attributes), x)
    assert (got["label"] == np.where(got["y"][:, 1] > 0, 7, 5)).all()


def test_string_labels() -> None:
    attributes = forest("class", [0, 1, 2])
    x, names = rows(np.float32), ["a", "bb", "c"]
    got = check("TreeEnsembleClassifier", x, ["label", "y"], classlabels_strings=names, **attributes)
    assert set(got["label"]) == {"a", "bb", "c"}


def test_probit() -> None:
    attributes = forest("target", [0, 1], trees=2, positive=True)
    x = rows(np.float32)
    for targets in (1, 2):
        chosen = attributes if targets == 2 else forest("target", [0], trees=2, positive=True)
        check("TreeEnsembleRegressor", x, ["y"], tolerance=2e-3, n_targets=targets, post_transform="PROBIT", **chosen)


def test_one_row_no_row_and_single_axis() -> None:
    attributes = forest("target", [0, 1])
    model = one_node("TreeEnsembleRegressor", rows(np.float32), ["y"], n_targets=2, **attributes)
    many = ours(model, rows(np.float32))["y"]
    assert (ours(model, rows(np.float32)[3:4])["y"] == many[3:4]).all()
    assert ours(model, rows(np.float32)[:0])["y"].shape == (0, 2)
    alone = rows(np.float32)[3]
    assert (
        ours(one_node("TreeEnsembleRegressor", alone, ["y"], n_targets=2, **attributes), alone)["y"] == many[3]
    ).all()


def test_double_thresholds() -> None:
    attributes = forest("target", [0, 1])
    for name in ("nodes_values", "target_weights"):
        wide = np.array(attributes.pop(name), np.float64) + 1e-12
        attributes[name + "_as_tensor"] = numpy_helper.from_array(wide)
    check("TreeEnsembleRegressor", rows(np.float64), ["y"], n_targets=2, **attributes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes_featureids": 9}, "has 5 features, the trees test feature 9"),
        ({"nodes_truenodeids": 99}, "names a node that its tree does not have"),
        ({"nodes_truenodeids": 0}, "leads back to a node above it"),
        ({"target_ids": 2}, "target or class ids reach from 0 to 2, of 2"),
        ({"nodes_modes": "BRANCH_ODD"}, "known modes"),
    ],
)
def test_bad_trees(change: dict[str, Any], message: str) -> None:
    attributes = forest("target", [0, 1])
    for name, value in change.items():
        attributes[name][0] = value
    model = one_node("TreeEnsembleRegressor", rows(np.float32), ["y"], n_targets=2, **attributes)
    with pytest.raises(ort.ShapeError, match=message):
        ours(model, rows(np.float32))


def ensemble(dtype: Any, **changes: Any) -> dict[str, Any]:
    """Two trees: x0 in {1, 3} or x0 in {2}, and one comparison; leaves of two targets."""
    nan = np.nan
    return {
        "n_targets": 2,
        "nodes_featureids": [0, 0, 1],
        "nodes_modes": numpy_helper.from_array(np.array([6, 6, 0], np.uint8)),
        "nodes_splits": numpy_helper.from_array(np.array([0, 0, 0.5], dtype)),
        "nodes_truenodeids": [0, 1, 3],
        "nodes_trueleafs": [1, 1, 1],
        "nodes_falsenodeids": [1, 2, 4],
        "nodes_falseleafs": [0, 1, 1],
        "leaf_targetids": [0, 1, 0, 1, 1],
        "leaf_weights": numpy_helper.from_array(np.array([1, 10, 100, 0.25, 0.5], dtype)),
        "tree_roots": [0, 2],
        "membership_values": numpy_helper.from_array(np.array([1, 3, nan, 2, nan], dtype)),
        **changes,
    }


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_tree_ensemble(dtype: Any) -> None:
    x = np.array([[1, 0], [3, 1], [2, 0.5], [4, 0.75], [np.nan, 0]], dtype)
    model = one_node("TreeEnsemble", x, ["y"], 5, **ensemble(dtype))
    y = ours(model, x)["y"]
    assert y.dtype == dtype
    assert y.tolist() == [[1, 0.25], [1, 0.5], [0, 10.25], [100, 0.5], [100, 0.25]]
    missing = one_node("TreeEnsemble", x, ["y"], 5, **ensemble(dtype, nodes_missing_value_tracks_true=[0, 1, 0]))
    assert ours(missing, x)["y"][4].tolist() == [0, 10.25]


@pytest.mark.parametrize("aggregate", range(4))
@pytest.mark.parametrize("post", range(4))
def test_tree_ensemble_against_native(aggregate: int, post: int) -> None:
    x = np.array([[1, 0], [3, 1], [2, 0.5], [4, 0.75]], np.float32)
    targets = [0, 1, 1, 0, 1]
    attributes = ensemble(np.float32, aggregate_function=aggregate, post_transform=post, leaf_targetids=[1] * 5)
    attributes.update(n_targets=2, leaf_targetids=targets)
    if aggregate == 1 and post == 0:
        check("TreeEnsemble", x, ["y"], 5, **attributes)
    attributes.update(n_targets=1, leaf_targetids=[0] * 5)
    check("TreeEnsemble", x, ["y"], 5, **attributes)
