from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from elementwise import FLOATS, INTEGERS, SHAPES, SIGNED, equal, fold, lower, sample
from harness import Harness, KernelStatus
from onnx_nodes import run_node
from onnx_wasm import dtypes
from onnx_wasm.context import Context, Value
from onnx_wasm.ops.fusion import Activation

ARITHMETIC = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply}


def name_of(dtype: Any) -> str:
    return np.dtype(dtype).name


def nonzero(x: np.ndarray) -> np.ndarray:
    return np.where(x == 0, np.ones((), x.dtype), x)


def truncated(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    quotient = np.abs(a.astype(object)) // np.abs(b.astype(object))
    return np.where((a < 0) != (b < 0), -quotient, quotient).astype(a.dtype)


@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_every_way_to_broadcast(harness: Harness, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    for dtype in (np.float32, np.int8, np.uint16, np.int64, np.float16):
        x, y = sample(a, dtype, 1, -9, 9), sample(b, dtype, 2, -9, 9)
        for split in (1, 3):
            equal(harness.op(lower("Sub"), [x, y], split=split), x - y)
            equal(harness.op(lower("Add"), [y, x], split=split), x + y)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=name_of)
@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic(harness: Harness, strict_harness: Harness, name: str, dtype: Any) -> None:
    a, b = sample((3, 41), dtype), sample((3, 41), dtype, 1)
    want = ARITHMETIC[name](a, b)
    for h in (harness, strict_harness):
        equal(h.op(lower(name, 7), [a, b]), want)
        equal(h.op(lower(name), [a, b[:, :1]]), ARITHMETIC[name](a, b[:, :1]))
        equal(h.op(lower(name), [a[:1], b]), ARITHMETIC[name](a[:1], b))
    equal(fold(name)(a, b), want)


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_division_of_floats(harness: Harness, dtype: Any) -> None:
    a, b = sample((3, 41), dtype), sample((3, 41), dtype, 1)
    a[0, :3], b[0, :3] = [0, 1, -1], 0
    with np.errstate(all="ignore"):
        equal(harness.op(lower("Div"), [a, b]), a / b)
        equal(harness.op(lower("Div"), [a, b[0]]), a / b[0])
        equal(harness.op(lower("Div"), [a[:, :1], b]), a[:, :1] / b)


@pytest.mark.parametrize("dtype", INTEGERS, ids=name_of)
def test_division_of_integers_truncates_and_wraps(harness: Harness, dtype: Any) -> None:
    info = np.iinfo(dtype)
    a = np.concatenate([np.array([info.min, info.min, info.max, info.max], dtype), sample((99,), dtype)])
    b = np.concatenate([np.array([info.max, 1, 7, 2], dtype), nonzero(sample((99,), dtype, 1))])
    want = truncated(a, b)
    equal(harness.op(lower("Div"), [a, b], split=2), want)
    equal(fold("Div")(a, b), want)
    for fmod, function in ((0, np.mod), (1, np.fmod)):
        equal(harness.op(lower("Mod"), [a, b], fmod=fmod), function(a, b))
        equal(fold("Mod")(a, b, fmod=fmod), function(a, b))
    if dtype in SIGNED:
        least, minus = np.array([info.min], dtype), np.array([-1], dtype)
        equal(harness.op(lower("Div"), [least, minus]), least)
        equal(harness.op(lower("Mod"), [least, minus]), [0])


@pytest.mark.parametrize("dtype", INTEGERS, ids=name_of)
@pytest.mark.parametrize("name", ["Div", "Mod"])
def test_division_by_zero_is_reported(harness: Harness, name: str, dtype: Any) -> None:
    a = np.ones(5, dtype)
    with pytest.raises(KernelStatus) as status:
        harness.op(lower(name), [a, np.array([1, 1, 0, 1, 1], dtype)])
    assert status.value.args[0] == 3
    assert fold(name)(a, np.zeros(5, dtype)) is NotImplemented


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_fmod_of_floats(harness: Harness, dtype: Any) -> None:
    a, b = sample((500,), dtype, 0, -2000, 2000), sample((500,), dtype, 1, -7, 7)
    special = (
        np.array([0, -0.0, 5, np.inf, 3, np.nan, -3, 1e-3], dtype),
        np.array([1, 1, np.inf, 2, 0, 1, 3, 1e3], dtype),
    )
    a, b = np.concatenate([a, special[0]]), np.concatenate([b, special[1]])
    with np.errstate(all="ignore"):
        equal(harness.op(lower("Mod"), [a, b], fmod=1), np.fmod(a, b))
        equal(harness.op(lower("Mod"), [a, b]), np.mod(a, b))


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=name_of)
@pytest.mark.parametrize(("name", "function"), [("Max", np.maximum), ("Min", np.minimum)])
def test_extrema(harness: Harness, name: str, function: Any, dtype: Any) -> None:
    a, b, c = sample((3, 37), dtype), sample((37,), dtype, 1), sample((3, 1), dtype, 2)
    if np.dtype(dtype).kind not in "iu":
        a[0, :2] = [np.nan, np.inf]
        b[1] = np.nan
    want = function(function(a, b), c)
    equal(harness.op(lower(name), [a, b, c]), want)
    equal(harness.op(lower(name, 7), [c, b, a]), want)
    equal(harness.op(lower(name), [a]), a)
    equal(fold(name)(a, b, c), want)


