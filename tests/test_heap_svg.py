"""Pictures of a heap: that they are XML, and have the rectangles, marks and numbers that they should."""

from __future__ import annotations

import itertools
import random
import xml.etree.ElementTree as ET

import pytest

from heap_material import BASE, MIB, TAGS, Script, events_of
from onnx_wasm import trace
from onnx_wasm.heap_events import HeapEvent
from onnx_wasm.heap_map import LiveBlock, live_at, peak_index
from onnx_wasm.heap_svg import COLOURS, OTHER_COLOUR, Rectangle, rectangles, svg
from onnx_wasm.heap_timeline import Stage
from onnx_wasm.picture import LEFT, RIGHT, escaped, human, ticks
from shared_material import shared_path

NS = {"s": "http://www.w3.org/2000/svg"}
INNER = 1100 - LEFT - RIGHT


def parsed(picture: str) -> ET.Element:
    return ET.fromstring(picture)


def drawn(root: ET.Element) -> list[list[ET.Element]]:
    """The rectangles of each strip."""
    return [group.findall("s:rect", NS) for group in root.findall("s:g[@class='blocks']", NS)]


def title(element: ET.Element) -> str:
    return element.findtext("s:title", "", NS)


def texts(root: ET.Element) -> list[str]:
    return ["".join(t.itertext()) for t in root.findall("s:text", NS)]


@pytest.fixture
def script() -> Script:
    made = Script()
    made.alloc(BASE, 2 * MIB, "weights", "net/w")
    made.alloc(BASE + 4 * MIB, MIB, "input", "net/x & <y>")
    made.grow(20 * MIB)
    made.alloc(BASE + 10 * MIB, 2 * MIB, "mine", "net/y\x00")
    made.fail(64 * MIB)
    made.free(BASE + 4 * MIB)
    return made


STAGES = [Stage("after creation", 0), Stage("at the peak", 3), Stage("after dispose", 5)]


def test_every_block_of_a_stage_is_a_rectangle_where_it_lies(script: Script) -> None:
    first, second, third = drawn(parsed(svg(STAGES, script.events, base=BASE)))
    assert [len(first), len(second), len(third)] == [1, 3, 2]
    scale = INNER / (20 * MIB)
    for rect, address, nbytes, tag in (
        (second[0], BASE, 2 * MIB, "weights"),
        (second[1], BASE + 4 * MIB, MIB, "input"),
        (second[2], BASE + 10 * MIB, 2 * MIB, "mine"),
    ):
        assert float(rect.attrib["x"]) == pytest.approx(LEFT + address * scale, abs=0.01)
        assert float(rect.attrib["width"]) == pytest.approx(nbytes * scale, abs=0.01)
        assert rect.attrib["fill"] == COLOURS.get(tag, OTHER_COLOUR)
    assert title(second[0]) == f"weights of net/w: 2,097,152 bytes at {BASE:#x}"
    assert title(second[1]).startswith("input of net/x & <y>: 1,048,576 bytes")
    assert title(second[2]).startswith("mine of net/y\ufffd: ")
    assert [strip[0].attrib["y"] for strip in (first, second, third)] == ["64", "132", "200"]


def test_linear_memory_and_what_lies_below_the_heap(script: Script) -> None:
    root = parsed(svg(STAGES, script.events, base=BASE))
    sizes = [float(r.attrib["width"]) for r in root.findall("s:rect[@class='linear']", NS)]
    assert sizes == pytest.approx([INNER * 16 / 20, INNER, INNER], abs=0.01)
    below = root.findall("s:rect[@class='static']", NS)
    assert [float(r.attrib["width"]) for r in below] == pytest.approx([BASE * INNER / (20 * MIB)] * 3, abs=0.01)


def test_the_table_has_bytes_and_blocks_by_tag(script: Script) -> None:
    found = texts(parsed(svg(STAGES, script.events, base=BASE)))
    at = found.index("weights")
    assert found[at : at + 7] == ["weights", "2.00 MiB", "(1)", "2.00 MiB", "(1)", "2.00 MiB", "(1)"]
    at = found.index("input")
    assert found[at : at + 7] == ["input", "-", "", "1.00 MiB", "(1)", "-", ""]
    at = found.index("linear memory")
    assert found[at : at + 4] == ["linear memory", "16.00 MiB", "20.00 MiB", "20.00 MiB"]
    at = found.index("in use, with headers")
    assert found[at : at + 4] == ["in use, with headers", "2.00 MiB", "5.00 MiB", "4.00 MiB"]
    assert "1 after creation2.00 MiB in use of 16.00 MiB linear memory, 1 block" in found
    assert "2 at the peak5.00 MiB in use of 20.00 MiB linear memory, 3 blocks" in found


