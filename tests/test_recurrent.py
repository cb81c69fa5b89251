from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import graphs
import onnx_wasm
from harness import Harness, KernelStatus
from onnx_nodes import Case, node_cases, onnxruntime_node, run_node
from onnx_wasm.errors import ShapeError, UnsupportedModelError

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
OUTPUTS = {"RNN": 2, "GRU": 2, "LSTM": 3}
OPS = list(GATES)
DIRECTIONS = ["forward", "reverse", "bidirectional"]
FUNCTIONS = {
    "Sigmoid": lambda x, a, b: 0.5 + 0.5 * np.tanh(x / 2),
    "Tanh": lambda x, a, b: np.tanh(x),
    "Relu": lambda x, a, b: np.maximum(x, 0),
    "Affine": lambda x, a, b: a * x + b,
    "LeakyRelu": lambda x, a, b: np.where(x < 0, a * x, x),
    "ThresholdedRelu": lambda x, a, b: np.where(x < a, 0, x),
    "ScaledTanh": lambda x, a, b: a * np.tanh(b * x),
    "HardSigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "Elu": lambda x, a, b: np.where(x < 0, a * (np.exp(x) - 1), x),
    "Softsign": lambda x, a, b: x / (1 + np.abs(x)),
    "Softplus": lambda x, a, b: np.log1p(np.exp(x)),
}
HAS_ALPHA = {
    "Affine": 1.0,
    "LeakyRelu": 0.01,
    "ThresholdedRelu": 1.0,
    "ScaledTanh": 1.0,
    "HardSigmoid": 0.2,
    "Elu": 1.0,
}
HAS_BETA = {"Affine": 0.0, "ScaledTanh": 1.0, "HardSigmoid": 0.5}


def inputs(
    op: str,
    steps: int = 4,
    batch: int = 3,
    size: int = 6,
    hidden: int = 5,
    directions: int = 1,
    dtype: type = np.float32,
    *,
    bias: bool = True,
    lens: bool = False,
    state: bool = False,
    peepholes: bool = False,
    seed: int = 0,
) -> list[np.ndarray | None]:
    """The inputs of a node, in layout 0."""
    rng = np.random.default_rng(seed)

    def array(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 0.6).astype(dtype)

    n = GATES[op] * hidden
    lengths = rng.permutation(np.arange(batch) % (steps + 1)).astype(np.int32)
    found = [array(steps, batch, size), array(directions, n, size), array(directions, n, hidden)]
    found += [array(directions, 2 * n) if bias else None, lengths if lens else None]
    found += [array(directions, batch, hidden) if state else None for _ in range(OUTPUTS[op] - 1)]
    if op == "LSTM":
        found.append(array(directions, 3 * hidden) if peepholes else None)
    return found


