"""Sessions: a model in a runtime, with ORT Web's ``InferenceSession`` names."""

from __future__ import annotations

import itertools
import os
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from . import dtypes, model
from .blocks import Block, asked_at, call_site
from .errors import (
    DisposedError,
    FeedError,
    FeedTypeError,
    InvalidModelError,
    OnnxWasmError,
    UnsupportedModelError,
    no_copy,
)
from .express import Express
from .feeds import Fed, Feed, Feeds, check_feeds
from .gate import gated
from .heap import Runtime, default_runtime
from .model import Dimension, Graph, ValueInfo
from .options import SessionOptions
from .prepare import LoweringCache, prepare
from .program import Program, Result
from .segment import Core, NeedsInputError, ProfileEvent
from .tensor import Tensor
from .verdicts import SessionInfo
from .weights import Weights

Array = NDArray[Any]
Made = TypeVar("Made")
Model = str | os.PathLike[str] | bytes | bytearray | memoryview
Fetches = Sequence[str] | Mapping[str, Tensor | None] | None

# Sizes that stand in for unknown dimensions when weights are placed before the first run.
_TRIAL_SIZES = (1, 64, 224)
_MAX_DECISIVE = 4096
_numbers = itertools.count(1)


async def _in_thread(function: Callable[..., Made], *args: Any, **settings: Any) -> Made:
    """Call a function in a thread; what it allocates is put down to the caller's line."""
    # Only what awaits pays for its import, a tenth of a start.
    import asyncio

    token = asked_at.set(call_site())
    try:
        return await asyncio.to_thread(function, *args, **settings)
    finally:
        asked_at.reset(token)


@dataclass(frozen=True)
class ValueMetadata:
    """An input or output, as ORT Web describes it."""

    name: str
    is_tensor: bool
    type: str
    """Of the tensor, or of a sequence's elements."""
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
    segments: int
    """Calls into the module that have been planned for a run; 1 unless shapes or branches depend on data."""
    weight_bytes: int
    """Constants in the heap, of all plans of the session."""


