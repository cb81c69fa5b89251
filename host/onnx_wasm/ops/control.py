"""Control flow: graphs run inside a node. Iterations are lowered one by one; only a condition that depends on data ends
a segment of the tape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..context import Array, Context, HostView, Item, Steps, Subgraph, TensorSequence, Value
from ..dtypes import STRING
from ..errors import InvalidModelError, UnsupportedModelError
from ..model import Graph
from ..registry import op
from ..words import counted
from ._copy import only
from .concat import concat
from .slice import pick


@op("If", since=1)
def if_(cx: Context, cond: Value, *, then_branch: Graph, else_branch: Graph) -> Steps:
    """The outputs of the branch that the condition chooses."""
    for one, other in zip(then_branch.outputs, else_branch.outputs, strict=False):
        if one.dtype is not None and other.dtype is not None and one.dtype is not other.dtype:
            cx.fail(f"the branches give different types: {one.dtype} and {other.dtype}", InvalidModelError)
    chosen = only(cx, "cond", (yield cond))
    outputs = yield Subgraph(then_branch if chosen else else_branch, ())
    return tuple(outputs)


@op("Loop", since=1)
def loop(
    cx: Context, max_trip_count: Value | None = None, cond: Value | None = None, *carried: Item, body: Graph
) -> Steps:
    """Run the body while its condition holds, at most so many times; the last carried values, and every
    iteration's scan outputs, stacked."""
    state: list[Item] = list(carried)
    scans: list[list[Item]] = [[] for _ in range(len(body.outputs) - 1 - len(state))]

    def held() -> list[Item]:
        return [*state, *(v for scan in scans for v in scan)]

    trips = None
    if max_trip_count is not None:
        trips = int(only(cx, "max_trip_count", (yield max_trip_count, held())))
    going = True
    if cond is not None:
        going = bool(only(cx, "cond", (yield cond, held())))
    i = 0
    while going and (trips is None or i < trips):
        outputs = yield Subgraph(body, [*_turn(cx, body, i), *state], held())
        state = _carried(cx, state, outputs[1 : 1 + len(state)])
        for scan, value in zip(scans, outputs[1 + len(state) :], strict=True):
            scan.append(_scanned(cx, value))
        if cond is not None:
            going = bool(only(cx, "the condition of the body", (yield _tensor(cx, outputs[0]), held())))
        i += 1
    if not i and scans:
        return (*state, *(yield from _empty(cx, body, [*_turn(cx, body, 0), *state], [0] * len(scans))))
    return (*state, *(_stack(cx, values, 0) for values in scans))


def _turn(cx: Context, body: Graph, number: int) -> list[Value]:
    """The iteration's number and the condition: scalars, or of shape [1] where the body declares them so."""
    numbers = np.array(number, np.int64), np.array(True)
    ranks = (len(i.shape) if i.shape else 0 for i in body.parameters)
    return [cx.known(v.reshape((1,) if rank == 1 else ())) for v, rank in zip(numbers, ranks, strict=False)]


