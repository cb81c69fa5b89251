"""Maps of a heap, from events made by hand and from recordings of the real allocator."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heap_material import BASE, MIB, Script, events_of
from onnx_wasm import trace
from onnx_wasm.heap_map import LETTERS, LiveBlock, by_tag, live_at, peak_index, reached, text_map
from shared_material import shared_path


@pytest.fixture
def script() -> Script:
    """Weights, two activations of which one is freed, a growth, a failure, an output."""
    made = Script()
    made.alloc(BASE + 8, 1 * MIB, "weights", "net/w")
    made.alloc(BASE + 2 * MIB, 4 * MIB, "activations", "net/a")
    made.free(BASE + 2 * MIB)
    made.grow(20 * MIB)
    made.alloc(BASE + 10 * MIB, 2 * MIB, "output", "net/y")
    made.fail(64 * MIB)
    return made


def test_what_is_live_after_an_event(script: Script) -> None:
    weights = LiveBlock(BASE + 8, MIB, "weights", "net/w")
    activations = LiveBlock(BASE + 2 * MIB, 4 * MIB, "activations", "net/a")
    output = LiveBlock(BASE + 10 * MIB, 2 * MIB, "output", "net/y")
    found = [live_at(script.events, i) for i in range(6)]
    assert found == [
        [weights],
        [weights, activations],
        [weights],
        [weights],
        [weights, output],
        [weights, output],
    ]
    assert output.end == BASE + 12 * MIB


def test_blocks_come_by_address() -> None:
    script = Script()
    for place in (5, 1, 3):
        script.alloc(BASE + place * 64, 64)
    assert [b.address - BASE for b in live_at(script.events, 2)] == [64, 192, 320]


@pytest.mark.parametrize("index", [-1, 6])
def test_an_event_that_there_is_not(script: Script, index: int) -> None:
    with pytest.raises(IndexError, match=f"event {index} of 6"):
        live_at(script.events, index)
    with pytest.raises(IndexError):
        reached(script.events, index, BASE)


def test_a_free_of_what_was_there_before_the_log() -> None:
    script = Script()
    script.alloc(BASE, 8)
    script.free(BASE)
    assert live_at(script.events[1:], 0) == []


def test_the_peak_is_the_first_of_the_largest(script: Script) -> None:
    assert peak_index(script.events) == 1
    assert peak_index(script.events[2:]) == 2
    assert peak_index([*script.events[:1], *script.events[:2], script.events[1]]) == 2
    with pytest.raises(ValueError, match="empty"):
        peak_index([])


def test_how_far_the_heap_has_reached(script: Script) -> None:
    pages = -(-(BASE + 6 * MIB) // 4096) * 4096
    assert [reached(script.events, i, BASE) for i in (1, 2, 3)] == [pages] * 3
    assert reached(script.events, 5, BASE) == pages + 6 * MIB
    assert reached(script.events[3:4], 0, 8192) == 8192


def test_bytes_by_tag() -> None:
    blocks = [LiveBlock(8 * i, 8, tag, "") for i, tag in enumerate(("user", "mine", "weights", "", "user"))]
    assert list(by_tag(blocks).items()) == [("weights", (8, 1)), ("user", (16, 2)), ("", (8, 1)), ("mine", (8, 1))]


def lines(blocks: list[LiveBlock], **places: int) -> tuple[list[str], list[str]]:
    """The map's rows without their addresses, and the lines below."""
    text = text_map(blocks, **places).splitlines()
    rows = places.get("rows", 6)
    return [line[10:] for line in text[:rows]], text[rows:]


def test_each_character_is_an_equal_part() -> None:
    blocks = [
        LiveBlock(1000, 200, "weights", ""),
        LiveBlock(1200, 100, "activations", ""),
        LiveBlock(1310, 30, "input", ""),
        LiveBlock(1350, 50, "output", ""),
        LiveBlock(1430, 40, "tape", ""),
        LiveBlock(1470, 30, "user", ""),
        LiveBlock(1500, 50, "mine", ""),
    ]
    rows, _ = lines(blocks, base=1000, brk=1700, linear=2000, width=5, rows=2)
    # [1300, 1400): 30 of input and 50 of output; [1400, 1500): 40 of tape and 30 of user.
    assert rows == ["WWAOT", "?.---"]


def test_small_letters_where_blocks_take_less_than_half() -> None:
    blocks = [LiveBlock(1000, 49, "weights", ""), LiveBlock(1100, 50, "tape", ""), LiveBlock(1299, 1, "user", "")]
    rows, _ = lines(blocks, base=1000, brk=1300, linear=1400, width=4, rows=1)
    assert rows == ["wTu-"]


