"""What a recorded program would have met under other limits: its calls made again, in a heap of another policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from . import heap_layout as layout
from .errors import InvalidTraceError
from .heap_log import FREE, MALLOC, TENSOR, TENSOR_ALIGNMENT
from .heap_policy import HeapPolicy
from .trace import ALIGNED, ModuleHeap, Trace, begin, injections, operation, recorded_policy

AS_RECORDED = "as recorded"


@dataclass(frozen=True)
class Failure:
    """The call that was answered with 0; sizes in bytes."""

    call: int
    """Its number in the recording, from 0."""
    op: str
    size: int
    used: int
    """Bytes in use when it was made."""
    linear: int
    limit: Literal["maximum", "engine"]
    """Whether the heap's own limit forbade to grow, or the engine refused."""
    limit_bytes: int
    recorded: bool
    """Whether it failed in the recording, too."""


@dataclass(frozen=True)
class WhatIf:
    """What came of a recording under one policy, up to its end or to the call that failed; sizes in bytes."""

    name: str
    policy: HeapPolicy
    calls: int
    """How many succeeded."""
    peak: int
    """The most bytes that were in use, headers and padding included."""
    linear: int
    """Size of linear memory at the end."""
    growths: int
    failure: Failure | None
    unknown_after: int | None = None
    """The first call that failed when it was recorded and did not here: the program would have gone on otherwise."""
    refused: str = ""
    """Why no heap could begin with this policy; all counts are then 0."""

    @property
    def slack(self) -> int:
        """Linear memory at the end beyond the peak; what lies below the heap's base is in it."""
        return self.linear - self.peak

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON can hold it."""
        return {**dataclasses.asdict(self), "slack": self.slack}


def whatif(trace: Trace, policies: Mapping[str, HeapPolicy]) -> list[WhatIf]:
    """Replay a recording under each policy, in order.

    A call that fails ends its row: nobody knows what the program would have done then.

    Raises InvalidTraceError for a recording that begins in a state which cannot be made.
    """
    return [_row(trace, name, policy) for name, policy in policies.items()]


def as_recorded(trace: Trace) -> dict[str, HeapPolicy]:
    """The recording's own policy, by the name of its row."""
    return {AS_RECORDED: recorded_policy(trace)}


def _row(trace: Trace, name: str, policy: HeapPolicy) -> WhatIf:
    refused = WhatIf(name, policy, 0, 0, 0, 0, None)
    try:
        policy.validate()
    except ValueError as error:
        return dataclasses.replace(refused, refused=str(error))
    heap = ModuleHeap(trace, policy)
    try:
        if not begin(trace, heap):
            return dataclasses.replace(refused, refused="it cannot hold what was in use when the recording began")
        # Breaks are comparable from one base only: the first is rounded up to a multiple of 4,096.
        if policy.heap_base == recorded_policy(trace).heap_base and heap.brk() != trace.start.brk:
            raise InvalidTraceError(
                f"{trace.name} begins with break {trace.start.brk}, which is not that of a new heap: {heap.brk()}"
            )
        calls = _replay(trace, heap)
        injected = injections(trace)
        recorded = (i for i, (op, p) in enumerate(zip(trace.op, trace.ptr, strict=True)) if op != FREE and not p)
        unknown = next((i for i in recorded if i < calls and i not in injected), None)
        failure = None if calls == len(trace.op) else _failure(trace, heap, calls, policy)
        peak, growths = heap.word(layout.PEAK), heap.word(layout.GROWTHS)
        return WhatIf(name, policy, calls, peak, heap.memory_size(), growths, failure, unknown)
    finally:
        heap.close()


def _replay(trace: Trace, heap: ModuleHeap) -> int:
    """Make the calls until one fails; how many succeeded."""
    malloc, memalign, free = heap.malloc, heap.memalign, heap.free
    blocks: list[int] = []
    injected = injections(trace)
    for call, (op, arg) in enumerate(zip(trace.op, trace.arg, strict=True)):
        if op == FREE:
            free(blocks[arg])
            continue
        if call in injected:
            heap.inject(injected[call])
        address = malloc(arg) if op == MALLOC else memalign(_alignment(op), arg)
        if not address and call not in injected:
            return call
        blocks.append(address)
    return len(trace.op)


def _alignment(op: int) -> int:
    return TENSOR_ALIGNMENT if op == TENSOR else 1 << (op - ALIGNED)


def _failure(trace: Trace, heap: ModuleHeap, call: int, policy: HeapPolicy) -> Failure:
    op, size = trace.op[call], trace.arg[call]
    # A failed call leaves the heap as it was; made again, it tells whether the engine was asked.
    asked = heap.word(layout.GROWTHS_REFUSED)
    if op == MALLOC:
        heap.malloc(size)
    else:
        heap.memalign(_alignment(op), size)
    by_engine = heap.word(layout.GROWTHS_REFUSED) > asked
    return Failure(
        call=call,
        op=operation(op),
        size=size,
        used=heap.word(layout.USED),
        linear=heap.memory_size(),
        limit="engine" if by_engine else "maximum",
        limit_bytes=policy.engine_limit if by_engine else policy.limit,
        recorded=trace.ptr[call] == 0,
    )