@op("Scan", since=9)
def scan(
    cx: Context,
    *args: Value,
    body: Graph,
    num_scan_inputs: int,
    scan_input_axes: Sequence[int] | None = None,
    scan_input_directions: Sequence[int] | None = None,
    scan_output_axes: Sequence[int] | None = None,
    scan_output_directions: Sequence[int] | None = None,
) -> Steps:
    """Run the body for each slice of the scan inputs; the last states, and every slice's outputs, stacked."""
    if not 1 <= num_scan_inputs <= len(args):
        cx.fail(f"num_scan_inputs is {num_scan_inputs}, must be of [1, {len(args)}], the number of inputs")
    count = len(args) - num_scan_inputs
    if len(body.outputs) < count:
        cx.fail(f"the body has {len(body.outputs)} outputs, but there are {count} states")
    state, inputs = list(args[:count]), list(args[count:])
    scans = len(body.outputs) - count
    input_axes = _each(cx, "scan_input_axes", scan_input_axes, len(inputs))
    axes = [_axis(cx, a, x.rank) for a, x in zip(input_axes, inputs, strict=True)]
    backward = _directions(cx, "scan_input_directions", scan_input_directions, len(inputs))
    output_axes = _each(cx, "scan_output_axes", scan_output_axes, scans)
    output_backward = _directions(cx, "scan_output_directions", scan_output_directions, scans)
    lengths = {x.shape[a] for x, a in zip(inputs, axes, strict=True)}
    if len(lengths) != 1:
        cx.fail(f"the scan inputs have different lengths {sorted(lengths)}")
    (length,) = lengths
    outputs: list[list[Item]] = [[] for _ in range(scans)]
    for i in range(length):
        slices = [
            _take(cx, x, a, length - 1 - i if reverse else i)
            for x, a, reverse in zip(inputs, axes, backward, strict=True)
        ]
        made = yield Subgraph(body, [*state, *slices], [*inputs, *(v for o in outputs for v in o)])
        state = [_tensor(cx, v) for v in _carried(cx, state, made[:count])]
        for collected, value in zip(outputs, made[count:], strict=True):
            collected.append(_scanned(cx, value))
    if not length:
        slices = [Value((*x.shape[:a], *x.shape[a + 1 :]), x.dtype) for x, a in zip(inputs, axes, strict=True)]
        return (*state, *(yield from _empty(cx, body, [*state, *slices], output_axes)))
    for collected, reverse in zip(outputs, output_backward, strict=True):
        if reverse:
            collected.reverse()
    return (*state, *(_stack(cx, values, axis) for values, axis in zip(outputs, output_axes, strict=True)))


@op("Scan", since=8)
def scan_8(
    cx: Context,
    sequence_lens: Value | None = None,
    *args: Value,
    body: Graph,
    num_scan_inputs: int,
    directions: Sequence[int] | None = None,
) -> Steps:
    """The same for every example of a batch, with the batch as axis 0 and the sequence as axis 1."""
    if sequence_lens is not None:
        cx.fail("Scan-8 with sequence_lens is not supported", UnsupportedModelError)
    if not args[0].shape[0]:
        cx.fail(f"{args[0]} is a batch of no examples", UnsupportedModelError)
    batches: list[tuple[Item, ...]] = []
    for b in range(args[0].shape[0]):
        example = [_take(cx, a, 0, b) for a in args]
        steps = scan(cx, *example, body=body, num_scan_inputs=num_scan_inputs, scan_input_directions=directions)
        batches.append((yield from _keeping(steps, [*args, *(v for batch in batches for v in batch)])))
    return tuple(_stack(cx, [batch[i] for batch in batches], 0) for i in range(len(body.outputs)))


def _keeping(steps: Steps, more: Sequence[Item]) -> Steps:
    """The same steps, with more that must be kept."""
    reply: Any = None
    while True:
        try:
            request = steps.send(reply)
        except StopIteration as stop:
            return stop.value
        assert isinstance(request, Subgraph)
        reply = yield replace(request, keep=[*request.keep, *more])


@op("SequenceMap", since=17)
def sequence_map(cx: Context, sequence: TensorSequence, *more: Item, body: Graph) -> Steps:
    """Run the body for each element; sequences among the other inputs give their element of the same place."""
    collected: list[list[Value]] = [[] for _ in body.outputs]
    for i in range(len(sequence.elements)):
        others = [m.elements[i] if isinstance(m, TensorSequence) else m for m in more]
        keep = [v for values in collected for v in values]
        made = yield Subgraph(body, [sequence.elements[i], *others], keep)
        for values, item in zip(collected, made, strict=True):
            values.append(_tensor(cx, item))
    return tuple(TensorSequence(tuple(v), i.dtype) for v, i in zip(collected, body.outputs, strict=True))


def _carried(cx: Context, before: Sequence[Item], after: Sequence[Item]) -> list[Item]:
    """What an iteration carries on: of the types that it was given."""
    for i, (old, new) in enumerate(zip(before, after, strict=True)):
        if isinstance(old, Value) and isinstance(new, Value) and old.dtype is not new.dtype:
            cx.fail(f"carried value {i} is {old.dtype}, and an iteration makes it {new.dtype}", InvalidModelError)
    return list(after)


def _tensor(cx: Context, item: Item) -> Value:
    if not isinstance(item, Value):
        cx.fail("a body's condition or state must be a tensor of numbers", UnsupportedModelError)
    return item


