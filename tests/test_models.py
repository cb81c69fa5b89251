"""Real networks: outputs against native onnxruntime, and what their plans take."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import graphs
import onnx_wasm as ort
from onnx_wasm.engine import Variant
from shared_material import model_inputs, model_outputs, model_path, random_weights

LIGHT = [
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
    "vgg19",
    "zfnet512",
]
TRAINED = ("oww_embedding", "ppocr_v2_cls", "ppocr_v4_rec", "magika_v3_3", "minilm_l3_fp32")
MODES: list[tuple[Variant, bool]] = [("relaxed", True), ("relaxed", False), ("strict", True), ("strict", False)]
MODE_IDS = [f"{v}-{'planned' if p else 'unplanned'}" for v, p in MODES]
Arrays = dict[str, np.ndarray[Any, Any]]


def run_once(model: Any, feeds: Arrays, variant: Variant, planned: bool) -> Arrays:
    with ort.Runtime(variant=variant) as runtime:
        with ort.InferenceSession.create(model, runtime=runtime, enable_mem_pattern=planned) as session:
            outputs = session.run(feeds)
            arrays = {n: t.get_data(release_data=True) for n, t in outputs.items() if isinstance(t, ort.Tensor)}
        runtime.heap_check()
        assert runtime.memory().used == 0
    return arrays


def error(got: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> float:
    """Largest error, as a part of the largest expected value."""
    assert got.shape == expected.shape
    assert np.isfinite(got).all() == np.isfinite(expected).all()
    wide = expected.astype(np.float64)
    return float(np.abs(got - wide).max() / max(np.abs(wide).max(), 1e-30))


# Dynamically quantised: the least change of the input moves their outputs by per cents, also in native onnxruntime.
QUANTISED = {"minilm_l6_int8", "tashkeel_rawi_int8"}
IDS = [
    *("aecmos_1668423760", "basic_pitch", "chars2vec_en300", "ddddocr_common", "eeg_seizure_A", "ort_logreg_iris"),
    *("minilm_l6_int8", "oww_hey_jarvis", "oww_melspectrogram", "ppocr_v4_det", "silero_vad_16k_op15"),
    *("silero_vad_16k_sequence", "silero_vad_v6", "tashkeel_rawi_int8"),
    *TRAINED,
    *(f"light_{name}" for name in LIGHT),
]


@pytest.mark.parametrize("planned", [True, False], ids=["planned", "unplanned"])
@pytest.mark.parametrize("id", IDS)
def test_a_model_gives_the_recorded_outputs(id: str, planned: bool) -> None:
    got = run_once(model_path(id), model_inputs(id), "relaxed", planned)
    for name, expected in model_outputs(id).items():
        if id in QUANTISED:
            a, b = got[name].astype(np.float64).ravel(), expected.astype(np.float64).ravel()
            assert a @ b >= 0.99 * np.sqrt((a @ a) * (b @ b)), name
            np.testing.assert_array_equal(got[name].argmax(-1), expected.argmax(-1))
        elif expected.dtype.kind == "f":
            spread = float(expected.max() - expected.min())
            np.testing.assert_allclose(got[name], expected, rtol=1e-3, atol=1e-4 * spread)
        else:
            np.testing.assert_array_equal(got[name], expected)


@pytest.mark.parametrize(("variant", "planned"), MODES, ids=MODE_IDS)
@pytest.mark.parametrize("id", TRAINED)
def test_a_trained_model_gives_the_recorded_outputs(id: str, variant: Variant, planned: bool) -> None:
    got = run_once(model_path(id), model_inputs(id), variant, planned)
    for name, expected in model_outputs(id).items():
        if expected.dtype.kind == "f":
            assert error(got[name], expected) <= 1e-4, name
        else:
            np.testing.assert_array_equal(got[name], expected)


@dataclass
class Light:
    """One light_* network with random weights, and native onnxruntime's answer."""

    data: bytes
    feeds: Arrays
    expected: Arrays


def light_path(name: str) -> Path:
    return Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / f"light_{name}.onnx"


def light_feeds(proto: onnx.ModelProto) -> Arrays:
    weights = {i.name for i in proto.graph.initializer}
    (info,) = [i for i in proto.graph.input if i.name not in weights]
    shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
    return {info.name: np.random.default_rng(7).normal(0, 1, shape).astype(np.float32)}


@pytest.fixture(scope="module", params=LIGHT)
def network(request: pytest.FixtureRequest) -> Iterator[Light]:
    proto = random_weights().randomise(onnx.load(light_path(request.param)))
    feeds = light_feeds(proto)
    data = proto.SerializeToString()
    del proto
    yield Light(data, feeds, graphs.native(data, feeds))
    gc.collect()


@pytest.mark.parametrize(("variant", "planned"), MODES, ids=MODE_IDS)
def test_a_light_network_agrees_with_native(network: Light, variant: Variant, planned: bool) -> None:
    got = run_once(network.data, network.feeds, variant, planned)
    for name, expected in network.expected.items():
        assert error(got[name], expected) <= 1e-3


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet"])
@pytest.mark.parametrize("level", ["all", "disabled"])
def test_every_intermediate_tensor_agrees_with_native(name: str, level: str) -> None:
    proto = random_weights().randomise(onnx.load(light_path(name)))
    del proto.graph.value_info[:]
    fetches = [o for n in proto.graph.node for o in n.output if n.op_type != "Dropout" or o == n.output[0]]
    del proto.graph.output[:]
    proto.graph.output.extend(onnx.helper.make_tensor_value_info(o, onnx.TensorProto.FLOAT, None) for o in fetches)
    data, feeds = proto.SerializeToString(), light_feeds(proto)
    expected = graphs.native(data, feeds, fetches)
    with (
        ort.Runtime() as runtime,
        ort.InferenceSession.create(data, runtime=runtime, graph_optimization_level=level) as session,
    ):
        for name_, tensor in session.run(feeds).items():
            assert error(tensor.get_data(release_data=True), expected[name_]) <= 1e-3, name_


@pytest.mark.parametrize("name", LIGHT)
def test_a_light_network_needs_little_more_than_its_weights_and_live_tensors(name: str) -> None:
    path = light_path(name)
    feeds = light_feeds(onnx.load(path))
    with ort.Runtime() as runtime, ort.InferenceSession.create(path, runtime=runtime) as session:
        for tensor in session.run(feeds).values():
            tensor.dispose()
        plan, memory = session.plan_info, runtime.memory()
    assert plan is not None
    assert plan.arena_bytes <= 1.05 * plan.lower_bound
    assert memory.peak <= 1.15 * (plan.weight_bytes + plan.lower_bound)
