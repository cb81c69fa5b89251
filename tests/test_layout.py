"""Elements that were only moved are read where they lie: no transpose is done that another undoes or a reader need not
have, and attention that is written out is one record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

import graphs
import onnx_wasm as ort
from graphs import FLOAT, node
from onnx_wasm.layout import whole

Array = np.ndarray[Any, Any]


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def kernels(
    data: bytes, feeds: Mapping[str, Array], level: str = "all", *, planned: bool = True
) -> tuple[list[Array], Counter[str]]:
    """The outputs, and which records made them."""
    with ort.Runtime(mem_pattern=planned) as runtime:
        session = ort.InferenceSession.create(data, runtime=runtime, graph_optimization_level=level)
        session.start_profiling()
        outputs = [t.get_data(release_data=True) for t in session.run(feeds).values()]
        events = session.end_profiling()
        session.dispose()
        assert runtime.memory().used == 0
        runtime.heap_check()
    return outputs, Counter(e.kernel for e in events)


def native(data: bytes, feeds: Mapping[str, Array]) -> list[Array]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    found: list[Array] = onnxruntime.InferenceSession(data, options).run(None, dict(feeds))
    return found


def check(data: bytes, feeds: Mapping[str, Array], *, planned: bool = True) -> Counter[str]:
    """Outputs as native onnxruntime's, at every level; the records of the highest."""
    wanted = native(data, feeds)
    for level in ("disabled", "all"):
        outputs, used = kernels(data, feeds, level, planned=planned)
        for got, expected in zip(outputs, wanted, strict=True):
            assert got.shape == expected.shape
            np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-6)
    return used


def model(nodes: Any, inputs: Mapping[str, Array], outputs: list[str], **weights: Array) -> bytes:
    return graphs.model(nodes, {n: (FLOAT, a.shape) for n, a in inputs.items()}, outputs, weights)


@given(st.data())
def test_a_layout_is_what_numpy_makes_of_strides(data: st.DataObject) -> None:
    """Permuted, cut and reshaped at random: the elements are those that numpy finds there."""
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    base = np.arange(np.prod(shape))
    array, layout = base.reshape(shape), whole(shape)
    for _ in range(data.draw(st.integers(1, 5))):
        how = data.draw(st.sampled_from(["permute", "part", "reshape"]))
        if how == "permute":
            order = data.draw(st.permutations(range(array.ndim)))
            array, layout = array.transpose(order), layout.permuted(order)
        elif how == "part":
            places = [range(data.draw(st.integers(0, d - 1)), d, data.draw(st.integers(1, 2))) for d in array.shape]
            array, layout = array[np.ix_(*places)], layout.part(places)
        else:
            target = list(data.draw(st.permutations([*array.shape, 1])))
            if data.draw(st.booleans()) and len(target) > 1:
                target = [target[0] * target[1], *target[2:]]
            reshaped = layout.reshaped(tuple(target))
            if reshaped is None:
                continue
            array, layout = array.reshape(target), reshaped
        items = base.itemsize
        found = np.lib.stride_tricks.as_strided(
            base[layout.offset :], layout.shape, [s * items for s in layout.strides], writeable=False
        )
        np.testing.assert_array_equal(found, array)


def test_a_layout_that_no_strides_describe_has_none() -> None:
    assert whole((2, 3)).permuted((1, 0)).reshaped((6,)) is None
    assert whole((2, 3)).reshaped((3, 2)) == whole((3, 2))
    assert whole((0, 3)).reshaped((3, 0)) is None


def test_a_transpose_that_is_undone_is_not_done() -> None:
    x = normal(2, 3, 4, 5)
    nodes = [
        node("Transpose", ["x"], ["a"], perm=[0, 2, 3, 1]),
        node("Transpose", ["a"], ["b"], perm=[0, 3, 1, 2]),
        node("Exp", ["b"], ["y"]),
    ]
    assert check(model(nodes, {"x": x}, ["y"]), {"x": x}) == {"exp_f32": 1}


def test_a_transpose_that_is_read_twice_is_done_once() -> None:
    x = normal(2, 3, 4, 5)
    nodes = [
        node("Transpose", ["x"], ["a"], perm=[0, 2, 3, 1]),
        node("Transpose", ["a"], ["b"], perm=[0, 3, 1, 2]),
        node("Exp", ["b"], ["y"]),
    ]
    used = check(model(nodes, {"x": x}, ["y", "a"]), {"x": x})
    assert used == {"exp_f32": 1, "transpose_b4": 1}


