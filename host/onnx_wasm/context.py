"""What an op sees while it is lowered: values, and a context to describe work with.

An op only describes. It infers the shapes of its outputs, and emits records that compute them; nothing
is allocated and nothing runs. Addresses are filled in later, by the plan.

    @op("Relu", since=6)
    def relu(cx: Context, x: Value) -> Value:
        y = cx.out(x.shape, x.dtype, reuse=(x,))
        cx.emit(f"relu_{x.dtype.short}", units=cx.chunks(y), x=x, y=y, n=y.size).flat = True
        return y

An op that must know contents which only a run can tell is a generator. It yields the value, and gets its contents as an
array; what it emitted before has then been run:

    @op("NonZero", since=9)
    def nonzero(cx: Context, x: Value) -> Steps:
        count = cx.out((1,), dtypes.I64)
        cx.emit("count_nonzero", x=x, count=count, n=x.size)
        (n,) = yield count
        ...
        return y

Of what it computed before the yield it must then use only its inputs, the value, and what it listed with it:
``yield count, [other]``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from .dtypes import DType
from .dtypes import from_numpy as dtype_from_numpy
from .errors import HeapMemoryError, OnnxWasmError, ShapeError
from .initializers import Initializer
from .layout import Layout
from .model import Graph, Node

Array = NDArray[Any]
Made = TypeVar("Made")

# Elements per work unit of a flat elementwise kernel.
CHUNK = 4096
_ADDRESSES = 1 << 32
# Bits of an array that numpy can make a shape for, even where it is empty.
_COUNTABLE = 1 << 66
# Beginnings of the names of kernels that never call $fail, other than of flat records (tests/test_build.py).
SILENT = ("transpose_b", "copy_", "gemm_f32", "softmax_f32", "attention_f32")
# What two processors must not both write, or they wait for each other.
_LINE = 64


class Value:
    """A tensor during lowering: concrete shape and type, and where its contents come from.

    Exactly one of these describes the contents:

    * ``known``: the host knows them (shapes, small integers); they reach the heap only if a record reads them;
    * ``source``: a weight of the model;
    * ``recipe``: records that compute it from weights alone, run once per session;
    * none of them: computed by the tape in every run, or fed.

    ``const`` holds for what depends on the model alone, not on shapes or feeds.
    """

    __slots__ = (
        "computed_by", "const", "dtype", "known", "maker", "moved_from", "name", "offset", "producer", "quantized",
        "ready", "recipe", "reuse", "root", "shape", "size", "source", "stride", "uses",
    )  # fmt: skip

    def __init__(self, shape: Sequence[int], dtype: DType, *, name: str = "", const: bool = False) -> None:
        self.shape: tuple[int, ...] = tuple(shape)
        self.size = math.prod(self.shape)
        """Number of elements."""
        self.dtype = dtype
        self.name = name
        self.const = const
        self.known: Array | None = None
        self.source: Initializer | None = None
        self.recipe: Recipe | None = None
        self.quantized: Quantized | None = None
        """What a constant of f32 is computed from, if it is stored in 8 bits: readers that can do so read that."""
        self.producer: Record | None = None
        """The record that writes it, while an op may still fuse itself into that record."""
        self.root: Value = self
        """The value whose memory it lies in: itself, or what it is an alias of."""
        self.offset = 0
        """Bytes from the start of the root's memory."""
        self.reuse: tuple[Value, ...] = ()
        """Inputs whose memory it may take over, if nothing needs them any more."""
        self.stride: int | None = None
        """Of working memory that each thread has its own of: bytes from one thread's to the next's."""
        self.uses = 1
        """How many nodes and graph outputs read it."""
        self.ready = 0
        """Records at and after this position of the tape find it computed."""
        self.moved_from: View | None = None
        """Where its elements were moved from, if they were only moved: readers that can do so read them there."""
        self.computed_by: Origin | None = None
        """What computed it, for some operators."""
        self.maker = 0
        """Which description, between `Context.begin` and `end`, made it; 0: none of these."""

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        # As DType.nbytes: here a call costs more than the sum.
        return (self.size * self.dtype.bits + 7) // 8

    def shares(self, other: Value) -> bool:
        """Whether there is memory that elements of both can be read in."""
        if self.moved_from is None and other.moved_from is None:
            return self.root is other.root
        mine, theirs = ({v.root} if v.moved_from is None else {v.root, v.moved_from.source.root} for v in (self, other))
        return not mine.isdisjoint(theirs)

    def __repr__(self) -> str:
        # Errors show it to users.
        return f"{f'{self.name!r} ' if self.name else ''}{self.dtype}{list(self.shape)}"


