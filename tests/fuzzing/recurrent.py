"""RNN, GRU and LSTM with all optional inputs, activations and directions."""

from __future__ import annotations

from typing import Any

import numpy as np

from .builder import Builder, Tensor
from .linear import activate
from .movement import squeeze, transpose

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
KINDS = {"RNN": 1, "GRU": 2, "LSTM": 3}
ACTIVATIONS = [
    "Relu",
    "Tanh",
    "Sigmoid",
    "Affine",
    "LeakyRelu",
    "ThresholdedRelu",
    "ScaledTanh",
    "HardSigmoid",
    "Elu",
    "Softsign",
]
"""Without Softplus: native computes log(1 + exp(x)), which overflows."""
SCALED = ("Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu")
"""Those that take the next alpha."""


def layer(g: Builder) -> Tensor:
    op = g.choice(["RNN", "GRU", "LSTM", "LSTM"])
    batch_first = g.opset >= 14 and g.chance(10)
    x = g.pick(lambda t: t.dtype == "float32" and t.rank == 3 and t.array.size > 0)
    if x is None or g.chance(25):
        x = g.value(
            [g.int(1, 5), g.choice([1, 1, 2, 3, *([17, 33, 50] if g.chance(20) else [4])]), g.choice([1, 2, 3, 5, 8])],
            kind="unit",
            const=False,
        )
    steps, batch, size = x.shape if not batch_first else (x.shape[1], x.shape[0], x.shape[2])
    hidden = g.choice([1, 2, 3, 4, 5, 8, 9, 16])
    direction = g.choice(["forward", "forward", "reverse", "bidirectional"])
    dirs = 2 if direction == "bidirectional" else 1
    gates = GATES[op]
    const = not g.chance(15)
    w = g.value([dirs, gates * hidden, size], kind="unit", const=const)
    r = g.value([dirs, gates * hidden, hidden], kind="unit", const=const)
    b = g.value([dirs, 2 * gates * hidden], kind="unit", const=const) if g.chance(70) else None
    lens = None
    if g.chance(30):
        lens = g.given(np.random.default_rng(g.int(0, 999)).integers(1, steps + 1, batch).astype(np.int32), hidden=True)
    state = (batch, dirs, hidden) if batch_first else (dirs, batch, hidden)
    inputs: list[Tensor | None] = [x, w, r, b, lens, g.value(state, kind="unit") if g.chance(50) else None]
    made: dict[str, Any] = {"hidden_size": hidden}
    if direction != "forward" or g.chance(30):
        made["direction"] = direction
    if batch_first:
        made["layout"] = 1
    if op == "LSTM":
        inputs.append(g.value(state, kind="unit") if g.chance(50) else None)
        inputs.append(g.value([dirs, 3 * hidden], kind="unit") if g.chance(30) else None)
        if g.chance(15):
            made["input_forget"] = 1
    if op == "GRU" and g.chance(50):
        made["linear_before_reset"] = g.int(0, 1)
    if g.chance(25):
        made["clip"] = g.choice([0.5, 1.0, 0.1])
    if g.chance(30):
        made["activations"] = names = [g.choice(ACTIVATIONS) for _ in range(KINDS[op] * dirs)]
        # Native lets x pass ThresholdedRelu if x > alpha; ONNX says here x >= alpha. What was clipped, or is a bound of
        # another function, must not be equal.
        alphas = [0.3 if a == "ThresholdedRelu" else g.choice([0.5, 1.0, 0.25]) for a in names if a in SCALED]
        made["activation_alpha"] = [*alphas, *(1.0 for a in names if a not in SCALED)]
        made["activation_beta"] = [g.choice([0.5, 1.0, 0.25]) for _ in made["activations"]]
    wanted = [g.chance(80), g.chance(50), *([g.chance(50)] if op == "LSTM" else [])]
    while wanted and not wanted[-1]:
        wanted.pop()
    # Gates without bounds multiply: what overflows on the way depends on the order of operations.
    return g.node(op, inputs, wanted or [True], bound=1e6, **made)[0]


def merge(g: Builder) -> Tensor:
    """(steps, dirs, batch, hidden) back to (steps, batch, dirs * hidden)."""
    y = g.pick(lambda t: t.rank == 4)
    if y is None:
        return activate(g)
    (t,) = g.node("Transpose", [y], exact=True, perm=[0, 2, 1, 3])
    return g.node("Reshape", [t, g.host([0, 0, -1])], exact=True)[0]


STEPS = [layer, layer, merge, activate, transpose, squeeze]


def start(g: Builder) -> Tensor:
    return layer(g)