@pytest.mark.parametrize("between", ["Reshape", "Transpose", "Slice"])
def test_a_copy_that_others_read_is_of_what_was_there(between: str) -> None:
    """An activation behind one reader must not join the convolution that the copy is made of."""
    x = normal(1, 3, 4, 5)
    how: dict[str, list[Any]] = {
        "Reshape": [node("Reshape", ["a", "shape"], ["b"])],
        "Transpose": [node("Transpose", ["a"], ["b"], perm=[0, 3, 1, 2])],
        "Slice": [node("Slice", ["a", "start", "end"], ["b"])],
    }
    nodes = [
        node("Conv", ["x", "w"], ["c"]),
        node("Transpose", ["c"], ["a"], perm=[0, 2, 3, 1]),
        *how[between],
        node("Relu", ["b"], ["y"]),
        node("Neg", ["a"], ["z"]),
    ]
    weights = {
        "w": normal(6, 3, 1, 1, seed=1),
        "shape": np.array([1, 4, 5, 6]),
        "start": np.array([0]),
        "end": np.array([1]),
    }
    check(model(nodes, {"x": x}, ["y", "z"], **weights), {"x": x})


def test_two_transposes_are_one() -> None:
    x = normal(2, 3, 4, 5)
    nodes = [
        node("Transpose", ["x"], ["a"], perm=[0, 2, 3, 1]),
        node("Transpose", ["a"], ["y"], perm=[0, 2, 1, 3]),
    ]
    assert sum(check(model(nodes, {"x": x}, ["y"]), {"x": x}).values()) == 1


def test_elementwise_nodes_between_transposes_work_on_what_was_there_before() -> None:
    """As converters from channels-last leave it: a bias along the last axis, an activation, a sum of two."""
    x, z, w = normal(2, 6, 4, 5), normal(2, 6, 4, 5, seed=1), normal(6, 6, 3, 3, seed=2) / 5
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        node("Transpose", ["c"], ["a"], perm=[0, 2, 3, 1]),
        node("Add", ["a", "bias"], ["b"]),
        node("Relu", ["b"], ["r"]),
        node("Transpose", ["z"], ["t"], perm=[0, 2, 3, 1]),
        node("Add", ["r", "t"], ["s"]),
        node("Transpose", ["s"], ["y"], perm=[0, 3, 1, 2]),
    ]
    data = model(nodes, {"x": x, "z": z}, ["y"], w=w, bias=normal(6, seed=3))
    used = check(data, {"x": x, "z": z})
    # Bias and activation join the convolution.
    assert not [k for k in used if "transpose" in k or "relu" in k], used
    assert used["add_f32"] == 1


@pytest.mark.parametrize("op", ["Add", "Mul", "Sub", "Div", "PRelu", "Max", "Pow"])
@pytest.mark.parametrize("shape", [(), (1,), (5,), (4, 1), (3, 1, 1), (1, 1, 1, 5), (3, 4, 5)])
def test_what_is_combined_with_a_transposed_tensor(op: str, shape: tuple[int, ...]) -> None:
    x = np.abs(normal(3, 5, 4)) + 0.5
    other = np.abs(normal(*shape, seed=4)) + 0.5
    if op == "PRelu" and len(shape) > 3:
        pytest.skip("a slope broadcasts in one direction")
    nodes = [
        node("Transpose", ["x"], ["a"], perm=[0, 2, 1]),
        node(op, ["a", "other"], ["b"]),
        node("Transpose", ["b"], ["y"], perm=[0, 2, 1] if len(shape) < 4 else [0, 1, 3, 2]),
    ]
    check(model(nodes, {"x": x}, ["y"], other=other.astype(np.float32)), {"x": x})


def test_what_does_not_broadcast_is_named_as_the_model_has_it() -> None:
    x = normal(3, 5, 4)
    nodes = [node("Transpose", ["x"], ["a"], perm=[0, 2, 1]), node("Add", ["a", "other"], ["y"])]
    data = model(nodes, {"x": x}, ["y"], other=normal(4))
    with ort.Runtime() as runtime, pytest.raises(ort.ShapeError, match=r"a \[3, 4, 5\], other \[4\]"):
        ort.InferenceSession.create(data, runtime=runtime)


