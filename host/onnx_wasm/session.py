"""Sessions: a model in a runtime, with ORT Web's ``InferenceSession`` names.

A session keeps one *executable* for each set of input shapes it has seen: an encoded tape in the heap. A run patches
the addresses of inputs into it and makes one call into the module.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
import warnings
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import dtypes, engine, model, tape
from .context import NeedsValueError, Record, Value
from .dtypes import DType
from .errors import (
    CancelledError,
    DisposedError,
    FeedError,
    FeedTypeError,
    KernelTrapError,
    NodeIndexError,
    NodeValueError,
    OnnxWasmError,
    UnsupportedModelError,
)
from .heap import Block, Runtime, default_runtime
from .lower import LoweringCache, lower, prepare
from .model import Graph, ValueInfo
from .plan import MemoryPlan, plan_memory
from .tape import Tape
from .tensor import Tensor
from .weights import Weights

Array = NDArray[Any]
Model = str | os.PathLike[str] | bytes | bytearray | memoryview
Shapes = dict[str, tuple[tuple[int, ...], DType]]

# Sizes that stand in for unknown dimensions when weights are placed before the first run.
_TRIAL_SIZES = (1, 64, 224)
_MAX_DECISIVE = 4096
OUT_OF_MEMORY, INDEX, DOMAIN, CANCELLED = 1, 2, 3, 4
_numbers = itertools.count(1)


@dataclass
class SessionOptions:
    """How a session is made; the names are ORT Web's in snake_case."""

    enable_lazy_initialization: bool = False
    """Parse, pack and compile at the first run instead of at creation."""
    enable_mem_pattern: bool = True
    """Plan intermediate tensors into one arena. False is the browser's behaviour: each is allocated and freed
    in the heap while the run goes on."""
    graph_optimization_level: str = "all"
    """"all", "layout", "extended" and "basic" fuse nodes; "disabled" runs each for itself."""
    free_dimension_overrides: Mapping[str, int] = field(default_factory=dict)
    """Sizes of symbolic dimensions; feeds must then have them."""
    external_data: Mapping[str, bytes] = field(default_factory=dict)
    """Contents of external data files by the location that the model names, for a model given as bytes."""
    max_plans: int = 16
    """How many sets of input shapes keep their tape."""

    def __post_init__(self) -> None:
        levels = ("disabled", "basic", "extended", "layout", "all")
        if self.graph_optimization_level not in levels:
            raise ValueError(
                f"graph_optimization_level {self.graph_optimization_level!r} is none of {', '.join(levels)}"
            )
        if self.max_plans < 1:
            raise ValueError(f"max_plans {self.max_plans} must be at least 1")
        for name, size in self.free_dimension_overrides.items():
            if not isinstance(size, int) or size < 0:
                raise ValueError(f"free_dimension_overrides[{name!r}] is {size!r}, not an integer >= 0")


@dataclass(frozen=True)
class ValueMetadata:
    """An input or output, as ORT Web describes it."""

    name: str
    is_tensor: bool
    type: str
    shape: tuple[int | str, ...]
    """Sizes, and names of symbolic dimensions; "" for one without a name."""


@dataclass(frozen=True)
class PlanInfo:
    """What one set of input shapes takes; sizes in bytes."""

    arena_bytes: int
    lower_bound: int
    """The most bytes of intermediate values alive at once: no arena can be smaller."""
    tape_bytes: int
    records: int
    weight_bytes: int
    """Constants in the heap, of all plans of the session."""


@dataclass(frozen=True)
class ProfileEvent:
    """One record of a profiled run."""

    node: str
    op_type: str
    kernel: str
    milliseconds: float


class _NeedsFeedsError(OnnxWasmError):
    """A plan depends on the contents of a feed."""


@dataclass(eq=False)
class _Fed:
    """One input of a run: an address in the heap, or an array to copy."""

    shape: tuple[int, ...]
    dtype: DType
    address: int
    array: Array | None

    @property
    def nbytes(self) -> int:
        return self.dtype.nbytes(int(np.prod(self.shape, dtype=np.int64)))


@dataclass(eq=False)
class _Executable:
    plan: MemoryPlan
    tape: Tape
    block: Block
    inputs: dict[str, Value]
    arena_address: int = -1
    bound: dict[str, int] = field(default_factory=dict)
    staging: dict[str, Block] = field(default_factory=dict)