def test_growths_failures_and_the_peak_are_marked(script: Script) -> None:
    root = parsed(svg(STAGES, script.events, base=BASE, title="One & only"))
    grow, fail = (root.findall(f"s:g[@class='{kind}']/s:path", NS) for kind in ("grow", "fail"))
    assert [title(e) for e in grow] == ["event 2: memory grew to 20.00 MiB"]
    assert [title(e) for e in fail] == ["event 4: no 67,108,864 bytes with 5.00 MiB in use"]
    (peak,) = root.findall("s:circle", NS)
    assert float(peak.attrib["cx"]) == pytest.approx(LEFT + 3 * INNER / 5, abs=0.1)
    assert texts(root).count("peak 5.00 MiB") == 2
    assert title(root) == "One & only"
    assert len(root.findall("s:path[@class='stage']", NS)) == 3


def test_one_event_is_enough() -> None:
    script = Script()
    script.alloc(BASE, 8, "weights")
    root = parsed(svg([Stage("only", 0)], script.events, base=BASE))
    assert [len(s) for s in drawn(root)] == [1]


def test_what_cannot_be_drawn(script: Script) -> None:
    with pytest.raises(ValueError, match="width 800: 3 stages take 814 pixels"):
        svg(STAGES, script.events, base=BASE, width=800)
    with pytest.raises(IndexError, match="event 9 of 6"):
        svg([Stage("late", 9)], script.events, base=BASE)
    with pytest.raises(ValueError, match="empty"):
        svg([], [], base=BASE)


def blocks_of(*places: tuple[int, int, str]) -> list[LiveBlock]:
    return [LiveBlock(address, nbytes, tag, f"{tag}@{address}") for address, nbytes, tag in places]


def test_a_block_of_a_pixel_or_more_stands_alone() -> None:
    found = rectangles(blocks_of((0, 10, "tape"), (10, 10, "tape"), (25, 30, "tape")), 10.0)
    assert [(r.address, r.end, r.blocks) for r in found] == [(0, 10, 1), (10, 20, 1), (25, 55, 1)]


def test_narrow_neighbours_become_one() -> None:
    places = blocks_of((0, 3, "tape"), (4, 5, "input"), (12, 4, "input"), (20, 40, "input"), (61, 2, "tape"))
    assert rectangles(places, 10.0) == [
        Rectangle(0, 9, "input", 8, 2, "input@4"),
        Rectangle(12, 16, "input", 4, 1, "input@12"),
        Rectangle(20, 60, "input", 40, 1, "input@20"),
        Rectangle(61, 63, "tape", 2, 1, "tape@61"),
    ]


def test_a_run_of_one_tag_is_one_until_there_is_a_gap_of_a_pixel() -> None:
    places = blocks_of(*((i * 12, 5, "tape") for i in range(6)), (77, 5, "tape"))
    assert [(r.address, r.end, r.blocks) for r in rectangles(places, 10.0)] == [(0, 65, 6), (77, 82, 1)]


def test_nothing_is_lost_in_merging() -> None:
    chance = random.Random(1)
    address, places = BASE, []
    for _ in range(2000):
        address += chance.choice([0, 8, 4000])
        nbytes = chance.choice([8, 100, 3000, 90000])
        places.append((address, nbytes, chance.choice(TAGS)))
        address += nbytes
    found = rectangles(blocks_of(*places), 30000.0)
    assert sum(r.nbytes for r in found) == sum(n for _, n, _ in places)
    assert sum(r.blocks for r in found) == 2000
    assert all(a.end <= b.address for a, b in itertools.pairwise(found))
    assert len(found) < 1500