@pytest.mark.parametrize("perm", [[0, 1, 3, 2], [0, 2, 1, 3], [2, 0, 1, 3], [0, 2, 3, 1], [3, 1, 2, 0], [1, 3, 0, 2]])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 9, 33])
def test_products_read_transposed_operands(perm: list[int], first: bool, rows: int) -> None:
    shape = (2, 3, rows, 5)
    x = normal(*shape)
    moved = tuple(shape[p] for p in perm)
    other = normal(*moved[:-2], *((moved[-1], 7) if first else (6, moved[-2])), seed=5)
    nodes = [
        node("Transpose", ["x"], ["a"], perm=perm),
        node("MatMul", ["a", "other"] if first else ["other", "a"], ["y"]),
    ]
    check(model(nodes, {"x": x, "other": other}, ["y"]), {"x": x, "other": other})


def test_a_product_with_transposed_weights_and_rows() -> None:
    x, w = normal(2, 6, 3, 4), normal(6, 8, seed=1)
    nodes = [
        node("Reshape", ["x", "shape"], ["a"]),
        node("Transpose", ["a"], ["b"], perm=[0, 2, 1]),
        node("MatMul", ["b", "w"], ["y"]),
    ]
    data = model(nodes, {"x": x}, ["y"], w=w, shape=np.array([2, 6, 12], np.int64))
    assert check(data, {"x": x}) == {"gemm_f32": 1}


def test_parts_of_a_transposed_tensor_are_read_where_they_were() -> None:
    """q, k and v that lie beside each other, as in a vision transformer."""
    x = normal(2, 7, 3 * 2 * 8)
    nodes = [
        node("Reshape", ["x", "apart"], ["r"]),
        node("Transpose", ["r"], ["t"], perm=[2, 0, 3, 1, 4]),
        node("Split", ["t"], ["q5", "k5", "v5"], axis=0, num_outputs=3),
        *[node("Squeeze", [f"{n}5", "zero"], [n]) for n in "qkv"],
        node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "kt"], ["s"]),
        node("Mul", ["s", "scale"], ["m"]),
        node("Softmax", ["m"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["o"]),
        node("Transpose", ["o"], ["ot"], perm=[0, 2, 1, 3]),
        node("Reshape", ["ot", "together"], ["y"]),
    ]
    weights = {
        "apart": np.array([2, 7, 3, 2, 8], np.int64),
        "together": np.array([2, 7, 16], np.int64),
        "zero": np.array([0], np.int64),
        "scale": np.array(8**-0.5, np.float32),
    }
    assert check(model(nodes, {"x": x}, ["y"], **weights), {"x": x}) == {"attention_f32": 1}


HEADS, SIZE, ROWS, KEYS = 3, 8, 6, 10


def attention(
    scores: list[Any],
    *,
    axis: int = -1,
    extra: list[Any] | None = None,
    outputs: tuple[str, ...] = ("y",),
    **given: Array,
) -> tuple[bytes, dict[str, Array]]:
    """A model of ``scores``, nodes from "s" to "m", and what it is fed."""
    feeds = {
        "q": normal(2, HEADS, ROWS, SIZE),
        "k": normal(2, HEADS, KEYS, SIZE, seed=1),
        "v": normal(2, HEADS, KEYS, 5, seed=2),
    }
    feeds |= {n: a for n, a in given.items() if n.startswith("x_")}
    nodes = [
        node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "kt"], ["s"]),
        *scores,
        node("Softmax", ["m"], ["p"], axis=axis),
        *(extra or []),
        node("MatMul", ["w" if extra else "p", "v"], ["y"]),
    ]
    weights = {n: a for n, a in given.items() if not n.startswith("x_")}
    inputs = {n: (graphs.BOOL if a.dtype == bool else FLOAT, a.shape) for n, a in feeds.items()}
    return graphs.model(nodes, inputs, list(outputs), weights), feeds


SCALE = np.array(0.3, np.float32)
MASK = normal(ROWS, KEYS, seed=7) * 3
VISIBLE = np.random.default_rng(3).random((2, 1, ROWS, KEYS)) < 0.6
VISIBLE[..., 0] = True
LOWEST = np.array(np.finfo(np.float32).min, np.float32)
GUARD = [node("IsNaN", ["p"], ["nan"]), node("Where", ["nan", "zero", "p"], ["w"])]


