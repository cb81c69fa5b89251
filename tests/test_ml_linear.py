from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import onnx_wasm as ort
from ml_models import check, one_node, ours

TYPES = [np.float32, np.float64, np.int64, np.int32]
POSTS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")
FEATURES = 4


def numbers(*shape: int, seed: int = 0) -> list[float]:
    return np.random.default_rng(seed + len(shape)).normal(size=shape).astype(np.float32).reshape(-1).tolist()


def rows(dtype: Any) -> np.ndarray:
    return (np.random.default_rng(5).normal(size=(9, FEATURES)) * 3).astype(dtype)


@pytest.mark.parametrize("post", POSTS)
@pytest.mark.parametrize("targets", [1, 3])
def test_regressor(post: str, targets: int) -> None:
    how = {"coefficients": numbers(targets, FEATURES), "targets": targets, "post_transform": post}
    check("LinearRegressor", rows(np.float32), ["y"], intercepts=numbers(targets), **how)
    check("LinearRegressor", rows(np.float32), ["y"], **how)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("post", POSTS)
@pytest.mark.parametrize(("classes", "labels"), [(1, [4, 9]), (2, [4, 9]), (3, [1, 5, 2])])
def test_classifier(dtype: Any, post: str, classes: int, labels: list[int]) -> None:
    how = {"coefficients": numbers(classes, FEATURES), "intercepts": numbers(classes), "post_transform": post}
    check("LinearClassifier", rows(dtype), ["label", "y"], classlabels_ints=labels, **how)


def test_classifier_of_strings() -> None:
    how = {"coefficients": numbers(3, FEATURES), "intercepts": numbers(3)}
    check("LinearClassifier", rows(np.float32), ["label", "y"], classlabels_strings=["a", "b", "c"], **how)


def test_probit() -> None:
    how = {"coefficients": [0.01] * 8, "intercepts": [0.4, 0.6], "post_transform": "PROBIT"}
    x = abs(rows(np.float32))
    check("LinearClassifier", x, ["label", "y"], classlabels_ints=[0, 1], tolerance=1e-4, **how)


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("one_class", [0, 1])
def test_svm_regressor(kernel: str, one_class: int) -> None:
    check(
        "SVMRegressor",
        rows(np.float32),
        ["y"],
        coefficients=numbers(5),
        support_vectors=numbers(5, FEATURES),
        n_supports=5,
        rho=[0.3],
        kernel_type=kernel,
        kernel_params=[0.1, 0.3, 3.0],
        one_class=one_class,
    )


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("features", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_svm_of_few_and_odd_numbers(kernel: str, features: int, count: int) -> None:
    """Also of rows so far away that what is radial there is 0."""
    x = np.random.default_rng(6).normal(size=(5, features)).astype(np.float32)
    x[1:3] *= 1e4
    how: dict[str, Any] = {"support_vectors": numbers(count, features), "n_supports": count, "rho": [0.3]}
    parameters = [0.1, 0.3, 2.0]
    check("SVMRegressor", x, ["y"], coefficients=numbers(count), kernel_type=kernel, kernel_params=parameters, **how)


def test_svm_without_support_vectors() -> None:
    how: dict[str, Any] = {"kernel_type": "LINEAR", "kernel_params": [0.0, 0.0, 0.0], "rho": [0.3]}
    check("SVMRegressor", rows(np.float32), ["y"], coefficients=numbers(FEATURES), **how)
    for classes in (2, 3):
        for post in POSTS:
            how.update(coefficients=numbers(classes, FEATURES), post_transform=post)
            check("SVMClassifier", rows(np.float32), ["label", "y"], classlabels_ints=list(range(classes)), **how)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("per_class", [[3, 2], [1, 3, 2], [2, 1, 1, 3]])
@pytest.mark.parametrize("proba", [False, True])
def test_svm_classifier(dtype: Any, kernel: str, per_class: list[int], proba: bool) -> None:
    classes, vectors = len(per_class), sum(per_class)
    pairs = classes * (classes - 1) // 2
    how: dict[str, Any] = {
        "coefficients": numbers(classes - 1, vectors),
        "support_vectors": numbers(vectors, FEATURES),
        "vectors_per_class": per_class,
        "rho": numbers(pairs),
        "kernel_type": kernel,
        "kernel_params": [0.1, 0.3, 3.0],
        "classlabels_ints": list(range(3, 3 + classes)),
    }
    if proba:
        how.update(prob_a=[-abs(v) for v in numbers(pairs)], prob_b=numbers(pairs, seed=1))
    for post in POSTS:
        check("SVMClassifier", rows(dtype), ["label", "y"], tolerance=1e-4, post_transform=post, **how)


@pytest.mark.parametrize(
    ("op_type", "attributes", "message"),
    [
        ("LinearRegressor", {"coefficients": [1.0] * 3}, "3 coefficients and 0 intercepts do not fit 1 targets of 4"),
        ("LinearRegressor", {"coefficients": [1.0] * 4, "post_transform": "CUBE"}, "'CUBE' is none of"),
        (
            "SVMRegressor",
            {"coefficients": [1.0], "n_supports": 2, "support_vectors": [1.0] * 8},
            "1 coefficients for 2",
        ),
        ("SVMRegressor", {"coefficients": [1.0], "n_supports": 1, "support_vectors": [1.0]}, "1 vectors of 4 features"),
    ],
)
def test_bad_attributes(op_type: str, attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(ort.ShapeError, match=message):
        ours(one_node(op_type, rows(np.float32), ["y"], **attributes), rows(np.float32))
