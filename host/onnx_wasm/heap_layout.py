"""Where the module's heap keeps its state: fixed addresses in linear memory (wasm/_heap.wat.j2).

Every word is an unsigned i32 but ``GEOMETRIC_STEP``, which is an f64. The host reads them; it
writes ``FAIL_AT``, ``FAIL_GROWTH``, ``ENGINE_LIMIT`` and ``PEAK`` only.
"""

from __future__ import annotations

BASE = 256
MAXIMUM = 260
GEOMETRIC_STEP = 264
GEOMETRIC_CAP = 272
LINEAR_STEP = 276

BRK = 280
NONCONTIGUOUS = 284
TOP = 288
TOP_SIZE = 292
DV = 296
DV_SIZE = 300
SMALL_MAP = 304
LARGE_MAP = 308

USED = 312
PEAK = 316
BLOCKS = 320
ALLOCATIONS = 324
FAILURES = 328
FOREIGN = 332
FAIL_AT = 336
GROWTHS = 340
GROWTHS_REFUSED = 344
FAIL_GROWTH = 348

# Valid after heap_stats or heap_check.
WALK_USED = 352
WALK_FREE = 356
WALK_LARGEST_FREE = 360
WALK_USED_CHUNKS = 364
WALK_FREE_CHUNKS = 368
WALK_BINNED = 372
BAD_CHUNK = 376

ENGINE_LIMIT = 380
"""Bytes past which the engine grows no memory; 0: none below 4 GiB."""

QUARTERS = 416
"""A byte for each octave of large sizes."""
SMALL_BINS = 512
LARGE_TREES = 640
GROWTH_LOG = 1024
GROWTH_ENTRIES = 256
GROWTH_BYTES = 12
"""An entry: memory size before, memory size after, the break that was asked for."""
STATE_END = 4096

CHECK_CODES = {
    0: "the heap is sound",
    1: "the break does not lie behind top",
    2: "a chunk's size is impossible",
    3: "a chunk's P bit disagrees with the chunk before it",
    4: "two free chunks are neighbours",
    5: "the word behind a free chunk is not its size",
    6: "a link between free chunks is broken",
    7: "a free chunk stands in a bin for other sizes",
    8: "the map of non-empty bins disagrees with the bins",
    9: "a free chunk is in no bin",
    10: "the designated victim is no free chunk",
    11: "the header of top is wrong",
    12: "the counters disagree with the chunks",
}
