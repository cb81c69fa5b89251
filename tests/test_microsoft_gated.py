"""Normalisations, gates and rotary embeddings of newer language models against native onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphs
import onnx_wasm as ort
from test_microsoft_transformer import build, chance, compare, normal, run

Inputs = list[np.ndarray[Any, Any] | None]
HALF = {"atol": 2e-3, "rtol": 2e-3}


def half(inputs: Inputs, *, but: tuple[int, ...] = ()) -> Inputs:
    return [x if x is None or x.dtype != np.float32 or i in but else x.astype(np.float16) for i, x in enumerate(inputs)]


def refuse(op: str, inputs: Inputs, message: str, outputs: int = 1, **attributes: Any) -> None:
    data, feeds = build(op, inputs, outputs, **attributes)
    with pytest.raises((ort.OnnxWasmError, IndexError), match=message):
        run(data, feeds)


@pytest.mark.parametrize("activation", ["silu", "swish", "sigmoid"])
@pytest.mark.parametrize(("shape", "n"), [((2, 3, 12), 4), ((7, 33), 33), ((0, 8), 4), ((40,), 8), ((300, 130), 65)])
def test_gated_rms_norm(activation: str, shape: tuple[int, ...], n: int) -> None:
    x: Inputs = [normal(*shape), normal(n), normal(*shape)]
    compare("GatedRMSNorm", x, activation=activation, epsilon=1e-3)
    compare("GatedRMSNorm", half(x), activation=activation, **HALF)


def test_gated_rms_norm_refuses() -> None:
    x, scale, gate = normal(2, 3, 12), normal(4), normal(2, 3, 12)
    refuse("GatedRMSNorm", [x, normal(5), gate], "multiple of the elements of scale")
    refuse("GatedRMSNorm", [x, scale, gate[:1]], "must have the shape of")
    refuse("GatedRMSNorm", [x, scale, gate], "'relu'", activation="relu")


@pytest.mark.parametrize("scale", [None, (12,), (3, 4), (4,)])
@pytest.mark.parametrize("shape", [(2, 5, 3, 4), (0, 3, 4), (3, 4)])
@pytest.mark.parametrize("flat", [False, True])
def test_branchwise_rms_norm(scale: tuple[int, ...] | None, shape: tuple[int, ...], flat: bool) -> None:
    x: Inputs = [normal(*shape)]
    if scale is not None:
        x.append(normal(*scale))
    options: dict[str, Any] = {"epsilon": 1e-4}
    if flat:
        x[0], options["num_branches"] = x[0].reshape(*shape[:-2], 12), 3
    compare("BranchwiseRMSNorm", x, **options)
    compare("BranchwiseRMSNorm", half(x), **HALF, **options)
    compare("BranchwiseRMSNorm", half(x, but=(1,)), **HALF, **options)


def test_branchwise_rms_norm_refuses() -> None:
    refuse("BranchwiseRMSNorm", [normal(4)], "branches")
    refuse("BranchwiseRMSNorm", [normal(2, 13)], "divides", num_branches=3)
    refuse("BranchwiseRMSNorm", [normal(2, 3, 4), normal(3)], "scale")


@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 33)])
def test_scaled_silu(shape: tuple[int, ...]) -> None:
    x = normal(*shape)
    for inputs in ([x], [x, np.array(0.3, np.float32)]):
        compare("ScaledSiLU", inputs, alpha=1.7)
        compare("ScaledSiLU", half(inputs), alpha=1.7, atol=1e-3, rtol=2e-3)
    refuse("ScaledSiLU", [x, normal(1)], "must be a scalar")


@pytest.mark.parametrize("shape", [(0, 5), (3, 5), (2, 3, 33)])
def test_gated_add(shape: tuple[int, ...]) -> None:
    x: Inputs = [normal(*shape), normal(*shape), normal(*shape[:-1], 1)]
    compare("GatedAdd", x)
    compare("GatedAdd", half(x), atol=0, rtol=0)


def test_gated_add_refuses() -> None:
    x, y, gate = normal(3, 5), normal(3, 5), normal(3, 1)
    refuse("GatedAdd", [x, y, normal(1, 1)], "gate")
    refuse("GatedAdd", [x, y[:1], gate], "must have the shape of")
    refuse("GatedAdd", [x, y, normal(3, 7), normal(7, 1)], "gate_weight")


@pytest.mark.parametrize("shape", [(2, 3, 4), (0, 1, 4), (1, 50, 33)])
@pytest.mark.parametrize("beta", [False, True])
def test_linear_attention_gate(shape: tuple[int, ...], beta: bool) -> None:
    h = shape[-1]
    x: Inputs = [normal(*shape), normal(h), -np.exp(normal(h)), normal(*shape)]
    x = x if beta else x[:3]
    compare("LinearAttentionGate", x, 1 + beta)
    compare("LinearAttentionGate", half(x, but=(1, 2)), 1 + beta, **HALF)


def test_linear_attention_gate_refuses() -> None:
    a = normal(2, 3, 4)
    refuse("LinearAttentionGate", [a, normal(3), normal(4)], "dt_bias")
    refuse("LinearAttentionGate", [a, normal(4), normal(4), normal(2, 3, 5)], "must have the shape of", 2)


def rotary(batch: int, rows: int, heads: int, size: int, rotated: int, rank: int) -> Inputs:
    shape = (batch, rows, heads * size) if rank == 3 else (batch, heads, rows, size)
    limit = max(12, rows)
    positions = chance.integers(0, limit, (3, batch, rows))
    return [normal(*shape), positions, normal(limit, rotated // 2), normal(limit, rotated // 2)]


@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("sections", [(2, 3, 3), (8, 0, 0), (0, 8, 0), (1, 1, 6)])
def test_multimodal_rotary_embedding(rank: int, interleaved: int, layout: int, sections: tuple[int, ...]) -> None:
    x = rotary(2, 5, 3, 16, 16, rank)
    options: dict[str, Any] = {"interleaved": interleaved, "mrope_layout": layout, "mrope_section": sections}
    compare("MRotaryEmbedding", x, num_heads=3, **options)
    compare("MRotaryEmbedding", half(x), num_heads=3, **HALF, **options)


@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.parametrize("rows", [0, 1, 70])
def test_multimodal_rotary_embedding_of_a_part(scale: float, rows: int) -> None:
    x = rotary(2, rows, 3, 16, 10, 3)
    compare("MRotaryEmbedding", x, num_heads=3, rotary_embedding_dim=10, mrope_section=[2, 2, 1], scale=scale)


def test_multimodal_rotary_embedding_refuses() -> None:
    x = rotary(2, 5, 3, 16, 16, 3)
    good: dict[str, Any] = {"num_heads": 3, "mrope_section": [2, 3, 3]}
    op = "MRotaryEmbedding"
    refuse(op, x, "num_heads", mrope_section=[2, 3, 3])
    refuse(op, x, "mrope_section", num_heads=3, mrope_section=[2, 3, 4])
    refuse(op, x, "mrope_layout", mrope_layout=2, **good)
    refuse(op, [x[0], x[1][0], *x[2:]], "position_ids", **good)
    refuse(op, [*x[:3], normal(12, 7)], "caches", **good)
    refuse(op, [x[0], x[1] + 12, *x[2:]], r"out of range \[0, 12\)", **good)
    refuse(op, [x[0], x[1] - 12, *x[2:]], r"out of range \[0, 12\)", **good)


@pytest.mark.parametrize("mem_pattern", [False, True])
def test_threads_and_memory_modes(mem_pattern: bool) -> None:
    x = rotary(2, 300, 4, 64, 64, 3)
    data, feeds = build("MRotaryEmbedding", x, 1, num_heads=4, mrope_section=[10, 11, 11])
    with (
        ort.Runtime(threads=2) as runtime,
        ort.InferenceSession.create(data, runtime=runtime, enable_mem_pattern=mem_pattern) as session,
    ):
        got = session.run(feeds)["y0"].get_data(release_data=True)
    np.testing.assert_allclose(got, graphs.native(data, feeds)["y0"], atol=2e-6)
