"""Shapes, reshapes, constants, counted and repeated values."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import graphs
import onnx_wasm as ort
from harness import Harness
from onnx_wasm import dtypes
from onnx_wasm.context import Context, Value
from onnx_wasm.errors import ShapeError
from onnx_wasm.initializers import Initializer
from onnx_wasm.ops import constant as c
from onnx_wasm.ops import reshape as r
from onnx_wasm.ops import shape as s


def tensor(array: np.ndarray) -> Initializer:
    return Initializer(numpy_helper.from_array(array, "value"), None, "test")


def test_shape_and_size() -> None:
    cx, x = Context(), Value((2, 0, 5), dtypes.F32)
    for start, end in [(0, None), (1, None), (-1, None), (0, -1), (-9, 9), (2, 1)]:
        np.testing.assert_array_equal(s.shape(cx, x, start=start, end=end).known, (2, 0, 5)[start:end])
    assert s.shape(cx, x).known.dtype == np.int64
    assert s.size(cx, Value((3, 4), dtypes.F32)).known == 12
    assert s.size(cx, Value((), dtypes.F32)).known.shape == ()
    assert not cx.records


def test_identity_shares_memory() -> None:
    cx, x = Context(), Value((2, 3), dtypes.F32)
    y = s.identity(cx, x)
    assert y is not x
    assert y.root is x


@pytest.mark.parametrize(
    ("function", "mask"), [(s.dropout_7, np.float32), (s.dropout_10, np.bool_), (s.dropout, np.bool_)]
)
def test_dropout(harness: Harness, function: Any, mask: Any) -> None:
    def described(cx: Context, *args: Any) -> Any:
        cx.node.outputs = ("y", "mask")
        return function(cx, *args)

    x = np.arange(5000, dtype=np.float32)
    y, ones = harness.op(described, [x])
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(ones, np.ones(5000, mask))
    assert ones.dtype == mask
    assert harness.op(function, [x])[1] is None


@pytest.mark.parametrize(
    ("shape", "target", "allowzero", "expected"),
    [
        ((2, 3, 4), (6, 4), 0, (6, 4)),
        ((2, 3, 4), (0, -1), 0, (2, 12)),
        ((2, 3, 4), (-1, 0, 2), 0, (4, 3, 2)),
        ((), (), 0, ()),
        ((), (1, -1), 0, (1, 1)),
        ((1,), (), 0, ()),
        ((0, 3), (3, 0), 1, (3, 0)),
        ((0, 3), (0, 0, 5), 1, (0, 0, 5)),
        ((0, 3), (-1, 3), 0, (0, 3)),
    ],
)
def test_reshape(shape: Any, target: Any, allowzero: int, expected: Any) -> None:
    x, to = Value(shape, dtypes.F32), np.array(target, np.int64)
    y = r.reshape(Context(), x, to, allowzero=allowzero)
    assert (y.shape, y.root) == (expected, x)
    assert r.fold_reshape(np.empty(shape), to, allowzero=allowzero).shape == expected


@pytest.mark.parametrize("target", [(5,), (-1, 5), (-1, -1), (2, -3), (-2, -3), (0, 0, 0), (0, -1, 0)])
def test_reshape_errors(target: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"\[" + str(target[0])):
        r.reshape(Context(), Value((2, 3), dtypes.F32), np.array(target))


def test_flatten_squeeze_unsqueeze() -> None:
    cx, x = Context(), Value((2, 1, 3, 1), dtypes.F32)
    array = np.empty(x.shape)
    assert [r.flatten(cx, x, axis=a).shape for a in (0, 1, 3, 4, -1)] == [(1, 6), (2, 3), (6, 1), (6, 1), (6, 1)]
    assert r.fold_flatten(array, axis=-1).shape == (6, 1)
    for axes, expected in [(None, (2, 3)), ((1,), (2, 3, 1)), ((-1, 1), (2, 3)), ((), (2, 1, 3, 1))]:
        given = None if axes is None else np.array(axes, np.int64)
        assert r.squeeze_1(cx, x, axes=axes).shape == expected
        assert r.squeeze(cx, x, given).shape == expected
        assert r.fold_squeeze(array, given).shape == expected
    for axes, expected in [((0,), (1, 2, 1, 3, 1)), ((-1, 1), (2, 1, 1, 3, 1, 1)), ((5, 0), (1, 2, 1, 3, 1, 1))]:
        assert r.unsqueeze_1(cx, x, axes=axes).shape == expected
        assert r.unsqueeze(cx, x, np.array(axes)).shape == expected
        assert r.fold_unsqueeze(array, np.array(axes)).shape == expected
    assert not cx.records


def test_axis_errors() -> None:
    cx, x = Context(), Value((2, 1), dtypes.F32)
    with pytest.raises(ShapeError, match=r"axis 0 of .* has 2 elements, cannot be squeezed"):
        r.squeeze_1(cx, x, axes=(0,))
    with pytest.raises(ShapeError, match=r"axis 3 out of range \[-2, 3\)"):
        r.flatten(cx, x, axis=3)
    with pytest.raises(ShapeError, match="name an axis twice"):
        r.unsqueeze_1(cx, x, axes=(0, -4))


def test_values_that_are_known_stay_known() -> None:
    cx = Context()
    y = r.unsqueeze_1(cx, cx.known(np.array([3, 4])), axes=(0,))
    np.testing.assert_array_equal(y.known, [[3, 4]])


@pytest.mark.parametrize(
    ("attribute", "content", "dtype", "shape"),
    [
        ("value_float", 2.5, np.float32, ()),
        ("value_floats", (1.0, 2.5), np.float32, (2,)),
        ("value_int", -3, np.int64, ()),
        ("value_ints", (1, 2, 3), np.int64, (3,)),
        ("value_string", "a", object, ()),
        ("value_strings", ("a", "b"), object, (2,)),
    ],
)
def test_constant_attributes(attribute: str, content: Any, dtype: Any, shape: tuple[int, ...]) -> None:
    y = c.constant(Context(), **{attribute: content})
    assert y.const
    assert (y.shape, y.known.dtype) == (shape, dtype)
    np.testing.assert_array_equal(y.known, np.array(content, dtype))


def test_constant_tensors() -> None:
    cx = Context()
    small, large = tensor(np.arange(4096)), tensor(np.arange(4097))
    floats = tensor(np.ones(2, np.float32))
    assert [c.constant(cx, value=t).known is not None for t in (small, large, floats)] == [True, False, False]
    for t in (small, large, floats):
        y = c.constant(cx, value=t)
        assert (y.const, y.source, y.shape, y.dtype) == (True, t, t.shape, t.dtype)
    strings = c.constant(cx, value=Initializer(onnx.helper.make_tensor("s", 8, [2], ["a", "b"]), None, "test"))
    assert strings.dtype is dtypes.STRING
    assert strings.known.tolist() == ["a", "b"]


def test_constant_errors() -> None:
    with pytest.raises(ShapeError, match="none of the attributes"):
        c.constant(Context())


@pytest.mark.parametrize("split", [1, 3])
@pytest.mark.parametrize("value", [None, np.float16(3), np.int8([5]), np.int64(7), np.True_, np.complex128(1 + 2j)])
@pytest.mark.parametrize("shape", [(), (2, 0), (3, 5), (100, 99)])
def test_constant_of_shape(harness: Harness, shape: tuple[int, ...], value: Any, split: int) -> None:
    given = {} if value is None else {"value": tensor(np.reshape(value, 1))}
    y = harness.op(c.constant_of_shape, [np.array(shape, np.int64)], host=(0,), split=split, **given)
    expected = np.zeros(shape, np.float32) if value is None else np.full(shape, value)
    np.testing.assert_array_equal(y, expected)
    assert y.dtype == expected.dtype


def test_small_constants_of_shape_are_known() -> None:
    y = c.constant_of_shape(Context(), np.array([2]), value=tensor(np.array([-1])))
    np.testing.assert_array_equal(y.known, [-1, -1])
    with pytest.raises(ShapeError, match=r"shape \[2, -1\]"):
        c.constant_of_shape(Context(), np.array([2, -1]))


@pytest.mark.parametrize("split", [1, 3])
@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64, np.float32, np.float64])
@pytest.mark.parametrize(("start", "limit", "delta"), [(0, 10, 1), (10, 0, -3), (0, 9001, 1), (5, 5, 1), (0, -3, 1)])
def test_range(harness: Harness, start: int, limit: int, delta: int, dtype: Any, split: int) -> None:
    scalars = [np.array(v, dtype) for v in (start, limit, delta)]
    y = harness.op(c.range_, scalars, host=(0, 1, 2), split=split)
    np.testing.assert_array_equal(y, np.arange(start, limit, delta, dtype))
    assert y.dtype == dtype


def test_range_of_fractions(harness: Harness) -> None:
    scalars = [np.array(v, np.float32) for v in (0.5, 2.0, 0.4)]
    y = harness.op(c.range_, scalars, host=(0, 1, 2))
    np.testing.assert_array_equal(y, np.float32(0.5) + np.arange(4, dtype=np.float32) * np.float32(0.4))


def test_range_errors() -> None:
    with pytest.raises(ShapeError, match="delta is 0"):
        c.range_(Context(), np.array(0), np.array(5), np.array(0))
    with pytest.raises(ShapeError, match="no finite count"):
        c.range_(Context(), np.array(0.0), np.array(np.inf), np.array(1.0))


@pytest.mark.parametrize("dtype", [None, np.int8, np.float16, np.float64])
@pytest.mark.parametrize("k", [-3, -1, 0, 2, 9])
def test_eye_like(harness: Harness, k: int, dtype: Any) -> None:
    given = {} if dtype is None else {"dtype": dtypes.from_numpy(np.dtype(dtype)).onnx}
    for shape in [(4, 4), (2, 5), (5, 2), (0, 3)]:
        y = harness.op(c.eye_like, [np.zeros(shape, np.float32)], k=k, **given)
        np.testing.assert_array_equal(y, np.eye(*shape, k=k, dtype=dtype or np.float32))


@pytest.mark.parametrize("split", [1, 3])
@pytest.mark.parametrize("kind", [np.int32, np.int64, np.float32])
@pytest.mark.parametrize("dtype", [np.bool_, np.float16, np.float32, np.int64, np.complex128])
@pytest.mark.parametrize(("shape", "axis"), [((), -1), ((7,), -1), ((2, 5), 1), ((2, 5), 0), ((3, 0), -1)])
def test_one_hot(harness: Harness, shape: Any, axis: int, dtype: Any, kind: Any, split: int) -> None:
    indices = np.random.default_rng(1).integers(-6, 6, shape).astype(kind)
    values, depth = np.array([0, 1], dtype), np.array([4])
    y = harness.op(c.one_hot, [indices, depth, values], host=(1,), axis=axis, split=split)
    expected = np.zeros((*shape, 4), dtype)
    for at in np.ndindex(*shape):
        if -4 <= indices[at] < 4:
            expected[(*at, int(indices[at]))] = 1
    np.testing.assert_array_equal(y, np.moveaxis(expected, -1, axis))
    np.testing.assert_array_equal(c.fold_one_hot(indices, depth, values, axis=axis), y)


@pytest.mark.parametrize("side", [200, 400])
def test_large_results_of_numbers_that_are_known_are_made_by_kernels(side: int) -> None:
    nodes = [graphs.node("Shape", ["x"], ["s"]), graphs.node("Expand", ["seven", "s"], ["y"])]
    weights = {"seven": np.array([7], np.int64)}
    data = graphs.model(nodes, {"x": (graphs.FLOAT, ["n", "n"])}, ["y"], weights)
    with ort.InferenceSession.create(data) as session:
        got = session.run({"x": np.zeros((side, side), np.float32)})["y"].get_data(release_data=True)
        np.testing.assert_array_equal(got, np.full((side, side), 7))
        assert session.plan_info is not None
        # What the host knows lies in the tape.
        assert (session.plan_info.tape_bytes > 8 * side**2) == (side == 200)