def reference(
    op: str, values: list[np.ndarray | None], direction: str = "forward", **attributes: Any
) -> list[np.ndarray]:
    """The specification's equations in double precision, for layout 0."""
    x, w, r, b, lens, h0, *rest = [None if v is None else v.astype(np.float64) for v in values]
    c0, p = rest if rest else (None, None)
    steps, batch, hidden = x.shape[0], x.shape[1], r.shape[2]
    y = np.zeros((steps, len(w), batch, hidden))
    y_h, y_c = np.zeros((len(w), batch, hidden)), np.zeros((len(w), batch, hidden))
    default = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}[op]
    names = attributes.get("activations") or default * len(w)
    alphas, betas = iter(attributes.get("activation_alpha", [])), iter(attributes.get("activation_beta", []))
    functions = []
    for name in names:
        # Attributes are float32.
        alpha = float(np.float32(next(alphas, HAS_ALPHA[name]))) if name in HAS_ALPHA else 0.0
        beta = float(np.float32(next(betas, HAS_BETA[name]))) if name in HAS_BETA else 0.0
        functions.append(lambda v, f=FUNCTIONS[name], a=alpha, b=beta: f(v, a, b))
    limit = attributes.get("clip") or np.inf
    for d, i in itertools.product(range(len(w)), range(batch)):
        f, g, k = (functions[len(default) * d : len(default) * (d + 1)] * 3)[:3]
        h = np.zeros(hidden) if h0 is None else h0[d, i]
        c = np.zeros(hidden) if c0 is None else c0[d, i]
        wb, rb = np.zeros((2, GATES[op] * hidden)) if b is None else np.split(b[d], 2)
        pi, po, pf = np.zeros((3, hidden)) if p is None else np.split(p[d], 3)
        length = steps if lens is None else int(lens[i])
        order = range(length)
        for t in reversed(order) if direction == "reverse" or d == 1 else order:
            u = np.split(x[t, i] @ w[d].T + wb, GATES[op])
            v = np.split(h @ r[d].T + rb, GATES[op])

            def clip(a: np.ndarray) -> np.ndarray:
                return np.clip(a, -limit, limit)

            if op == "RNN":
                h = f(clip(u[0] + v[0]))
            elif op == "GRU":
                z, reset = f(clip(u[0] + v[0])), f(clip(u[1] + v[1]))
                last = reset * v[2]
                if not attributes.get("linear_before_reset"):
                    last = (reset * h) @ r[d][2 * hidden :].T + rb[2 * hidden :]
                h = (1 - z) * g(clip(u[2] + last)) + z * h
            else:
                gate = f(clip(u[0] + v[0] + pi * c))
                forget = 1 - gate if attributes.get("input_forget") else f(clip(u[2] + v[2] + pf * c))
                c = forget * c + gate * g(clip(u[3] + v[3]))
                h = f(clip(u[1] + v[1] + po * c)) * k(c)
            y[t, d, i] = h
        if length:
            y_h[d, i], y_c[d, i] = h, c
    return [y, y_h, y_c][: OUTPUTS[op]]


def run(harness: Harness, op: str, values: list[np.ndarray | None], **options: Any) -> list[np.ndarray]:
    """All outputs of a node, whose weights are constants unless told otherwise."""
    hidden = values[2].shape[2]
    names = ["y", "y_h", "y_c"][: OUTPUTS[op]]
    options.setdefault("weights", [i for i in (1, 2, 3, 7) if i < len(values)])
    return list(run_node(harness, op, values, 14, names, hidden_size=hidden, **options))


def check(found: list[np.ndarray], expected: list[np.ndarray], tolerance: float = 2e-6) -> None:
    assert len(found) == len(expected)
    for a, e in zip(found, expected, strict=True):
        assert a.shape == e.shape
        np.testing.assert_allclose(a.astype(np.float64), e.astype(np.float64), rtol=tolerance, atol=tolerance)


def directed(direction: str) -> int:
    return 2 if direction == "bidirectional" else 1


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("lens", [False, True])
@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_against_onnxruntime(harness: Harness, op: str, direction: str, lens: bool, state: bool, bias: bool) -> None:
    values = inputs(op, 5, 4, 7, 10, directed(direction), lens=lens, state=state, bias=bias)
    expected = onnxruntime_node(op, values, 14, OUTPUTS[op], hidden_size=10, direction=direction)
    found = run(harness, op, values, direction=direction, split=2)
    check(found, expected)
    check(found, reference(op, values, direction))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("hidden", [1, 2, 3, 4, 7, 8, 9, 16, 33])
@pytest.mark.parametrize("batch", [1, 2, 3, 5])
def test_sizes(harness: Harness, op: str, hidden: int, batch: int) -> None:
    values = inputs(op, 3, batch, 5, hidden, 2, state=True, lens=batch == 5)
    check(run(harness, op, values, direction="bidirectional"), reference(op, values, "bidirectional"))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("batch", [31, 32, 45])
