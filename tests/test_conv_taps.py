"""Convolutions with taps that only ever meet padding, and those taps."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import onnx_wasm as ort
from graphs import FLOAT, model, node
from harness import Harness
from onnx_wasm.ops._convolution import Geometry, within
from test_conv import check, normal

# The image is smaller than the kernel's reach, from one side or both.
CASES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 9, 4, 4), (8, 9, 3, 3), {"dilations": [12, 12], "pads": [12, 12, 12, 12]}),
    ((1, 9, 4, 40), (8, 9, 3, 3), {"dilations": [5, 5], "pads": [5, 5, 5, 5]}),
    ((1, 9, 3, 3), (8, 9, 5, 5), {"pads": [4, 2, 0, 2]}),
    ((1, 8, 4, 5), (8, 8, 3, 3), {"dilations": [3, 4], "pads": [6, 0, 0, 8]}),
    ((1, 8, 7, 7), (8, 8, 7, 2), {"strides": [3, 2], "pads": [9, 0, 9, 1], "dilations": [2, 1]}),
    ((2, 8, 5), (8, 4, 3), {"dilations": [9], "pads": [9, 9], "group": 2}),
    ((1, 6, 3, 4), (6, 1, 3, 3), {"dilations": [4, 4], "pads": [4, 4, 4, 4], "group": 6}),
    ((1, 3, 4, 5), (1, 3, 5, 5), {"dilations": [5, 2], "pads": [10, 4, 10, 4]}),
    ((1, 4, 2, 3, 4), (5, 4, 3, 3, 3), {"dilations": [2, 3, 4], "pads": [2, 3, 4, 2, 3, 4]}),
    ((1, 5, 1, 1), (7, 5, 3, 3), {"pads": [1, 1, 1, 1]}),
]


@pytest.mark.parametrize(("x", "w", "attributes"), CASES)
@pytest.mark.parametrize("constant", [True, False])
def test_image_within_the_kernels_reach(
    harness: Harness, x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, Any], constant: bool
) -> None:
    check(harness, x, w, constant=constant, **attributes)


def test_taps_that_meet_the_image() -> None:
    count = 0
    for n, k, s, q, p, e in itertools.product(*map(range, (1, 1, 1, 1, 0, 0), (7, 6, 4, 6, 8, 8))):
        if n + p + e < q * (k - 1) + 1:
            continue
        outputs = (n + p + e - q * (k - 1) - 1) // s + 1
        met = {t for t in range(k) if any(0 <= o * s + t * q - p < n for o in range(outputs))}
        g, [taps] = within(Geometry((n,), (k,), (outputs,), (s,), (q,), (p,)))
        assert met <= set(taps)
        assert g.kernel == (len(taps),)
        assert g.pads == (p - q * taps.start,) >= (0,)
        if met:
            assert taps.stop == max(met) + 1
            # One step further and the first window would begin behind the image's first element.
            assert taps.start == min(met) or p < (taps.start + 1) * q
            count += len(taps) < k
    assert count > 1000


def test_nothing_is_kept_of_taps_that_are_not_used() -> None:
    weights = {"w": normal(32, 64, 3, 3), "b": normal(32)}
    conv = node("Conv", ["x", "w", "b"], ["y"], dilations=[6, 6], pads=[6, 6, 6, 6])
    data = model([conv], {"x": (FLOAT, [1, 64, 5, 5])}, ["y"], weights)
    with ort.Runtime() as runtime, ort.InferenceSession.create(data, runtime=runtime) as session:
        x = normal(1, 64, 5, 5)
        got = session.run({"x": x})["y"].get_data(True)
        used = runtime.memory().used
        session.run({"x": x})["y"].dispose()
        assert runtime.memory().used == used
        assert used < weights["w"].nbytes / 2
    alone = np.einsum("mc,nchw->nmhw", weights["w"][:, :, 1, 1], x) + weights["b"][:, None, None]
    np.testing.assert_allclose(got, alone, rtol=1e-4, atol=1e-5)