@pytest.mark.parametrize(
    ("scores", "given"),
    [
        ([node("Identity", ["s"], ["m"])], {}),
        ([node("Mul", ["s", "c"], ["m"])], {"c": SCALE}),
        ([node("Mul", ["c", "s"], ["m"])], {"c": SCALE}),
        ([node("Div", ["s", "c"], ["m"])], {"c": SCALE}),
        ([node("Add", ["s", "a"], ["m"])], {"a": MASK}),
        ([node("Mul", ["s", "c"], ["n"]), node("Add", ["x_a", "n"], ["m"])], {"c": SCALE, "x_a": MASK}),
        ([node("Add", ["s", "a"], ["n"]), node("Add", ["n", "x_b"], ["m"])], {"a": MASK, "x_b": normal(2, 1, 1, KEYS)}),
        ([node("Where", ["x_v", "s", "low"], ["m"])], {"x_v": VISIBLE, "low": LOWEST}),
        ([node("Where", ["x_v", "s", "low"], ["m"])], {"x_v": VISIBLE, "low": np.array(-np.inf, np.float32)}),
        ([node("Where", ["x_v", "s", "low"], ["m"])], {"x_v": VISIBLE, "low": np.array(-3, np.float32)}),
        (
            [node("Mul", ["s", "c"], ["n"]), node("Where", ["x_v", "n", "low"], ["m"])],
            {"c": SCALE, "x_v": VISIBLE, "low": LOWEST},
        ),
    ],
    ids=["plain", "mul", "mul-first", "div", "mask", "scale-mask", "masks", "lowest", "infinite", "number", "scaled"],
)  # fmt: skip
def test_attention_written_out(scores: list[Any], given: dict[str, Array]) -> None:
    data, feeds = attention(scores, **given)
    used = check(data, feeds)
    assert used["attention_f32"] == 1
    assert not {"softmax_f32_last", "gemm_f32", "transpose_b4"} & used.keys()


@pytest.mark.parametrize(
    ("scores", "given"),
    [
        # After the mask.
        ([node("Add", ["s", "a"], ["n"]), node("Mul", ["n", "c"], ["m"])], {"a": MASK, "c": SCALE}),
        # Not the same for all.
        ([node("Mul", ["s", "x_c"], ["m"])], {"x_c": np.array(0.3, np.float32)}),
        ([node("Mul", ["s", "c"], ["m"])], {"c": MASK}),
        # Not along keys.
        ([node("Add", ["s", "a"], ["m"])], {"a": MASK[:, :1]}),
        # What is added does not replace.
        (
            [node("Where", ["x_v", "s", "low"], ["n"]), node("Add", ["n", "a"], ["m"])],
            {"x_v": VISIBLE, "low": LOWEST, "a": MASK},
        ),
        (
            [node("Add", ["s", "a"], ["n"]), node("Where", ["x_v", "n", "low"], ["m"])],
            {"x_v": VISIBLE, "low": LOWEST, "a": MASK},
        ),
        ([node("Where", ["x_v", "low", "s"], ["m"])], {"x_v": ~VISIBLE, "low": LOWEST}),
        ([node("Relu", ["s"], ["m"])], {}),
    ],
    ids=["mask-scale", "fed-scale", "scales", "rows", "where-mask", "mask-where", "other-way", "relu"],
)
def test_scores_of_another_form_stay_scores(scores: list[Any], given: dict[str, Array]) -> None:
    data, feeds = attention(scores, **given)
    used = check(data, feeds)
    assert "attention_f32" not in used
    assert used["softmax_f32_last"] == 1


@pytest.mark.parametrize(
    ("op", "factor", "size"), [("Mul", 1e25, 1e-25), ("Mul", 1e-25, 1e25), ("Div", 1e-40, 1e-20), ("Div", 1e38, 1e18)]
)
def test_a_scale_that_is_not_ordinary(op: str, factor: float, size: float) -> None:
    data, feeds = attention([node(op, ["s", "c"], ["n"]), node(op, ["n", "c"], ["m"])], c=np.array(factor, np.float32))
    feeds |= {n: feeds[n] * np.float32(size) for n in ("q", "k")}
    assert "attention_f32" not in check(data, feeds)


@pytest.mark.parametrize("outputs", [("y", "p"), ("y", "s"), ("y", "m")])
def test_scores_and_weights_that_others_read_are_there(outputs: tuple[str, ...]) -> None:
    data, feeds = attention([node("Mul", ["s", "c"], ["m"])], outputs=outputs, c=SCALE)
    assert "attention_f32" not in check(data, feeds)


