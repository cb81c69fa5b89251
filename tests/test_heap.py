"""The heap call by call: the policy's worked examples, growth, failure, foreign pointers."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import jinja2
import pytest

import onnx_wasm as ort
from dlmalloc_model import Policy
from onnx_wasm import heap_layout
from wasm_harness import BASE, PAGE, POLICY_MAXIMUM, WasmHeap, at_trace_start

MIB = 1 << 20


@pytest.fixture
def heap() -> Iterator[WasmHeap]:
    heap = at_trace_start()
    yield heap
    assert heap.heap_check() == 0
    heap.close()


# Each line is calls from the start of the recordings: "name = call args -> address". Produced by the
# reference build of dlmalloc.
WORKED = {
    "sizes": ("malloc 0 -> 6309872; malloc 12 -> 6309888; malloc 13 -> 6309904; malloc 244 -> 6309928; "
              "malloc 245 -> 6310176", {"top": 6310424, "top_size": 1472}),
    "small is LIFO": ("a = malloc 40 -> 6309872; malloc 40; b = malloc 40 -> 6309968; malloc 40; free a; free b; "
                      "malloc 40 -> 6309968; malloc 33 -> 6309872", {}),
    "large is FIFO": ("a = malloc 300 -> 6309872; malloc 8; b = malloc 300 -> 6310192; malloc 8; free a; free b; "
                      "malloc 300 -> 6309872", {}),
    "next bin, unsplit": ("a = malloc 48; malloc 8; free a; b = malloc 40 -> 6309872; usable_size b -> 52", {}),
    "dv": ("a = malloc 400; malloc 8 -> 6310280; free a; malloc 100 -> 6309872; malloc 100 -> 6309976; "
           "malloc 300 -> 6310296", {"dv": 6310072, "dv_size": 200}),
    "top must be strictly larger": ("malloc 2028 -> 6309872", {"brk_": 6316032, "top": 6311896, "top_size": 4096}),
    "top grows in place": ("malloc 1996 -> 6309872; malloc 10000 -> 6311872; malloc 20971520 -> 6321880",
                           {"brk_": 27295744, "memory": 27328512, "top": 27293400, "top_size": 2304}),
    "aligned": ("a = memalign 64 64 -> 6309888; memalign 64 64 -> 6310016; malloc 40 -> 6309960; "
                "memalign 64 448 -> 6310144; free a", {"top": 6310592, "top_size": 1304}),
    "failure": ("malloc 0xFFFFFFBF -> 0; malloc 0xFFFF0000 -> 0; malloc 5000 -> 6309872; malloc 9000 -> 6314880",
                {"noncontiguous": 1, "brk_": 6332416, "top": 6323880, "top_size": 8496}),
    "no failure": ("malloc 5000 -> 6309872; malloc 9000 -> 6314880",
                   {"noncontiguous": 0, "brk_": 6324224, "top": 6323880, "top_size": 304}),
    "a request past the largest changes nothing": ("malloc 0xFFFFFFC0 -> 0; memalign 64 0xFFFFFF80 -> 0; "
                                                   "malloc 0xFFFFFFBF -> 0",
                                                   {"noncontiguous": 0, "top": 6309864, "top_size": 2032}),
    "realloc": ("a = malloc 100 -> 6309872; b = malloc 50 -> 6309976; c = realloc a 300 -> 6310032; "
                "realloc b 20 -> 6309976; realloc c 2000 -> 6310336",
                {"brk_": 6316032, "top": 6312336, "top_size": 3656}),
}  # fmt: skip


@pytest.mark.parametrize(("calls", "state"), WORKED.values(), ids=WORKED)
def test_worked_example(heap: WasmHeap, calls: str, state: dict[str, int]) -> None:
    named: dict[str, int] = {}
    for line in calls.split("; "):
        call, _, expected = line.partition(" -> ")
        name, call = call.split(" = ") if " = " in call else ("", call)
        function, *args = call.split()
        answer = getattr(heap, function)(*[named[a] if a in named else int(a, 0) for a in args])
        named[name] = answer
        if expected:
            assert answer == int(expected), line
    got = {"brk_": heap.brk(), "memory": heap.memory_size()}
    assert {k: got[k] if k in got else getattr(heap, k) for k in state} == state


def test_layout_is_the_modules(heap: WasmHeap) -> None:
    assert (heap.base, heap.maximum, heap.geometric_cap, heap.linear_step) == (
        BASE,
        POLICY_MAXIMUM,
        96 * MIB,
        2**32 - 1,
    )
    assert heap.state[heap_layout.GEOMETRIC_STEP // 4 :][:2].view("f8")[0] == 0.2
    assert heap.brk() == heap.top + heap.top_size + 40


def test_the_template_has_the_same_addresses() -> None:
    folder = Path(__file__).parents[1] / "wasm"
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder), line_statement_prefix=";;%", line_comment_prefix=";;#"
    )
    words = vars(env.get_template("_heap.wat.j2").module)
    for name, address in vars(heap_layout).items():
        if name.isupper() and isinstance(address, int):
            assert words[name] in (address, f"offset={address} (i32.const 0)"), name


def test_large_chunks_come_smallest_first_and_oldest_first() -> None:
    heap = WasmHeap(base=4096)
    rng = random.Random(5)
    blocks = []
    for _ in range(3000):
        blocks.append(heap.malloc(rng.choice([rng.randrange(300, 2000), 512, rng.randrange(300, 200_000)])))
        heap.malloc(1)
    rng.shuffle(blocks)
    free = []
    for age, p in enumerate(blocks):
        free.append((heap.usable_size(p), age, p))
        heap.free(p)
    assert heap.heap_check() == 0
    for size, _, p in sorted(free):
        assert heap.malloc(size) == p
    assert heap.heap_check() == 0
    heap.close()


@pytest.mark.parametrize("seed", range(3))
def test_many_blocks_as_the_model(seed: int) -> None:
    options = {"base": 4096, "initial": PAGE, "engine_limit": 20 * PAGE, "maximum": POLICY_MAXIMUM,
               "step": 0.2, "cap": 96 * MIB, "linear": -1}  # fmt: skip
    heap, model, rng = WasmHeap(**options), Policy(**options), random.Random(seed)
    live: list[int] = []
    for _ in range(2500):
        if rng.random() < 0.36 and live:
            p = live.pop(rng.randrange(len(live)))
            heap.free(p)
            model.free(p)
            continue
        n = rng.choice([rng.randrange(64), rng.randrange(300), rng.randrange(5000), rng.randrange(60_000)])
        if rng.random() < 0.2 and live:
            p = live.pop(rng.randrange(len(live)))
            q = heap.realloc(p, n)
            assert q == model.realloc(p, n)
            live.append(q or p)
            continue
        name = rng.choice(["malloc", "memalign", "aligned_new"])
        args = (n,) if name == "malloc" else (1 << rng.randrange(4, 9), n)
        p = getattr(heap, name)(*args)
        assert p == getattr(model, name)(*args)
        if p:
            live.append(p)
    assert heap.failures > 0
    assert heap.heap_check() == 0
    heap.close()


def test_counters(heap: WasmHeap) -> None:
    used, blocks, allocations = heap.used, heap.blocks, heap.allocations
    p, q = heap.malloc(100), heap.memalign(64, 1000)
    assert (heap.used - used, heap.blocks - blocks, heap.allocations - allocations) == (104 + 1008, 2, 2)
    heap.free(p)
    heap.free(q)
    assert (heap.used, heap.blocks, heap.peak) == (used, blocks, used + 104 + 1008)
    assert heap.heap_stats() == heap_layout.BASE
    assert heap.walk_used == used
    assert heap.walk_used + heap.walk_free + 40 == heap.brk() - heap.base
    assert heap.walk_largest_free == heap.top_size


@pytest.mark.parametrize("call", ["malloc 50", "memalign 64 50", "aligned_new 64 50", "calloc 5 10", "realloc p 5000"])
def test_the_nth_allocation_can_be_made_to_fail(heap: WasmHeap, call: str) -> None:
    p = heap.malloc(10)
    name, *args = call.split()
    heap.set_word(heap_layout.FAIL_AT, 2)
    assert heap.malloc(10)
    before = heap.state[: heap_layout.FAILURES // 4].copy(), heap.top
    assert getattr(heap, name)(*[p if a == "p" else int(a) for a in args]) == 0
    assert (heap.state[: heap_layout.FAILURES // 4] == before[0])[64:].all()
    assert (heap.failures, heap.fail_at) == (1, 0)
    assert heap.malloc(10)


def test_pointers_to_no_block_change_nothing(heap: WasmHeap) -> None:
    a, b, c = heap.malloc(100), heap.malloc(100), heap.malloc(3000)
    heap.write(c, bytes(range(256)) * 10)
    heap.free(b)
    before = heap.read(heap.base, heap.brk() - heap.base)
    inside = range(c + 8, c + 2000, 8)
    wrong = [8, 256, heap.base, b, a + 4, a + 1, heap.top + 8, heap.brk() - 8, heap.brk(), 0xFFFFFFF8, *inside]
    for p in wrong:
        assert heap.free(p) == 1
        assert heap.realloc(p, 50) == 0
        assert heap.usable_size(p) == 0
        assert heap.heap_owns(p) == 0
    assert heap.foreign == 2 * len(wrong)
    assert heap.read(heap.base, heap.brk() - heap.base) == before
    assert [heap.heap_owns(p) for p in (a, c, 0)] == [1, 1, 0]
    assert heap.free(0) == 0
    assert heap.usable_size(0) == 0


def test_an_unused_heap_has_no_blocks() -> None:
    heap = WasmHeap()
    assert (heap.heap_check(), heap.free(BASE + 8), heap.heap_owns(BASE + 8)) == (0, 1, 0)
    heap.heap_stats()
    assert (heap.walk_free, heap.walk_free_chunks, heap.brk()) == (0, 0, BASE)
    heap.close()


def grow_by_small_steps(heap: WasmHeap, upto: int) -> list[int]:
    sizes = []
    while heap.memory_size() < upto:
        before = heap.memory_size()
        assert heap.malloc(100_000)
        if heap.memory_size() != before:
            sizes.append(heap.memory_size())
    return sizes


def test_growth_from_16_mib() -> None:
    heap = WasmHeap()
    sizes = grow_by_small_steps(heap, 57 * MIB)
    assert [s / MIB for s in sizes] == [19.25, 23.125, 27.75, 33.3125, 40, 48, 57.625]
    log = heap.growth_log()
    assert [(a, b) for a, b, _ in log] == list(zip([16 * MIB, *sizes], sizes, strict=False))
    assert all(a < end <= b for a, b, end in log)
    assert heap.growths_refused == 0
    heap.close()


def test_the_break_may_reach_the_maximum() -> None:
    heap = WasmHeap(base=4096, initial=PAGE, maximum=2 * PAGE)
    assert heap.malloc(2 * PAGE - 4096 - 48 - 8)
    assert (heap.brk(), heap.memory_size()) == (2 * PAGE, 2 * PAGE)
    assert heap.malloc(4096) == 0
    heap.close()


def test_realloc_never_empties_top(heap: WasmHeap) -> None:
    p = heap.malloc(100)
    all_of_it = 104 + heap.top_size - 4
    assert heap.realloc(p, all_of_it - 8) == p
    assert heap.top_size == 8
    assert heap.realloc(p, all_of_it) != p


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"linear": MIB}, [17, 18, 19, 20]),
        ({"linear": 100_000}, [16.125, 16.25, 16.375]),
        ({"step": 0.5}, [24, 36]),
        ({"cap": 2 * MIB, "step": 1.0}, [18.0625, 20.125]),
        ({"cap": 0, "step": 1.0}, [32, 64]),
        ({"maximum": 20 * MIB}, [19.25, 20]),
        ({"maximum": 20 * MIB + 5}, [19.25, 20]),
    ],
)
def test_growth_parameters(options: dict[str, float], expected: list[float]) -> None:
    heap = WasmHeap(**options)
    assert [s / MIB for s in grow_by_small_steps(heap, int(expected[-1] * MIB))] == expected
    heap.close()


def test_a_step_of_zero_grows_by_what_is_needed() -> None:
    heap = WasmHeap(step=0.0)
    grow_by_small_steps(heap, 18 * MIB)
    assert all(to == -(-end // PAGE) * PAGE for _, to, end in heap.growth_log())
    heap.close()


@pytest.mark.parametrize("limit_known", [False, True])
def test_the_engine_refuses_and_less_is_tried(limit_known: bool) -> None:
    heap = WasmHeap(engine_limit=17 * MIB, limit_known=limit_known)
    assert grow_by_small_steps(heap, 16 * MIB + PAGE) == [int(16.8125 * MIB)]
    assert heap.growths_refused == 2
    assert heap.malloc(4 * MIB) == 0
    assert (heap.growths_refused, heap.noncontiguous, heap.failures) == (2 + 3 * 2, 1, 1)
    assert heap.heap_check() == 0
    heap.close()


def test_what_the_engine_is_known_to_refuse_is_not_asked_for() -> None:
    heap = WasmHeap(engine_limit=32 * MIB)
    heap.state[heap_layout.ENGINE_LIMIT // 4] = 17 * MIB
    assert grow_by_small_steps(heap, 16 * MIB + PAGE) == [int(16.8125 * MIB)]
    assert heap.growths_refused == 2
    assert heap.malloc(4 * MIB) == 0
    assert (heap.growths_refused, heap.memory_size()) == (2 + 3 * 2, int(16.8125 * MIB))
    heap.state[heap_layout.ENGINE_LIMIT // 4] = 0
    assert heap.malloc(4 * MIB)
    assert heap.heap_check() == 0
    heap.close()


@pytest.mark.parametrize(
    ("limits", "known"),
    [
        ({}, 0xFFFF0000),
        ({"memory_maximum": 64 * MIB}, 64 * MIB),
        ({"maximum": 32 * MIB}, 32 * MIB),
        ({"memory_maximum": 1 << 32}, 0),
    ],
    ids=["default", "engine", "heap", "4 GiB"],
)
def test_a_runtime_tells_the_heap_what_the_engine_refuses(limits: dict[str, int], known: int) -> None:
    with ort.Runtime(**limits) as runtime:
        assert runtime._words[heap_layout.ENGINE_LIMIT // 4] == known


def test_the_growth_log_keeps_the_last_entries() -> None:
    heap = WasmHeap(base=4096, initial=PAGE, step=0.0)
    for _ in range(300):
        heap.malloc(PAGE - 8)
    assert heap.growths > heap_layout.GROWTH_ENTRIES
    log = heap.growth_log()
    assert len(log) == heap_layout.GROWTH_ENTRIES
    assert all(a[1] == b[0] for a, b in itertools.pairwise(log))
    assert log[-1][1] == heap.memory_size()
    heap.close()


@pytest.mark.parametrize("limit_known", [False, True])
def test_a_first_request_that_fails_leaves_a_usable_heap(limit_known: bool) -> None:
    heap = WasmHeap(engine_limit=16 * MIB, limit_known=limit_known)
    assert heap.malloc(20 * MIB) == 0
    assert (heap.noncontiguous, heap.brk(), heap.heap_check()) == (1, BASE, 0)
    assert heap.malloc(8) == BASE + 8
    # No longer rounded up to a multiple of 4096.
    assert heap.brk() == BASE + 4096
    assert heap.heap_check() == 0
    heap.close()


# What the malloc of onnxruntime-web 1.30.0 answers, from the state in which the recordings begin.
@pytest.mark.parametrize(
    ("size", "memory", "then_5000", "then_9000"),
    [
        (0x7FFFEF9C, 2153840640, None, None),
        (0x80000000, 2153840640, 2153793528, 2153798536),
        (0xC0000000, 3227582464, 3227535352, 3227540360),
    ],
)
def test_one_ask_may_pass_2_gib(size: int, memory: int, then_5000: int | None, then_9000: int | None) -> None:
    heap = at_trace_start()
    assert (heap.malloc(size), heap.memory_size()) == (6309872, memory)
    if then_5000 is not None:
        assert (heap.malloc(5000), heap.malloc(9000)) == (then_5000, then_9000)
    assert heap.memory_size() == memory
    assert heap.heap_check() == 0
    heap.close()


def test_after_a_first_request_that_fails_asks_are_not_padded_to_a_page() -> None:
    """As onnxruntime-web 1.30.0's own module does, before anything has run in it."""
    heap = WasmHeap()
    assert heap.malloc(0xFFFF0000) == 0
    assert (heap.malloc(8), heap.top, heap.top_size) == (6303880, 6303888, 4040)
    assert (heap.malloc(5000), heap.top, heap.top_size, heap.brk()) == (6303896, 6308896, 7224, 6316160)
    heap.close()


def test_all_pages_but_the_last_are_used() -> None:
    heap = WasmHeap(base=4096, initial=1 << 32)
    heap.malloc((1 << 31) - 3 * 4096)
    assert heap.malloc((1 << 31) - 20 * 4096)
    assert heap.malloc(PAGE) == 0
    assert heap.heap_check() == 0
    heap.close()