def test_groups_of_batch_rows(harness: Harness, op: str, batch: int) -> None:
    values = inputs(op, 3, batch, 5, 6, 2, state=True, lens=True)
    found = run(harness, op, values, direction="bidirectional")
    check(found, reference(op, values, "bidirectional"))
    for split in (2, 5):
        parts = run(harness, op, values, direction="bidirectional", split=split)
        assert [a.tobytes() for a in parts] == [a.tobytes() for a in found]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_batch_first_is_a_transposition(harness: Harness, op: str, direction: str) -> None:
    values = inputs(op, 4, 3, 5, 7, directed(direction), state=True, lens=True)
    y, *states = run(harness, op, values, direction=direction)
    turned = list(values)
    for i in (0, 5, *([6] if op == "LSTM" else [])):
        turned[i] = np.ascontiguousarray(values[i].swapaxes(0, 1))
    found = run(harness, op, turned, direction=direction, layout=1)
    check(found, [y.transpose(2, 0, 1, 3), *(s.swapaxes(0, 1) for s in states)], 0)


@pytest.mark.parametrize("op", OPS)
def test_weights_that_are_not_constant(harness: Harness, op: str) -> None:
    values = inputs(op, 3, 3, 5, 9, 2, peepholes=True)
    check(run(harness, op, values, direction="bidirectional", weights=[]), reference(op, values, "bidirectional"))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_activations(harness: Harness, op: str, name: str, given: bool, dtype: type) -> None:
    count = {"RNN": 1, "GRU": 2, "LSTM": 3}[op]
    attributes: dict[str, Any] = {
        "activations": ["Sigmoid", "Tanh"][: count - 1] + [name] + ["Tanh"] + [name] * (count - 1)
    }
    if op == "RNN":
        attributes["activations"] = [name, "Relu"]
    if given:
        attributes["activation_alpha"] = [0.3, 0.4, 0.7][: sum(n in HAS_ALPHA for n in attributes["activations"])]
        attributes["activation_beta"] = [0.1, 0.6, 0.8][: sum(n in HAS_BETA for n in attributes["activations"])]
    values = inputs(op, 4, 3, 5, 6, 2, dtype, state=True)
    found = run(harness, op, values, direction="bidirectional", **attributes)
    check(found, reference(op, values, "bidirectional", **attributes), 1e-5 if dtype is np.float32 else 1e-13)
    # Without alpha onnxruntime takes 0 for these, not the default of the operator of that name.
    if dtype is np.float32 and (given or name not in ("Affine", "ScaledTanh", "ThresholdedRelu")):
        attributes = {k: v for k, v in attributes.items() if v}
        native = onnxruntime_node(op, values, 14, OUTPUTS[op], hidden_size=6, direction="bidirectional", **attributes)
        check(found, native, 1e-5)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("clip", [0.0, 0.1, 0.5, 100.0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_clip(harness: Harness, op: str, clip: float, dtype: type) -> None:
    values = inputs(op, dtype=dtype, state=True, peepholes=True)
    clip = float(np.float32(clip))
    found = run(harness, op, values, clip=clip)
    check(found, reference(op, values, clip=clip))
    if dtype is np.float32 and clip:
        check(found, onnxruntime_node(op, values, 14, OUTPUTS[op], hidden_size=5, clip=clip))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("peepholes", [False, True])
@pytest.mark.parametrize("input_forget", [0, 1])
def test_lstm_options(harness: Harness, direction: str, peepholes: bool, input_forget: int) -> None:
    values = inputs("LSTM", directions=directed(direction), state=True, lens=True, peepholes=peepholes)
    options: dict[str, Any] = {"direction": direction, "input_forget": input_forget}
    found = run(harness, "LSTM", values, **options)
    check(found, reference("LSTM", values, **options))
    check(found, onnxruntime_node("LSTM", values, 14, 3, hidden_size=5, **options))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activations", [(), ("HardSigmoid", "Relu")])
@pytest.mark.parametrize("batch", [1, 3])
def test_gru_linear_before_reset(
    harness: Harness, direction: str, bias: bool, activations: tuple[str, ...], batch: int
) -> None:
    values = inputs("GRU", batch=batch, directions=directed(direction), state=True, bias=bias)
    options: dict[str, Any] = {"direction": direction, "linear_before_reset": 1}
    if activations:
        options["activations"] = list(activations) * directed(direction)
    found = run(harness, "GRU", values, **options)
    check(found, reference("GRU", values, **options))
    check(found, onnxruntime_node("GRU", values, 14, 2, hidden_size=5, **options))


@pytest.mark.parametrize(("op", "linear"), [("RNN", 0), ("GRU", 0), ("GRU", 1), ("LSTM", 0)])
def test_double(harness: Harness, op: str, linear: int) -> None:
    attributes = {"linear_before_reset": 1} if linear else {}
    values = inputs(op, 6, 4, 5, 7, 2, np.float64, state=True, lens=True, peepholes=True)
    found = run(harness, op, values, direction="bidirectional", split=2, **attributes)
    assert found[0].dtype == np.float64
    check(found, reference(op, values, "bidirectional", **attributes), 1e-13)


@pytest.mark.parametrize(("op", "linear"), [("RNN", 0), ("GRU", 0), ("GRU", 1), ("LSTM", 0)])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half(harness: Harness, op: str, dtype: type, linear: int) -> None:
    attributes = {"linear_before_reset": 1} if linear else {}
    values = inputs(op, dtype=dtype, directions=2, state=True, lens=True, peepholes=True)
    found = run(harness, op, values, direction="bidirectional", **attributes)
    assert found[0].dtype == dtype
    expected = [e.astype(dtype) for e in reference(op, values, "bidirectional", **attributes)]
    check(found, expected, 1e-3 if dtype is np.float16 else 8e-3)


@pytest.mark.parametrize("op", OPS)
def test_every_subset_of_outputs(harness: Harness, op: str) -> None:
    values = inputs(op, 3, 2, 4, 5, 2, state=True)
    expected = run(harness, op, values, direction="bidirectional")
    for wanted in itertools.product([False, True], repeat=OUTPUTS[op]):
        names = [f"y{i}" if w else "" for i, w in enumerate(wanted)]
        found = run_node(harness, op, values, 14, names, direction="bidirectional", hidden_size=5)
        check(list(found), [e for e, w in zip(expected, wanted, strict=True) if w], 0)
    (y,) = run_node(harness, op, values, 14, ["y"], direction="bidirectional")
    check([y], expected[:1], 0)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_no_steps(harness: Harness, op: str, direction: str) -> None:
    values = inputs(op, 0, 3, 4, 5, directed(direction), state=True)
    y, *states = run(harness, op, values, direction=direction)
    assert y.shape == (0, directed(direction), 3, 5)
    for state in states:
        assert state.shape == (directed(direction), 3, 5)
        assert (state == 0).all()


@pytest.mark.parametrize("op", OPS)
def test_no_batch(harness: Harness, op: str) -> None:
    values = inputs(op, 4, 0, 3, 5)
    assert [a.shape for a in run(harness, op, values)] == [(4, 1, 0, 5), (1, 0, 5), (1, 0, 5)][: OUTPUTS[op]]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("length", [-1, 5])
def test_length_out_of_range(harness: Harness, op: str, length: int) -> None:
    values = inputs(op, 4, 3, lens=True)
    values[4] = np.array([1, length, 2], np.int32)
    with pytest.raises(KernelStatus) as status:
        run(harness, op, values)
    assert status.value.args == (3, length, 0, 5)


@pytest.mark.parametrize("op", OPS)
def test_nan_stays_in_its_batch_row(harness: Harness, op: str) -> None:
    values = inputs(op, 4, 5, 3, 6)
    expected = run(harness, op, values)[0]
    values[0][1, 2, 1] = np.nan
    y = run(harness, op, values)[0]
    assert np.isnan(y[1:, 0, 2]).all()
    keep = [0, 1, 3, 4]
    np.testing.assert_array_equal(y[:, :, keep], expected[:, :, keep])
    np.testing.assert_array_equal(y[0], expected[0])


@pytest.mark.parametrize("op", OPS)
def test_large_arguments_saturate(harness: Harness, op: str) -> None:
    values = inputs(op, 3, 2, 4, 9)
    values[0] *= 1e4
    # The few sums that cancel have errors in proportion to their terms.
    check(run(harness, op, values), reference(op, values), 1e-3)


@pytest.mark.parametrize("op", OPS)
def test_strict(strict_harness: Harness, op: str) -> None:
    values = inputs(op, 4, 3, 5, 6, 2, state=True, lens=True)
    check(run(strict_harness, op, values, direction="bidirectional", split=2), reference(op, values, "bidirectional"))


def test_names_of_activations_in_any_case(harness: Harness) -> None:
    values = inputs("RNN")
    found = run(harness, "RNN", values, activations=["hardSIGMOID"])
    check(found, reference("RNN", values, activations=["HardSigmoid"]))


@pytest.mark.parametrize(
    ("change", "attributes", "message"),
    [
        ({}, {"direction": "backward"}, "direction is 'backward'"),
        ({}, {"layout": 2}, "layout is 2"),
        ({}, {"hidden_size": 6}, "hidden_size is 6"),
        ({}, {"direction": "bidirectional"}, r"W .* must have shape \[2, 20, 6\]"),
        ({}, {"activations": ["Tanh"]}, "1 activations given, 3 needed"),
        ({0: np.zeros((2, 3), np.float32)}, {}, "must have 3 dimensions"),
        ({1: np.zeros((1, 20, 7), np.float32)}, {}, r"must have shape \[1, 20, 6\]"),
        ({3: np.zeros((1, 20), np.float32)}, {}, r"B .* must have shape \[1, 40\]"),
        ({4: np.zeros(3, np.int64)}, {}, r"must be int32 of shape \[3\]"),
        ({4: np.zeros(4, np.int32)}, {}, r"must be int32 of shape \[3\]"),
        ({5: np.zeros((1, 3, 5), np.float64)}, {}, "must be of X's type float32"),
        ({7: np.zeros((1, 20), np.float32)}, {}, r"P .* must have shape \[1, 15\]"),
    ],
)
def test_errors(harness: Harness, change: dict[int, np.ndarray], attributes: dict[str, Any], message: str) -> None:
    values = inputs("LSTM")
    for i, array in change.items():
        values[i] = array
    with pytest.raises(ShapeError, match=message):
        run_node(harness, "LSTM", values, **attributes)


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("given", [True, False])
def test_no_hidden_units(harness: Harness, op: str, given: bool) -> None:
    values = [np.ones((2, 3, 4), np.float32), np.ones((1, 0, 4), np.float32), np.ones((1, 0, 0), np.float32)]
    with pytest.raises(ShapeError, match="hidden_size is"):
        run_node(harness, op, values, **({"hidden_size": 0} if given else {}))


def test_unknown_activation(harness: Harness) -> None:
    with pytest.raises(UnsupportedModelError, match="unknown activation 'Gelu'"):
        run_node(harness, "RNN", inputs("RNN"), activations=["Gelu"])


def quantized(
    steps: int,
    batch: int,
    size: int,
    hidden: int,
    directions: int,
    dtype: type,
    *,
    columns: bool,
    zero: bool,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """The inputs of a DynamicQuantizeLSTM by name."""
    rng = np.random.default_rng(seed)
    n = 4 * hidden
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    names: dict[str, np.ndarray] = {
        "x": rng.standard_normal((steps, batch, size)).astype(np.float32),
        "w": rng.integers(low, high + 1, (directions, size, n)).astype(dtype),
        "r": rng.integers(low, high + 1, (directions, hidden, n)).astype(dtype),
        "b": rng.standard_normal((directions, 2 * n)).astype(np.float32) * np.float32(0.3),
        "h": rng.standard_normal((directions, batch, hidden)).astype(np.float32) * np.float32(0.5),
        "c": rng.standard_normal((directions, batch, hidden)).astype(np.float32),
    }
    shape = (directions, n) if columns else (directions,)
    for of in "wr":
        names[f"{of}_scale"] = (rng.uniform(1, 2, shape) / 300).astype(np.float32)
        middle = np.full(shape, (low + high + 1) // 2 + (3 if zero else 0))
        names[f"{of}_zero"] = middle.astype(dtype)
    return names


def quantized_model(names: dict[str, np.ndarray], **attributes: Any) -> bytes:
    fed = ["x", "h", "c"]
    inputs = ["x", "w", "r", "b", "", "h", "c", "", "w_scale", "w_zero", "r_scale", "r_zero"]
    node = graphs.node("DynamicQuantizeLSTM", inputs, ["y", "y_h", "y_c"], domain="com.microsoft", **attributes)
    return graphs.model(
        [node],
        {k: (graphs.FLOAT, names[k].shape) for k in fed},
        ["y", "y_h", "y_c"],
        {k: v for k, v in names.items() if k not in fed},
        domains={"com.microsoft": 1},
    )


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize(("batch", "hidden", "directions"), [(1, 16, 2), (2, 5, 1), (3, 9, 2), (5, 24, 1), (9, 10, 2)])
def test_dynamic_quantize_lstm(
    dtype: type, columns: bool, zero: bool, batch: int, hidden: int, directions: int
) -> None:
    names = quantized(6, batch, 7, hidden, directions, dtype, columns=columns, zero=zero and not columns, seed=1)
    data = quantized_model(names, hidden_size=hidden, direction="bidirectional" if directions == 2 else "forward")
    feeds = {k: names[k] for k in "xhc"}
    expected = graphs.native(data, feeds)
    with onnx_wasm.InferenceSession.create(data) as session:
        found = session.run(feeds)
        for name, e in expected.items():
            difference = np.abs(found[name].data.reshape(e.shape) - e)
            # A state on the border between two of its 255 steps may go either way.
            assert difference.max() < 0.02
            assert (difference < 1e-5).mean() > 0.95


@pytest.mark.parametrize("padding", [0, 10, np.inf])
def test_padding_has_no_part_in_the_range_of_a_quantized_input(padding: float) -> None:
    names = quantized(6, 3, 7, 16, 1, np.int8, columns=False, zero=False, seed=1)
    names["lens"] = np.array([2, 4, 3], np.int32)
    names["x"][4:] = padding
    fed = ["x", "h", "c"]
    inputs = ["x", "w", "r", "b", "lens", "h", "c", "", "w_scale", "w_zero", "r_scale", "r_zero"]
    lstm = graphs.node("DynamicQuantizeLSTM", inputs, ["y", "y_h", "y_c"], domain="com.microsoft", hidden_size=16)
    data = graphs.model(
        [lstm],
        {**{k: (graphs.FLOAT, names[k].shape) for k in fed}, "lens": (graphs.INT32, [3])},
        ["y", "y_h", "y_c"],
        {k: v for k, v in names.items() if k not in (*fed, "lens")},
        domains={"com.microsoft": 1},
    )
    feeds = {k: names[k] for k in (*fed, "lens")}
    expected = graphs.native(data, feeds)
    with onnx_wasm.InferenceSession.create(data) as session:
        for name, tensor in session.run(feeds).items():
            np.testing.assert_allclose(tensor.data.reshape(expected[name].shape), expected[name], rtol=1e-4, atol=1e-5)


CASES = node_cases(*OPS)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_onnx_case(harness: Harness, case: Case) -> None:
    for found, expected in zip(case.run(harness), [o for o in case.outputs if o is not None], strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_onnx_cases_are_there() -> None:
    assert len(CASES) >= 15
