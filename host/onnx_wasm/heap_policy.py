"""Limits of a heap and how it grows: as one value, and what is known of the limits that pages meet."""

from __future__ import annotations

import dataclasses
import math
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import Any, NamedTuple

from . import heap_layout
from .engine import PAGE
from .env import MAXIMUM, ORT_WEB_HEAP_BASE
from .errors import check_names

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
_INITIAL = 16 * MIB
_SIZE = re.compile(r"\s*(\d[\d_]*(?:\.\d+)?|\.\d+)\s*([A-Za-z]*)\s*")
_UNITS = {"": 1, "b": 1, "kib": KIB, "mib": MIB, "gib": GIB, "kb": 10**3, "mb": 10**6, "gb": 10**9}
_ACCEPTED = "a whole number of bytes, or a number with KiB, MiB, GiB (powers of 1,024) or KB, MB, GB (of 1,000)"


def parse_bytes(text: str | int) -> int:
    """Bytes that ``"512MiB"``, ``"1.5 GiB"``, ``"96 KB"``, ``"1_000_000"`` or a number stands for.

    Fractions of a byte are rounded. Raises ValueError for anything else.
    """
    if isinstance(text, int) and not isinstance(text, bool) and text >= 0:
        return text
    found = _SIZE.fullmatch(text) if isinstance(text, str) else None
    if found is not None and found[2].lower() in _UNITS:
        value, unit = Decimal(found[1].replace("_", "")), _UNITS[found[2].lower()]
        if unit > 1 or value == value.to_integral_value():
            return round(value * unit)
    raise ValueError(f"{text!r} is no size: {_ACCEPTED}")