def test_softmax_along_another_axis_is_no_attention() -> None:
    data, feeds = attention([node("Mul", ["s", "c"], ["m"])], axis=2, c=SCALE)
    assert "attention_f32" not in check(data, feeds)


@pytest.mark.parametrize("rows", [1, 2, 6], ids=lambda n: f"rows{n}")
@pytest.mark.parametrize("guarded", [False, True])
def test_a_query_without_keys(guarded: bool, rows: int) -> None:
    """Not a number, as a softmax of negative infinities is, unless the model says 0."""
    visible = np.ones((rows, KEYS), bool)
    visible[0] = False
    nodes = [
        node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "kt"], ["s"]),
        node("Where", ["v", "s", "low"], ["m"]),
        node("Softmax", ["m"], ["p"], axis=-1),
        *(GUARD if guarded else [node("Identity", ["p"], ["w"])]),
        node("MatMul", ["w", "values"], ["y"]),
    ]
    feeds: dict[str, Array] = {
        "q": normal(1, 2, rows, 8),
        "k": normal(1, 2, KEYS, 8, seed=1),
        "values": normal(1, 2, KEYS, 4, seed=2),
        "v": visible,
    }
    inputs = {n: (graphs.BOOL if a.dtype == bool else FLOAT, a.shape) for n, a in feeds.items()}
    weights = {"low": np.array(-np.inf, np.float32), "zero": np.array(0, np.float32)}
    data = graphs.model(nodes, inputs, ["y"], weights)
    assert check(data, feeds)["attention_f32"] == 1
    (y,), _ = kernels(data, feeds)
    assert np.isnan(y[:, :, 0]).all() != guarded
    assert not np.isnan(y[:, :, 1:]).any()
    assert not guarded or not y[:, :, 0].any()


def test_queries_that_are_not_numbers() -> None:
    data, feeds = attention([node("Identity", ["s"], ["m"])], extra=GUARD, zero=np.array(0, np.float32))
    feeds["q"][0, 0, 1, 2] = np.nan
    assert check(data, feeds)["attention_f32"] == 1


def test_heads_are_put_beside_each_other_by_the_attention_itself() -> None:
    feeds = {n: normal(2, 6, 24, seed=i) for i, n in enumerate("qkv")}
    nodes = []
    for n in "qkv":
        nodes += [node("Reshape", [n, "apart"], [f"{n}r"])]
        nodes += [node("Transpose", [f"{n}r"], [f"{n}t"], perm=[0, 2, 3, 1] if n == "k" else [0, 2, 1, 3])]
    nodes += [
        node("MatMul", ["qt", "kt"], ["s"]),
        node("Div", ["s", "c"], ["m"]),
        node("Softmax", ["m"], ["p"], axis=-1),
        node("MatMul", ["p", "vt"], ["o"]),
        node("Transpose", ["o"], ["ot"], perm=[0, 2, 1, 3]),
        node("Transpose", ["ot"], ["again"], perm=[1, 0, 2, 3]),
        node("Reshape", ["again", "together"], ["y"]),
    ]
    weights = {
        "apart": np.array([0, 0, 3, 8], np.int64),
        "together": np.array([0, 0, -1], np.int64),
        "c": np.array(8**0.5, np.float32),
    }
    used = check(model(nodes, feeds, ["y"], **weights), feeds)
    assert used["attention_f32"] == 1
    assert "gemm_f32" not in used


def test_a_place_that_is_given_up_in_between_is_not_read() -> None:
    """What a run must tell ends a segment; after it, only what is still needed can be read."""
    x, z = normal(3, 40), normal(4, 3, seed=1)
    nodes = [
        node("Exp", ["x"], ["e"]),
        node("Transpose", ["e"], ["t"]),
        node("NonZero", ["x"], ["places"]),
        node("Shape", ["places"], ["count"]),
        node("ConstantOfShape", ["count"], ["many"]),
        node("ReduceSum", ["many"], ["nothing"], keepdims=0),
        node("MatMul", ["t", "three"], ["product"]),
        node("Add", ["product", "nothing"], ["y"]),
    ]
    check(model(nodes, {"x": x}, ["y"], three=z.T.copy()), {"x": x})


