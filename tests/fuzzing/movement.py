"""Steps that move elements: all of them exact, for all types."""

from __future__ import annotations

import numpy as np

from .builder import DTYPES, Builder, Skip, Tensor, allowed

FAR = (np.iinfo(np.int64).max, np.iinfo(np.int64).min, 2**31 - 1, -(2**31))


def operand(g: Builder, op: str, low: int = 0, high: int = 6) -> Tensor:
    return g.operand(op, low=low, high=high)


def axis_of(g: Builder, x: Tensor, *, negative: bool = True) -> int:
    if not x.rank:
        raise Skip("no axis")
    return g.int(-x.rank if negative else 0, x.rank - 1)


def transpose(g: Builder) -> Tensor:
    x = operand(g, "Transpose")
    perm = [int(p) for p in np.random.default_rng(g.int(0, 9999)).permutation(x.rank)]
    (y,) = g.node("Transpose", [x], exact=True, perm=perm if g.chance(85) and x.rank else None)
    return y


def reshape(g: Builder) -> Tensor:
    """Reshape to factors, with 0 and -1."""
    x = operand(g, "Reshape")
    size, dims = x.array.size, list[int]()
    if size:
        for _ in range(g.int(0, 5)):
            d = g.choice([f for f in range(1, 18) if size % f == 0])
            dims.append(d)
            size //= d
        dims.append(size)
        dims = [dims[i] for i in np.random.default_rng(g.int(0, 99)).permutation(len(dims))]
    else:
        dims = list(x.shape)
        if g.chance(50):
            dims = [*dims, g.int(1, 3)]
    made = {"allowzero": 1} if g.opset >= 14 and g.chance(15) else {}
    if "allowzero" not in made:
        for i, d in enumerate(dims):
            if i < x.rank and x.shape[i] == d and g.chance(40):
                dims[i] = 0
        if g.chance(40) and x.array.size:
            dims[g.int(0, len(dims) - 1)] = -1
    (y,) = g.node("Reshape", [x, g.host(np.array(dims, np.int64))], exact=True, **made)
    return y


def flat(g: Builder) -> Tensor:
    x = operand(g, "Flatten")
    low = -x.rank if g.opset >= 11 else 0
    (y,) = g.node("Flatten", [x], exact=True, axis=g.int(low, x.rank) if g.chance(80) else None)
    return y


def squeeze(g: Builder) -> Tensor:
    x = operand(g, "Squeeze")
    ones = [i for i, d in enumerate(x.shape) if d == 1 and g.chance(60)]
    if g.opset >= 11:
        ones = [i - x.rank if g.chance(40) else i for i in ones]
    if g.opset >= 13:
        return g.node("Squeeze", [x, g.host(np.array(ones, np.int64)) if ones else None], exact=True)[0]
    return g.node("Squeeze", [x], exact=True, axes=ones or None)[0]


def unsqueeze(g: Builder) -> Tensor:
    x = operand(g, "Unsqueeze", high=4)
    rank = x.rank + g.int(1, 2)
    axes = [a for a in range(rank) if g.chance(50)][: rank - x.rank]
    axes = axes or [0]
    rank = x.rank + len(axes)
    axes = [a for a in axes if a < rank] or [0]
    if len(axes) != rank - x.rank:
        axes = list(range(rank - x.rank))
    if g.opset >= 11 and g.chance(40):
        axes = [a - rank for a in axes]
    if g.opset >= 13:
        return g.node("Unsqueeze", [x, g.host(axes)], exact=True)[0]
    return g.node("Unsqueeze", [x], exact=True, axes=axes)[0]


def expand(g: Builder) -> Tensor:
    x = operand(g, "Expand", high=4)
    shape = [g.int(1, 4) if d == 1 else g.choice([d, 1]) for d in x.shape]
    shape = shape[g.int(0, len(shape)) :] if g.chance(20) else [g.int(1, 3) for _ in range(g.int(0, 2))] + shape
    return g.node("Expand", [x, g.host(np.array(shape, np.int64))], exact=True)[0]


def tile(g: Builder) -> Tensor:
    x = operand(g, "Tile", high=4)
    return g.node(
        "Tile",
        [x, g.host(np.array([g.choice([1, 1, 2, 3, 0 if g.chance(5) else 1]) for _ in x.shape], np.int64))],
        exact=True,
    )[0]


