"""Every allocation that a real model makes may fail: create, run, dispose."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import onnx_wasm as ort
from onnx_wasm.testing import each_failed_allocation
from shared_material import model_inputs, model_outputs, model_path

IDS = [
    "aecmos_1668423760",
    "basic_pitch",
    "eeg_seizure_A",
    "magika_v3_3",
    "oww_embedding",
    "oww_hey_jarvis",
    "oww_melspectrogram",
    "silero_vad_16k_op15",
    "silero_vad_16k_sequence",
    "silero_vad_v6",
]


@pytest.mark.parametrize(("id", "planned"), [(name, bool(i % 2)) for i, name in enumerate(IDS)])
def test_every_allocation_of_a_model_may_fail(id: str, planned: bool) -> None:
    path, feeds, expected = model_path(id), model_inputs(id), model_outputs(id)
    with ort.Runtime() as runtime:

        def whole() -> None:
            with ort.InferenceSession.create(path, runtime=runtime, enable_mem_pattern=planned) as session:
                check(session.run(feeds), expected)

        # Each failure leaves the heap sound and nothing in use; the last call, without one, gives what it should.
        assert each_failed_allocation(whole, runtime=runtime) > 15
        assert runtime.memory().used == 0
        with ort.InferenceSession.create(path, runtime=runtime, enable_mem_pattern=planned) as session:
            nth = 0
            while True:
                nth += 1
                runtime.fail_allocation(nth)
                try:
                    check(session.run(feeds), expected)
                except MemoryError:
                    # The same session runs again.
                    check(session.run(feeds), expected)
                if runtime.fail_allocation(0):
                    break
            assert nth >= 2  # at least the output, once the first run has made room for the rest
        runtime.heap_check()
        assert runtime.memory().used == 0


def check(outputs: dict[str, Any], expected: dict[str, np.ndarray[Any, Any]]) -> None:
    """Compare a run's tensors, and dispose of them."""
    arrays = {n: t.get_data(release_data=True) for n, t in outputs.items()}
    for name, wanted in expected.items():
        if wanted.dtype.kind == "f":
            spread = float(wanted.max() - wanted.min())
            np.testing.assert_allclose(arrays[name], wanted, rtol=1e-3, atol=1e-4 * spread)
        else:
            np.testing.assert_array_equal(arrays[name], wanted)