def test_sum_and_mean(harness: Harness) -> None:
    a, b, c = sample((3, 37), np.float32), sample((37,), np.float32, 1), sample((3, 1), np.float32, 2)
    equal(harness.op(lower("Sum"), [a, b, c]), a + b + c)
    equal(harness.op(lower("Sum"), [b]), b)
    equal(harness.op(lower("Mean"), [a, b, c]), (a + b + c) / np.float32(3))


@pytest.mark.parametrize("dtype", INTEGERS, ids=name_of)
def test_powers_of_integers_wrap(harness: Harness, dtype: Any) -> None:
    a = sample((4, 1), dtype, 0, -5, 5)
    b = np.arange(9, dtype=dtype)
    with np.errstate(all="ignore"):
        want = np.power(a, b)
    equal(harness.op(lower("Pow"), [a, b]), want)
    equal(harness.op(lower("Pow"), [a, b.astype(np.int32)]), want)
    equal(fold("Pow")(a, b), want)


def test_powers_of_mixed_types_have_the_type_of_the_base(harness: Harness) -> None:
    x = np.float32([1.5, -2, 3])
    equal(harness.op(lower("Pow"), [x, np.int64([2, 3, 1])]), [2.25, -8, 3])
    equal(harness.op(lower("Pow"), [np.int32([2, -1, -2]), np.int64([-1, -3, -1])]), [0, -1, 0])


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_powers_do_not_round_the_exponent(harness: Harness, dtype: Any) -> None:
    x = np.array([-1, -1, -1, 2, 1], dtype)
    for kind in (np.int32, np.int64, np.uint64):
        y = np.array([2**24 + 1, 2**24 + 2, 257, 3, 2**31 - 1], kind)
        equal(harness.op(lower("Pow"), [x, y]), np.array([-1, 1, -1, 8, 1], dtype))
    tiny = np.finfo(np.float64).tiny
    equal(
        harness.op(lower("Pow"), [x, np.float64([tiny, 2, 1e300, 0.5, tiny])]),
        np.array([np.nan, 1, 1, 2**0.5, 1], dtype),
    )
    # An exponent that the model fixes.
    for number, want in ((np.int64(2**24 + 1), [-1, -1, -1, np.inf, 1]), (np.int64(3), [-1, -1, -1, 8, 1])):
        equal(run_node(harness, "Pow", [x, number], weights=(1,))[0], np.array(want, dtype))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_powers_of_16_bit_floats_with_exponents_of_32(harness: Harness, dtype: Any) -> None:
    x, y = np.array([1.5, 3, 100, 0.25], dtype), np.float32([0.1, -1.7, 1 / 3, 5.01])
    equal(harness.op(lower("Pow"), [x, y]), np.power(x.astype(np.float64), y).astype(dtype))


def test_a_square_that_the_model_fixes_is_a_product() -> None:
    cx = Context()
    x = Value((2, 3), dtypes.F32)
    lower("Pow")(cx, x, cx.known(np.float32(2)))
    assert [r.kernel for r in cx.records] == ["mul_f32"]


@pytest.mark.parametrize(
    ("name", "function"), [("And", np.logical_and), ("Or", np.logical_or), ("Xor", np.logical_xor)]
)
def test_logic(harness: Harness, name: str, function: Any) -> None:
    for a, b in SHAPES:
        x, y = sample(a, np.bool_), sample(b, np.bool_, 1)
        got = harness.op(lower(name), [x, y], split=2)
        assert got.dtype == np.bool_
        equal(got, function(x, y))
    equal(fold(name)(x, y), function(x, y))


@pytest.mark.parametrize("dtype", INTEGERS, ids=name_of)
def test_bits(harness: Harness, dtype: Any) -> None:
    a, b = sample((5, 21), dtype), sample((21,), dtype, 1)
    for name, function in (("And", np.bitwise_and), ("Or", np.bitwise_or), ("Xor", np.bitwise_xor)):
        equal(harness.op(lower(f"Bitwise{name}"), [a, b]), function(a, b))
    bits = np.dtype(dtype).itemsize * 8
    by = (np.arange(21) % bits).astype(dtype)
    far = np.full(21, bits, dtype)
    shift = lower("BitShift")
    equal(harness.op(shift, [a, by], direction="LEFT"), a << by)
    equal(harness.op(shift, [a, by], direction="RIGHT"), a >> by)
    equal(harness.op(shift, [a, far], direction="LEFT"), a * 0)
    equal(harness.op(shift, [a, far], direction="RIGHT"), a >> (bits - 1) if dtype in SIGNED else a * 0)
    with pytest.raises(ValueError, match="direction is 'UP', must be 'LEFT' or 'RIGHT'"):
        harness.op(shift, [a, by], direction="UP")


