"""Trees of every kind of test, of categories, and of one class, against native onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphs
import onnx_wasm as ort
from ml_models import check, one_node, ours
from onnx_wasm.context import Context, Value
from onnx_wasm.dtypes import F32
from onnx_wasm.model import Node
from onnx_wasm.ops import ml_trees
from test_ml_trees import MODES, forest

SPECIAL = [0.0, -0.0, 1.0, -1.0, 2.0, np.inf, -np.inf, 1e-45, 3.4e38]


def special_rows(dtype: Any, count: int = 200) -> np.ndarray:
    rng = np.random.default_rng(count)
    x = rng.choice([*SPECIAL, np.nan], (count, 5)).astype(dtype)
    # The first rows have no NaN, and others one at the very end.
    x[:100] = np.nan_to_num(x[:100], nan=0.5, posinf=np.inf, neginf=-np.inf)
    x[100:110, :4], x[100:110, 4] = 1, np.nan
    return x


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("missing", ["none", "some", "all"])
@pytest.mark.parametrize("mode", [*MODES, "some"])
def test_tests_of_special_values(dtype: Any, missing: str, mode: str) -> None:
    """Of infinite and NaN thresholds and features, too; by four trees at a time, and the rest."""
    for seed in range(3):
        attributes = forest("target", [0, 1], trees=9, depth=4, seed=seed)
        rng = np.random.default_rng(seed)
        given = attributes["nodes_modes"]
        allowed = rng.choice(MODES, 3) if mode == "some" else [mode]
        attributes["nodes_modes"] = [m if m == "LEAF" else str(rng.choice(allowed)) for m in given]
        attributes["nodes_values"] = rng.choice([*SPECIAL, np.nan] if seed else SPECIAL, len(given)).tolist()
        if missing != "some":
            del attributes["nodes_missing_value_tracks_true"]
        if missing == "all":
            attributes["nodes_missing_value_tracks_true"] = [1] * len(given)
        check("TreeEnsembleRegressor", special_rows(dtype), ["y"], n_targets=2, **attributes)


class Categories:
    """Trees of sets, written as tests for equality with one true branch, and of other tests."""

    def __init__(self, seed: int, values: Any, modes: tuple[str, ...], flags: bool) -> None:
        self.rng = np.random.default_rng(seed)
        self.values, self.modes, self.flags, self.sorted = values, modes, flags, seed % 2
        self.nodes: list[list[Any]] = []

    def add(self, depth: int) -> int:
        at = len(self.nodes)
        self.nodes.append([])
        if not depth:
            self.nodes[at] = ["LEAF", 0, 0.0, 0, 0, 0]
            return at
        feature, mode = int(self.rng.integers(0, 5)), str(self.rng.choice(self.modes))
        if mode not in ("BRANCH_EQ", "BRANCH_NEQ"):
            yes, no = self.add(depth - 1), self.add(depth - 1)
            self.nodes[at] = [mode, feature, float(self.rng.choice(self.values)), yes, no, self.flag()]
            return at
        chosen = self.rng.choice(self.values, int(self.rng.integers(1, 9)), replace=False).tolist()
        if self.sorted:
            chosen.sort()
        shared, chain = self.add(depth - 1), [at]
        for _ in chosen[1:]:
            chain.append(len(self.nodes))
            self.nodes.append([])
        chain.append(self.add(depth - 1))
        for k, value in enumerate(chosen):
            branches = (shared, chain[k + 1]) if mode == "BRANCH_EQ" else (chain[k + 1], shared)
            self.nodes[chain[k]] = [mode, feature, float(value), *branches, self.flag()]
        return at

    def flag(self) -> int:
        return int(self.flags and self.rng.random() < 0.3)


def categories(trees: int, seed: int, values: Any, modes: tuple[str, ...], flags: bool = False) -> dict[str, Any]:
    attributes: dict[str, list[Any]] = {}
    names = ("modes", "featureids", "values", "truenodeids", "falsenodeids", "missing_value_tracks_true")
    for tree in range(trees):
        made = Categories(seed * 100 + tree, values, modes, flags)
        made.add(3)
        for name, column in zip(names, zip(*made.nodes, strict=True), strict=True):
            attributes.setdefault(f"nodes_{name}", []).extend(column)
        leaves = [i for i, node in enumerate(made.nodes) if node[0] == "LEAF"]
        for name, column in (
            ("nodes_treeids", [tree] * len(made.nodes)),
            ("nodes_nodeids", list(range(len(made.nodes)))),
            ("target_treeids", [tree] * len(leaves)),
            ("target_nodeids", leaves),
            ("target_ids", [0] * len(leaves)),
            ("target_weights", made.rng.normal(size=len(leaves)).astype(np.float32).tolist()),
        ):
            attributes.setdefault(name, []).extend(column)
    return attributes


def walked(attributes: dict[str, Any], x: np.ndarray) -> np.ndarray:
    """What the specification says."""
    tests = {"EQ": np.equal, "NEQ": np.not_equal, "LEQ": np.less_equal, "GT": np.greater}
    y = np.zeros((len(x), 1))
    fields = ("modes", "featureids", "values", "truenodeids", "falsenodeids", "missing_value_tracks_true")
    table = list(zip(*(attributes[f"nodes_{f}"] for f in fields), strict=True))
    weights = dict(
        zip(
            zip(attributes["target_treeids"], attributes["target_nodeids"], strict=True),
            attributes["target_weights"],
            strict=True,
        )
    )
    roots = np.flatnonzero(np.array(attributes["nodes_nodeids"]) == 0).tolist()
    for row, sums in zip(x, y, strict=True):
        for tree, root in enumerate(roots):
            node = 0
            while table[root + node][0] != "LEAF":
                mode, feature, threshold, yes, no, missing = table[root + node]
                value = row[feature]
                taken = tests[mode.removeprefix("BRANCH_")](value, threshold) or (missing and np.isnan(value))
                node = yes if taken else no
            sums += weights[tree, node]
    return y


VALUES = {
    "a block": np.arange(64),
    "blocks": np.concatenate([np.arange(40, 90), [1000, 1001, 65536, (1 << 21) - 1]]),
    "too large": np.array([0, 1, 2, 3, 4, 5, 6, 7, 1 << 21, 1 << 22]),
    "no integers": np.array([0, 1, 1.5, 2, 3, 4, 5, 6, 7, 0.25]),
    "negative": np.array([-1, 0, 1, 2, 3, 4, 5, 6, -2, -64]),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize(
    "modes", [("BRANCH_EQ",), ("BRANCH_EQ", "BRANCH_LEQ"), ("BRANCH_EQ", "BRANCH_NEQ", "BRANCH_GT")]
)
@pytest.mark.parametrize("flags", [False, True])
def test_categories(dtype: Any, values: str, modes: tuple[str, ...], flags: bool) -> None:
    for seed in range(4):
        attributes = categories(6, seed, VALUES[values], modes, flags)
        rng = np.random.default_rng(seed)
        x = rng.choice(np.append(VALUES[values], [5, 6, 127]), (150, 5)).astype(dtype)
        if np.dtype(dtype).kind == "f":
            others = [np.nan, np.inf, -np.inf, -0.0, 0.5, -1, -64, 63.5, 64, 1e30, -1e30, 2.0**52, 2.0**53, 5 + 2.0**52]
            odd = rng.random(x.shape) < 0.2
            x[odd] = rng.choice(others, int(odd.sum()))
            x[:50] = np.where(np.isnan(x[:50]), 3, x[:50])
        model = one_node("TreeEnsembleRegressor", x, ["y"], n_targets=1, **attributes)
        got = ours(model, x)["y"]
        np.testing.assert_allclose(got, walked(attributes, x), rtol=1e-5, atol=1e-5)
        # Native onnxruntime forgets where NaN goes when it merges tests; no false branch is shared, no integer taken.
        if not flags and "BRANCH_NEQ" not in modes and dtype is not np.int64:
            np.testing.assert_allclose(got, graphs.native(model, {"x0": x})["y"], rtol=1e-5, atol=1e-5)


def test_sets_are_one_test_each() -> None:
    """They are walked four at a time: a chain of tests is as fast as its last one."""
    cx = Context()
    kinds = {"a block": 2, "blocks": 2, "too large": 1, "no integers": 1, "negative": 1}
    for name, tests in kinds.items():
        attributes = categories(8, 1, VALUES[name], ("BRANCH_EQ", "BRANCH_GT"))
        cx.node = Node("TreeEnsembleRegressor", name, index=0)
        x = Value((3, 5), F32, name="x")
        ml_trees.tree_ensemble_regressor(cx, x, n_targets=1, **attributes)
        record = next(r for r in cx.records if r.kernel == "trees_f32" and r.node is cx.node)
        assert (record.args["tests"], record.args["missing"]) == (tests, 1)


def one_class(weights: list[float], trees: int = 1, **attributes: Any) -> dict[str, Any]:
    each = {
        "nodes_nodeids": [0, 1, 2],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_featureids": [0, 0, 0],
        "nodes_values": [1.0, 0.0, 0.0],
        "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0],
        "class_nodeids": [1, 2],
        "class_ids": [0, 0],
        "class_weights": weights,
    }
    made = {name: list(values) * trees for name, values in each.items()}
    made["nodes_treeids"] = np.repeat(np.arange(trees), 3).tolist()
    made["class_treeids"] = np.repeat(np.arange(trees), 2).tolist()
    return {**made, **attributes}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("weights", [[1.0, 0.3], [0.25, -0.4], [0.7, 0.0], [-1.0, -2.0]])
@pytest.mark.parametrize("base", [None, [0.25], [-0.5]])
@pytest.mark.parametrize("post", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
def test_one_class(dtype: Any, weights: list[float], base: list[float] | None, post: str) -> None:
    given = {} if base is None else {"base_values": base}
    x = np.array([[0, 1], [2, 3], [np.nan, 0]], dtype)
    for label in (0, 7):
        for trees in (1, 5):
            attributes = one_class(weights, trees, classlabels_int64s=[label], post_transform=post, **given)
            for rows in (x, x[:0]):
                check("TreeEnsembleClassifier", rows, ["label", "y"], **attributes)


def test_one_class_of_strings() -> None:
    """Where native onnxruntime looks behind the labels."""
    x = np.array([[0, 1], [2, 3]], np.float32)
    attributes = one_class([0.5, -0.5], classlabels_strings=["only"])
    got = ours(one_node("TreeEnsembleClassifier", x, ["label", "y"], **attributes), x)
    assert got["label"].tolist() == ["only", "only"]
    assert got["y"].tolist() == [[0.5], [-0.5]]


def test_classes_that_do_not_fit() -> None:
    x = np.array([[0, 1], [2, 3]], np.float32)
    for change, message in (
        ({}, "there are no class labels"),
        ({"classlabels_int64s": [1], "base_values": [1.0, 2.0]}, "2 base values"),
    ):
        data = one_node("TreeEnsembleClassifier", x, ["label", "y"], **one_class([0.5, 1.0], **change))
        with pytest.raises(ort.ShapeError, match=message):
            ours(data, x)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("planned", [True, False])
def test_threads_and_memory(threads: int, planned: bool) -> None:
    x = special_rows(np.float32, 500)
    attributes = categories(9, 3, VALUES["blocks"], ("BRANCH_EQ", "BRANCH_GT"), True)
    data = one_node("TreeEnsembleRegressor", x, ["y"], n_targets=1, **attributes)
    with ort.Runtime(threads=threads) as runtime:
        with (
            ort.InferenceSession.create(data, runtime=runtime, enable_mem_pattern=planned) as session,
            session.run({"x0": x})["y"] as y,
        ):
            np.testing.assert_allclose(y.data, walked(attributes, x), rtol=1e-5, atol=1e-5)
        assert runtime.memory().used == 0
