from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import graphs
import onnx_nodes
import onnx_wasm as ort
from harness import Harness, KernelStatus
from onnx_wasm.errors import ShapeError

UNPOOL = onnx_nodes.node_cases("MaxUnpool")
# Models of `graphs` have outputs of floats.
AS_FLOAT = graphs.node("Cast", ["found"], ["y"], to=graphs.FLOAT)
NAMES = ["boxes", "scores", "most", "iou", "score"]


def both(feeds: dict[str, np.ndarray], weights: dict[str, np.ndarray] | None = None, **attributes: Any) -> Any:
    """What this package and onnxruntime select."""
    given = feeds | (weights or {})
    names = [n if n in given else "" for n in NAMES]
    types = {"most": graphs.INT64}
    data = graphs.model(
        [graphs.node("NonMaxSuppression", names, ["found"], **attributes), AS_FLOAT],
        {n: (types.get(n, graphs.FLOAT), v.shape) for n, v in feeds.items()},
        ["y"],
        weights,
    )
    with ort.InferenceSession.create(data) as session:
        y = session.run(feeds)["y"].data.copy()
    return y, graphs.native(data, feeds)["y"]


def random_boxes(images: int, classes: int, n: int, *, center: bool = False, seed: int = 0) -> dict[str, np.ndarray]:
    chance = np.random.default_rng(seed)
    boxes = chance.uniform(0, 1, (images, n, 4))
    if center:
        boxes[..., 2:] *= 0.4
    else:
        boxes[..., 2:] = boxes[..., :2] + chance.uniform(-0.4, 0.4, (images, n, 2))
    # Few different scores, so that many are equal.
    scores = chance.integers(-2, 20, (images, classes, n)) / 20
    return {"boxes": boxes.astype(np.float32), "scores": scores.astype(np.float32)}


@pytest.mark.parametrize("center", [0, 1])
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 50), (2, 3, 40), (1, 4, 200)])
@pytest.mark.parametrize("most", [0, 3, 1000])
@pytest.mark.parametrize("constant", [False, True])
def test_as_onnxruntime(shape: tuple[int, int, int], center: int, most: int, constant: bool) -> None:
    feeds = random_boxes(*shape, center=bool(center))
    rest = {
        "most": np.array([most], np.int64),
        "iou": np.array([0.3], np.float32),
        "score": np.array(0.25, np.float32),
    }
    y, expected = both(feeds | ({} if constant else rest), rest if constant else None, center_point_box=center)
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("center", [0, 1])
def test_boxes_without_an_area(center: int) -> None:
    """NaN, infinite and empty ones suppress nothing, as in onnxruntime."""
    feeds = random_boxes(1, 1, 60, center=bool(center), seed=3)
    boxes = feeds["boxes"][0]
    for i in range(4):
        boxes[i, i] = np.nan
        boxes[4 + i, i] = np.inf
    boxes[8:12, 2:] = 0 if center else boxes[8:12, :2]
    rest = {"most": np.array([60], np.int64), "iou": np.array([0.2], np.float32)}
    y, expected = both(feeds | rest, center_point_box=center)
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("names", [[], ["most"], ["most", "iou"], ["most", "score"]])
def test_optional_inputs(names: list[str]) -> None:
    rest = {
        "most": np.array(7, np.int64),
        "iou": np.array([0.5], np.float32),
        "score": np.array([0.5], np.float32),
    }
    y, expected = both(random_boxes(2, 2, 30) | {n: rest[n] for n in names})
    np.testing.assert_array_equal(y, expected)


def test_the_number_found_changes_from_run_to_run() -> None:
    data = graphs.model(
        [
            graphs.node("NonMaxSuppression", NAMES, ["found"]),
            graphs.node("Shape", ["found"], ["size"]),
            graphs.node("Cast", ["size"], ["shape"], to=graphs.FLOAT),
            AS_FLOAT,
        ],
        {
            "boxes": (graphs.FLOAT, [1, 30, 4]),
            "scores": (graphs.FLOAT, [1, 2, 30]),
            "most": (graphs.INT64, [1]),
            "iou": (graphs.FLOAT, [1]),
            "score": (graphs.FLOAT, [1]),
        },
        ["y", "shape"],
    )
    feeds = random_boxes(1, 2, 30) | {"most": np.array([30])}
    found = set()
    with ort.InferenceSession.create(data) as session:
        for iou, score in ((0.2, 0.1), (0.9, 0.1), (0.5, 0.6), (0.5, 2.0)):
            feeds |= {"iou": np.array([iou], np.float32), "score": np.array([score], np.float32)}
            outputs, expected = session.run(feeds), graphs.native(data, feeds)
            np.testing.assert_array_equal(outputs["y"].data, expected["y"])
            np.testing.assert_array_equal(outputs["shape"].data, expected["shape"])
            found.add(len(expected["y"]))
    assert len(found) == 4
    assert 0 in found