def test_a_body_does_not_change_what_it_reads_again() -> None:
    """An activation in a loop reads a transposed tensor of the graph around it in every iteration."""
    x = normal(2, 3, 4, 4)
    body = graphs.helper.make_graph(
        [
            node("Relu", ["t"], ["r"]),
            node("Sub", ["r", "acc"], ["next"]),
            node("Identity", ["cond"], ["go"]),
        ],
        "body",
        [
            graphs.helper.make_tensor_value_info("i", graphs.INT64, []),
            graphs.helper.make_tensor_value_info("cond", graphs.BOOL, []),
            graphs.helper.make_tensor_value_info("acc", FLOAT, None),
        ],
        [
            graphs.helper.make_tensor_value_info("go", graphs.BOOL, []),
            graphs.helper.make_tensor_value_info("next", FLOAT, None),
        ],
    )
    nodes = [
        node("Conv", ["x", "w"], ["c"]),
        node("Transpose", ["c"], ["t"], perm=[0, 2, 3, 1]),
        node("Loop", ["count", "", "start"], ["y"], body=body),
    ]
    weights = {"w": normal(3, 3, 1, 1, seed=1), "count": np.array(3, np.int64), "start": np.ones(1, np.float32)}
    check(model(nodes, {"x": x}, ["y"], **weights), {"x": x})


CONV = normal(3, 3, 1, 1, seed=9)


@pytest.mark.parametrize("which", ["q", "k"])
@pytest.mark.parametrize("op", ["Mul", "Div"])
def test_a_factor_that_has_joined_an_operand_is_not_taken_twice(which: str, op: str) -> None:
    """The product of q or k by a number may be in its convolution already."""
    feeds = {"q": normal(1, 3, 6, 8), "k": normal(1, 3, 10, 8, seed=1), "v": normal(1, 3, 10, 4, seed=2)}
    nodes, weights = [], {"w": CONV, "factor": np.array(0.3, np.float32)}
    if which == "q":
        nodes += [node("Conv", ["q", "w"], ["q1"]), node(op, ["q1", "factor"], ["q2"])]
        nodes += [node("Transpose", ["k"], ["k2"], perm=[0, 1, 3, 2])]
    else:
        nodes += [node("Identity", ["q"], ["q2"]), node("Conv", ["k", "w"], ["k0"])]
        nodes += [node("Transpose", ["k0"], ["k1"], perm=[0, 1, 3, 2]), node(op, ["k1", "factor"], ["k2"])]
    nodes += [
        node("MatMul", ["q2", "k2"], ["s"]),
        node("Softmax", ["s"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["y"]),
    ]
    assert check(model(nodes, feeds, ["y"], **weights), feeds)["attention_f32"] == 1


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("of", ["Conv", "MatMul"])
def test_a_mask_that_scores_have_joined_is_not_added_twice(of: str, first: bool) -> None:
    """A relative position bias that is a product itself, into which the sum may go as well as into the scores."""
    feeds = {"q": normal(1, 3, 6, 8), "k": normal(1, 3, 10, 8, seed=1), "v": normal(1, 3, 10, 4, seed=2)}
    feeds["b"] = normal(1, 3, 6, 10, seed=3)
    bias = node("Conv", ["b", "w"], ["bias"]) if of == "Conv" else node("MatMul", ["q", "r"], ["bias"])
    scores = [node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]), node("MatMul", ["q", "kt"], ["s"])]
    nodes = [
        *([bias, *scores] if first else [*scores, bias]),
        node("Add", ["s", "bias"] if first else ["bias", "s"], ["m"]),
        node("Softmax", ["m"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["y"]),
    ]
    if of == "MatMul":
        del feeds["b"]
    check(model(nodes, feeds, ["y"], w=CONV, r=normal(8, 10, seed=4)), feeds)


@pytest.mark.parametrize("low", [-np.inf, float(LOWEST), -1e30])
def test_keys_that_are_not_numbers_are_masked(low: float) -> None:
    """Where replaces the score, whatever it is; a row without a key has equal weights if the number is finite."""
    feeds = {"q": normal(1, 2, 6, 8), "k": normal(1, 2, 10, 8, seed=1), "v": normal(1, 2, 10, 4, seed=2)}
    feeds["k"][0, :, 3] = np.nan
    feeds["k"][0, :, 4] = np.inf
    visible = np.random.default_rng(5).random((6, 10)) < 0.5
    visible[:, [3, 4]] = False
    visible[2] = False
    nodes = [
        node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "kt"], ["s"]),
        node("Where", ["visible", "s", "low"], ["m"]),
        node("Softmax", ["m"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["y"]),
    ]
    data = model(nodes, feeds, ["y"], low=np.array(low, np.float32), visible=visible)
    assert check(data, feeds)["attention_f32"] == 1


