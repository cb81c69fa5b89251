"""Mixtures of experts of com.microsoft against native onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphs
import onnx_wasm as ort
from harness import Harness
from onnx_wasm import prepare, registry
from test_microsoft_transformer import build, chance, compare, normal, run

Inputs = list[np.ndarray[Any, Any] | None]
ATOL = 2e-5


def experts(count: int, n: int, k: int) -> np.ndarray[Any, Any]:
    return normal(count, n, k) / np.float32(k**0.5)


def inputs(rows: int, count: int, hidden: int, inner: int, width: int = 1, bias: bool = True) -> Inputs:
    return [
        normal(rows, hidden),
        normal(rows, count) * 2,
        experts(count, inner * width, hidden),
        normal(count, inner * width) if bias else None,
        experts(count, hidden, inner),
        normal(count, hidden) if bias else None,
    ]


# Experts with one row, with a few, with enough to be packed; sizes that do not fill vectors, tiles and units.
SHAPES = [(1, 4, 16, 32, 2), (6, 4, 16, 32, 1), (7, 5, 13, 19, 3), (60, 3, 33, 70, 2), (150, 2, 300, 130, 1)]


@pytest.mark.parametrize(("rows", "count", "hidden", "inner", "k"), SHAPES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("constants", [(), (2, 4)])
@pytest.mark.parametrize("normalize", [0, 1])
def test_moe(
    rows: int, count: int, hidden: int, inner: int, k: int, bias: bool, constants: tuple[int, ...], normalize: int
) -> None:
    x = inputs(rows, count, hidden, inner, bias=bias)
    compare("MoE", x, k=k, normalize_routing_weights=normalize, constants=constants, atol=ATOL)


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "identity"])
def test_activations(activation: str) -> None:
    compare("MoE", inputs(20, 4, 12, 30), k=2, activation_type=activation, atol=ATOL)


SWIGLU: list[dict[str, float]] = [
    {}, {"activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 1.0}, {"swiglu_limit": 0.3},
]  # fmt: skip


@pytest.mark.parametrize("options", SWIGLU, ids=lambda o: "-".join(o) or "plain")
@pytest.mark.parametrize("inner", [3, 30])
def test_swiglu_of_interleaved_columns(options: dict[str, float], inner: int) -> None:
    x = inputs(20, 4, 12, inner, width=2)
    compare("MoE", x, k=2, activation_type="swiglu", swiglu_fusion=1, atol=ATOL, **options)


@pytest.mark.parametrize("options", SWIGLU, ids=lambda o: "-".join(o) or "plain")
def test_layouts_of_swiglu_that_onnxruntime_lacks_give_the_same(options: dict[str, float]) -> None:
    x = inputs(20, 4, 12, 30, width=2)
    apart: Inputs = list(x)
    for i in (2, 3):
        apart[i] = np.concatenate([x[i][:, 0::2], x[i][:, 1::2]], axis=1)
    third = [*apart, apart[2][:, 30:], apart[3][:, 30:]]
    third[2:4] = apart[2][:, :30], apart[3][:, :30]
    results = []
    for fusion, given in ((1, x), (2, apart), (0, third)):
        data, feeds = build("MoE", given, 1, k=2, activation_type="swiglu", swiglu_fusion=fusion, **options)
        results.append(run(data, feeds)["y0"])
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_a_third_layer_is_multiplied_by() -> None:
    x = inputs(8, 3, 12, 30)
    third = [*x, np.zeros_like(x[2]), np.full((3, 30), 2, np.float32)]
    data, feeds = build("MoE", x[:5], 1, k=2)
    expected = run(data, feeds)["y0"]
    data, feeds = build("MoE", [*third[:5], None, *third[6:]], 1, k=2)
    np.testing.assert_allclose(run(data, feeds)["y0"], expected * 2, atol=ATOL)


def test_batches_16_bit_floats_and_axes_declared_in_the_other_order() -> None:
    x = inputs(24, 4, 12, 30)
    y = compare("MoE", x, k=2, atol=ATOL)["y0"]
    batched: Inputs = [x[0].reshape(2, 12, 12), *x[1:]]
    np.testing.assert_array_equal(compare("MoE", batched, k=2, atol=ATOL)["y0"].reshape(24, 12), y)
    other: Inputs = [*x[:2], x[2].reshape(4, 12, 30), x[3], x[4].reshape(4, 30, 12), x[5]]
    np.testing.assert_array_equal(compare("MoE", other, k=2, atol=ATOL)["y0"], y)
    narrow: Inputs = [a.astype(np.float16) for a in x]
    compare("MoE", narrow, k=2, atol=1e-2, constants=(2, 3, 4, 5))


@pytest.mark.parametrize("rows", [0, 3])
def test_equal_probabilities_and_rows_without_any(rows: int) -> None:
    x = inputs(rows, 5, 12, 30)
    x[1] = np.zeros((rows, 5), np.float32)
    compare("MoE", x, k=2, atol=ATOL)
    x[1] = np.full((rows, 5), np.nan, np.float32)
    compare("MoE", x, k=2, atol=ATOL)
    x[1] = np.tile(np.array([0, -200, -300, -200, -250], np.float32), (rows, 1))
    compare("MoE", x, k=3, atol=ATOL)


def test_what_an_expert_without_weight_gives_does_not_count() -> None:
    x = inputs(3, 2, 12, 30)
    x[1] = np.tile(np.array([0, -300], np.float32), (3, 1))
    x[4][1] = np.inf
    assert np.isfinite(compare("MoE", x, k=2, atol=ATOL)["y0"]).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_any_split_into_ranges_gives_the_same(shape: tuple[int, ...]) -> None:
    prepare.load_ops()
    function = registry.find("com.microsoft", "MoE", 1).function
    *sizes, k = shape
    x = inputs(*sizes, width=2)
    attributes: dict[str, Any] = {"k": k, "activation_type": "swiglu", "swiglu_fusion": 1}
    whole = Harness().op(function, x, **attributes)
    np.testing.assert_array_equal(Harness().op(function, x, split=3, **attributes), whole)


@pytest.mark.parametrize("mem_pattern", [False, True])
def test_threads_and_memory_modes(mem_pattern: bool) -> None:
    data, feeds = build("MoE", inputs(150, 4, 64, 256), 1, constants=(2, 4), k=2)
    with (
        ort.Runtime(threads=2) as runtime,
        ort.InferenceSession.create(data, runtime=runtime, enable_mem_pattern=mem_pattern) as session,
    ):
        got = session.run(feeds)["y0"].get_data(release_data=True)
    np.testing.assert_allclose(got, graphs.native(data, feeds)["y0"], atol=ATOL)


BAD: list[tuple[int, tuple[int, ...], dict[str, Any], str]] = [
    (0, (12,), {}, "rank 2 or 3"),
    (1, (5, 4), {}, "router_probs"),
    (2, (4, 30, 13), {}, r"fc1_experts_weights .* must be \[4, 30, 12\]"),
    (3, (4, 12), {}, "fc1_experts_bias"),
    (4, (3, 12, 30), {}, "fc2_experts_weights"),
    (5, (4, 30), {}, "fc2_experts_bias"),
    (0, (6, 12), {"k": 5}, "k is 5, must be from 1 to 4"),
    (0, (6, 12), {"activation_type": "geglu"}, "activation_type 'geglu'"),
    (0, (6, 12), {"activation_type": "swiglu"}, "swiglu_fusion is 0"),
    (0, (6, 12), {"use_sparse_mixer": 1, "k": 2}, "use_sparse_mixer"),
]


@pytest.mark.parametrize(("at", "shape", "options", "message"), BAD)
def test_what_does_not_fit_is_refused(at: int, shape: tuple[int, ...], options: dict[str, Any], message: str) -> None:
    x = inputs(6, 4, 12, 30)
    x[at] = chance.normal(size=shape).astype(np.float32)
    data, feeds = build("MoE", x, 1, **options)
    with pytest.raises(ort.OnnxWasmError, match=message):
        run(data, feeds)