@dataclass(frozen=True, eq=False)
class Quantized:
    """A constant as it is stored: (values - zero) * scale."""

    values: Value
    """i8 or u8."""
    scale: Value | None = None
    """f32, one element, or as many as ``axis`` has; None: 1."""
    zero: Value | None = None
    """Of the type of the values and the size of the scale; None: 0."""
    axis: int = -1
    """The axis of the constant that the scale goes along."""
    transposed: bool = False
    """The values of a matrix are stored with its axes exchanged."""

    @property
    def per_tensor(self) -> bool:
        return self.scale is None or self.scale.size == 1


class View(NamedTuple):
    """Where the elements of a value lie in another."""

    source: Value
    layout: Layout
    since: int
    """The number of records when it was read from there."""


class Origin(NamedTuple):
    """The node that computed a value, and from what."""

    node: Node
    opset: int
    args: Sequence[Item | None]
    since: int
    """The number of records when it read them."""
    rewritten: Sequence[int]
    """Which of them it joined: their memory has its own result."""


@dataclass(frozen=True, eq=False)
class TensorSequence:
    """A sequence of tensors; the host holds it, its elements are values like any other."""

    elements: tuple[Value, ...]
    dtype: DType | None = None
    """The element type of an empty sequence, where it is known."""


class EmptyOptional:
    """An optional without a value; one with a value is just that value."""


@dataclass(frozen=True, eq=False)
class HostView:
    """A graph output that is no tensor of numbers: made by the host, after the run, from tensors.

    ``convert`` gets their contents and may look up and arrange, not calculate.
    """

    sources: tuple[Value, ...]
    convert: Callable[..., Any]


Item = Value | TensorSequence | EmptyOptional | HostView
"""What a name in a graph can stand for."""


@dataclass(frozen=True, eq=False)
class Subgraph:
    """What a control-flow op yields to have a graph run inside its own; the yield answers its outputs."""

    graph: Graph
    inputs: Sequence[Item]
    keep: Sequence[Item] = ()
    """What the op still needs afterwards, apart from its inputs."""
    runs: bool = True
    """False: only the shapes and types of its outputs are asked for; the answer is None if it cannot run."""


@dataclass(eq=False)
class Record:
    """One record of the tape to be: a kernel, its arguments by name, the node it works for."""

    kernel: str
    units: int
    args: dict[str, Any]
    node: Node
    stream: tuple[str, int] | None = None
    """(argument, bytes a unit): unit u reads only bytes [u * b, (u + 1) * b) of that argument, so a
    weight can be packed piece by piece without ever lying in the heap unpacked."""
    makes: tuple[str, int] | None = None
    """(argument, bytes a unit): unit u writes bytes [u * b, (u + 1) * b) of that argument and nothing else, so a
    constant that is only packed can be made piece by piece."""
    uniform: bool = field(default=False, init=False)
    """Every unit writes the same, `CHUNK` elements of its output ``y``: a tensor of one value."""
    flat: bool = field(default=False, init=False)
    """Unit u writes elements [u * CHUNK, (u + 1) * CHUNK) of its output ``y``, and of inputs of that size reads just
    those. It reports nothing."""
    position: int = field(default=-1, init=False)
    """Its place on the tape; -1 in a recipe."""
    maker: int = field(default=0, init=False)
    """Which description it is of, if it is of no use where nothing reads those of that description's tensors that it
    mentions; of a flat record, ``y``. 0: it is of use in any case."""
    permute: Callable[[Value, Sequence[int]], bool] | None = field(default=None, init=False)
    """``permute(y, order)`` rewrites the record to write to ``y`` instead, its axes in that order. False, and nothing
    changed, if it cannot."""
    affine: Callable[[Value | None, Value | None], bool] | None = field(default=None, init=False)
    """``affine(scale, shift)`` rewrites the record to give y * scale[c] + shift[c] over channels (axis 1); both are
    constants of shape (C,) or None. False, and nothing changed, if it cannot. Only asked while ``act`` is none."""

    def values(self) -> list[Value]:
        """The values among its arguments."""
        return [a for a in self.args.values() if a.__class__ is Value]


@dataclass(eq=False)
class Recipe:
    """Records that compute constants from constants."""

    records: list[Record] = field(default_factory=list)
    made: list[Value] = field(default_factory=list)


