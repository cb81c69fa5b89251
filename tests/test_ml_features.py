from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

import onnx_wasm as ort
from ml_models import check, one_node, ours

TYPES = [np.float32, np.float64, np.int64, np.int32]
STRINGS = np.array([["a", "b", "zz"], ["c", "a", "b"]], object)


def rows(dtype: Any) -> np.ndarray:
    return (np.random.default_rng(5).normal(size=(9, 4)) * 3).astype(dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_normalizer(dtype: Any, norm: str) -> None:
    x = rows(dtype)
    x[1] = 0
    check("Normalizer", x, ["y"], norm=norm)
    check("Normalizer", x[0], ["y"], norm=norm)


@pytest.mark.parametrize("dtype", TYPES)
def test_scaler(dtype: Any) -> None:
    check("Scaler", rows(dtype), ["y"], offset=[1.0, -2.0, 0.5, 0.0], scale=[2.0, 0.5, -1.0, 3.0])
    check("Scaler", rows(dtype), ["y"], offset=[0.5], scale=[0.25])


def impute(x: np.ndarray, **attributes: Any) -> np.ndarray:
    return ours(one_node("Imputer", x, ["y"], **attributes), x)["y"]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_imputer_of_floats(dtype: Any) -> None:
    x = rows(dtype)
    x[2, 1] = x[5, 3] = np.nan
    y = impute(x, imputed_value_floats=[9.0, 8.0, 7.0, 6.0], replaced_value_float=float("nan"))
    assert y.dtype == dtype
    expected = x.copy()
    expected[2, 1], expected[5, 3] = 8, 6
    assert (y == expected).all()
    expected[1, 0] = expected[4, 2] = 0.5
    y = impute(expected, imputed_value_floats=[-1.5], replaced_value_float=0.5)
    assert (y == np.where(expected == 0.5, -1.5, expected)).all()


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_imputer_of_integers(dtype: Any) -> None:
    x = rows(dtype)
    y = impute(x, imputed_value_int64s=[-77], replaced_value_int64=int(x[0, 0]))
    assert y.dtype == dtype
    assert (y == np.where(x == x[0, 0], -77, x)).all()
    with pytest.raises(ort.ShapeError, match="0 imputed values"):
        impute(x, imputed_value_floats=[1.0])


@pytest.mark.parametrize("dtype", TYPES)
def test_binarizer(dtype: Any) -> None:
    x = rows(dtype)
    (y,) = ours(one_node("Binarizer", x, ["y"], threshold=1.0), x).values()
    assert y.dtype == dtype
    assert (y == (x > 1)).all()


@pytest.mark.parametrize("dtype", TYPES)
def test_one_hot_encoder(dtype: Any) -> None:
    x = np.round(rows(dtype)).astype(dtype)
    (y,) = ours(one_node("OneHotEncoder", x, ["y"], cats_int64s=[3, -1, 0, 2]), x).values()
    assert y.dtype == np.float32
    assert (y == (x[..., None] == np.array([3, -1, 0, 2]))).all()
    with pytest.raises(ort.OnnxWasmError, match="OneHotEncoder"):
        ours(one_node("OneHotEncoder", x, ["y"], cats_int64s=[77], zeros=0), x)


def test_one_hot_encoder_of_strings() -> None:
    check("OneHotEncoder", STRINGS, ["y"], cats_strings=["b", "a", "c"])


@pytest.mark.parametrize("dtype", [*TYPES])
def test_array_feature_extractor(dtype: Any) -> None:
    check("ArrayFeatureExtractor", [rows(dtype), np.array([2, 0, 2])], ["y"])
    check("ArrayFeatureExtractor", [rows(dtype)[0], np.array([3])], ["y"])


def test_array_feature_extractor_of_strings() -> None:
    for x in (STRINGS, STRINGS[0]):
        model = one_node("ArrayFeatureExtractor", [x, np.array([2, 0])], ["y"])
        y = ours(model, [x, np.array([2, 0])])["y"]
        assert y.tolist() == x.reshape(-1, 3)[:, [2, 0]].tolist()


def test_feature_vectorizer() -> None:
    a, b = rows(np.float32), rows(np.int64)[:, :2]
    (y,) = ours(one_node("FeatureVectorizer", [a, b], ["y"], inputdimensions=[4, 2]), [a, b]).values()
    assert (y == np.concatenate([a, b.astype(np.float32)], 1)).all()
    check("FeatureVectorizer", [a, a[:, :1]], ["y"], inputdimensions=[3, 3])


def encoder(x: np.ndarray, opset: int = 3, **attributes: Any) -> np.ndarray:
    return ours(one_node("LabelEncoder", x, ["y"], opset, **attributes), x)["y"]


def test_label_encoder_against_native() -> None:
    whole, real = np.array([[3, 1, 7]]), np.array([3, 1.5, 7], np.float32)
    check("LabelEncoder", whole, ["y"], keys_int64s=[1, 3], values_floats=[0.5, 0.25], default_float=9.0)
    check("LabelEncoder", whole, ["y"], keys_int64s=[1, 3], values_strings=["x", "y"], default_string="?")
    check("LabelEncoder", real, ["y"], keys_floats=[7.0, 3.0], values_int64s=[5, 6])
    check("LabelEncoder", STRINGS, ["y"], keys_strings=["a", "b"], values_int64s=[5, 6], default_int64=-7)
    check("LabelEncoder", STRINGS, ["y"], keys_strings=["a", "b"], values_strings=["q", "b"])
    check("LabelEncoder", STRINGS, ["y"], keys_strings=["a", "b"], values_floats=[1.5, 2.5])


@pytest.mark.parametrize("keys", [np.int16, np.int32, np.int64, np.float32, np.float64])
@pytest.mark.parametrize("values", [np.int16, np.int32, np.int64, np.float32, np.float64])
def test_label_encoder_of_tensors(keys: Any, values: Any) -> None:
    x = np.array([[3, 1], [7, 2]], keys)
    how = {
        "keys_tensor": numpy_helper.from_array(np.array([7, 3, 9], keys)),
        "values_tensor": numpy_helper.from_array(np.array([70, 30, 90], values)),
        "default_tensor": numpy_helper.from_array(np.array([-1], values)),
    }
    y = encoder(x, 4, **how)
    assert y.dtype == values
    assert y.tolist() == [[30, -1], [70, -1]]


def test_label_encoder_of_nan_and_of_repeated_keys() -> None:
    x = np.array([np.nan, 3, 4], np.float32)
    assert encoder(x, 4, keys_floats=[float("nan"), 3.0, 3.0], values_int64s=[5, 6, 7]).tolist() == [5, 7, -1]


def test_older_label_encoder_and_category_mapper() -> None:
    assert encoder(STRINGS, 1, classes_strings=["b", "a"], default_int64=-3).tolist() == [[1, 0, -3], [-3, 1, 0]]
    assert encoder(np.array([1, 0, 5]), 1, classes_strings=["b", "a"], default_string="?").tolist() == ["a", "b", "?"]
    check("CategoryMapper", STRINGS, ["y"], cats_strings=["a", "b"], cats_int64s=[5, 6])
    check("CategoryMapper", np.array([5, 6, 8]), ["y"], cats_strings=["a", "b"], cats_int64s=[5, 6])


def test_zip_map() -> None:
    x = rows(np.float32)[:2, :2]
    rounded = x.tolist()
    for labels in ({"classlabels_strings": ["a", "b"]}, {"classlabels_int64s": [7, 3]}):
        names = next(iter(labels.values()))
        (y,) = ours(one_node("ZipMap", x, ["y"], **labels), x).values()
        assert y == [dict(zip(names, row, strict=True)) for row in rounded]


def test_bad_features() -> None:
    x = rows(np.float32)
    with pytest.raises(ort.ShapeError, match="scale has 3 elements, must have 1 or 4"):
        ours(one_node("Scaler", x, ["y"], scale=[1.0, 2.0, 3.0]), x)
    with pytest.raises(ort.ShapeError, match="a column for each of 3 labels"):
        ours(one_node("ZipMap", x, ["y"], classlabels_int64s=[1, 2, 3]), x)
    with pytest.raises(ort.ShapeError, match="2 keys and 1 values"):
        encoder(x, keys_floats=[1.0, 2.0], values_int64s=[1])
