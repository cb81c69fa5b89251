"""How a session is made, with the fields of ORT Web's session options in Python's spelling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from .errors import FeedTypeError, check_names

LEVELS = ("disabled", "basic", "extended", "layout", "all")


@dataclass
class SessionOptions:
    """Options of `InferenceSession.create`.

    Those from ``enable_cpu_mem_arena`` on are taken so that settings made for ORT Web work as they are; like there, on
    its CPU backend, they change nothing but what their line says.
    """

    enable_lazy_initialization: bool = False
    """Parse, pack and compile at the first run instead of at creation."""
    enable_mem_pattern: bool | None = None
    """Plan intermediate tensors into one arena. False is the browser's behaviour: each is allocated and freed
    in the heap while the run goes on. None: as the runtime says (``Runtime(mem_pattern=...)``), which is True."""
    graph_optimization_level: str = "all"
    """"disabled" runs each node for itself; "basic" fuses nodes into those before them; "extended", "layout" and "all"
    also recognise operators that a model has written out in simpler ones (patterns.py)."""
    free_dimension_overrides: Mapping[str, int] = field(default_factory=dict)
    """Sizes of symbolic dimensions; feeds must then have them."""
    external_data: Mapping[str, bytes] | Sequence[Mapping[str, Any]] = ()
    """Contents of external data files, for a model given as bytes: by the location that the model names, or a list
    of ``{"path": location, "data": contents}``."""
    enable_profiling: bool = False
    """Profile from the first run on, as `InferenceSession.start_profiling` does."""
    max_plans: int = 16
    """How many sets of input shapes keep their tape."""
    enable_cpu_mem_arena: bool = False
    """No arena of onnxruntime's kind exists on wasm32."""
    execution_mode: str = "sequential"
    """"sequential" or "parallel"; nodes run one after the other."""
    execution_providers: Sequence[Any] = ("wasm",)
    """Only "wasm" and "cpu" exist; anything else is refused."""
    preferred_output_location: Any = "cpu"
    """Only "cpu"; anything else is refused."""
    log_id: str = ""
    log_severity_level: int = 2
    log_verbosity_level: int = 0
    intra_op_num_threads: int = 1
    inter_op_num_threads: int = 1
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __new__(cls, *_: Any, **settings: Any) -> SessionOptions:
        check_names("session options", settings, (f.name for f in fields(cls)))
        return super().__new__(cls)

    def __post_init__(self) -> None:
        if self.graph_optimization_level not in LEVELS:
            raise ValueError(
                f"graph_optimization_level {self.graph_optimization_level!r} is none of {', '.join(LEVELS)}"
            )
        if self.execution_mode not in ("sequential", "parallel"):
            raise ValueError(f"execution_mode {self.execution_mode!r} is neither 'sequential' nor 'parallel'")
        if self.max_plans < 1:
            raise ValueError(f"max_plans {self.max_plans} must be at least 1")
        for name, size in self.free_dimension_overrides.items():
            if not isinstance(size, int) or size < 0:
                raise ValueError(f"free_dimension_overrides[{name!r}] is {size!r}, not an integer >= 0")
        for provider in self.execution_providers:
            kind = provider.get("name") if isinstance(provider, Mapping) else provider
            if kind not in ("wasm", "cpu"):
                raise ValueError(f"execution provider {kind!r} does not exist here; 'wasm' and 'cpu' do")
        location = self.preferred_output_location
        for place in location.values() if isinstance(location, Mapping) else (location,):
            if place != "cpu":
                raise ValueError(f"preferred_output_location {place!r} does not exist here; 'cpu' does")
        self.external_files()

    def external_files(self) -> dict[str, bytes]:
        """The external data by location."""
        if isinstance(self.external_data, Mapping):
            return dict(self.external_data)
        files = {}
        for item in self.external_data:
            if not isinstance(item, Mapping) or not {"path", "data"} <= item.keys():
                raise FeedTypeError("external_data maps locations to bytes, or lists {'path': ..., 'data': ...}")
            files[str(item["path"])] = bytes(item["data"])
        return files