Request = Value | tuple[Value, Sequence[Item]] | Subgraph
Steps = Generator[Request, Any, Any]
"""What an op that is a generator returns."""


class NeedsValueError(Exception):
    """Lowering must know the contents of a value that only a run can tell."""

    def __init__(self, value: Value, node: Node) -> None:
        super().__init__(value, node)
        self.value = value
        self.node = node


class Context:
    """Collects what the ops of one graph describe, for one set of input shapes."""

    def __init__(
        self,
        derived: dict[tuple[Any, ...], Any] | None = None,
        evaluate: Callable[[Value], Array] | None = None,
        *,
        fuse: bool = True,
        threads: int = 1,
        weights: int = 0,
    ) -> None:
        self.weights = weights
        """Bytes of the model's weights, by which an op may measure what it needs besides."""
        self.node = Node()
        self.opset = 0
        self.records: list[Record] = []
        self.observed: dict[Value, Array] = {}
        """Contents that a run has told, of values in the run so far."""
        self._maker = self._makers = 0
        self.runs = True
        """False while only shapes are asked for: what is described does not run."""
        self.sealed = 0
        """So many records have run by the time that the rest is described."""
        # Constants made of constants, kept for the session: they do not change between shapes.
        self._derived = {} if derived is None else derived
        self._evaluate = evaluate
        self._fuse = fuse
        self.threads = threads
        self._recipe: Recipe | None = None

    # Values

    def out(self, shape: Sequence[int], dtype: DType, *, reuse: Sequence[Value] = ()) -> Value:
        """A new tensor that records of this op write. It may take over the memory of a value in ``reuse`` of
        the same number of bytes, if this op is the last to read that; the kernel must then work in place."""
        value = Value(shape, dtype)
        value.reuse = tuple(reuse)
        if value.shape and min(value.shape) < 0:
            self.fail(f"output shape {list(shape)} has a negative dimension")
        if value.nbytes >= _ADDRESSES and self.runs:
            self.fail(
                f"output {value.dtype}{list(shape)} needs {value.nbytes:,} bytes; memory ends at 4 GiB", HeapMemoryError
            )
        if not value.size and math.prod(d or 1 for d in value.shape) * dtype.bits >= _COUNTABLE:
            self.fail(f"output shape {list(shape)} has no elements, and too large extents besides for an array")
        self._add(value)
        return value

    def scratch(self, nbytes: int) -> Value:
        """Working memory for one range of units at a time: each thread has ``nbytes`` of its own. The kernel's argument
        is of the kind "scratch"; contents are undefined before and after."""
        stride = 0 if self.threads == 1 else -(-nbytes // _LINE) * _LINE
        value = self.work(stride * self.threads or nbytes)
        value.stride = stride
        return value

    def work(self, nbytes: int) -> Value:
        """Working memory that a record's units have in common, each with a part that no other writes."""
        value = Value((nbytes,), _U8)
        self._add(value)
        return value

    def _add(self, value: Value) -> None:
        if self._recipe is not None:
            value.const, value.recipe = True, self._recipe
            self._recipe.made.append(value)
        else:
            value.maker = self._maker
            # At the earliest, if the next record writes it.
            value.ready = len(self.records) + 1

    def alias(self, x: Value, shape: Sequence[int], dtype: DType | None = None, *, offset: int = 0) -> Value:
        """The same memory under another shape (or type of the same width), from ``offset`` bytes on."""
        value = Value(shape, dtype or x.dtype, const=x.const)
        value.root, value.offset = x.root, x.offset + offset
        if value.size == x.size and value.dtype == x.dtype:
            value.known = None if x.known is None else x.known.reshape(value.shape)
            value.source, value.recipe = x.source, x.recipe
            value.producer = x.producer if x.uses == 1 else None
            seen = self.view(x)
            if seen is not None:
                layout = seen.layout.reshaped(value.shape)
                value.moved_from = None if layout is None else seen._replace(layout=layout)
        else:
            value.recipe = x.recipe
            known = value.root.known
            if known is not None and value.dtype.numpy is not None and value.dtype.bits >= 8:
                data = known.reshape(-1).view(np.uint8)[value.offset : value.offset + value.nbytes]
                value.known = data.view(value.dtype.numpy).reshape(value.shape)
        return value

    def view(self, x: Value) -> View | None:
        """Where the elements of ``x`` were moved from, if they can still be read there."""
        view = x.moved_from
        if not self._fuse or view is None or view.since < self.sealed:
            return None
        if x.uses != 1:
            # Others read the copy: nothing must change what it was made of.
            source = self.alias(view.source, view.source.shape)
            source.producer = None
            return view._replace(source=source)
        return view

    def seen(self, y: Value, x: Value, layout: Layout) -> Value:
        """``y``, a copy of those elements of ``x`` that the layout says."""
        if self._recipe is None and not x.const:
            y.moved_from = View(x, layout, len(self.records))
        return y

    def origin(self, x: Value) -> Origin | None:
        """What computed ``x``, if what that read can still be read."""
        origin = x.computed_by
        return origin if self._fuse and origin is not None and origin.since >= self.sealed else None

    def known(self, array: Array) -> Value:
        """A tensor whose contents the host knows: shapes, and values of attributes."""
        if not isinstance(array, np.ndarray) or not array.flags.c_contiguous:
            array = np.ascontiguousarray(array).reshape(array.shape)
        value = Value(array.shape, dtype_from_numpy(array.dtype))
        value.known = array
        return value

    def read(self, x: Value) -> Array:
        """The contents of a value that decides a shape, an index or a branch.

        Raises NeedsValueError if only a run can tell; read before you emit.
        """
        if x.known is not None:
            return x.known
        if x in self.observed:
            return self.observed[x]
        if x.const and x.source is not None and x.offset == 0 and x.size == x.root.size:
            return x.source.array().reshape(x.shape)
        if x.const and self._evaluate is not None:
            return self._evaluate(x)
        raise NeedsValueError(x, self.node)

    # Work

    def begin(self) -> int:
        """Begin to describe what computes nothing but new tensors. Returns its place, for `end`."""
        self._makers += 1
        self._maker = self._makers
        return len(self.records)

    def end(self, begin: int, *, useless: bool = True) -> None:
        """Let the records since then be left out if nothing reads what they make, but for those that may report; unless
        they are not ``useless`` then."""
        for i in range(begin, len(self.records) if useless else begin):
            record = self.records[i]
            if record.flat or record.kernel.startswith(SILENT):
                record.maker = self._maker
        self._maker = 0

    def emit(
        self,
        kernel: str,
        *,
        units: int = 1,
        stream: tuple[str, int] | None = None,
        makes: tuple[str, int] | None = None,
        **args: Any,
    ) -> Record:
        """Add a record. ``units`` is how many independent pieces of work the kernel can split it into."""
        record = Record(kernel, units, args, self.node, stream, makes)
        if self._recipe is not None:
            self._recipe.records.append(record)
        else:
            record.position = len(self.records)
            self.records.append(record)
        return record

    def derived(self, key: Hashable, sources: Sequence[Value], make: Callable[[], Made]) -> Made:
        """What ``make`` emits and returns, once per session if all ``sources`` are constants.

        For packed weights and folded constants: with constant sources the records run when the session first needs
        the result, and the result stays in the heap; with others they are ordinary records of the tape. ``key`` must
        tell apart all that ``make`` may produce from the same sources.
        """
        if self._recipe is not None:
            return make()
        parts: list[Any] = [key]
        for source in sources:
            if not source.const:
                return make()
            parts += (source.root, source.offset, source.shape)
        full_key = tuple(parts)
        if full_key not in self._derived:
            self._recipe = Recipe()
            try:
                self._derived[full_key] = make()
            finally:
                self._recipe = None
        result: Made = self._derived[full_key]
        return result

    def aside(self, make: Callable[[], Made]) -> Made:
        """What ``make`` returns, as constants that nothing keeps; its records are not on the tape."""
        self._recipe = Recipe()
        try:
            return make()
        finally:
            self._recipe = None

    def fusable(self, x: Value) -> Record | None:
        """The record that writes ``x``, if this node is the only reader of ``x`` and may change that record."""
        record = x.producer
        if not self._fuse or record is None or x.uses != 1 or x.const or 0 <= record.position < self.sealed:
            return None
        return record

    @staticmethod
    def chunks(x: Value) -> int:
        """Work units of a flat elementwise kernel over ``x``."""
        return -(-x.size // CHUNK)

    # Errors

    def fail(self, message: str, kind: type[OnnxWasmError] = ShapeError) -> NoReturn:
        """Raise an error that names the node."""
        raise kind(f"{self.node}: {message}")


_U8 = dtype_from_numpy(np.dtype(np.uint8))