@dataclass(frozen=True)
class HeapPolicy:
    """Limits and growth of a heap, by `Runtime`'s parameters. Sizes are in bytes.

    Nothing is checked before `validate`. The defaults are those of onnxruntime-web 1.30.
    """

    initial: int | None = None
    """First size of linear memory; None: 16 MiB, or the limit if that is less."""
    maximum: int = MAXIMUM
    """The heap's own limit, past which it asks for no growth: emscripten's MAXIMUM_MEMORY, at most 4 GiB - 64 KiB."""
    memory_maximum: int | None = None
    """The engine's limit, past which ``memory.grow`` fails although ``maximum`` allows it; None: ``maximum``."""
    heap_base: int = ORT_WEB_HEAP_BASE
    """Where the heap begins, behind static data and stack; a multiple of 8."""
    geometric_step: float = 0.20
    """The part of its size by which memory grows (emscripten's MEMORY_GROWTH_GEOMETRIC_STEP)."""
    geometric_cap: int = 96 * MIB
    """Grow by at most so much more than what is needed (MEMORY_GROWTH_GEOMETRIC_CAP); 0: no cap."""
    linear_step: int = -1
    """Grow by so much instead of a part of the size (MEMORY_GROWTH_LINEAR_STEP); -1: do not."""

    def __new__(cls, *_: Any, **settings: Any) -> HeapPolicy:
        check_names("fields of HeapPolicy", settings, (f.name for f in dataclasses.fields(cls)))
        return super().__new__(cls)

    @property
    def first(self) -> int:
        """`initial`, or what stands for it."""
        return min(_INITIAL, self.limit, self.engine_limit) if self.initial is None else self.initial

    @property
    def limit(self) -> int:
        """`maximum` in whole pages, without the last one of 4 GiB, which emscripten does not use."""
        return min(self.maximum, MAXIMUM) // PAGE * PAGE

    @property
    def engine_limit(self) -> int:
        """`memory_maximum`, or what stands for it."""
        return self.limit if self.memory_maximum is None else self.memory_maximum // PAGE * PAGE

    @property
    def pages(self) -> tuple[int, int]:
        """First and largest size of the memory in pages of 64 KiB."""
        return min(-(-self.first // PAGE), self.engine_limit // PAGE), self.engine_limit // PAGE

    def smallest_growth(self, old: int, needed: int) -> int:
        """Bytes that the engine must allow for memory of ``old`` bytes to hold ``needed``: a refused growth is tried
        again with half and with a quarter of the surplus (wasm/growth.wat.j2)."""
        if self.linear_step != -1:
            over = old + self.linear_step / 4
        else:
            over = old * (1 + self.geometric_step / 4)
            if self.geometric_cap:
                over = min(over, needed + self.geometric_cap)
        return min(self.limit, math.ceil(max(needed, over) / PAGE) * PAGE)

    def with_(self, **changes: Any) -> HeapPolicy:
        """A copy with some fields changed; TypeError for one that does not exist."""
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """The fields, as JSON can hold them and `Runtime` takes them."""
        return dataclasses.asdict(self)

    def validate(self) -> None:
        """Raise ValueError for a policy that no heap can have, with the value and what it may be; TypeError for a size
        that is no whole number."""
        for size in (self.first, self.maximum, self.engine_limit, self.heap_base, self.geometric_cap, self.linear_step):
            operator.index(size)
        base, first = self.heap_base, self.first
        if self.maximum > 1 << 32:
            raise ValueError(f"maximum {self.maximum} is more than the 4 GiB that 32-bit addresses reach")
        if base % 8 or base < heap_layout.STATE_END:
            raise ValueError(f"heap_base {base} must be a multiple of 8 and at least {heap_layout.STATE_END}")
        if self.initial is None and first < base + 4096:
            limit = min(self.maximum, self.engine_limit)
            raise ValueError(f"maximum {limit} must be at least heap_base + 4096 = {base + 4096} bytes")
        if not base + 4096 <= first <= self.limit:
            raise ValueError(
                f"initial {first} must be at least heap_base + 4096 = {base + 4096} and at most maximum {self.limit}"
            )
        if not first <= self.engine_limit <= 1 << 32:
            raise ValueError(
                f"memory_maximum {self.engine_limit} must be at least initial {first} and at most {1 << 32}"
            )
        step, cap, linear = self.geometric_step, self.geometric_cap, self.linear_step
        if not 0 <= step <= 100 or not 0 <= cap <= MAXIMUM or (linear != -1 and not 0 <= linear <= MAXIMUM):
            raise ValueError(
                f"growth parameters out of range: geometric_step {step}, geometric_cap {cap}, linear_step {linear}"
            )


class Preset(NamedTuple):
    """A policy that pages meet, and how far that is known."""

    policy: HeapPolicy
    description: str
    """What the policy stands for."""
    source: str
    """Where its numbers are from."""


_SETTINGS = "https://github.com/emscripten-core/emscripten/blob/main/src/settings.js"
_ORT_WEB = HeapPolicy(initial=_INITIAL)

PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "onnxruntime-web": Preset(
            _ORT_WEB,
            "onnxruntime-web 1.30 in a desktop browser: 16 MiB that grow to 4 GiB - 64 KiB",
            "Read in the shipped files, and its growth measured. The limit is of 2022, "
            "https://github.com/microsoft/onnxruntime/pull/12798",
        ),
        "4GiB": Preset(
            _ORT_WEB.with_(maximum=4 * GIB),
            "MAXIMUM_MEMORY of 4 GiB, of which emscripten leaves out the last page: the same as onnxruntime-web",
            f"emscripten's growth, {_SETTINGS}",
        ),
        "2GiB": Preset(
            _ORT_WEB.with_(maximum=2 * GIB),
            "A build with emscripten's own MAXIMUM_MEMORY, as onnxruntime-web was until 2022",
            f"MAXIMUM_MEMORY in {_SETTINGS}",
        ),
        "1GiB": Preset(
            _ORT_WEB.with_(maximum=GIB),
            "A build with a MAXIMUM_MEMORY of 1 GiB",
            "A round number. A 32-bit Chrome is reported to hold 1 GiB, "
            "https://github.com/emscripten-core/emscripten/issues/20221",
        ),
        "ios-like": Preset(
            _ORT_WEB.with_(memory_maximum=GIB),
            "Safari on an iPhone, in a page that makes the memory with a maximum of 1 GiB; with the 4 GiB of an "
            "unchanged onnxruntime-web it may fail before anything is loaded, which is not shown here",
            "A guess that other projects share: Apple documents no limit. 1 GiB worked on an iPhone SE and an iPad Pro "
            "with iOS 16 (https://github.com/o1-labs/o1js/issues/823), and is all that others expect to get "
            "(https://github.com/AztecProtocol/aztec-packages/pull/15001)",
        ),
        "ios-like-512MiB": Preset(
            _ORT_WEB.with_(memory_maximum=512 * MIB),
            "The same with a limit for older or busier iPhones",
            "A guess that other projects share: 512 MiB is what https://github.com/google-deepmind/mujoco/pull/3529 "
            "gives iPhones; 600 MB are reported as the most in "
            "https://github.com/emscripten-core/emscripten/issues/24078",
        ),
        "android-like": Preset(
            _ORT_WEB.with_(memory_maximum=512 * MIB),
            "Chrome on an Android phone that lets memory grow to 512 MiB",
            "One measurement: Chrome 88 on a phone with 6 GB in 2021, "
            "https://github.com/WebAssembly/design/issues/1397. Newer phones may give more; 240 MiB were the most in "
            "https://github.com/emscripten-core/emscripten/issues/13045",
        ),
        "no-growth": Preset(
            _ORT_WEB.with_(maximum=_INITIAL),
            "A build without ALLOW_MEMORY_GROWTH: 16 MiB, once and for all",
            f"INITIAL_MEMORY in {_SETTINGS}",
        ),
        "exact": Preset(
            _ORT_WEB.with_(geometric_step=0.0),
            "A build with MEMORY_GROWTH_GEOMETRIC_STEP=0: memory grows by what is needed and no more, and often",
            f"The comment on that setting in {_SETTINGS}",
        ),
        "linear-16MiB": Preset(
            _ORT_WEB.with_(linear_step=16 * MIB),
            "A build with MEMORY_GROWTH_LINEAR_STEP=16MB: memory grows by 16 MiB, or by what is needed",
            f"The example of that setting in {_SETTINGS}, and what Unity recommends, "
            "https://docs.unity.cn/2023.2/Documentation/ScriptReference/PlayerSettings.WebGL-linearMemoryGrowthStep.html",
        ),
    }
)
"""Known policies by name."""


def preset(name: str) -> HeapPolicy:
    """The policy of a preset. Raises ValueError, with the known names, for any other."""
    if name not in PRESETS:
        raise ValueError(f"no preset {name!r}; there are {', '.join(PRESETS)}")
    return PRESETS[name].policy