def concat(g: Builder) -> Tensor:
    x = operand(g, "Concat", low=1, high=5)
    axis = axis_of(g, x, negative=g.opset >= 11)
    parts = [x]
    for _ in range(g.int(0, 3)):
        dims = list(x.shape)
        dims[axis] = g.choice([1, 2, 3, 0 if g.chance(10) else 4, dims[axis]])
        same = g.pick(lambda t, dims=dims: t.dtype == x.dtype and t.shape == tuple(dims))  # type: ignore[misc]
        parts.append(same if same is not None and g.chance(60) else g.value(dims, x.dtype))
    if g.chance(50):
        parts.reverse()
    return g.node("Concat", parts, exact=True, axis=axis)[0]


def split(g: Builder) -> Tensor:
    x = operand(g, "Split", low=1, high=5)
    axis = axis_of(g, x, negative=g.opset >= 11)
    d, sizes = x.shape[axis], list[int]()
    while sum(sizes) < d and len(sizes) < 3:
        sizes.append(g.int(0 if g.chance(10) else 1, d - sum(sizes)))
    if sum(sizes) < d:
        sizes.append(d - sum(sizes))
    sizes = sizes or [0]
    made: dict[str, int] = {"axis": axis} if g.chance(85) or axis else {}
    divides = [n for n in (1, 2, 3, 4) if d % n == 0]
    if g.chance(30):
        n = g.choice(divides)
        if g.opset >= 18:
            made["num_outputs"] = g.choice([n, min(3, max(d, 1))])
            n = made["num_outputs"]
        return g.node("Split", [x], n, exact=True, **made)[0]
    if g.opset < 13:
        return g.node("Split", [x], len(sizes), exact=True, split=sizes, **made)[0]
    return g.node("Split", [x, g.host(sizes)], len(sizes), exact=True, **made)[-1]


def slice_(g: Builder) -> Tensor:
    """Slice from anywhere to anywhere, backwards too."""
    x = operand(g, "Slice", low=1, high=5)
    axes = [a for a in range(x.rank) if g.chance(50)] or [0]

    def bound() -> int:
        return g.choice([*FAR]) if g.chance(15) else g.int(-10, 10)

    starts, ends = [bound() for _ in axes], [bound() for _ in axes]
    if g.opset < 10:
        return g.node(
            "Slice",
            [x],
            exact=True,
            starts=starts,
            ends=ends,
            axes=axes if g.chance(80) or (len(axes) < x.rank and axes != list(range(len(axes)))) else None,
        )[0]
    steps = [g.choice([1, 1, 2, 3, -1, -2, -3, 7]) for _ in axes]
    kind = g.choice(["int64", "int32"])
    limits = np.iinfo(DTYPES[kind])
    starts, ends = ([int(np.clip(v, limits.min, limits.max)) for v in vs] for vs in (starts, ends))
    axes = [a - x.rank if g.chance(30) else a for a in axes]
    inputs: list[Tensor | None] = [x, g.host(starts, kind), g.host(ends, kind)]
    if len(axes) < x.rank or g.chance(60):
        inputs.append(g.host(axes, kind))
        if g.chance(70):
            inputs.append(g.host(steps, kind))
    return g.node("Slice", inputs, exact=True)[0]


def _indices(g: Builder, shape: list[int] | tuple[int, ...], size: int, *, unique_axis: int | None = None) -> Tensor:
    kind = g.choice(["int64", "int32"])
    if size == 0:
        raise Skip("nothing to index")
    random = np.random.default_rng(g.int(0, 9999))
    low = -size if g.opset >= 11 else 0
    if unique_axis is None:
        array = random.integers(low, size, shape)
    else:
        order = np.argsort(
            random.random([size if i == unique_axis else d for i, d in enumerate(shape)]), axis=unique_axis
        )
        array = np.take(order, range(shape[unique_axis]), axis=unique_axis)
    return g.given(array.astype(DTYPES[kind]), hidden=True)


def gather(g: Builder) -> Tensor:
    x = operand(g, "Gather", low=1, high=5)
    axis = axis_of(g, x, negative=g.opset >= 11)
    return g.node("Gather", [x, _indices(g, g.shape(0, 2, most=5), x.shape[axis])], exact=True, axis=axis)[0]


def gather_elements(g: Builder) -> Tensor:
    x = operand(g, "GatherElements", low=1, high=4)
    axis = axis_of(g, x)
    dims = [g.int(0 if g.chance(5) else 1, d) if d and g.chance(40) else d for d in x.shape]
    dims[axis] = g.int(1, 6)
    return g.node("GatherElements", [x, _indices(g, dims, x.shape[axis])], exact=True, axis=axis)[0]


def _tuples(g: Builder, lead: list[int], dims: tuple[int, ...]) -> np.ndarray:
    if 0 in dims:
        raise Skip("nothing to index")
    random = np.random.default_rng(g.int(0, 9999))
    return np.stack([random.integers(-d, d, lead) for d in dims], axis=-1).astype(np.int64)


