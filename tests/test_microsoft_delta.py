"""GatedDeltaNet against native onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphs
import onnx_wasm as ort
from test_microsoft_gated import half, refuse
from test_microsoft_transformer import build, compare, normal

Inputs = list[np.ndarray[Any, Any] | None]
OP = "GatedDeltaNet"


def net(
    batch: int = 2,
    tokens: int = 5,
    heads: int = 2,
    values: int = 4,
    d: int = 8,
    dv: int = 6,
    *,
    each: bool = False,
    unit: bool = True,
) -> Inputs:
    """Query, key, value, no lengths, decay, beta, state; with ``each`` a decay for each row of the state."""
    q, k = normal(batch, tokens, heads, d), normal(batch, tokens, heads, d)
    if unit:
        k = (k / np.linalg.norm(k, axis=-1, keepdims=True)).astype(np.float32)
    decay = -np.abs(normal(batch, tokens, values, *([d] if each else [])))
    beta = 1 / (1 + np.exp(-normal(batch, tokens, values)))
    return [q, k, normal(batch, tokens, values, dv), None, decay, beta, normal(batch, values, dv, d)]


def flat(inputs: Inputs) -> Inputs:
    """Batches one after the other in one axis of tokens."""
    return [x if x is None or i == 6 else x.reshape(-1, *x.shape[2:]) for i, x in enumerate(inputs)]


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize(("heads", "values", "dv"), [(2, 4, 6), (3, 3, 33), (1, 2, 16)])
def test_batches_packed_and_apart(each: bool, heads: int, values: int, dv: int) -> None:
    x = net(heads=heads, values=values, dv=dv, each=each)
    compare(OP, x, 2)
    compare(OP, [*x[:6]], 2)
    compare(OP, flat(x), 2, scale=0.3)
    rows = flat(x)
    columns = np.concatenate([a.reshape(len(a), -1) for a in rows[:3]], axis=1)
    compare(OP, [columns, None, None, *rows[3:]], 2)
    compare(OP, x, 1)


@pytest.mark.parametrize(("rule", "used"), [("linear", ()), ("gated", (4,)), ("delta", (5,)), ("gated_delta", (4, 5))])
def test_rules(rule: str, used: tuple[int, ...]) -> None:
    x = [a if i not in (4, 5) or i in used else None for i, a in enumerate(net())]
    compare(OP, x, 2, update_rule=rule)


@pytest.mark.parametrize("gate", ["softplus", "qwen", "sigmoid", "kda"])
@pytest.mark.parametrize("each", [False, True])
def test_gates(gate: str, each: bool) -> None:
    x = [*net(each=each), normal(4), normal(4, 8) if each else normal(4)]
    compare(OP, x, 2, gate_activation=gate, beta_activation="sigmoid", atol=1e-5)
    compare(OP, x, 2, gate_activation=gate, gate_lower_bound=-2.0, atol=1e-5)
    if each:
        compare(OP, [*x[:8], x[8].reshape(-1)], 2, gate_activation=gate, atol=1e-5)


def test_rows_of_norm_1() -> None:
    x = net(unit=False)
    compare(OP, x, 2, qk_l2_norm=1)
    x[1][0, 0] = 0
    compare(OP, x, 2, qk_l2_norm=1)


@pytest.mark.parametrize("wide", [(), (4, 5)])
def test_16_bit_floats(wide: tuple[int, ...]) -> None:
    x = half(net(), but=(6, *wide))
    compare(OP, x, 2, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("mem_pattern", [False, True])
def test_threads_and_memory_modes(mem_pattern: bool) -> None:
    data, feeds = build(OP, net(tokens=40, d=64, dv=64), 2, qk_l2_norm=1)
    expected = graphs.native(data, feeds)
    with (
        ort.Runtime(threads=2) as runtime,
        ort.InferenceSession.create(data, runtime=runtime, enable_mem_pattern=mem_pattern) as session,
    ):
        for name, y in session.run(feeds).items():
            np.testing.assert_allclose(y.get_data(release_data=True), expected[name], atol=1e-5)


def test_what_does_not_fit_is_refused() -> None:
    x = net()
    refuse(OP, [x[0], x[1][:, :, :1], *x[2:]], "of one shape", 2)
    refuse(OP, [*x[:2], normal(2, 5, 3, 6), *x[3:]], "must be a multiple", 2)
    refuse(OP, [*x[:4], None, *x[5:]], "takes a decay", 2)
    refuse(OP, x, "takes no decay", 2, update_rule="delta")
    refuse(OP, [*x[:5], normal(2, 5, 3), x[6]], "beta", 2)
    refuse(OP, [*x[:4], normal(2, 5, 3), *x[5:]], "decay", 2)
    refuse(OP, [*x[:6], normal(2, 4, 6, 7)], "initial_state", 2)
    refuse(OP, x, "needs a_log", 2, gate_activation="softplus")
    refuse(OP, x, "gate_activation 'tanh'", 2, gate_activation="tanh")
    refuse(OP, [*x[:3], np.array([0, 5, 10], np.int32), *x[4:]], "cu_seqlens", 2)
    refuse(OP, flat(x)[:6], "must divide into the batches", 2)
