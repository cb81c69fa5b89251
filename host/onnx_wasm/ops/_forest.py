"""The tables of an ensemble of decision trees, as its kernel reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..context import Array, Context, Value

NODE = np.dtype([("feature", "<i4"), ("mode", "<i4"), ("true", "<i4"), ("false", "<i4"), ("threshold", "<f8")])
WEIGHT = np.dtype([("target", "<i4"), ("unused", "<i4"), ("value", "<f8")])
_EQUAL, _SET, MEMBER, LEAF, MISSING = 4, 5, 6, 7, 256
# Of integers below this there are sets.
_CATEGORIES = 1 << 21
_MODES = {
    "BRANCH_LEQ": 0,
    "BRANCH_LT": 1,
    "BRANCH_GTE": 2,
    "BRANCH_GT": 3,
    "BRANCH_EQ": _EQUAL,
    "BRANCH_NEQ": 5,
    "LEAF": LEAF,
}


class Forest(NamedTuple):
    """The tables that kernels_wat/trees.wat.j2 reads."""

    nodes: Value
    roots: Value
    weights: Value
    members: Value
    features: int
    targets: frozenset[int]
    positive: bool
    tests: int
    """0: only x <= threshold; 1: x == threshold, too; 2: sets of integers, too; -1: other sets, too."""
    missing: bool
    """Whether NaN takes the true branch of some."""


def forest_of(cx: Context, nodes: Array, roots: Array, weights: Array, members: Array, targets: int) -> Forest:
    """A forest of nodes and leaves as they are in the model, which must not go round in circles."""
    inner = nodes[nodes["mode"] & 255 != LEAF]
    ends = np.concatenate([inner["true"], inner["false"], roots])
    if ends.size and not 0 <= ends.min() <= ends.max() < len(nodes):
        cx.fail("a branch leads to a node that does not exist")
    if inner.size and inner["feature"].min() < 0:
        cx.fail("a feature id is negative")
    if weights.size and not 0 <= weights["target"].min() <= weights["target"].max() < targets:
        cx.fail(f"target or class ids reach from {weights['target'].min()} to {weights['target'].max()}, of {targets}")
    # Each level of the trees; a walk that is longer than there are nodes goes round in circles.
    level = np.unique(roots)
    for _ in range(len(nodes) + 1):
        at = nodes[level]
        at = at[at["mode"] & 255 != LEAF]
        if not at.size:
            break
        level = np.unique(np.concatenate([at["true"], at["false"]]))
    else:
        cx.fail("a branch leads back to a node above it")

    # The walk through several trees looks at a feature before it knows whether the node is a leaf.
    nodes["feature"][nodes["mode"] & 255 == LEAF] = 0
    _reduce_modes(nodes)
    _merge_equal(nodes)
    inner = nodes[nodes["mode"] & 255 != LEAF]

    def constant(array: Array) -> Value:
        value = cx.known(array.view(np.uint8))
        value.const = True
        return value

    return Forest(
        nodes=constant(nodes),
        roots=constant(roots.astype(np.int32)),
        weights=constant(weights),
        members=constant(members.astype(np.float64)),
        features=int(inner["feature"].max()) + 1 if inner.size else 0,
        targets=frozenset(np.unique(weights["target"]).tolist()),
        positive=bool((weights["value"] >= 0).all()),
        tests={0: 0, _EQUAL: 1, _SET: 2, MEMBER: -1}[int((inner["mode"] & 255).max(initial=0))],
        missing=bool((inner["mode"] & MISSING).any()),
    )


def _reduce_modes(nodes: Array) -> None:
    """Leave no tests but x <= threshold, x == threshold and of sets. A NaN goes where it went."""
    mode, threshold = nodes["mode"] & 255, nodes["threshold"]

    def of(*names: str) -> Array:
        return np.isin(mode, [_MODES[n] for n in names])

    below, above, unequal = of("BRANCH_LT", "BRANCH_GTE"), of("BRANCH_GTE", "BRANCH_GT"), of("BRANCH_NEQ")
    # As x <= NaN, x > NaN holds for no x.
    above &= ~np.isnan(threshold)
    exchanged = above | unequal
    nodes["true"][exchanged], nodes["false"][exchanged] = nodes["false"][exchanged], nodes["true"][exchanged]
    missing = (nodes["mode"] & MISSING != 0) ^ above
    missing[unequal] = False
    nodes["mode"] = np.where(unequal | of("BRANCH_EQ"), _EQUAL, np.where(mode >= MEMBER, mode, 0))
    nodes["mode"][missing] |= MISSING
    # Below a number is the same as at most the one before it.
    lowest = below & (threshold == -np.inf)
    threshold[below] = np.nextafter(threshold[below], -np.inf)
    threshold[lowest] = np.nan


def _merge_equal(nodes: Array) -> None:
    """Make one test, of a set of 64 integers, of tests x == 3, or else x == 7 ..., that have one true branch: exporters
    write so that x is one of some categories."""
    equal = nodes["mode"] & 255 == _EQUAL
    at = np.flatnonzero(equal)
    values = nodes["threshold"][at]
    if not at.size or not ((values == np.floor(values)) & (values >= 0) & (values < _CATEGORIES)).all():
        return
    block, elements = np.zeros(len(nodes), np.int32), np.zeros(len(nodes), np.uint64)
    block[at], elements[at] = values.astype(np.int32) >> 6, np.uint64(1) << (values.astype(np.uint64) & np.uint64(63))
    after = nodes["false"][at]
    merged = equal[after] & (block[after] == block[at])
    for field in ("mode", "feature", "true"):
        merged &= nodes[field][after] == nodes[field][at]
    merged &= nodes["mode"][at] == _EQUAL
    if 4 * merged.sum() < at.size:
        return
    # Each step doubles how many tests of a chain are in its elements, and how far it goes.
    last = np.arange(len(nodes))
    last[at[merged]] = after[merged]
    while True:
        elements |= elements[last]
        further = last[last]
        if (further == last).all():
            break
        last = further
    nodes["false"][at] = nodes["false"][last[at]]
    nodes["mode"][at] += (_SET - _EQUAL) + (block[at] << 16)
    nodes["threshold"].view(np.uint64)[at] = elements[at]


def by_ids(
    cx: Context,
    nodes: dict[str, Array],
    modes: Sequence[str],
    missing: Sequence[int] | None,
    weighted: tuple[Array, Array, Array, Array],
    targets: int,
) -> Forest:
    """A forest whose nodes and weights name trees and nodes of them by number."""
    count = len(modes)
    if any(len(v) != count for v in nodes.values()):
        cx.fail(f"the nodes_ attributes differ in length: {', '.join(f'{k} {len(v)}' for k, v in nodes.items())}")
    unknown = sorted(set(modes) - set(_MODES))
    if unknown or not count:
        cx.fail(f"nodes_modes has {', '.join(unknown) or 'no elements'}; known modes: {', '.join(_MODES)}")
    tree_of, node_of, target_of, weight_of = weighted
    spread = int(max(nodes["nodeids"].max(), nodes["truenodeids"].max(), nodes["falsenodeids"].max(), 0)) + 1
    codes = nodes["treeids"] * spread + nodes["nodeids"]
    order = np.argsort(codes, kind="stable")

    def find(trees: Array, ids: Array) -> Array:
        wanted = trees * spread + ids
        places = np.minimum(np.searchsorted(codes[order], wanted), count - 1)
        if ids.size and (ids.min() < 0 or ids.max() >= spread or (codes[order][places] != wanted).any()):
            cx.fail("an id names a node that its tree does not have")
        return order[places]

    table = np.zeros(count, NODE)
    table["feature"] = nodes["featureids"]
    table["threshold"] = nodes["values"]
    table["mode"] = [_MODES[m] for m in modes]
    leaf = table["mode"] == LEAF
    inner = np.flatnonzero(~leaf)
    for field in ("true", "false"):
        table[field][inner] = find(nodes["treeids"][inner], nodes[field + "nodeids"][inner])
    if missing:
        table["mode"] += np.where(np.array(missing) == 1, MISSING, 0).astype(np.int32)
    owner = find(tree_of, node_of)
    by_leaf = np.argsort(owner, kind="stable")
    weights = np.zeros(len(owner), WEIGHT)
    weights["target"], weights["value"] = target_of[by_leaf], weight_of[by_leaf]
    leaves = np.flatnonzero(leaf)
    table["true"][leaves] = np.searchsorted(owner[by_leaf], leaves)
    table["false"][leaves] = np.searchsorted(owner[by_leaf], leaves, "right") - table["true"][leaves]
    roots = np.flatnonzero(np.diff(nodes["treeids"], prepend=nodes["treeids"][0] - 1))
    return forest_of(cx, table, roots, weights, np.zeros(0), targets)