def gather_nd(g: Builder) -> Tensor:
    x = operand(g, "GatherND", low=1, high=4)
    batch = g.int(0, x.rank - 1) if g.opset >= 12 and g.chance(40) else 0
    depth = g.int(1, x.rank - batch)
    lead = [*x.shape[:batch], *g.shape(0, 2, most=4)]
    indices = g.given(_tuples(g, lead, x.shape[batch : batch + depth]), hidden=True)
    return g.node("GatherND", [x, indices], exact=True, batch_dims=batch or None)[0]


def _reduction(g: Builder, op: str, x: Tensor) -> str | None:
    if g.opset < 16 or x.dtype == "bool" or not g.chance(40):
        return None
    return g.choice(["none", "add", "mul", *(["max", "min"] if g.opset >= 18 else [])])


def scatter_elements(g: Builder) -> Tensor:
    op = "ScatterElements" if g.opset >= 11 else "Scatter"
    x = operand(g, op, low=1, high=4)
    axis = axis_of(g, x, negative=g.opset >= 11)
    reduction = _reduction(g, op, x)
    dims = [g.int(1, d) if d and g.chance(40) else d for d in x.shape]
    if reduction in (None, "none"):
        indices = _indices(g, dims, x.shape[axis], unique_axis=axis % x.rank)
    else:
        dims[axis] = g.int(1, 5)
        indices = _indices(g, dims, x.shape[axis])
    updates = g.value(indices.shape, x.dtype, kind="exact" if x.floating else "")
    exact = reduction in (None, "none", "max", "min") or not x.floating
    return g.node(op, [x, indices, updates], exact=exact, axis=axis, reduction=reduction)[0]


def scatter_nd(g: Builder) -> Tensor:
    x = operand(g, "ScatterND", low=1, high=4)
    depth = g.int(1, x.rank)
    reduction = _reduction(g, "ScatterND", x)
    lead = list(g.shape(1, 2, most=4))
    tuples = _tuples(g, lead, x.shape[:depth])
    if reduction in (None, "none"):
        flat = (tuples % np.array(x.shape[:depth])).reshape(-1, depth)
        if len(np.unique(flat, axis=0)) < len(flat):
            raise Skip("written twice")
    updates = g.value([*lead, *x.shape[depth:]], x.dtype, kind="exact" if x.floating else "")
    exact = reduction in (None, "none", "max", "min") or not x.floating
    return g.node("ScatterND", [x, g.given(tuples, hidden=True), updates], exact=exact, reduction=reduction)[0]


def pad(g: Builder) -> Tensor:
    x = operand(g, "Pad", low=1, high=5)
    modes = ["constant", "constant", "reflect", "edge", *(["wrap"] if g.opset >= 19 else [])]
    mode = g.choice(modes)
    if mode != "constant" and 0 in x.shape:
        raise Skip("nothing to repeat")
    pads = []
    for d in x.shape * 2:
        high = d - 1 if mode == "reflect" else d if mode == "wrap" else 4
        pads.append(g.int(-1 if g.chance(15) and d > 2 else 0, max(0, min(4, high))) if g.chance(50) else 0)
    if g.opset < 11:
        value = g.int(-2, 2) / 2 if g.chance(50) else None
        return g.node("Pad", [x], exact=True, pads=pads, mode=mode, value=value)[0]
    value_input = None
    if mode == "constant" and g.chance(60):
        value_input = g.value((), x.dtype, kind="exact" if x.floating else "", hidden=True)
    axes = None
    if g.opset >= 18 and g.chance(30):
        chosen = [a for a in range(x.rank) if g.chance(60)] or [0]
        pads = [pads[a] for a in chosen] + [pads[a + x.rank] for a in chosen]
        axes = g.host([a - x.rank if g.chance(40) else a for a in chosen], g.choice(["int64", "int32"]))
    return g.node(
        "Pad",
        [x, g.host(pads), value_input, axes],
        exact=True,
        mode=mode if g.chance(90) or mode != "constant" else None,
    )[0]


def trilu(g: Builder) -> Tensor:
    x = operand(g, "Trilu", low=2, high=4)
    k = g.host(g.int(-5, 5)) if g.chance(60) else None
    return g.node("Trilu", [x, k], exact=True, upper=g.int(0, 1))[0]