def test_any_split_of_the_classes(harness: Harness) -> None:
    """The three kernels, with the classes in any ranges."""
    feeds = random_boxes(2, 3, 40)
    images, classes, n = feeds["scores"].shape
    results = []
    for bounds in ([0, 6], [0, 1, 4, 6]):
        harness.reset()
        at = {k: harness.put(v) for k, v in feeds.items()}
        limits = [harness.put(np.array(v)) for v in (np.int64(9), np.float32(0.4), np.float32(0.1))]
        picked, counts = harness.alloc(images * classes * n * 4), harness.alloc(images * classes * 4)
        keys, total = harness.alloc(images * classes * n * 8), harness.alloc(8)
        for begin, end in itertools.pairwise(bounds):
            harness.call(
                "nms_pick", 6, begin=begin, end=end, boxes=at["boxes"], scores=at["scores"], most=limits[0],
                iou=limits[1], score=limits[2], picked=picked, counts=counts, keys=keys, classes=classes, n=n, cap=n,
                center=0,
            )  # fmt: skip
        harness.call("nms_total", counts=counts, total=total, n=6)
        (found,) = harness.get(total, (1,), np.dtype(np.int64))
        y = harness.alloc(int(found) * 24)
        for begin, end in itertools.pairwise(bounds):
            harness.call("nms_list", 6, begin=begin, end=end, picked=picked, counts=counts, y=y, classes=classes, cap=n)
        harness.check_guards()
        results.append(harness.get(y, (int(found), 3), np.dtype(np.int64)))
    np.testing.assert_array_equal(results[0], results[1])
    rest = {"most": np.array([9]), "iou": np.array([0.4], np.float32), "score": np.array([0.1], np.float32)}
    np.testing.assert_array_equal(results[0], both(feeds | rest)[1])


def test_errors() -> None:
    feeds = random_boxes(2, 3, 40)
    with pytest.raises(ShapeError, match="do not fit"):
        session_of(feeds | {"scores": feeds["scores"][:, :, :-1]})
    with pytest.raises(ShapeError, match="one element"):
        session_of(feeds | {"most": np.array([1, 2])})


def session_of(feeds: dict[str, np.ndarray]) -> None:
    types = {"most": graphs.INT64}
    data = graphs.model(
        [graphs.node("NonMaxSuppression", list(feeds), ["found"]), AS_FLOAT],
        {n: (types.get(n, graphs.FLOAT), v.shape) for n, v in feeds.items()},
        ["y"],
    )
    with ort.InferenceSession.create(data) as session:
        session.run(feeds)


@pytest.mark.parametrize("case", UNPOOL, ids=[c.name for c in UNPOOL])
def test_unpool_onnx_case(harness: Harness, case: onnx_nodes.Case) -> None:
    (y,) = case.run(harness)
    np.testing.assert_array_equal(y, case.outputs[0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ((2, 3, 7), {"kernel_shape": [2], "strides": [2]}),
        ((1, 2, 4, 5), {"kernel_shape": [2, 3], "strides": [2, 3]}),
        ((1, 2, 4, 5), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 0, 0]}),
        ((2, 2, 2, 3, 2), {"kernel_shape": [2, 2, 2], "strides": [2, 2, 2]}),
    ],
)
def test_unpool(harness: Harness, dtype: Any, shape: Any, attributes: Any) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    rank = len(shape) - 2
    pads = attributes.get("pads", [0] * 2 * rank)
    size = [
        (n - 1) * s + k - pads[i] - pads[rank + i]
        for i, (n, s, k) in enumerate(zip(shape[2:], attributes["strides"], attributes["kernel_shape"], strict=True))
    ]
    full = (*shape[:2], *size)
    places = np.random.default_rng(1).permutation(int(np.prod(full)))[: x.size].reshape(shape)
    expected = np.zeros(full, dtype)
    expected.reshape(-1)[places.reshape(-1)] = x.reshape(-1)
    (y,) = onnx_nodes.run_node(harness, "MaxUnpool", [x, places], 22, **attributes)
    np.testing.assert_array_equal(y, expected)
    larger = np.array([n + 1 for n in full], np.int64)
    (y,) = onnx_nodes.run_node(harness, "MaxUnpool", [x, places, larger], 22, **attributes)
    np.testing.assert_array_equal(y, np.pad(expected, [(0, 1)] * len(full)))


def test_unpool_errors(harness: Harness) -> None:
    x = np.ones((1, 1, 2, 2), np.float32)
    places = np.array([[[[0, 1], [2, 16]]]])
    with pytest.raises(KernelStatus) as status:
        onnx_nodes.run_node(harness, "MaxUnpool", [x, places], 22, kernel_shape=[2, 2], strides=[2, 2])
    assert status.value.args[:2] == (2, 16)
    with pytest.raises(ShapeError, match="do not fit each other"):
        onnx_nodes.run_node(harness, "MaxUnpool", [x, places], 22, kernel_shape=[2])
    with pytest.raises(ShapeError, match="must be at least"):
        onnx_nodes.run_node(
            harness, "MaxUnpool", [x, places, np.array([1, 1, 1, 1])], 22, kernel_shape=[2, 2], strides=[2, 2]
        )
