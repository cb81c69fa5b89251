"""Mixtures of experts of com.microsoft: each row goes through the networks of the few experts that a router prefers."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

from ..context import Context, Value
from ..dtypes import F32, I32
from ..errors import UnsupportedModelError
from ..registry import MICROSOFT, op
from . import activation as activations
from . import binary
from ._elementwise import flat
from ._widen import only_f32, widened
from .matmul import split_k
from .microsoft_nbits import TILED_COLUMNS, tile_blocks
from .softmax import softmax_over


class Routes(NamedTuple):
    """Rows sorted by expert: row r goes to places r * k ... r * k + k - 1 of ``places``."""

    rows: int
    k: int
    experts: int
    places: Value
    weights: Value
    starts: Value
    """The first place of each expert, and the end of the last one's."""

    @property
    def size(self) -> int:
        return self.rows * self.k


def route(cx: Context, router: Value, rows: int, k: int, normalize: bool) -> Routes:
    """The k experts that each row of ``router`` [rows, experts] prefers, weighted by softmax(router)."""
    chosen, weights = _chosen(cx, router, rows, k, normalize)
    return _sorted(cx, chosen, weights, router.shape[1])


def route_by(cx: Context, router: Value, rows: int, k: int, given: Value | None, normalize: bool) -> Routes:
    """The k experts that each row of ``router`` prefers, weighted by ``given`` or by softmax(router) over them."""
    if given is not None and given.shape != router.shape:
        cx.fail(f"router_weights {given} must be {list(router.shape)}")
    chosen, weights = _chosen(cx, router, rows, k, normalize and given is not None, given or router)
    if given is None:
        weights = softmax_over(cx, "softmax", weights, k, 1)
    return _sorted(cx, chosen, weights, router.shape[1])


def _chosen(
    cx: Context, router: Value, rows: int, k: int, normalize: bool, given: Value | None = None
) -> tuple[Value, Value]:
    """The experts of each row, and their weights, [rows, k]."""
    if router.rank != 2 or router.shape[0] != rows:
        cx.fail(f"router_probs {router} must be {[rows, 'experts']}")
    experts = router.shape[1]
    if not 1 <= k <= experts:
        cx.fail(f"k is {k}, must be from 1 to {experts}, the number of experts")
    chosen, weights = cx.out((rows, k), I32), cx.out((rows, k), F32)
    if rows:
        cx.emit(
            "moe_route_f32", units=rows, x=router, given=given, experts=chosen, weights=weights,
            n=experts, k=k, normalize=int(normalize), scratch=cx.scratch(4 * experts),
        )  # fmt: skip
    return chosen, weights


def _sorted(cx: Context, chosen: Value, weights: Value, experts: int) -> Routes:
    """What has no positive weight is left out, as in onnxruntime."""
    rows, k = chosen.shape
    places, starts = cx.out((rows, k), I32), cx.out((experts + 2,), I32)
    if rows:
        cx.emit(
            "moe_sort", units=1, experts=chosen, weights=weights, places=places, starts=starts,
            routes=rows * k, n=experts,
        )  # fmt: skip
    return Routes(rows, k, experts, places, weights, starts)


def scattered(cx: Context, x: Value, routes: Routes) -> Value:
    """Each row at the places of its routes."""
    y = cx.out((routes.size, x.shape[-1]), F32)
    if y.size:
        cx.emit("moe_scatter_f32", units=routes.rows, x=x, places=routes.places, y=y, n=x.shape[-1], k=routes.k)
    return y


def summed(cx: Context, x: Value, routes: Routes, shape: tuple[int, ...]) -> Value:
    """The weighted sum of the rows at the places of each row's routes."""
    y = cx.out(shape, F32)
    if y.size:
        cx.emit(
            "moe_sum_f32", units=routes.rows, x=x, places=routes.places, weights=routes.weights, y=y,
            n=x.shape[-1], k=routes.k,
        )  # fmt: skip
    return y