@pytest.mark.parametrize("planned", [True, False])
@pytest.mark.parametrize("move", ["Transpose", "Slice", "Split"])
@pytest.mark.parametrize("reader", ["Transpose", "MatMul"])
def test_a_copy_right_before_a_question_is_read_itself(move: str, reader: str, planned: bool) -> None:
    """What it was copied from is given up when the run goes on."""
    x, w = normal(6, 64), normal(16, 4, seed=1)
    how: dict[str, list[Any]] = {
        "Transpose": [node("Transpose", ["e"], ["t0"]), node("Slice", ["t0", "zero", "sixteen", "zero"], ["t1"])],
        "Slice": [node("Slice", ["e", "zero", "sixteen", "one"], ["t"])],
        "Split": [node("Split", ["e", "parts"], ["t", "rest"], axis=1)],
    }
    if move == "Transpose":
        how[move].append(node("Transpose", ["t1"], ["t"]))
    nodes = [
        node("ReduceMax", ["x"], ["m"], keepdims=0),
        node("Mul", ["m", "nothing"], ["m0"]),
        node("Add", ["m0", "five"], ["m5"]),
        node("Cast", ["m5"], ["count"], to=graphs.INT64),
        node("Unsqueeze", ["count", "zero"], ["n"]),
        node("Exp", ["x"], ["e"]),
        *how[move],
        node("Expand", ["single", "n"], ["z"]),
        *[node("Add", ["x", f"k{i}"], [f"u{i}"]) for i in range(4)],
        node("Concat", [f"u{i}" for i in range(4)], ["all"], axis=0),
        node("Softmax", ["all"], ["u"], axis=-1),
        node("Transpose", ["t"], ["y"]) if reader == "Transpose" else node("MatMul", ["t", "w"], ["y"]),
    ]
    weights = {
        "nothing": np.array(0, np.float32),
        "five": np.array(5, np.float32),
        "single": np.ones(1, np.float32),
        "zero": np.array([0]),
        "one": np.array([1]),
        "sixteen": np.array([16]),
        "parts": np.array([16, 48]),
        "w": w,
        **{f"k{i}": np.array(100 + i, np.float32) for i in range(4)},
    }
    check(model(nodes, {"x": x}, ["y", "z", "u"], **weights), {"x": x}, planned=planned)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("split", [False, True])
def test_an_element_of_a_sequence_is_the_same_for_all_readers(transposed: bool, split: bool) -> None:
    x = normal(1, 3, 4, 4)
    nodes = [node("Conv", ["x", "w"], ["c"])]
    if transposed:
        nodes.append(node("Transpose", ["c"], ["t"], perm=[0, 2, 3, 1]))
    made = "t" if transposed else "c"
    if split:
        nodes.append(node("SplitToSequence", [made, "four"], ["seq"], axis=1 if transposed else 2))
    else:
        nodes.append(node("SequenceConstruct", [made], ["seq"]))
    nodes += [
        node("SequenceAt", ["seq", "zero"], ["a"]),
        node("SequenceAt", ["seq", "zero"], ["b"]),
        node("Relu", ["a"], ["y"]),
        node("Exp", ["b"], ["z"]),
    ]
    data = model(nodes, {"x": x}, ["y", "z"], w=CONV, four=np.array(4), zero=np.array(0))
    check(data, {"x": x})


def test_bad_data_is_reported_where_nothing_is_made_of_it() -> None:
    """A node that looks at indices runs, although all that reads its result is empty."""
    nodes = [node("ScatterND", ["x", "at", "u"], ["s"]), node("Tile", ["s", "none"], ["y"])]
    data = graphs.model(
        nodes, {"x": (FLOAT, [3]), "at": (graphs.INT64, [1, 1]), "u": (FLOAT, [1])}, ["y"], {"none": np.array([0])}
    )
    feeds = {"x": np.ones(3, np.float32), "at": np.array([[-100]]), "u": np.ones(1, np.float32)}
    with ort.InferenceSession.create(data) as session:
        assert session.run({**feeds, "at": np.array([[1]])})["y"].get_data(release_data=True).shape == (0,)
        with pytest.raises(IndexError, match=r'ScatterND "s" \(node 0\): index -100'):
            session.run(feeds)