def depth_space(g: Builder) -> Tensor:
    op = g.choice(["DepthToSpace", "SpaceToDepth"])
    block = g.int(1, 3)
    dtype = g.dtype(op)
    c, h, w = g.int(1, 3), g.int(1, 4), g.int(1, 4)
    shape = (g.int(1, 2), c * block * block, h, w) if op == "DepthToSpace" else (g.int(1, 2), c, h * block, w * block)
    made = {"mode": g.choice(["DCR", "CRD"])} if op == "DepthToSpace" and g.opset >= 11 and g.chance(60) else {}
    return g.node(op, [g.value(shape, dtype)], exact=True, blocksize=block, **made)[0]


def one_hot(g: Builder) -> Tensor:
    kind = g.choice(["int64", "int32", "float32"])
    depth = g.int(1, 6)
    indices = g.value(g.shape(0, 3), kind, low=-depth - 2, high=depth + 2, kind="positive")
    if kind == "float32":
        (indices,) = g.node("Floor", [indices], exact=True)
    values = g.value((2,), g.choice(["float32", "int64", "int32"]), kind="exact")
    return g.node(
        "OneHot",
        [indices, g.host(depth if g.chance(50) else [depth], "int64"), values],
        exact=True,
        axis=g.int(-indices.rank - 1, indices.rank) if g.opset >= 11 else g.int(-1, indices.rank),
    )[0]


def reverse_sequence(g: Builder) -> Tensor:
    x = operand(g, "ReverseSequence", low=2, high=4)
    time = g.int(0, 1)
    lengths = np.random.default_rng(g.int(0, 999)).integers(
        0 if x.shape[time] == 0 else 1, x.shape[time] + 1, x.shape[1 - time]
    )
    return g.node(
        "ReverseSequence",
        [x, g.given(lengths.astype(np.int64), hidden=True)],
        exact=True,
        time_axis=time,
        batch_axis=1 - time,
    )[0]


def compress(g: Builder) -> Tensor:
    x = operand(g, "Compress", high=4)
    axis = axis_of(g, x, negative=g.opset >= 11) if x.rank and g.chance(70) else None
    n = x.array.size if axis is None else x.shape[axis]
    return g.node("Compress", [x, g.value([g.int(0, n)], "bool")], exact=True, axis=axis)[0]


def nonzero(g: Builder) -> Tensor:
    x = operand(g, "NonZero", low=1, high=4)
    return g.node("NonZero", [x], exact=True)[0]


def unique(g: Builder) -> Tensor:
    x = g.value(g.shape(1, 3, most=5), g.dtype("Unique"), kind="exact", low=-2, high=2)
    wanted = [True, g.chance(50), g.chance(50), True]
    made = {"axis": axis_of(g, x)} if g.chance(40) else {}
    return g.node("Unique", [x], wanted, exact=True, sorted=g.int(0, 1), **made)[0]


def eye(g: Builder) -> Tensor:
    x = g.value([g.int(1, 5), g.int(1, 5)], g.dtype("EyeLike"))
    return g.node("EyeLike", [x], exact=True, k=g.int(-3, 3) if g.chance(60) else None)[0]


def center_crop_pad(g: Builder) -> Tensor:
    x = operand(g, "CenterCropPad", low=1, high=4)
    axes = [a for a in range(x.rank) if g.chance(60)] or [0]
    return g.node(
        "CenterCropPad", [x, g.host([g.int(1, 7) for _ in axes], g.choice(["int64", "int32"]))], exact=True, axes=axes
    )[0]


def identity(g: Builder) -> Tensor:
    op = g.choice(["Identity", "Dropout"])
    x = operand(g, op)
    return g.node(op, [x], [True, g.chance(20)] if op == "Dropout" and g.opset >= 10 else 1, exact=True)[0]


def glue(g: Builder) -> Tensor:
    """Arithmetic in between, so that tensors are computed and die."""
    x = g.pick(lambda t: t.dtype in allowed("Add", g.opset) and t.rank <= 6) or g.value(g.shape(1, 4))
    return g.node("Add", [x, g.value(g.partner(x.shape), x.dtype, kind="exact" if x.floating else "")], exact=True)[0]


def start(g: Builder) -> Tensor:
    return g.value(g.shape(0, 6), g.choice(list(DTYPES)) if g.chance(50) else "float32", const=g.chance(10))


STEPS = [
    transpose, transpose, reshape, reshape, flat, squeeze, unsqueeze, expand, tile, concat, concat,
    split, split, slice_, slice_, gather, gather_elements, gather_nd, scatter_elements, scatter_nd,
    pad, pad, trilu, depth_space, one_hot, reverse_sequence, compress, nonzero, unique, eye,
    center_crop_pad, identity, glue, glue,
]  # fmt: skip
