"""What pictures are made of: escaped text, sizes, round numbers for axes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from html import escape

MIB = 1 << 20
# Pixels beside what is drawn.
LEFT, RIGHT = 64, 32
# What takes less than this part of the whole is shown at a scale of its own.
SMALL = 0.15
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def ticks(low: float, high: float, most: int) -> Iterator[float]:
    """Round numbers in [low, high], about ``most`` of them."""
    rough = (high - low) / max(most, 1)
    power = 10 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
    for i in range(math.ceil(low / step), math.floor(high / step) + 1):
        yield i * step


def human(nbytes: float) -> str:
    """Bytes as MiB, KiB or B."""
    if nbytes < 1024:
        return f"{nbytes:.0f} B"
    return f"{nbytes / MIB:,.2f} MiB" if nbytes >= MIB else f"{nbytes / 1024:,.1f} KiB"


def escaped(content: str) -> str:
    """Content of an XML element, without the characters that XML cannot hold."""
    return escape(_NO_XML.sub("\ufffd", content))