def test_shapes_and_types_that_do_not_fit_are_named(harness: Harness) -> None:
    with pytest.raises(ValueError, match=r"shapes do not broadcast: x0 \[2, 3\], x1 \[2\]"):
        harness.op(lower("Add"), [np.zeros((2, 3), np.float32), np.zeros(2, np.float32)])
    with pytest.raises(ValueError, match=r"different types: 'x0' float32\[2\], 'x1' int32\[2\]"):
        harness.op(lower("Add"), [np.zeros(2, np.float32), np.zeros(2, np.int32)])


def test_in_place(harness: Harness) -> None:
    a, b = sample((4, 4099), np.float32), sample((4099,), np.float32, 1)
    for name, x, y in (("a", a, b), ("b", b, a)):
        harness.reset()
        addresses = {"a": harness.put(x), "b": harness.put(y)}
        step = {"a": (0, 16396)[x is a], "b": (0, 16396)[y is a]}
        args: dict[str, Any] = {"n": a.size, "inner": 4099, "mid": 4, "rank": 0, "ia": 4, "ma": step["a"]}
        args |= {"ib": 4, "mb": step["b"], "act": 0, "alpha": 0, "beta": 0, "dims": (), "oa": (), "ob": ()}
        harness.call("sub_f32", 5, a=addresses["a"], b=addresses["b"], y=addresses[name], **args)
        equal(harness.get(addresses[name], a.shape, a.dtype), x - y)


def test_only_operands_of_the_output_s_shape_are_reused() -> None:
    cx = Context()
    a, b = Value((4, 1), dtypes.F32), Value((1, 4), dtypes.F32)
    same = Value((4, 4), dtypes.F32)
    assert lower("Add")(cx, a, b).reuse == ()
    assert lower("Add")(cx, same, b).reuse == (same,)
    assert lower("Equal")(cx, Value((4,), dtypes.F32), Value((4, 4), dtypes.F32)).reuse == ()


def test_an_activation_is_applied_in_the_same_pass(harness: Harness) -> None:
    def add_relu(cx: Context, a: Value, b: Value) -> Value:
        return lower("Relu")(cx, lower("Add")(cx, a, b))

    def clipped(cx: Context, a: Value, b: Value) -> Value:
        y = lower("Clip")(cx, lower("Sub")(cx, a, b), cx.known(np.float32(-3)), cx.known(np.float32(6)))
        assert len(cx.records) == 1
        return y

    a, b = sample((3, 4099), np.float32), sample((3, 1), np.float32, 1)
    for split in (1, 2):
        equal(harness.op(add_relu, [a, b], split=split), np.maximum(a + b, 0))
        equal(harness.op(clipped, [a, b], split=split), np.clip(a - b, -3, 6))


def channels(cx: Context, log: list[tuple[Value | None, Value | None]]) -> Value:
    x = cx.out((2, 5, 4, 4), dtypes.F32)
    x.producer = cx.emit("copy_bytes", x=x, y=x, n=0, act=int(Activation.NONE))

    def affine(scale: Value | None, shift: Value | None) -> bool:
        log.append((scale, shift))
        return True

    x.producer.affine = affine
    return x


@pytest.mark.parametrize(
    ("name", "scales", "kernel"),
    [("Mul", True, None), ("Div", True, "reciprocal_f32"), ("Add", False, None), ("Sub", False, "neg_f32")],
)
def test_constants_per_channel_fold_into_the_record_before(name: str, scales: bool, kernel: str | None) -> None:
    for shape in ((5, 1, 1), (1, 5, 1, 1)):
        cx, log = Context(), list[Any]()
        x, c = channels(cx, log), Value(shape, dtypes.F32, const=True)
        assert lower(name)(cx, x, c) is x
        (scale, shift) = log[0]
        folded, other = (scale, shift) if scales else (shift, scale)
        assert folded is not None
        assert other is None
        assert folded.shape == (5,)
        assert len(cx.records) == 1
        recipe = folded.recipe
        assert (recipe.records[0].kernel if recipe else None) == kernel
    for c in (
        Value((5, 1, 1), dtypes.F32),
        Value((1, 1, 4), dtypes.F32, const=True),
        Value((4,), dtypes.F32, const=True),
    ):
        cx, log = Context(), list[Any]()
        assert lower(name)(cx, channels(cx, log), c).shape == (2, 5, 4, 4)
        assert log == []


def test_a_sum_folds_into_the_record_of_either_side() -> None:
    for swap in (False, True):
        cx = Context()
        x, other = cx.out((2, 3), dtypes.F32), Value((2, 3), dtypes.F32)
        x.producer = cx.emit("copy_bytes", x=x, y=x, n=0, act=0, residual=None)
        operands = (other, x) if swap else (x, other)
        assert lower("Add")(cx, *operands) is x
        assert x.producer.args["residual"] is other
