"""Steps of one or a few elementwise nodes, and chains of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from .builder import DTYPES, FLOATS, Builder, Skip, Tensor, allowed

# Right to the last bit in any implementation, for inputs that are.
EXACT = {
    "Abs",
    "Neg",
    "Floor",
    "Ceil",
    "Round",
    "Sqrt",
    "Sign",
    "Relu",
    "Not",
    "BitwiseNot",
    "IsNaN",
    "IsInf",
    "Identity",
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Max",
    "Min",
    "Where",
    "Clip",
    "And",
    "Or",
    "Xor",
    "Equal",
    "Less",
    "Greater",
    "LessOrEqual",
    "GreaterOrEqual",
    "BitwiseAnd",
    "BitwiseOr",
    "BitwiseXor",
    "BitShift",
    "Mod",
    "PRelu",
    "ThresholdedRelu",
    "LeakyRelu",
}
# Jump where a rounding error decides.
JUMPS = {
    "Floor",
    "Ceil",
    "Round",
    "Sign",
    "IsNaN",
    "IsInf",
    "Equal",
    "Less",
    "Greater",
    "LessOrEqual",
    "GreaterOrEqual",
    "Mod",
    "ThresholdedRelu",
    "Shrink",
}
ACTIVATIONS = [
    "Relu",
    "Sigmoid",
    "Tanh",
    "LeakyRelu",
    "HardSigmoid",
    "HardSwish",
    "Elu",
    "Selu",
    "Celu",
    "Softplus",
    "Softsign",
    "Gelu",
    "Mish",
    "ThresholdedRelu",
    "Swish",
]
UNARY = [
    *ACTIVATIONS,
    *[
        "Abs",
        "Neg",
        "Floor",
        "Ceil",
        "Round",
        "Sqrt",
        "Reciprocal",
        "Exp",
        "Log",
        "Erf",
        "Sign",
        "Sin",
        "Cos",
        "Tan",
        "Asin",
        "Acos",
        "Atan",
        "Sinh",
        "Cosh",
        "Asinh",
        "Acosh",
    ],
    *["Atanh", "IsNaN", "IsInf", "Not", "BitwiseNot", "Shrink", "Identity"],
]
BINARY = [
    *[
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Max",
        "Min",
        "Pow",
        "PRelu",
        "And",
        "Or",
        "Xor",
        "Equal",
        "Less",
        "Greater",
        "LessOrEqual",
        "GreaterOrEqual",
        "Mod",
    ],
    *["BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitShift", "Sum", "Mean"],
]


def attributes(g: Builder, op: str, dtype: str = "float32") -> dict[str, Any]:
    """Attributes of an elementwise operator, now and then."""
    if op == "Gelu":
        return {"approximate": g.choice(["none", "tanh"])}
    if op == "IsInf" and g.chance(50):
        return {"detect_negative": g.int(0, 1), "detect_positive": g.int(0, 1)}
    if op == "BitShift":
        return {"direction": g.choice(["LEFT", "RIGHT"])}
    names = {
        "LeakyRelu": ["alpha"],
        "Elu": ["alpha"],
        "Celu": ["alpha"],
        "ThresholdedRelu": ["alpha"],
        "HardSigmoid": ["alpha", "beta"],
        "Selu": ["alpha", "gamma"],
        "Shrink": ["lambd", "bias"],
        "Swish": ["alpha"],
    }.get(op, [])
    # The defaults are no doubles: peers take 0.01 for what float32 makes of it, or not.
    return {n: g.int(1, 8) / 4 for n in names if dtype == "float64" or g.chance(50)}


def unary(g: Builder, x: Tensor | None = None, among: list[str] = UNARY) -> Tensor:
    """One operator of one input."""
    x = x or g.pick(lambda t: t.rank <= 8)
    if x is None or g.chance(5):
        x = g.value(g.shape(0, 6), g.choice(list(DTYPES)) if g.chance(40) else "float32", const=g.chance(10))
    fitting = [n for n in among if x.dtype in allowed(n, g.opset) and (x.exact or n not in JUMPS)]
    op = g.choice(fitting)
    (y,) = g.node(op, [x], exact=op in EXACT, **attributes(g, op, x.dtype))
    return y


def _other(g: Builder, x: Tensor, kind: str = "") -> Tensor:
    """A second operand: a tensor that is there, or a new one that broadcasts."""
    dims = x.shape
    if not kind and g.chance(30):
        found = g.pick(lambda t: t.dtype == x.dtype and _fits(t.shape, dims))
        if found is not None:
            return found
    return g.value(g.partner(dims), x.dtype, kind=kind)


def _fits(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    try:
        return bool(np.prod(np.broadcast_shapes(a, b)) <= 3000)
    except ValueError:
        return False


def binary(g: Builder, x: Tensor | None = None) -> Tensor:
    """One operator of two or more inputs that broadcast."""
    x = x or g.pick(lambda t: t.rank <= 6)
    if x is None or g.chance(10):
        x = g.value(g.shape(0, 6), g.choice(list(DTYPES)) if g.chance(40) else "float32", const=g.chance(15))
    op = g.choice([n for n in BINARY if x.dtype in allowed(n, g.opset) and (x.exact or n not in JUMPS)])
    integer = not x.floating and x.dtype != "bool"
    if op in ("Sum", "Mean", "Max", "Min"):
        more = [_other(g, x) for _ in range(g.int(0, 2))]
        if op in ("Max", "Min") and len(more) != 1 and g.opset < 8 and any(m.shape != x.shape for m in more):
            raise Skip("no broadcasting before opset 8")
        (y,) = g.node(op, [x, *more], exact=op in EXACT or (len(more) < 2 and op == "Sum"))
        return y
    if op == "Pow":
        return _pow(g, x)
    if op == "BitShift":
        other = g.value(g.partner(x.shape), x.dtype, low=0, high=8 * DTYPES[x.dtype].itemsize - 1)
    elif op in ("Div", "Mod"):
        if integer and g.depth:
            raise Skip("another iteration may divide by 0")
        if x.floating and op == "Mod" and g.special:
            raise Skip("Mod of special values")
        other = g.value(g.partner(x.shape), x.dtype, kind="" if x.floating and op == "Div" else "nonzero")
        if integer and x.array.size and x.array.min() == np.iinfo(x.array.dtype).min:
            raise Skip("the smallest integer by -1")
    elif op == "PRelu":
        shape = x.shape[g.int(0, x.rank) :]
        other = g.value([1 if g.chance(30) else d for d in shape], x.dtype)
    else:
        other = _other(g, x, "full" if integer and g.chance(20) else "")
    if op in JUMPS and not other.exact:
        raise Skip("inexact")
    pair = [x, other] if op in ("PRelu", "BitShift", "Div", "Mod") or not g.chance(40) else [other, x]
    more_attributes = attributes(g, op)
    if op == "Mod" and (x.floating or g.chance(30)):
        more_attributes["fmod"] = 1
    (y,) = g.node(op, pair, exact=op in EXACT, **more_attributes)
    return y


def _pow(g: Builder, x: Tensor) -> Tensor:
    kinds = [k for k in allowed("Pow", g.opset, 1) if g.opset >= 12 or k == x.dtype]
    dtype = g.choice(kinds)
    base = x if x.floating or abs(x.array.astype(np.float64)).max(initial=0) <= 4 else g.value(x.shape, x.dtype)
    if g.chance(50):
        exponent = g.given(
            np.asarray(
                g.choice([2, 3, 1, 0]) if dtype not in FLOATS else g.choice([2, 0.5, 3, -1, 0, -2]), DTYPES[dtype]
            )
        )
    else:
        exponent = g.value(g.partner(x.shape), dtype, low=0, high=3, kind="positive" if g.chance(50) else "")
    if not x.floating and exponent.array.astype(np.float64).min(initial=1) < 0:
        raise Skip("an integer to a negative power")
    if not x.floating and exponent.floating and np.mod(exponent.array.astype(np.float64), 1).any():
        raise Skip("an integer to a fraction")
    (y,) = g.node("Pow", [base, exponent])
    return y


def where(g: Builder) -> Tensor:
    """Where with three operands that broadcast."""
    x = g.pick(lambda t: t.rank <= 5 and t.dtype in allowed("Where", g.opset, 1)) or g.value(g.shape(0, 5))
    condition = g.pick(lambda t: t.dtype == "bool" and _fits(t.shape, x.shape))
    if condition is None or g.chance(50):
        condition = g.value(g.partner(x.shape), "bool")
    other = _other(g, x)
    (y,) = g.node("Where", [condition, x, other] if g.chance(50) else [condition, other, x], exact=True)
    return y


def clip(g: Builder, x: Tensor | None = None) -> Tensor:
    """Clip in the form of the opset."""
    x = x or g.operand("Clip", high=6)
    if x.dtype not in allowed("Clip", g.opset):
        raise Skip("no Clip of this type")
    low, high = g.int(-4, 1), g.int(0, 6)
    if g.opset < 11:
        (y,) = g.node(
            "Clip", [x], exact=True, min=float(low) if g.chance(70) else None, max=float(high) if g.chance(70) else None
        )
        return y
    unsigned = x.dtype.startswith("u")
    limits = [
        g.given(np.asarray(max(v, 0) if unsigned else v, DTYPES[x.dtype]), hidden=True) if g.chance(70) else None
        for v in (low, high)
    ]
    (y,) = g.node("Clip", [x, *limits], exact=True)
    return y


def cast(g: Builder) -> Tensor:
    """Cast to a type that holds every value."""
    x = g.pick(lambda t: t.rank <= 6) or g.value(g.shape(0, 5), g.choice(list(DTYPES)))
    to = g.choice(list(DTYPES))
    if x.floating and to not in FLOATS:
        wide = x.array.astype(np.float64)
        info = None if to == "bool" else np.iinfo(DTYPES[to])
        if not x.exact or not np.isfinite(wide).all():
            raise Skip("inexact to integer")
        if info is not None and (wide.min(initial=0) <= info.min - 1 or wide.max(initial=0) >= info.max):
            raise Skip("out of range")
    (y,) = g.node("Cast", [x], exact=True, to=helper.np_dtype_to_tensor_dtype(DTYPES[to]))
    return y


def integers(g: Builder) -> Tensor:
    """Integers of the whole range, which wrap around."""
    dtype = g.choice([t for t in DTYPES if t not in FLOATS and t != "bool"])
    x = g.value(g.shape(0, 4), dtype, kind="full")
    op = g.choice(
        [o for o in ("Add", "Sub", "Mul", "Max", "Min", "Less", "Equal", "Greater") if dtype in allowed(o, g.opset)]
    )
    (y,) = g.node(op, [x, g.value(g.partner(x.shape), dtype, kind="full")], exact=True)
    return y


def swish(g: Builder) -> Tensor:
    """x * Sigmoid(x), as exporters write it."""
    x = g.operand("Sigmoid", high=5)
    (s,) = g.node("Sigmoid", [x])
    (y,) = g.node("Mul", [x, s] if g.chance(50) else [s, x])
    return y


def start(g: Builder) -> Tensor:
    """A first tensor of any type and rank."""
    return g.value(g.shape(0, 6), g.choice(list(DTYPES)) if g.chance(45) else "float32", const=g.chance(5))


STEPS = [unary, unary, unary, binary, binary, binary, where, clip, cast, integers, swish]
