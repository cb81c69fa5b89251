"""Operators of com.microsoft that take floats: other types are refused, and never read as floats."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import onnx_wasm as ort
from test_microsoft_transformer import build, normal, run

Inputs = list[Any]

CASES: dict[str, tuple[Inputs, int, dict[str, Any]]] = {
    "LinearAttention": (
        [normal(1, 3, 8), normal(1, 3, 8), normal(1, 3, 8), normal(1, 2, 4, 4), normal(1, 3, 2), normal(1, 3, 2)],
        2,
        {"q_num_heads": 2, "kv_num_heads": 2},
    ),
    "CausalConvWithState": ([normal(1, 4, 6), normal(4, 1, 3), normal(4), normal(1, 4, 2)], 2, {}),
    "MoE": (
        [normal(3, 8), normal(3, 4), normal(4, 6, 8), normal(4, 6), normal(4, 8, 6), normal(4, 8)],
        1,
        {"k": 2, "activation_type": "relu"},
    ),
    "MRotaryEmbedding": (
        [normal(1, 2, 3, 8), np.zeros((3, 1, 3), np.int64), normal(5, 4), normal(5, 4)],
        1,
        {"mrope_section": [2, 1, 1]},
    ),
    "GatedRMSNorm": ([normal(2, 8), normal(4), normal(2, 8)], 1, {}),
    "BranchwiseRMSNorm": ([normal(2, 3, 4), normal(4)], 1, {}),
    "ScaledSiLU": ([normal(2, 3)], 1, {}),
    "GatedAdd": ([normal(2, 3), normal(2, 3), normal(2, 1)], 1, {}),
    "LinearAttentionGate": ([normal(1, 2, 3), normal(3), normal(3), normal(1, 2, 3)], 2, {}),
}
PLACES = [
    (name, i) for name, (x, _, _) in CASES.items() for i, a in enumerate(x) if a is not None and a.dtype.kind == "f"
]


@pytest.mark.parametrize("name", CASES)
def test_floats_run(name: str) -> None:
    x, outputs, attributes = CASES[name]
    for y in run(*build(name, x, outputs, **attributes)).values():
        assert np.isfinite(y).all()


@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.int8])
@pytest.mark.parametrize(("name", "place"), PLACES)
def test_others_are_refused(name: str, place: int, dtype: Any) -> None:
    x, outputs, attributes = CASES[name]
    changed = [a.astype(dtype) if i == place else a for i, a in enumerate(x)]
    with pytest.raises(ort.OnnxWasmError, match=name):
        run(*build(name, changed, outputs, **attributes))


@pytest.mark.parametrize("position", [0, 5, 1000, 1 << 20, -3])
def test_a_cache_without_room(position: int) -> None:
    rows: Inputs = [normal(1, 1, 8) for _ in range(3)]
    x = [*rows, None, None, normal(1, 2, 0, 4), normal(1, 2, 0, 4), np.array([position], np.int32)]
    data, feeds = build("DecoderMaskedMultiHeadAttention", x, 3, num_heads=2, past_present_share_buffer=1)
    refused(data, feeds, "has no room for a row")


@pytest.mark.parametrize("total", [1, 2])
@pytest.mark.parametrize("held", [0, 2, 50])
def test_more_rows_than_a_total(total: int, held: int) -> None:
    x: Inputs = [normal(1, 3, 16), normal(1, 3, 8), normal(1, 3, 8), None, None]
    x += [np.array([held], np.int32), np.array(total, np.int32)]
    data, feeds = build("GroupQueryAttention", x, 3, num_heads=4, kv_num_heads=2)
    refused(data, feeds, "3 rows do not fit in a cache of")


def refused(data: bytes, feeds: dict[str, Any], message: str) -> None:
    with ort.Runtime(debug=True) as runtime:
        session = ort.InferenceSession.create(data, runtime=runtime)
        with pytest.raises(ort.OnnxWasmError, match=message):
            session.run(feeds)
        runtime.heap_check()
        session.dispose()
