"""com.microsoft's Tokenizer through sessions, against native onnxruntime."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest

import graphs
import onnx_wasm as ort
from graphs import STRING, model, node

DEFAULTS: dict[str, Any] = {"mark": 0, "mincharnum": 1, "pad_value": "#"}


@pytest.fixture(scope="module")
def runtime() -> Iterator[ort.Runtime]:
    runtime = ort.Runtime()
    yield runtime
    assert runtime.memory().used == 0
    runtime.close()


def text(*words: Any) -> np.ndarray[Any, Any]:
    return np.array(words, object)


def build(rank: int, attributes: dict[str, Any]) -> bytes:
    tokenizer = node("Tokenizer", ["x"], ["y"], domain="com.microsoft", **DEFAULTS | attributes)
    domains = {"com.microsoft": 1}
    proto = onnx.load_from_string(model([tokenizer], {"x": (STRING, [None] * rank)}, ["y"], domains=domains))
    proto.graph.output[0].type.tensor_type.elem_type = STRING
    data: bytes = proto.SerializeToString()
    return data


@pytest.mark.parametrize(
    ("x", "attributes"),
    [
        (text("a b  c", "dé é"), {"separators": [" "]}),
        (text("a b  c", "dé é"), {"separators": [" "], "mincharnum": 2}),
        (text(["a b", "c"], ["d,e f", ""]), {"separators": [" ", ","]}),
        (text("a;b,c d", "e"), {"separators": ["[,;]", r"\s"], "mark": 1}),
        (text("aXbcYdd"), {"separators": ["X|Y"]}),
        (text("aéxb"), {"separators": ["x*"]}),
        (text("a b"), {"separators": ["", " "]}),
        (text(" ", "  "), {"separators": [" "], "mark": 1}),
        (text("ab", "é", ""), {"separators": [""], "mark": 1}),
        (text("ab12 c3", "zz"), {"tokenexp": "[a-z]+", "mark": 1}),
        (text("ab12 c3", "zz"), {"tokenexp": "[a-z]+", "mincharnum": 2}),
        (text("abcd", "xabc ab"), {"tokenexp": "ab|abc"}),
        (text("aé bcd e"), {"tokenexp": r"\b\w\w+\b"}),
        (text("abab"), {"tokenexp": "x*"}),
        (text("xaab"), {"tokenexp": "a*?b|a"}),
        (np.empty(0, object), {"separators": [" "], "mark": 1}),
        (np.empty((2, 0), object), {"separators": [" "]}),
        (np.empty((0, 2), object), {"separators": [""]}),
    ],
    ids=str,
)
def test_tokens(runtime: ort.Runtime, x: np.ndarray[Any, Any], attributes: dict[str, Any]) -> None:
    data = build(x.ndim, attributes)
    expected = graphs.native(data, {"x": x})["y"]
    with ort.InferenceSession.create(data, runtime=runtime) as session:
        y = session.run({"x": x})["y"]
        assert (y.type, y.data.shape, y.data.tolist()) == ("string", expected.shape, expected.tolist())


@pytest.mark.parametrize(
    ("attributes", "why"),
    [
        ({}, "neither separators nor tokenexp"),
        ({"separators": [" "], "mincharnum": 0}, "mincharnum 0"),
        ({"separators": [""], "mincharnum": 2}, "mincharnum 2"),
        ({"tokenexp": "a|b$"}, "alternatives together with"),
    ],
)
def test_what_makes_no_sense(runtime: ort.Runtime, attributes: dict[str, Any], why: str) -> None:
    with (
        pytest.raises(ort.OnnxWasmError, match=why),
        ort.InferenceSession.create(build(1, attributes), runtime=runtime) as session,
    ):
        session.run({"x": text("a")})