def _scanned(cx: Context, item: Item) -> Value | HostView:
    if not isinstance(item, Value | HostView):
        cx.fail("a body's scan output must be a tensor", UnsupportedModelError)
    return item


def _each(cx: Context, name: str, given: Sequence[int] | None, count: int) -> Sequence[int]:
    """One number for each of the tensors, 0 if none are given."""
    if given and len(given) != count:
        cx.fail(f"{name} {list(given)} has {counted(len(given), 'element')}, must have {count}")
    return given or [0] * count


def _directions(cx: Context, name: str, given: Sequence[int] | None, count: int) -> Sequence[int]:
    found = _each(cx, name, given, count)
    if not set(found) <= {0, 1}:
        cx.fail(f"{name} {list(found)} must be 0, forward, or 1, backward")
    return found


def _axis(cx: Context, axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        cx.fail(f"axis {axis} out of range [{-rank}, {rank})")
    return axis % rank


def _take(cx: Context, x: Value, axis: int, index: int) -> Value:
    places = [range(d) for d in x.shape]
    places[axis] = range(index, index + 1)
    part = pick(cx, x, places)
    return cx.alias(part, (*x.shape[:axis], *x.shape[axis + 1 :]))


def _empty(cx: Context, body: Graph, inputs: Sequence[Item], axes: Sequence[int]) -> Steps:
    """Scan outputs without an iteration, empty along these axes. Other extents are as the body declares them, or as an
    iteration would make them; 0, where only a run can tell."""
    declared = body.outputs[len(body.outputs) - len(axes) :]
    outlined = None
    if any(i.dtype is None or i.shape is None or not all(isinstance(d, int) for d in i.shape) for i in declared):
        outlined = yield Subgraph(body, inputs, runs=False)
    collected = []
    for i, (info, axis) in enumerate(zip(declared, axes, strict=True)):
        one = outlined[len(outlined) - len(axes) + i] if outlined is not None else None
        strings = isinstance(one, HostView)
        if isinstance(one, HostView):
            one = one.sources[0] if len(one.sources) == 1 else None
        extents = [d if isinstance(d, int) else 0 for d in info.shape or ()]
        if isinstance(one, Value) and (info.shape is None or len(info.shape) == one.rank):
            extents = [d if isinstance(d, int) else n for d, n in zip(info.shape or one.shape, one.shape, strict=True)]
        dtype = info.dtype or (STRING if strings else one.dtype if isinstance(one, Value) else None)
        extents.insert(_axis(cx, axis, len(extents) + 1), 0)
        if dtype is None:
            cx.fail(f"no iteration says of what type output {info.name!r} of the body is", UnsupportedModelError)
        collected.append(cx.known(np.zeros(extents, object)) if dtype is STRING else cx.out(extents, dtype))
    return collected


def _stack_strings(cx: Context, items: Sequence[Item], axis: int) -> HostView:
    """Strings that are not there before the run: the host stacks them after it."""
    sources: list[Value] = []
    parts: list[HostView | Array] = []
    for item in items:
        if isinstance(item, HostView):
            sources += item.sources
            parts.append(item)
        else:
            assert isinstance(item, Value)
            parts.append(cx.read(item))

    def convert(*contents: Array) -> Array:
        left = iter(contents)
        made = [p.convert(*(next(left) for _ in p.sources)) if isinstance(p, HostView) else p for p in parts]
        return np.stack(made, axis)

    return HostView(tuple(sources), convert)


def _stack(cx: Context, items: Sequence[Item], axis: int) -> Item:
    """One tensor for each iteration, of which there is one at least, along a new axis."""
    if any(isinstance(item, HostView) for item in items):
        return _stack_strings(cx, items, axis)
    values = [item for item in items if isinstance(item, Value)]
    if any(v.shape != values[0].shape for v in values):
        cx.fail(f"iterations give different shapes: {[list(v.shape) for v in values][:4]}")
    rank = values[0].rank + 1
    axis = _axis(cx, axis, rank)
    widened = [cx.alias(v, (*v.shape[:axis], 1, *v.shape[axis:])) for v in values]
    if all(v.known is not None for v in widened):
        return cx.known(np.concatenate([v.known for v in widened if v.known is not None], axis))
    return concat(cx, *widened, axis=axis)
