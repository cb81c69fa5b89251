"""The order of a graph's nodes. ONNX demands one in which every input is computed before it is read; tools that insert
nodes at the end of the list, like onnxruntime's conversion to float16, leave it to the reader."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeVar


class _Node(Protocol):
    @property
    def inputs(self) -> Sequence[str]: ...
    @property
    def outputs(self) -> Sequence[str]: ...
    def subgraphs(self) -> Iterable[Any]: ...


N = TypeVar("N", bound=_Node)


def reads(node: _Node) -> set[str]:
    """The names that a node or its subgraphs read."""
    names = {i for i in node.inputs if i}
    for inner in node.subgraphs():
        for n in inner.nodes:
            names |= reads(n)
        names.update(o.name for o in inner.outputs)
    return names


def in_order(nodes: list[N]) -> list[N]:
    """The nodes such that each comes after those whose outputs it reads, otherwise as they are.

    Nodes that wait for each other stay as they are: what is wrong with them is said where the order is checked.
    """
    producers: dict[str, int] = {}
    for at, node in enumerate(nodes):
        for name in node.outputs:
            producers.setdefault(name, at)
    before = [{producers[n] for n in reads(node) if n in producers} - {at} for at, node in enumerate(nodes)]
    if all(not needs or max(needs) < at for at, needs in enumerate(before)):
        return nodes
    after: list[list[int]] = [[] for _ in nodes]
    for at, needs in enumerate(before):
        for other in needs:
            after[other].append(at)
    missing = [len(needs) for needs in before]
    ready = [at for at, count in enumerate(missing) if not count]
    order = []
    while ready:
        at = heapq.heappop(ready)
        order.append(nodes[at])
        for other in after[at]:
            missing[other] -= 1
            if not missing[other]:
                heapq.heappush(ready, other)
    return order if len(order) == len(nodes) else nodes
