"""Strings through sessions: native onnxruntime says what comes out, where it has the operator."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto

import graphs
import onnx_wasm as ort
from graphs import BOOL, FLOAT, INT32, INT64, model, node

STRING = TensorProto.STRING
Array = np.ndarray[Any, Any]
chance = np.random.default_rng(11)


def text(*words: Any) -> Array:
    return np.array(words, object)


ABC = text(["a", "b", "c"], ["d", "é", ""])


@pytest.fixture(scope="module")
def runtime() -> Iterator[ort.Runtime]:
    runtime = ort.Runtime()
    yield runtime
    gc.collect()
    assert runtime.memory().used == 0
    runtime.close()


def kind(array: Array) -> int:
    return STRING if array.dtype == object else int(onnx.helper.np_dtype_to_tensor_dtype(array.dtype))


def build(
    nodes: Sequence[onnx.NodeProto],
    feeds: Mapping[str, Array],
    outputs: Mapping[str, int],
    weights: Mapping[str, Array] | None = None,
    opset: int = 20,
    *,
    static: bool = False,
) -> bytes:
    inputs = {n: (kind(a), a.shape if static else [None] * a.ndim) for n, a in feeds.items()}
    proto = onnx.load_from_string(model(nodes, inputs, list(outputs), weights, opset=opset, ir_version=9))
    for output in proto.graph.output:
        output.type.tensor_type.elem_type = outputs[output.name]
    data: bytes = proto.SerializeToString()
    return data


def run(runtime: ort.Runtime, data: bytes, *feeds: Mapping[str, Array]) -> list[dict[str, Array]]:
    """One session, a run for each of the feeds."""
    found = []
    with ort.InferenceSession.create(data, runtime=runtime) as session:
        for each in feeds:
            results = session.run(each)
            found.append({n: np.array(t.data) for n, t in results.items()})
            for result in results.values():
                result.dispose()
    return found


def same(got: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    for name, e in expected.items():
        g = got[name]
        assert g.shape == e.shape, name
        if e.dtype == object:
            assert g.tolist() == e.tolist(), name
        else:
            assert g.dtype == e.dtype, name
            np.testing.assert_array_equal(g, e)


def compare(
    runtime: ort.Runtime,
    nodes: Sequence[onnx.NodeProto],
    feeds: Mapping[str, Array],
    outputs: Mapping[str, int],
    weights: Mapping[str, Array] | None = None,
    opset: int = 20,
) -> dict[str, Array]:
    data = build(nodes, feeds, outputs, weights, opset, static=True)
    (got,) = run(runtime, data, feeds)
    same(got, graphs.native(data, feeds))
    return got


I = np.array  # noqa: E741

# (op, inputs, attributes, opset): strings that are moved.
MOVES: list[tuple[str, list[Array], dict[str, Any]]] = [
    ("Identity", [ABC], {}),
    ("Transpose", [ABC], {}),
    ("Flatten", [ABC[None]], {}),
    ("Reshape", [ABC, I([3, -1])], {}),
    ("Squeeze", [ABC[:1], I([0])], {}),
    ("Unsqueeze", [ABC, I([1])], {}),
    ("Expand", [ABC[:, :1], I([2, 4])], {}),
    ("Tile", [ABC, I([2, 1])], {}),
    ("Concat", [ABC, ABC[:1]], {"axis": 0}),
    ("Gather", [ABC, I([[2, -1], [0, 1]])], {"axis": 1}),
    ("Gather", [ABC, I(1)], {"axis": 1}),
    ("GatherElements", [ABC, I([[1, 0, 1]])], {}),
    ("GatherND", [ABC, I([[1, 1], [0, 2]])], {}),
    ("ScatterElements", [ABC, I([[1, 0, 1]]), text(["x", "y", "z"])], {}),
    ("ScatterND", [ABC, I([[1, 1], [0, 2]]), text("x", "y")], {}),
    ("Slice", [ABC, I([0, 2]), I([2, 0]), I([0, 1]), I([1, -1])], {}),
    ("Compress", [ABC, I([True, False, True])], {"axis": 1}),
    ("Where", [I([[True], [False]]), ABC, text("x", "y", "z")], {}),
    ("OneHot", [I([2, 0, -1]), I(3), text("off", "on")], {}),
    ("DepthToSpace", [ABC.reshape(1, 6, 1, 1)[:, :4], None], {"blocksize": 2}),  # type: ignore[list-item]
    ("Trilu", [ABC], {"upper": 0}),
    ("Pad", [ABC, I([0, 1, 1, 0])], {}),
    ("Pad", [ABC, I([0, 1, 1, 0]), text("x").reshape(())], {}),
    ("ReverseSequence", [ABC, I([2, 1, 2])], {}),
]
# Of these native onnxruntime has no form for strings.
EXPECTED = {
    "DepthToSpace": text([[["a", "b"], ["c", "d"]]]),
    "Trilu": text(["a", "", ""], ["d", "é", ""]),
    "Pad": text(["", "a", "b", "c"], ["", "d", "é", ""], ["", "", "", ""]),
}


@pytest.mark.parametrize("fixed", [False, True], ids=["fed", "weights"])
@pytest.mark.parametrize(("op", "inputs", "attributes"), MOVES, ids=[m[0] for m in MOVES])
def test_ops_that_move(
    runtime: ort.Runtime, op: str, inputs: list[Array | None], attributes: dict[str, Any], fixed: bool
) -> None:
    named = {f"x{i}": x for i, x in enumerate(inputs) if x is not None}
    feeds = {n: x for n, x in named.items() if not fixed or x.dtype == object}
    weights = {n: x for n, x in named.items() if n not in feeds}
    nodes = [node(op, list(named), ["y"], **attributes)]
    data = build(nodes, feeds, {"y": STRING}, weights)
    (got,) = run(runtime, data, feeds)
    if op in EXPECTED:
        expected = EXPECTED[op]
        if len(named) == 3:
            expected = np.where([[True, False, False, False], [True, False, False, False], [True] * 4], "x", expected)
        same(got, {"y": expected.astype(object)})
    else:
        same(got, graphs.native(data, feeds))


def test_split_and_sequences(runtime: ort.Runtime) -> None:
    nodes = [
        node("Split", ["x"], ["a", "b", "c"], axis=1, num_outputs=3),
        node("SequenceConstruct", ["a", "c"], ["s"]),
        node("SequenceAt", ["s", "one"], ["t"]),
        node("Concat", ["t", "b"], ["y"], axis=1),
        node("ConcatFromSequence", ["s"], ["z"], axis=0),
    ]
    compare(runtime, nodes, {"x": ABC}, {"y": STRING, "z": STRING}, {"one": I(1)})


def test_a_label_of_the_best_class(runtime: ort.Runtime) -> None:
    """Labels are looked up after the run; a node that looks at them ends a segment."""
    nodes = [
        node("ArgMax", ["x"], ["best"], axis=1, keepdims=0),
        node("Gather", ["labels", "best"], ["label"]),
        node("Shape", ["label"], ["shape"]),
        node("StringConcat", ["label", "mark"], ["marked"]),
        node("Equal", ["label", "cat"], ["is_cat"]),
        node("Cast", ["is_cat"], ["number"], to=FLOAT),
        node("ReduceSum", ["number"], ["cats"], keepdims=0),
    ]
    weights = {"labels": text("cat", "dog", "bird"), "mark": text("!"), "cat": text("cat")}
    outputs = {"label": STRING, "shape": INT64, "marked": STRING, "is_cat": BOOL, "cats": FLOAT}
    x = chance.normal(size=(4, 3)).astype(np.float32)
    data = build(nodes, {"x": x}, outputs, weights)
    feeds = [{"x": v} for v in (x, -x, x, np.zeros((1, 3), np.float32))]
    for got, each in zip(run(runtime, data, *feeds), feeds, strict=True):
        same(got, graphs.native(data, each))
    only = build(nodes[:2], {"x": x}, {"label": STRING}, weights)
    with ort.InferenceSession.create(only, runtime=runtime) as session:
        for each in feeds:
            same({"label": session.run(each)["label"].data}, graphs.native(only, each))


def test_an_index_out_of_range_names_the_node(runtime: ort.Runtime) -> None:
    data = build([node("Gather", ["labels", "i"], ["y"])], {"i": I([0])}, {"y": STRING}, {"labels": text("a", "b")})
    with pytest.raises(ort.NodeIndexError, match=r'Gather "y" .* index 2 out of range \[-2, 2\)'):
        run(runtime, data, {"i": I([2])})


def test_strings_through_control_flow(runtime: ort.Runtime) -> None:
    def branch(name: str, word: str) -> onnx.GraphProto:
        out = onnx.helper.make_tensor_value_info("o", STRING, None)
        mark = node("Constant", [], ["m"], value_string=word)
        return onnx.helper.make_graph([mark, node("StringConcat", ["label", "m"], ["o"])], name, [], [out])

    nodes = [
        node("Gather", ["labels", "i"], ["label"]),
        node("If", ["c"], ["y"], then_branch=branch("yes", "+"), else_branch=branch("no", "-")),
    ]
    weights = {"labels": text("cat", "dog")}
    feeds = [{"i": I([i]), "c": I([c])} for i, c in itertools.product((0, 1), (True, False))]
    data = build(nodes, feeds[0], {"y": STRING}, weights)
    for got, each in zip(run(runtime, data, *feeds), feeds, strict=True):
        same(got, graphs.native(data, each))


def test_constants(runtime: ort.Runtime) -> None:
    nodes = [
        node("Constant", [], ["a"], value_string="één"),
        node("Constant", [], ["b"], value_strings=["x", ""]),
        node("StringConcat", ["a", "b"], ["y"]),
        node("Shape", ["b"], ["n"]),
        node("Size", ["b"], ["size"]),
    ]
    got = compare(runtime, nodes, {}, {"a": STRING, "b": STRING, "y": STRING, "n": INT64, "size": INT64})
    assert got["y"].tolist() == ["éénx", "één"]


def test_equal(runtime: ort.Runtime) -> None:
    compare(runtime, [node("Equal", ["x", "w"], ["y"])], {"x": ABC}, {"y": BOOL}, {"w": text("a", "é", "")})
    compare(runtime, [node("Equal", ["x", "x"], ["y"])], {"x": text("q").reshape(())}, {"y": BOOL})


NUMBERS = ["1", "-2.5", "1e3", "INF", "-inf", "NaN", "+INF", "0"]


@pytest.mark.parametrize("to", ["FLOAT", "DOUBLE", "INT64", "INT8", "UINT8", "BOOL", "FLOAT16"])
def test_numbers_from_strings(runtime: ort.Runtime, to: str) -> None:
    number = TensorProto.DataType.Value(to)
    words = text("1", "0", "100", "7.9") if to in ("INT64", "INT8", "UINT8", "BOOL") else text(*NUMBERS)
    compare(runtime, [node("Cast", ["x"], ["y"], to=number)], {"x": words}, {"y": number})


def test_bfloat16_from_strings(runtime: ort.Runtime) -> None:
    data = build([node("Cast", ["x"], ["y"], to=TensorProto.BFLOAT16)], {"x": text("1")}, {"y": TensorProto.BFLOAT16})
    (got,) = run(runtime, data, {"x": text("3.140625", "-1")})
    same(got, {"y": np.array([3.140625, -1], ml_dtypes.bfloat16)})


@pytest.mark.parametrize(
    ("word", "why"), [("abc", "'abc' is not a number"), ("300", "'300' is out of the range of int8")]
)
def test_strings_that_are_no_numbers(runtime: ort.Runtime, word: str, why: str) -> None:
    data = build([node("Cast", ["x"], ["y"], to=TensorProto.INT8)], {"x": text("1")}, {"y": TensorProto.INT8})
    with pytest.raises(ort.ShapeError, match=f'Cast "y" .*{why}'):
        run(runtime, data, {"x": text("1", word)})


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int64, np.int8, np.uint64, np.bool_])
@pytest.mark.parametrize("fixed", [False, True], ids=["fed", "weight"])
def test_strings_from_numbers(runtime: ort.Runtime, dtype: Any, fixed: bool) -> None:
    floats = [0.1, 1 / 3, 1e4, 123.456789, -0.0, 5, np.nan, np.inf, -np.inf, 1e-5]
    x = np.array([1, 0, 100] if np.dtype(dtype).kind in "iub" else floats).astype(dtype)
    nodes = [node("Cast", ["x"], ["y"], to=STRING), node("StringConcat", ["y", "mark"], ["z"])]
    feeds, weights = ({}, {"x": x}) if fixed else ({"x": x}, {})
    compare(runtime, nodes, feeds, {"y": STRING, "z": STRING}, {**weights, "mark": text("")})


def test_cast_like(runtime: ort.Runtime) -> None:
    nodes = [node("CastLike", ["s", "x"], ["y"]), node("CastLike", ["x", "s"], ["z"])]
    x = np.array([1.5, 2], np.float32)
    compare(runtime, nodes, {"s": text("3", "0.25"), "x": x}, {"y": FLOAT, "z": STRING})


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({}, ["Monday", "tuesday", "é", ""]),
        ({"case_change_action": "UPPER", "is_case_sensitive": 1}, ["MONDAY", "TUESDAY", "É", ""]),
        (
            {"case_change_action": "LOWER", "is_case_sensitive": 1, "stopwords": ["monday", "tuesday"]},
            ["monday", "é", ""],
        ),
        ({"is_case_sensitive": 1, "stopwords": ["Monday", "é", "", "tuesday"]}, [""]),
    ],
)
def test_normalizer(runtime: ort.Runtime, attributes: dict[str, Any], expected: list[str]) -> None:
    for x, y in (
        (text("Monday", "tuesday", "é", ""), text(*expected)),
        (text(["Monday", "tuesday", "é", ""]), text(expected)),
    ):
        nodes = [node("StringNormalizer", ["x"], ["y"], **attributes)]
        data = build(nodes, {"x": x}, {"y": STRING}, static=True)
        same(run(runtime, data, {"x": x})[0], {"y": y})
        if "case_change_action" not in attributes:
            # The native one has no other cases without the locale en_US.
            same(graphs.native(data, {"x": x}), {"y": y})


def test_normalizer_compares_without_case(runtime: ort.Runtime) -> None:
    nodes = [node("StringNormalizer", ["x"], ["y"], case_change_action="UPPER", stopwords=["monday"])]
    data = build(nodes, {"x": text("a")}, {"y": STRING})
    (got,) = run(runtime, data, {"x": text("Monday", "MONDAY", "Tuesday")})
    same(got, {"y": text("TUESDAY")})
    data = build(nodes, {"x": ABC}, {"y": STRING})
    with pytest.raises(ort.ShapeError, match=r"the shape is \[2, 3\], must be \[C\] or \[1, C\]"):
        run(runtime, data, {"x": ABC})


@pytest.mark.parametrize("attributes", [{}, {"maxsplit": 1}, {"delimiter": ","}, {"delimiter": ",", "maxsplit": 1}])
@pytest.mark.parametrize("x", [text(" a  b c ", "a,,b,", "é"), text(["x,y", " z"]), text("a b").reshape(())])
def test_split_strings(runtime: ort.Runtime, attributes: dict[str, Any], x: Array) -> None:
    compare(runtime, [node("StringSplit", ["x"], ["y", "z"], **attributes)], {"x": x}, {"y": STRING, "z": INT64})


def test_nothing_to_split(runtime: ort.Runtime) -> None:
    data = build([node("StringSplit", ["x"], ["y", "z"])], {"x": ABC}, {"y": STRING, "z": INT64})
    (got,) = run(runtime, data, {"x": np.empty((0, 3), object)})
    same(got, {"y": np.empty((0, 3, 0), object), "z": np.empty((0, 3), np.int64)})


@pytest.mark.parametrize(
    "pattern",
    [r"a.*", r"[[:alpha:]]+\d", r"(?i)AB\d?", r"(?P<x>a|é)b{1,2}\z", r"\w+", r"a+?b*?", r"[^[:digit:]]+", r"\(a\)"],
)
def test_full_match(runtime: ort.Runtime, pattern: str) -> None:
    x = text("a", "ab1", "é1", "AB", "éb", "abb", "ab\n", "", "(a)", "ab٣")
    compare(runtime, [node("RegexFullMatch", ["x"], ["y"], pattern=pattern)], {"x": x}, {"y": BOOL})


@pytest.mark.parametrize("pattern", [r"(?=a)b", r"(a)\1", r"a++", r"(?P=x)", r"\pL", "(", r"(?>a)"])
def test_patterns_that_re2_or_python_does_not_have(runtime: ort.Runtime, pattern: str) -> None:
    data = build([node("RegexFullMatch", ["x"], ["y"], pattern=pattern)], {"x": ABC}, {"y": BOOL})
    with pytest.raises(ort.ShapeError, match=r'RegexFullMatch "y" .*pattern'):
        run(runtime, data, {"x": ABC})


POOL = [5, 6, 7, 5, 6, 6, 7, 7, 7, 5, 6, 7, 5, 5, 5]
"""Three of one element, three of two, two of three."""


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize(("least", "most", "skips"), [(1, 1, 0), (1, 1, 3), (1, 2, 0), (2, 2, 2), (1, 3, 1), (3, 3, 5)])
@pytest.mark.parametrize("x", ["strings", "known", np.int32, np.int64])
def test_tfidf(runtime: ort.Runtime, mode: str, least: int, most: int, skips: int, x: Any) -> None:
    rows = chance.integers(4, 9, (5, 7))
    attributes: dict[str, Any] = {
        "mode": mode,
        "min_gram_length": least,
        "max_gram_length": most,
        "max_skip_count": skips,
        "ngram_counts": [0, 3, 9],
        "ngram_indexes": [4, 0, 1, 3, 7, 2, 5, 6],
        "weights": [0.5, 2.0, 3.0, 1.5, 4.0, 0.25, 7.0, 1.0],
    }
    if x == "strings":
        attributes["pool_strings"] = [str(v) for v in POOL]
        given = rows.astype(str).astype(object)
    else:
        attributes["pool_int64s"] = POOL
        given = rows if x == "known" else rows.astype(x)
    nodes = [node("TfIdfVectorizer", ["x"], ["y"], **attributes)]
    for each in (given, given[0], given[:, :1]):
        if x == "known":
            data = build(nodes, {}, {"y": FLOAT}, {"x": each})
            same(run(runtime, data, {})[0], graphs.native(data, {}))
        else:
            compare(runtime, nodes, {"x": each}, {"y": FLOAT})


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"mode": "DF"}, "mode 'DF' is none of"),
        ({"ngram_counts": [0, 2]}, "ngram_counts .* do not fit a pool of 15 elements"),
        ({"ngram_indexes": [0]}, "1 ngram_indexes are fewer"),
        ({"min_gram_length": 4}, "n-grams of 4 to 2 elements"),
        ({"weights": [1.0]}, "1 weights for 8 n-grams"),
    ],
)
def test_tfidf_errors(runtime: ort.Runtime, wrong: dict[str, Any], why: str) -> None:
    attributes = {
        "mode": "TF",
        "min_gram_length": 1,
        "max_gram_length": 2,
        "max_skip_count": 0,
        "ngram_counts": [0, 3, 9],
        "ngram_indexes": list(range(8)),
        "pool_int64s": POOL,
    } | wrong
    data = build([node("TfIdfVectorizer", ["x"], ["y"], **attributes)], {"x": I([1])}, {"y": FLOAT})
    with pytest.raises(ort.ShapeError, match=why):
        run(runtime, data, {"x": I([5])})


def test_bit_cast(runtime: ort.Runtime) -> None:
    x = np.array([[1.0, -0.0, np.nan]], np.float32)
    data = build([node("BitCast", ["x"], ["y"], to=INT32)], {"x": x}, {"y": INT32}, opset=26)
    same(run(runtime, data, {"x": x})[0], {"y": x.view(np.int32)})
    known = np.array([1, -1], np.int64)
    nodes = [node("BitCast", ["k"], ["d"], to=TensorProto.DOUBLE), node("BitCast", ["d"], ["y"], to=TensorProto.UINT64)]
    data = build(nodes, {}, {"y": TensorProto.UINT64}, {"k": known}, opset=26)
    same(run(runtime, data, {})[0], {"y": known.view(np.uint64)})
    data = build([node("BitCast", ["x"], ["y"], to=INT64)], {"x": x}, {"y": INT64}, opset=26)
    with pytest.raises(ort.ShapeError, match="float32 has 32 bits, int64 has 64"):
        run(runtime, data, {"x": x})