class Layer(Protocol):
    """One layer of all experts."""

    def multiply(self, cx: Context, x: Value, routes: Routes) -> Value:
        """Of each expert, the rows at its places times its weights."""


class Experts(NamedTuple):
    """Weights of one layer of all experts, [experts, n, k]."""

    weights: Value
    bias: Value | None
    n: int
    k: int

    def multiply(self, cx: Context, x: Value, routes: Routes) -> Value:
        """Of each expert, the rows at its places times its weights, transposed."""
        y = cx.out((routes.size, self.n), F32)
        if y.size:
            kc = split_k(self.k)
            emit_product(cx, "f32", self.weights, self.bias, x, y, routes, row=4 * self.k, kc=kc)
        return y


def emit_product(
    cx: Context,
    kind: str,
    weights: Value,
    bias: Value | None,
    x: Value,
    y: Value,
    routes: Routes,
    *,
    row: int,
    kc: int,
    **rest: Any,
) -> None:
    """The record of ``Experts.multiply``, of weights that have ``row`` bytes for each column of y."""
    n = y.shape[1]
    cx.emit(
        f"moe_gemm_{kind}", units=routes.experts * -(-n // TILED_COLUMNS),
        a=x, w=weights, bias=bias, starts=routes.starts, y=y, n=n, k=x.shape[1], row=row,
        **tile_blocks(cx, routes.rows, kc), **rest,
    )  # fmt: skip


class Gate(NamedTuple):
    """What is done between the layers of an expert."""

    activation: str
    alpha: float
    beta: float
    limit: float | None
    fusion: int

    def width(self, third: bool) -> int:
        """So many times as many columns as the second layer reads has the first."""
        return 2 if self.activation == "swiglu" and not third else 1

    def check(self, cx: Context, third: bool) -> None:
        if self.activation not in ("relu", "gelu", "silu", "swiglu", "identity"):
            cx.fail(f"activation_type {self.activation!r} is not supported", UnsupportedModelError)
        if self.activation == "swiglu" and (self.fusion not in (1, 2) if not third else self.fusion != 0):
            cx.fail(f"swiglu_fusion is {self.fusion}: 1 or 2 expected without fc3, 0 with it", UnsupportedModelError)

    def apply(self, cx: Context, x: Value, third: Value | None) -> Value:
        """swiglu(g, l), where l is of a layer of its own or beside g; otherwise the activation of x, times the third
        layer if there is one."""
        if self.activation != "swiglu":
            y = self._plain(cx, x)
            return y if third is None else binary.mul(cx, y, third)
        n = x.shape[1] if third is not None else x.shape[1] // 2
        y = cx.out((x.shape[0], n), F32)
        if self.fusion == 2:
            third = cx.alias(x, (x.size - n,), offset=4 * n) if x.size else None
        if y.size:
            cx.emit(
                "swiglu_f32", units=x.shape[0], x=x, l=third, y=y, n=n, row=4 * x.shape[1],
                alpha=self.alpha, beta=self.beta, limit=math.inf if self.limit is None else self.limit,
            )  # fmt: skip
        return y

    def _plain(self, cx: Context, x: Value) -> Value:
        if self.activation == "relu":
            return activations.relu(cx, x)
        if self.activation == "gelu":
            return flat(cx, "gelu_tanh_f32", x)
        if self.activation == "silu":
            return activations.swish(cx, x)
        return x


def rows_of(cx: Context, x: Value) -> tuple[int, int]:
    """The rows of the input, and their size."""
    if x.rank not in (2, 3):
        cx.fail(f"input {x} must have rank 2 or 3")
    return math.prod(x.shape[:-1]), x.shape[-1]


def mixed(cx: Context, x: Value, routes: Routes, first: Layer, second: Layer, third: Layer | None, gate: Gate) -> Value:
    """The weighted sum of what each row's experts give."""
    sorted_rows = scattered(cx, x, routes)
    y = first.multiply(cx, sorted_rows, routes)
    gated = gate.apply(cx, y, None if third is None else third.multiply(cx, sorted_rows, routes))
    return summed(cx, second.multiply(cx, gated, routes), routes, x.shape)


@op("MoE", domain=MICROSOFT)
@widened
def moe(
    cx: Context,
    x: Value,
    router_probs: Value,
    fc1_experts_weights: Value,
    fc1_experts_bias: Value | None = None,
    fc2_experts_weights: Value | None = None,
    fc2_experts_bias: Value | None = None,
    fc3_experts_weights: Value | None = None,
    fc3_experts_bias: Value | None = None,
    *,
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
    activation_type: str = "relu",
    k: int = 1,
    normalize_routing_weights: int = 0,
    swiglu_fusion: int = 0,
    swiglu_limit: float | None = None,
    swiglu_limit_after_activation: int = 0,
    use_sparse_mixer: int = 0,
) -> Value:
    """x [..., hidden] through two layers, fc1 and fc2, of k experts each, chosen by router_probs [rows, experts]; fc3
    is what fc1 is multiplied by after its activation. Weights are [experts, columns of the result, columns of x]. The
    formulas are those of onnxruntime's schema and its CPU kernel, where Gelu is that by tanh."""
    if use_sparse_mixer or swiglu_limit_after_activation:
        cx.fail("use_sparse_mixer and swiglu_limit_after_activation are not supported", UnsupportedModelError)
    only_f32(
        cx, x, router_probs, fc1_experts_weights, fc1_experts_bias, fc2_experts_weights, fc2_experts_bias,
        fc3_experts_weights, fc3_experts_bias,
    )  # fmt: skip
    rows, hidden = rows_of(cx, x)
    if fc2_experts_weights is None:
        cx.fail("fc2_experts_weights is missing")
    if fc3_experts_weights is None and fc3_experts_bias is not None:
        cx.fail("fc3_experts_bias is given without fc3_experts_weights")
    third = fc3_experts_weights is not None
    gate = Gate(activation_type, activation_alpha, activation_beta, swiglu_limit, swiglu_fusion)
    gate.check(cx, third)
    routes = route(cx, router_probs, rows, k, normalize_routing_weights == 1)
    inner = _inner(cx, fc2_experts_weights, routes.experts, hidden)
    width = gate.width(third) * inner
    first = _experts(cx, "fc1", fc1_experts_weights, fc1_experts_bias, routes.experts, width, hidden)
    second = _experts(cx, "fc2", fc2_experts_weights, fc2_experts_bias, routes.experts, hidden, inner)
    more = None
    if fc3_experts_weights is not None:
        more = _experts(cx, "fc3", fc3_experts_weights, fc3_experts_bias, routes.experts, inner, hidden)
    return mixed(cx, x, routes, first, second, more, gate)


def _inner(cx: Context, w: Value, experts: int, hidden: int) -> int:
    """The columns that the second layer reads."""
    if w.rank != 3 or w.shape[0] != experts or hidden not in w.shape[1:]:
        cx.fail(f"fc2_experts_weights {w} must be {[experts, hidden, 'inner']}")
    return w.shape[2] if w.shape[1] == hidden else w.shape[1]


def _experts(cx: Context, name: str, w: Value, bias: Value | None, experts: int, n: int, k: int) -> Experts:
    # Old models declare the axes of a matrix in the other order; what is stored is the same.
    if w.shape not in ((experts, n, k), (experts, k, n)):
        cx.fail(f"{name}_experts_weights {w} must be {[experts, n, k]}")
    if bias is not None and bias.shape != (experts, n):
        cx.fail(f"{name}_experts_bias {bias} must be {[experts, n]}")
    for value in (w, bias):
        if value is not None and value.dtype is not F32:
            cx.fail(f"{value} must have the type of the input")
    return Experts(w, bias, n, k)
