"""NonMaxSuppression."""

from __future__ import annotations

from ..context import Context, Steps, Value
from ..dtypes import F32, I32, I64
from ..errors import UnsupportedModelError
from ..registry import op
from ._copy import only


@op("NonMaxSuppression", since=10)
def non_max_suppression(
    cx: Context,
    boxes: Value,
    scores: Value,
    max_output_boxes_per_class: Value | None = None,
    iou_threshold: Value | None = None,
    score_threshold: Value | None = None,
    *,
    center_point_box: int = 0,
) -> Steps:
    """[n, 3]: image, class and box of the best boxes [N, boxes, 4] by scores [N, classes, boxes]."""
    if boxes.rank != 3 or scores.rank != 3 or boxes.shape[2] != 4:
        cx.fail(f"boxes must be [N, n, 4] and scores [N, classes, n], got {boxes!r} and {scores!r}")
    if boxes.shape[:2] != (scores.shape[0], scores.shape[2]):
        cx.fail(f"{boxes!r} and {scores!r} do not fit")
    for name, value, dtype in (
        ("boxes", boxes, F32),
        ("scores", scores, F32),
        ("max_output_boxes_per_class", max_output_boxes_per_class, I64),
        ("iou_threshold", iou_threshold, F32),
        ("score_threshold", score_threshold, F32),
    ):
        if value is not None and value.dtype is not dtype:
            cx.fail(f"{name} must be {dtype}, got {value!r}", UnsupportedModelError)
        if value is not None and value not in (boxes, scores) and value.size != 1:
            cx.fail(f"{name} must have one element, got {value!r}")
    images, classes, n = scores.shape
    most = max_output_boxes_per_class
    if most is None or scores.size == 0:
        return cx.out((0, 3), I64)
    cap = n
    if most.known is not None:
        cap = max(0, min(n, only(cx, "max_output_boxes_per_class", most.known)))
    picked, counts = cx.out((images, classes, cap), I32), cx.out((images, classes), I32)
    cx.emit(
        "nms_pick",
        units=images * classes,
        boxes=boxes,
        scores=scores,
        most=most,
        iou=iou_threshold,
        score=score_threshold,
        picked=picked,
        counts=counts,
        keys=cx.work(scores.size * 8),
        classes=classes,
        n=n,
        cap=cap,
        center=int(bool(center_point_box)),
    )
    total = cx.out((1,), I64)
    cx.emit("nms_total", counts=counts, total=total, n=images * classes)
    (found,) = yield total, [picked, counts]
    y = cx.out((int(found), 3), I64)
    if y.size:
        cx.emit("nms_list", units=images * classes, picked=picked, counts=counts, y=y, classes=classes, cap=cap)
    return y