class InferenceSession:
    """A model ready to run. Make one with `create`; `dispose` (or ``with``) gives its memory back."""

    def __init__(self, source: Model, options: SessionOptions, runtime: Runtime) -> None:
        number = next(_numbers)
        self._source: Model | None = source
        self._options = options
        self._runtime = runtime
        self._name = Path(source).stem if isinstance(source, (str, os.PathLike)) else f"session {number}"
        self._disposed = False
        self._executables: OrderedDict[Any, _Executable] = OrderedDict()
        self._decisive: tuple[str, ...] = ()
        self._events: list[ProfileEvent] | None = None
        self._last: _Executable | None = None
        self._weights = Weights(runtime, self._name, _signature, self._run_record)
        self._cache: LoweringCache | None = None
        runtime._sessions.add(self)
        if not options.enable_lazy_initialization:
            try:
                self._load()
                self._preload()
            except BaseException:
                self.dispose()
                raise

    @classmethod
    def create(
        cls, model: Model, options: SessionOptions | None = None, *, runtime: Runtime | None = None, **settings: Any
    ) -> InferenceSession:
        """A session of a model: a path, or its bytes. ``settings`` are fields of SessionOptions.

        Raises InvalidModelError for what is no model, UnsupportedModelError that lists every operator and opset
        without an implementation, MemoryError for weights that do not fit.
        """
        if options is not None and settings:
            raise TypeError("give options or settings, not both")
        known = {f.name for f in fields(SessionOptions)}
        if not known.issuperset(settings):
            raise TypeError(f"unknown session options {sorted(set(settings) - known)}; known: {sorted(known)}")
        if not isinstance(model, (str, os.PathLike, bytes, bytearray, memoryview)):
            raise FeedTypeError(f"a model is a path or bytes, got {type(model).__name__}")
        return cls(model, options or SessionOptions(**settings), runtime or default_runtime())

    @classmethod
    async def create_async(cls, model: Model, *args: Any, **settings: Any) -> InferenceSession:
        """`create` in a thread, for an event loop."""
        return await asyncio.to_thread(cls.create, model, *args, **settings)

    # What the model is

    def _load(self) -> LoweringCache:
        if self._disposed:
            raise DisposedError(f"session {self._name} is disposed")
        if self._cache is None:
            assert self._source is not None
            self._cache = prepare(model.load(self._source, self._options.external_data))
            self._source = None
        return self._cache

    @property
    def _graph(self) -> Graph:
        return self._load().graph

    @property
    def runtime(self) -> Runtime:
        return self._runtime

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs that must be fed."""
        return [i.name for i in self._graph.inputs]

    @property
    def output_names(self) -> list[str]:
        return [o.name for o in self._graph.outputs]

    @property
    def input_metadata(self) -> list[ValueMetadata]:
        return [self._metadata(i) for i in self._graph.inputs]

    @property
    def output_metadata(self) -> list[ValueMetadata]:
        return [self._metadata(o) for o in self._graph.outputs]

    @property
    def model_metadata(self) -> dict[str, str]:
        """The model's own key-value metadata."""
        return dict(self._graph.metadata)

    def _metadata(self, info: ValueInfo) -> ValueMetadata:
        shape = tuple("" if d is None else d for d in self._dimensions(info) or ())
        return ValueMetadata(info.name, info.dtype is not None, "" if info.dtype is None else info.dtype.name, shape)

    def _dimensions(self, info: ValueInfo) -> tuple[int | str | None, ...] | None:
        overrides = self._options.free_dimension_overrides
        if info.shape is None:
            return None
        return tuple(overrides.get(d, d) if isinstance(d, str) else d for d in info.shape)

    @property
    def plan_info(self) -> PlanInfo | None:
        """The plan of the latest run, or of creation; None before there is one."""
        if self._last is None:
            return None
        last = self._last
        return PlanInfo(
            arena_bytes=last.plan.arena_bytes if self._options.enable_mem_pattern else 0,
            lower_bound=last.plan.lower_bound,
            tape_bytes=last.block.nbytes,
            records=len(last.plan.records),
            weight_bytes=self._weights.nbytes,
        )

    # Running

    def run(
        self, feeds: Mapping[str, Tensor | Array], fetches: Sequence[str] | Mapping[str, Tensor | None] | None = None
    ) -> dict[str, Tensor]:
        """Run the model once.

        ``feeds`` has a tensor or numpy array for every input; a tensor of this runtime is read where it is, an array is
        copied. ``fetches`` names the outputs wanted (all, unless given); a mapping may give tensors to write into.
        The other outputs are new tensors of the runtime.

        Raises FeedError or FeedTypeError for feeds that do not fit, MemoryError, and errors that name the node for
        values outside an operator's domain. After any error nothing is leaked, and the session can run again.
        """
        with self._runtime._gate:
            return self._run(feeds, fetches)

    async def run_async(
        self, feeds: Mapping[str, Tensor | Array], fetches: Sequence[str] | Mapping[str, Tensor | None] | None = None
    ) -> dict[str, Tensor]:
        """`run` in a thread, for an event loop."""
        return await asyncio.to_thread(self.run, feeds, fetches)

    def _run(
        self, feeds: Mapping[str, Tensor | Array], fetches: Sequence[str] | Mapping[str, Tensor | None] | None
    ) -> dict[str, Tensor]:
        self._load()
        self._runtime._check_open()
        fed = self._check_feeds(feeds)
        names, given = self._check_fetches(fetches)
        executable = self._executable(fed, names)
        self._bind(executable, fed)
        self._check_given(executable, given, fed)
        return self._execute(executable, names, given)

    def _check_feeds(self, feeds: Mapping[str, Tensor | Array]) -> dict[str, _Fed]:
        if not isinstance(feeds, Mapping):
            raise FeedTypeError(f"feeds must map input names to tensors or arrays, got {type(feeds).__name__}")
        graph = self._graph
        declared = {i.name: i for i in graph.inputs}
        missing = [n for n in declared if n not in feeds]
        if missing:
            raise FeedError(f"inputs not fed: {missing}; the model takes {list(declared)}")
        fed = {}
        for name, feed in feeds.items():
            info = declared.get(name) or graph.overridable.get(name)
            if info is None:
                raise FeedError(f"{name!r} is no input of the model, which takes {list(declared)}")
            fed[name] = self._check_feed(info, feed)
        return fed

    def _check_feed(self, info: ValueInfo, feed: Tensor | Array) -> _Fed:
        runtime = self._runtime
        if isinstance(feed, Tensor):
            block = feed._live()
            if block.runtime is runtime:
                item = _Fed(feed.dims, feed._dtype, feed.address, None)
            else:
                item = _Fed(feed.dims, feed._dtype, 0, feed.data)
        elif isinstance(feed, (np.ndarray, np.generic)):
            array = np.asarray(feed)
            try:
                dtype = dtypes.from_numpy(array.dtype)
            except ValueError as error:
                raise FeedTypeError(f"input {info.name!r}: {error}") from None
            found = runtime.find_block(array) if array.dtype.isnative else None
            if found is None:
                item = _Fed(array.shape, dtype, 0, array)
            else:
                item = _Fed(array.shape, dtype, found[0].address + found[1], None)
        else:
            raise FeedTypeError(f"input {info.name!r} must be a Tensor or a numpy array, got {type(feed).__name__}")
        if info.dtype is None:
            raise UnsupportedModelError(
                f"input {info.name!r} is not a tensor; sequences and optionals are not supported yet"
            )
        if item.dtype is not info.dtype:
            raise FeedTypeError(f"input {info.name!r} takes {info.dtype}, got {item.dtype}")
        shape = self._dimensions(info)
        if shape is not None and len(shape) != len(item.shape):
            raise FeedError(
                f"input {info.name!r} has rank {len(shape)} ({_show(shape)}), "
                f"got rank {len(item.shape)} ({list(item.shape)})"
            )
        for axis, (wanted, got) in enumerate(zip(shape or (), item.shape, strict=False)):
            if isinstance(wanted, int) and wanted != got:
                raise FeedError(
                    f"input {info.name!r} has dimension {wanted} on axis {axis} ({_show(shape)}), "
                    f"got {list(item.shape)}"
                )
        return item

    def _check_fetches(
        self, fetches: Sequence[str] | Mapping[str, Tensor | None] | None
    ) -> tuple[tuple[str, ...], dict[str, Tensor]]:
        outputs = [o.name for o in self._graph.outputs]
        if fetches is None:
            return tuple(outputs), {}
        if isinstance(fetches, str):
            raise FeedTypeError(f"fetches must be a sequence of output names or a mapping, got the string {fetches!r}")
        unknown = [n for n in fetches if n not in outputs]
        if unknown:
            raise FeedError(f"{unknown} are no outputs of the model, which has {outputs}")
        given: dict[str, Tensor] = {}
        if isinstance(fetches, Mapping):
            for name, tensor in fetches.items():
                if tensor is None:
                    continue
                if not isinstance(tensor, Tensor):
                    raise FeedTypeError(f"fetch {name!r} must be a Tensor or None, got {type(tensor).__name__}")
                if tensor._live().runtime is not self._runtime:
                    raise FeedError(f"fetch {name!r} is a tensor of another runtime")
                given[name] = tensor
        return tuple(dict.fromkeys(fetches)), given

    def _check_given(self, executable: _Executable, given: Mapping[str, Tensor], fed: Mapping[str, _Fed]) -> None:
        for name, tensor in given.items():
            for other, item in fed.items():
                if (
                    item.array is None
                    and tensor.address < item.address + item.nbytes
                    and item.address < tensor.address + tensor.nbytes
                ):
                    raise FeedError(f"the tensor given for output {name!r} shares memory with input {other!r}")
            value = executable.plan.outputs[name]
            if tensor._dtype is not value.dtype or tensor.dims != value.shape:
                raise FeedError(
                    f"output {name!r} is {value.dtype}{list(value.shape)}, the tensor given for it is {tensor!r}"
                )

    # Executables

    def _executable(self, fed: Mapping[str, _Fed], fetches: tuple[str, ...]) -> _Executable:
        key = self._key(fed, fetches)
        executable = self._executables.get(key)
        if executable is None:
            shapes = {name: (f.shape, f.dtype) for name, f in fed.items()}
            executable = self._build(shapes, fetches, fed)
            while len(self._executables) >= self._options.max_plans:
                self._drop(self._executables.popitem(last=False)[1])
            self._executables[self._key(fed, fetches)] = executable
        else:
            self._executables.move_to_end(key)
        self._last = executable
        return executable

    def _key(self, fed: Mapping[str, _Fed], fetches: tuple[str, ...]) -> Any:
        shapes = tuple((name, f.shape) for name, f in fed.items())
        if not self._decisive:
            return shapes, fetches
        return shapes, fetches, tuple(self._contents(fed[n]).tobytes() for n in self._decisive if n in fed)

    def _contents(self, fed: _Fed) -> Array:
        if fed.array is not None:
            return fed.array
        assert fed.dtype.numpy is not None
        return (
            self._runtime._bytes[fed.address : fed.address + fed.nbytes].view(fed.dtype.numpy).reshape(fed.shape).copy()
        )

    def _build(self, shapes: Shapes, fetches: tuple[str, ...], fed: Mapping[str, _Fed] | None) -> _Executable:
        cache = self._load()
        while True:
            values = {n: self._contents(fed[n]) for n in self._decisive if n in fed} if fed else {}
            try:
                lowered = lower(
                    cache,
                    shapes,
                    fetches,
                    values=values,
                    evaluate=self._weights.evaluate,
                    fuse=self._options.graph_optimization_level != "disabled",
                )
                break
            except NeedsValueError as error:
                self._add_decisive(error, fed)
        plan = plan_memory(lowered)
        planned = self._options.enable_mem_pattern
        encoded, relocate = tape.encode(plan, _signature_or_none, planned=planned)
        roots = dict.fromkeys(root for _, root, _ in encoded.weights)
        addresses = self._weights.place(roots)
        block = self._runtime._allocate(encoded.words.nbytes, "tape", self._name)
        relocate(block.address)
        for word, root, offset in encoded.weights:
            encoded.words[word] = addresses[root] + offset
        self._words(block)[...] = encoded.words
        return _Executable(plan, encoded, block, lowered.inputs)

    def _add_decisive(self, error: NeedsValueError, fed: Mapping[str, _Fed] | None) -> None:
        """An input whose contents decide a shape joins the key of plans."""
        root, node = error.value.root, error.node
        if fed is None and any(root.name == i.name for i in self._graph.inputs):
            raise _NeedsFeedsError from error
        if fed is None or root.name not in fed or root.name in self._decisive:
            raise UnsupportedModelError(
                f"{node}: {error.value.name!r} decides a shape but is computed from data; "
                f"such graphs are not supported yet"
            )
        if root.size > _MAX_DECISIVE:
            raise UnsupportedModelError(
                f"{node}: input {root.name!r} decides a shape and has {root.size} elements (at most {_MAX_DECISIVE})"
            )
        self._decisive = (*self._decisive, root.name)
        # Plans made without its contents would be found for any.
        while self._executables:
            self._drop(self._executables.popitem()[1])

    def _drop(self, executable: _Executable) -> None:
        self._runtime._release(executable.block)
        for block in executable.staging.values():
            self._runtime._release(block)
        if self._last is executable:
            self._last = None

    def _preload(self) -> None:
        """Place the weights, for known shapes or, if any will do, for made-up ones; else the first run does it."""
        graph = self._graph
        if any(i.dtype is None for i in graph.inputs):
            return
        dimensions = {i.name: self._dimensions(i) for i in graph.inputs}
        static = all(s is not None and all(isinstance(d, int) for d in s) for s in dimensions.values())
        fetches = tuple(o.name for o in graph.outputs)
        with self._runtime._gate:
            for size in (0,) if static else _TRIAL_SIZES:
                shapes: Shapes = {}
                for info in graph.inputs:
                    assert info.dtype is not None
                    shape = tuple(d if isinstance(d, int) else size for d in dimensions[info.name] or ())
                    shapes[info.name] = (shape, info.dtype)
                try:
                    executable = self._build(shapes, fetches, None)
                except MemoryError:
                    raise
                except _NeedsFeedsError:
                    return
                except OnnxWasmError:
                    if static:
                        raise
                    continue
                if static:
                    self._executables[tuple((n, s) for n, (s, _) in shapes.items()), fetches] = executable
                    self._last = executable
                else:
                    self._drop(executable)
                return

    # One run of an executable

    def _words(self, block: Block) -> NDArray[np.uint32]:
        return self._runtime._words[block.address // 4 : (block.address + block.nbytes) // 4]

    def _bind(self, executable: _Executable, fed: Mapping[str, _Fed]) -> None:
        words = self._words(executable.block)
        for name, item in fed.items():
            address = item.address
            if item.array is not None and item.array.nbytes:
                address = self._stage(executable, name, item).address
            if executable.bound.get(name) != address:
                for word, offset in executable.tape.inputs.get(executable.inputs[name], ()):
                    words[word] = address + offset
                executable.bound[name] = address
        if self._options.enable_mem_pattern and executable.plan.arena_bytes:
            arena = self._runtime._reserve_arena(executable.plan.arena_bytes)
            if arena != executable.arena_address:
                places, offsets = executable.tape.arena
                words[places] = offsets + np.uint32(arena)
                executable.arena_address = arena

    def _stage(self, executable: _Executable, name: str, item: _Fed) -> Block:
        assert item.array is not None
        assert item.dtype.numpy is not None
        block = executable.staging.get(name)
        if block is None:
            block = self._runtime._allocate(item.array.nbytes, "input", f"{self._name} {name}")
            executable.staging[name] = block
        target = self._runtime._bytes[block.address : block.address + block.nbytes]
        np.copyto(target.view(item.dtype.numpy).reshape(item.shape), item.array)
        return block

    def _execute(
        self, executable: _Executable, names: tuple[str, ...], given: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        runtime, words, encoded = self._runtime, self._words(executable.block), executable.tape
        lent: dict[int, Block] = {}
        outputs = executable.plan.outputs
        by_buffer = {id(a.buffer): a for a in encoded.allocations}
        for name, tensor in given.items():
            allocation = by_buffer.get(id(executable.plan.buffers[outputs[name].root]))
            if allocation is not None:
                words[allocation.result] = tensor.address
                lent[allocation.result] = tensor._live()
        start = executable.block.address
        try:
            status = self._go(executable, start)
        except engine.TrapError as error:
            record = self._record_at(executable, runtime._fault()[1])
            self._unwind(encoded, words, lent)
            raise KernelTrapError(f"{_where(record)} trapped: {error} (in {', '.join(error.functions[:3])})") from None
        if status:
            fault = self._fault(executable)
            self._unwind(encoded, words, lent)
            raise fault
        results = {}
        for name in names:
            value = outputs[name]
            allocation = by_buffer.get(id(executable.plan.buffers[value.root]))
            if name in given:
                results[name] = given[name]
            elif allocation is None:
                results[name] = Tensor._wrap(Block(runtime, 0, 0, "output", name), value.dtype, value.shape)
            else:
                address = int(words[allocation.result])
                block = runtime._adopt(address, value.root.nbytes, "output", f"{self._name} {name}")
                results[name] = Tensor._wrap(block, value.dtype, value.shape)
            if allocation is not None:
                words[allocation.result] = 0
        return results

    def _go(self, executable: _Executable, start: int) -> int:
        end = start + 4 * executable.tape.end
        if self._events is None:
            return self._runtime._execute(start, end)
        starts = [start + 4 * s for s in executable.tape.starts]
        for record, here, there in zip(executable.tape.records, starts, [*starts[1:], end], strict=True):
            before = time.perf_counter()
            status = self._runtime._execute(here, there)
            spent = (time.perf_counter() - before) * 1e3
            if record is not None:
                self._events.append(ProfileEvent(record.node.name, record.node.op_type, record.kernel, spent))
            if status:
                return status
        return 0

    def _unwind(self, encoded: Tape, words: NDArray[np.uint32], lent: Mapping[int, Block]) -> None:
        """Give back what the tape had allocated when it stopped."""
        for allocation in encoded.allocations:
            address = int(words[allocation.result])
            words[allocation.result] = 0
            if address and allocation.result not in lent:
                self._runtime._free(address)

    def _record_at(self, executable: _Executable, address: int) -> Record | None:
        index = tape.find_record(executable.tape, (address - executable.block.address) // 4)
        return None if index < 0 else executable.tape.records[index]

    def _fault(self, executable: _Executable) -> Exception:
        status, address, detail, low, high = self._runtime._fault()
        if status == CANCELLED:
            return CancelledError(f"the run of {self._name} was cancelled")
        if status == OUT_OF_MEMORY:
            word = (address - executable.block.address) // 4
            names = [
                v.name or "an intermediate"
                for a in executable.tape.allocations
                if a.at == word
                for v in a.buffer.values
            ]
            index = tape.find_record(executable.tape, word)
            later = next((r for r in executable.tape.records[index:] if r is not None), None)
            return self._runtime._out_of_memory(detail, f"tensor {names[0] if names else '?'!r} of {_where(later)}")
        return _fault_error(self._record_at(executable, address), status, detail, low, high)

    def _run_record(self, record: Record, address: int, begin: int, end: int) -> None:
        """Run one record outside a tape, for constants."""
        try:
            status = self._runtime._run_record(address, begin, end)
        except engine.TrapError as error:
            raise KernelTrapError(f"{_where(record)} trapped: {error}") from None
        if status:
            _, _, detail, low, high = self._runtime._fault()
            raise _fault_error(record, status, detail, low, high)

    # Profiling and the end

    def start_profiling(self) -> None:
        """Time every record of the runs from now on, each by a call of its own."""
        self._events = []

    def end_profiling(self) -> list[ProfileEvent]:
        """Stop timing; what was measured, in the order it ran."""
        events, self._events = self._events, None
        return events or []

    def dispose(self) -> None:
        """Give back the session's weights, tapes and staging; tensors that it made live on. Idempotent."""
        if self._disposed:
            return
        self._disposed = True
        self._source = None
        self._runtime._sessions.discard(self)
        if self._runtime.closed:
            return
        with self._runtime._gate:
            while self._executables:
                self._drop(self._executables.popitem()[1])
            self._weights.dispose()
            if not self._runtime._sessions:
                self._runtime._release_arena()

    release = dispose

    def __enter__(self) -> InferenceSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.dispose()

    def __del__(self) -> None:
        if getattr(self, "_disposed", True) or self._runtime.closed:
            return
        if self._weights.nbytes or self._executables:
            warnings.warn(f"session {self._name} was never disposed", ResourceWarning, stacklevel=2, source=self)
        blocks = self._weights.blocks()
        for executable in self._executables.values():
            blocks += [executable.block, *executable.staging.values()]
        self._runtime._abandon(self, blocks)

    def __repr__(self) -> str:
        return f"<InferenceSession {self._name}{' (disposed)' if self._disposed else ''}>"


def _signature(kernel: str) -> tape.Signature:
    found = engine.manifest().kernels[kernel]
    return found.id, found.args


def _signature_or_none(kernel: str) -> tape.Signature | None:
    found = engine.manifest().kernels.get(kernel)
    return None if found is None else (found.id, found.args)


def _show(shape: Sequence[int | str | None] | None) -> str:
    return "[" + ", ".join("?" if d is None else str(d) for d in shape or ()) + "]"


def _where(record: Record | None) -> str:
    return "the run loop" if record is None else f"{record.node} (kernel {record.kernel})"


def _fault_error(record: Record | None, status: int, detail: int, low: int, high: int) -> OnnxWasmError:
    node = "the run loop" if record is None else str(record.node)
    if status == INDEX:
        return NodeIndexError(f"{node}: index {detail} out of range [{low}, {high})")
    if status == DOMAIN:
        expected = f"; it must lie in [{low}, {high})" if low < high else ""
        return NodeValueError(f"{node}: value {detail} is outside the operator's domain{expected}")
    return NodeValueError(f"{node}: status {status}, detail {detail}")