@given(
    sizes=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 60), st.sampled_from("WAI")), max_size=12),
    width=st.integers(1, 9),
    count=st.integers(1, 4),
    span=st.integers(40, 400),
)
def test_every_letter_is_what_counting_bytes_gives(
    sizes: list[tuple[int, int, str]], width: int, count: int, span: int
) -> None:
    names = {letter: tag for tag, letter in LETTERS.items()}
    base, address, blocks = 1000, 1000, []
    bytes_of = ["."] * 2000
    for gap, nbytes, letter in sizes:
        address += gap
        blocks.append(LiveBlock(address, nbytes, names[letter], ""))
        bytes_of[address - base : address - base + nbytes] = letter * nbytes
        address += nbytes
    brk = max(address, base)
    text = text_map(blocks, base=base, brk=brk, linear=base + span, width=width, rows=count).splitlines()
    shown = "".join(line[10:] for line in itertools.takewhile(lambda line: "MiB, the end" not in line, text))
    cells = min(width * count, span)
    for i, letter in enumerate(shown):
        start, end = -(-i * span // cells), -(-(i + 1) * span // cells)
        held = Counter(bytes_of[start:end])
        del held["."]
        if not held:
            assert letter == (".-"[base + start >= brk])
            continue
        assert held[letter.upper()] == max(held.values())
        assert letter.isupper() == (2 * held.total() >= end - start)
    assert len(shown) == cells or set(shown[-min(width, len(shown)) :]) <= {"-"}


def test_of_lines_beyond_the_break_only_the_first_is_shown() -> None:
    blocks = [LiveBlock(1000, 100, "weights", "")]
    text = text_map(blocks, base=1000, brk=1150, linear=2000, width=2, rows=5).splitlines()
    assert [line[10:] for line in text[:2]] == ["W.", "--"]
    assert "MiB, the end" in text[2]


def test_blocks_outside_of_the_map_are_cut() -> None:
    blocks = [LiveBlock(900, 150, "weights", ""), LiveBlock(1350, 1000, "tape", "")]
    rows, _ = lines(blocks, base=1000, brk=1400, linear=1400, width=4, rows=1)
    assert rows == ["W..T"]


def test_fewer_bytes_than_characters() -> None:
    rows, _ = lines([LiveBlock(1001, 2, "weights", "")], base=1000, brk=1003, linear=1005, width=3, rows=2)
    assert rows == [".WW", "--"]


def test_the_legend_tells_bytes_shares_and_blocks(script: Script) -> None:
    text = text_map(live_at(script.events, 4), base=BASE, brk=BASE + 12 * MIB, linear=BASE + 16 * MIB, width=64, rows=2)
    assert text.splitlines() == [
        "     6.0  " + "W" * 8 + "w" + "." * 55,
        "    14.0  " + "." * 16 + "O" * 16 + "-" * 32,
        "    22.0  MiB, the end; 1 character = 128.0 KiB; capitals: at least half of it; . free; - never used",
        "       W  weights           1.00 MiB    6.2%  1 block",
        "       O  output            2.00 MiB   12.5%  1 block",
        "       .  free, headers     9.00 MiB   56.2%",
        "       -  never used        4.00 MiB   25.0%",
    ]


def test_colours_change_nothing_but_colours(script: Script) -> None:
    places = {"base": BASE, "brk": BASE + 12 * MIB, "linear": 20 * MIB}
    plain = text_map(live_at(script.events, 4), **places)
    coloured = text_map(live_at(script.events, 4), **places, color=True)
    assert "\x1b[38;5;33mW" in coloured
    assert "\x1b[0m." in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


@pytest.mark.parametrize("places", [{"width": 0}, {"rows": 0}, {"linear": 1000}, {"linear": 999}])
def test_what_is_no_map(places: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="no map of"):
        text_map([], **{"base": 1000, "brk": 1000, "linear": 2000, **places})


@pytest.mark.parametrize("name", ["session-11", "tensor64-11", "growfail-11"])
def test_a_real_recording(name: str) -> None:
    recording = trace.load(shared_path("traces", f"{name}.npz"))
    events, brk = events_of(recording)
    last, peak = len(events) - 1, peak_index(events)
    assert reached(events, last, BASE) == brk
    freed = {arg for op, arg in zip(recording.op, recording.arg, strict=True) if op == trace.FREE}
    answers = [ptr for op, ptr in zip(recording.op, recording.ptr, strict=True) if op != trace.FREE]
    assert [b.address for b in live_at(events, last)] == sorted(
        ptr for number, ptr in enumerate(answers) if ptr and number not in freed
    )
    blocks = live_at(events, peak)
    assert all(a.end <= b.address for a, b in itertools.pairwise(blocks))
    # What is in use is what was asked for, and up to 64 bytes more a block (headers and rounding).
    assert 0 <= events[peak].used - sum(b.nbytes for b in blocks) <= 64 * len(blocks) + 6000
    linear = events[peak].linear
    text = text_map(blocks, base=BASE, brk=reached(events, peak, BASE), linear=linear)
    rows = [line[10:] for line in text.splitlines()[:6]]
    assert [len(row) for row in rows] == [96] * 6
    cell = (linear - BASE) / 576
    capitals = sum(letter.isupper() or letter == "?" for letter in "".join(rows))
    assert capitals * cell / 2 <= sum(b.nbytes for b in blocks)


def test_events_are_not_changed(script: Script) -> None:
    before = [dataclasses.replace(e) for e in script.events]
    text_map(live_at(script.events, 4), base=BASE, brk=BASE, linear=20 * MIB)
    assert script.events == before