def test_a_hundred_thousand_blocks_stay_a_small_picture() -> None:
    events: list[HeapEvent] = []
    chance = random.Random(1)
    address, used = BASE, 0
    for i in range(100_000):
        nbytes = chance.randrange(16, 9000)
        used += nbytes
        about = {"tag": chance.choice(TAGS), "owner": f"session/tensor number {i}"}
        events.append(HeapEvent("alloc", 0.0, address, nbytes, used, 512 * MIB, **about))
        address += nbytes + 8
    stages = [Stage("one", 99_999), Stage("two", 50_000), Stage("three", 99_999)]
    picture = svg(stages, events, base=BASE)
    assert len(picture) < 1_000_000
    strips = drawn(parsed(picture))
    assert all(len(strip) <= 2 * INNER for strip in strips)
    assert sum(int(title(r).split()[0].replace(",", "")) for r in strips[0] if "blocks" in title(r)) > 90_000


def test_marks_that_would_lie_on_each_other_are_one() -> None:
    script = Script()
    script.alloc(BASE, MIB)
    for _ in range(5000):
        script.fail(64 * MIB)
    fails = parsed(svg([], script.events, base=BASE)).findall("s:g[@class='fail']/s:path", NS)
    assert len(fails) <= INNER / 9 + 1
    assert "within events 1 to " in title(fails[0])


@pytest.mark.parametrize("name", ["session-11", "growfail-11"])
def test_a_real_recording(name: str) -> None:
    events, _ = events_of(trace.load(shared_path("traces", f"{name}.npz")))
    peak = peak_index(events)
    root = parsed(svg([Stage("at the peak", peak), Stage("at the end", len(events) - 1)], events, base=BASE))
    at_peak, at_end = drawn(root)
    pixel = max(e.linear for e in events) / INNER
    for strip, index in ((at_peak, peak), (at_end, len(events) - 1)):
        blocks = live_at(events, index)
        assert len(strip) == len(rectangles(blocks, pixel))
        wide = [b for b in blocks if b.nbytes >= pixel]
        alone = {title(r).split(": ")[1] for r in strip if "blocks, most" not in title(r)}
        assert {f"{b.nbytes:,} bytes at {b.address:#x}" for b in wide} <= alone


@pytest.mark.parametrize(
    ("low", "high", "most", "found"),
    [
        (0, 83.06, 11, [0, 10, 20, 30, 40, 50, 60, 70, 80]),
        (0, 16, 5, [0, 5, 10, 15]),
        (0, 4096, 9, [0, 500, 1000, 1500, 2000, 2500, 3000, 3500, 4000]),
        (0, 1, 9, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (6.0119, 6.2, 10, [6.02, 6.04, 6.06, 6.08, 6.1, 6.12, 6.14, 6.16, 6.18, 6.2]),
    ],
)
def test_round_numbers(low: float, high: float, most: int, found: list[float]) -> None:
    assert list(ticks(low, high, most)) == pytest.approx(found)


def test_a_heap_that_uses_little_of_its_memory_is_shown_at_its_own_scale() -> None:
    script = Script()
    script.alloc(BASE + 8, 100_000, "weights")
    script.alloc(BASE + 100_112, 100_000, "output")
    root = parsed(svg([Stage("only", 1)], script.events, base=BASE))
    first, second = drawn(root)[0]
    # Up to the break, a multiple of 4,096, and a twentieth more.
    factor = INNER / (200_576 + 200_576 // 20)
    assert float(first.attrib["width"]) == pytest.approx(100_000 * factor, abs=0.01)
    assert float(first.attrib["x"]) == pytest.approx(LEFT + 8 * factor, abs=0.01)
    assert float(second.attrib["x"]) == pytest.approx(LEFT + 100_112 * factor, abs=0.01)
    assert root.findall("s:rect[@class='static']", NS) == []
    assert "only the part of linear memory that the heap has reached" in texts(root)
    assert any("beyond this scale" in text for text in texts(root))


def test_sizes_and_texts() -> None:
    assert [human(n) for n in (0, 100, 1536, MIB - 1, MIB, 3 << 30)] == [
        "0 B",
        "100 B",
        "1.5 KiB",
        "1,024.0 KiB",
        "1.00 MiB",
        "3,072.00 MiB",
    ]
    assert escaped('a<b> & "c"\x00\ud800\t') == "a&lt;b&gt; &amp; &quot;c&quot;\ufffd\ufffd\t"