class InferenceSession:
    """A model ready to run. Make one with `create`; `dispose` (or ``with``) gives its memory back."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise TypeError("use InferenceSession.create(...) to make a session, as in ONNX Runtime Web")

    def _begin(self, source: Model, options: SessionOptions, runtime: Runtime) -> None:
        number = next(_numbers)
        self._source: Model | None = source
        self._options = options
        self._runtime = runtime
        self._number = number
        self.site = call_site() if runtime.trace_allocations else ""
        """The Python line that made it, when the runtime traces allocations."""
        self._name = Path(source).stem if isinstance(source, (str, os.PathLike)) else f"session {number}"
        self._gate = runtime._gate
        self._loading = threading.RLock()
        self._doomed: list[Program] = []
        self._programs: OrderedDict[Any, Program] = OrderedDict()
        self._decisive: tuple[str, ...] = ()
        """Inputs whose contents decide shapes, and so belong to the key of programs."""
        self._last: Program | None = None
        self._express: Express | None = None
        """The short way of the latest program."""
        self._core: Core | None = None
        self._disposed = False
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
        if options is not None and not isinstance(options, SessionOptions):
            raise FeedTypeError(f"options must be SessionOptions, got {type(options).__name__}")
        if not isinstance(model, (str, os.PathLike, bytes, bytearray, memoryview)):
            raise FeedTypeError(f"a model is a path or bytes, got {type(model).__name__}")
        made = cls.__new__(cls)
        made._begin(model, options or SessionOptions(**settings), runtime or default_runtime())
        return made

    @classmethod
    async def create_async(cls, model: Model, *args: Any, **settings: Any) -> InferenceSession:
        """`create` in a thread, for an event loop."""
        return await _in_thread(cls.create, model, *args, **settings)

    # What the model is

    def _load(self) -> Core:
        with self._loading:
            source = self._source
            if self._disposed or (self._core is None and source is None):
                raise DisposedError(f"session {self._name} is disposed")
            if self._core is None:
                assert source is not None
                level = self._options.graph_optimization_level
                graph = model.load(source, self._options.external_files())
                cache: LoweringCache = prepare(graph, simplified=level not in ("disabled", "basic"))
                self._check_overrides(cache.graph)
                pattern = self._options.enable_mem_pattern
                self._source = None
                self._core = Core(
                    self._runtime,
                    cache,
                    Weights(self._runtime, self._name),
                    self._name,
                    planned=self._runtime.mem_pattern if pattern is None else pattern,
                    fuse=level != "disabled",
                    events=[] if self._options.enable_profiling else None,
                )
            return self._core

    def _check_overrides(self, graph: Graph) -> None:
        symbols = {d for i in graph.parameters for d in i.shape or () if isinstance(d, str)}
        unknown = sorted(set(self._options.free_dimension_overrides) - symbols)
        if unknown:
            raise FeedError(f"free_dimension_overrides names {unknown}; the model's dimensions are {sorted(symbols)}")

    @property
    def _graph(self) -> Graph:
        return self._load().cache.graph

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
        return ValueMetadata(info.name, info.kind == "tensor", "" if info.dtype is None else info.dtype.name, shape)

    def _dimensions(self, info: ValueInfo) -> tuple[Dimension, ...] | None:
        overrides = self._options.free_dimension_overrides
        if info.shape is None:
            return None
        return tuple(overrides.get(d, d) if isinstance(d, str) else d for d in info.shape)

    @property
    def plan_info(self) -> PlanInfo | None:
        """The plan of the latest run, or of creation; None before there is one."""
        if self._last is None or self._core is None:
            return None
        segments = self._last.root.tree()
        return PlanInfo(
            arena_bytes=max(s.plan.arena_bytes for s in segments) if self._core.planned else 0,
            lower_bound=max(s.plan.lower_bound for s in segments),
            tape_bytes=sum(s.block.nbytes for s in segments),
            records=sum(len(s.plan.records) for s in segments),
            segments=len(segments),
            weight_bytes=self._core.weights.nbytes,
        )

    # Running

    @gated
    def run(self, feeds: Mapping[str, Feed], fetches: Fetches = None) -> dict[str, Any]:
        """Run the model once.

        ``feeds`` has a tensor or numpy array for every input; a tensor of this runtime is read where it is, an array is
        copied. An input that is a sequence takes a list, an optional one may be None or left out. ``fetches`` names
        the outputs wanted (all, unless given); a mapping may give tensors to write into. The other outputs are new
        tensors of the runtime, lists of them for sequences, None for empty optionals.

        Raises FeedError or FeedTypeError for feeds that do not fit, MemoryError, and errors that name the node for
        values outside an operator's domain. After any error nothing is leaked, and the session can run again.
        """
        return self._run(feeds, fetches)

    async def run_async(self, feeds: Mapping[str, Feed], fetches: Fetches = None) -> dict[str, Any]:
        """`run` in a thread, for an event loop."""
        return await _in_thread(self.run, feeds, fetches)

    def _run(self, feeds: Mapping[str, Feed], fetches: Fetches) -> dict[str, Result]:
        express, results = self._express, None
        if express is not None and not self._disposed and (fetches is None or type(fetches) in (list, tuple, dict)):
            try:
                if type(feeds) is dict:
                    results = express.run(feeds, fetches, lambda: self._checked(feeds))
            except NeedsInputError:
                # The long way finds out once more, and knows what to do.
                pass
            except MemoryError:
                self._make_room()
                raise
            if results is not None:
                return results
        self._express = None
        core = self._load()
        self._runtime._check_open()
        self._runtime._uncancel()
        fed = self._checked(feeds)
        names, given = self._check_fetches(fetches)
        core.profiled += 1
        while True:
            try:
                before, program = self._last, self._program(fed, names)
                results = program.run(fed, given)
                # Built where the same shapes come again, since the next ones may be others.
                # A finaliser or a signal may have disposed of it in the meantime.
                if program is before and not self._decisive and not self._disposed:
                    self._express = Express.of(program, fed, complete=names == self._check_fetches(None)[0])
                return results
            except NeedsInputError as needs:
                self._add_decisive(needs.name, fed.tensors[needs.name])
            except MemoryError:
                self._make_room()
                raise

    def _checked(self, feeds: Mapping[str, Feed]) -> Feeds:
        return check_feeds(self._graph, feeds, self._runtime, self._dimensions)

    def _make_room(self) -> None:
        """Give back all that a later run can make again, so that one which fits is not refused."""
        self._drop_all()
        if self._core is not None:
            self._core.release_staging()
        self._runtime._release_arena()

    def _check_fetches(self, fetches: Fetches) -> tuple[tuple[str, ...], dict[str, Tensor]]:
        outputs = [o.name for o in self._graph.outputs]
        if fetches is None:
            return tuple(dict.fromkeys(outputs)), {}
        if isinstance(fetches, str):
            raise FeedTypeError(f"fetches must be a sequence of output names or a mapping, got the string {fetches!r}")
        if not isinstance(fetches, Iterable):
            raise FeedTypeError(f"fetches must be output names or a mapping, got {type(fetches).__name__}")
        fetches = fetches if isinstance(fetches, Mapping) else list(fetches)
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

    # Programs

    def _program(self, feeds: Feeds, fetches: tuple[str, ...]) -> Program:
        known = {n: feeds.tensors[n].contents(self._runtime) for n in self._decisive if n in feeds.tensors}
        key = (feeds.key(), fetches, tuple((n, a.tobytes()) for n, a in known.items()))
        program = self._programs.get(key)
        if program is not None:
            self._programs.move_to_end(key)
        else:
            program = Program(self._load(), feeds, fetches, known)
            while len(self._programs) >= self._options.max_plans:
                self._drop(next(iter(self._programs)))
            self._programs[key] = program
        self._last = program
        return program

    def _add_decisive(self, name: str, fed: Fed) -> None:
        if int(np.prod(fed.shape, dtype=np.int64)) > _MAX_DECISIVE:
            raise UnsupportedModelError(
                f"the contents of input {name!r} decide shapes, and it has {list(fed.shape)} elements; at most "
                f"{_MAX_DECISIVE} in all are supported"
            )
        self._decisive = (*self._decisive, name)
        # Programs made without its contents would be found for any.
        self._drop_all()

    def _drop_all(self) -> None:
        while self._programs:
            self._drop(next(iter(self._programs)))

    def _drop(self, key: Any) -> None:
        self._express = None
        # Where an interrupt comes in between, the next call finishes.
        self._doomed.append(self._programs.pop(key))
        if self._last in self._doomed:
            self._last = None
        while self._doomed:
            self._doomed[-1].dispose()
            self._doomed.pop()

    @gated
    def _preload(self) -> None:
        """Place the weights, for known shapes or, if any will do, for made-up ones; else the first run does it."""
        core = self._load()
        graph = core.cache.graph
        if any(i.kind != "tensor" or i.dtype is None or i.dtype is dtypes.STRING for i in graph.inputs):
            return
        dimensions = {i.name: self._dimensions(i) for i in graph.inputs}
        static = all(s is not None and all(isinstance(d, int) for d in s) for s in dimensions.values())
        fetches = tuple(dict.fromkeys(o.name for o in graph.outputs))
        self._runtime._check_open()
        self._runtime._uncancel()
        for size in (0,) if static else _TRIAL_SIZES:
            items: dict[str, Fed | list[Fed] | None] = {}
            for info in graph.inputs:
                assert info.dtype is not None
                shape = tuple(d if isinstance(d, int) else size for d in dimensions[info.name] or ())
                items[info.name] = Fed(shape, info.dtype, 0, None)
            feeds = Feeds(items)
            try:
                program = Program(core, feeds, fetches, {})
            except NeedsInputError:
                return
            except OnnxWasmError as error:
                # Of made-up sizes only the smallest tells that the weights do not fit.
                out_of_memory = isinstance(error, MemoryError) and size == _TRIAL_SIZES[0]
                if static or out_of_memory or isinstance(error, (InvalidModelError, UnsupportedModelError)):
                    raise
                continue
            if static:
                self._programs[feeds.key(), fetches, ()] = self._last = program
            else:
                program.dispose()
            return

    # Profiling and the end

    def start_profiling(self) -> None:
        """Time every record of the runs from now on, each by a call of its own."""
        core = self._load()
        core.events, core.profiled = [], 0

    def end_profiling(self) -> list[ProfileEvent]:
        """Stop timing; what was measured, in the order it ran. Nothing, and no error, where timing was not started."""
        core = self._load()
        events, core.events = core.events, None
        return events or []

    def dispose(self) -> None:
        """Give back the session's weights, tapes and staging; tensors that it made live on. Idempotent."""
        if self._disposed:
            return
        self._disposed = True
        self._source = self._express = None
        self._runtime._sessions.discard(self)
        if self._gate.mine:
            # A finaliser disposes of it in the middle of a run of this thread.
            self._runtime._abandon(self, self._blocks())
        elif not self._runtime.closed:
            try:
                self._let_go()
            except BaseException:
                # Interrupted: another call, or the finaliser, gives back the rest.
                self._disposed = False
                raise

    @gated
    def _let_go(self) -> None:
        if self._runtime.closed:
            return
        self._drop_all()
        if self._core is not None:
            self._core.weights.dispose()
            self._core.release_staging()
        if not self._runtime._sessions:
            self._runtime._release_arena()

    release = dispose
    __reduce__ = no_copy

    def _blocks(self) -> list[Block]:
        """The blocks that it keeps in the heap."""
        blocks = [b for program in (*self._programs.values(), *self._doomed) for b in program.blocks()]
        if self._core is None:
            return blocks
        return [*blocks, *self._core.weights.blocks(), *self._core.staging.values()]

    def info(self) -> SessionInfo:
        """What it holds in the heap."""
        blocks = self._blocks()
        return SessionInfo(self._number, self._name, sum(b.nbytes for b in blocks), len(blocks), self.site)

    def __enter__(self) -> InferenceSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.dispose()

    def __del__(self) -> None:
        if getattr(self, "_disposed", True) or self._runtime.closed:
            return
        blocks = self._blocks()
        if blocks:
            self._runtime._forgotten.append(self.info())
        self._runtime._abandon(self, blocks)
        # Last, since warnings may be errors.
        if blocks:
            warnings.warn(f"{self!r} was never disposed", ResourceWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        return f"<InferenceSession {self._name}{' (disposed)' if self._disposed else ''}>"
