"""The pytest plugin, by projects that use it."""

from __future__ import annotations

import pytest

from onnx_wasm.heap import default_runtime

PRELUDE = """import unittest
import numpy as np
import pytest
import onnx_wasm as ort
from onnx_wasm.testing import heap_table

MODEL = "examples/digits/digits.onnx"
kept = []

def digit():
    return np.load("examples/digits/digit.npy")
"""


def run(project: pytest.Pytester, source: str, *args: str) -> pytest.RunResult:
    """Run a file of tests, which begins with the prelude."""
    project.makepyfile(test_it=PRELUDE + source)
    return project.runpytest_inprocess(*args)


def lines_with(result: pytest.RunResult, text: str) -> list[str]:
    return [line for line in result.outlines if text in line]


def line_of(source: str, text: str) -> int:
    """The number of the one line of the test file that has the text."""
    [number] = [i for i, line in enumerate((PRELUDE + source).split("\n"), 1) if text in line]
    return number


# The fixture and the marker


def test_the_runtime_is_the_default_one_until_the_test_ends(project: pytest.Pytester) -> None:
    before = default_runtime()
    result = run(
        project,
        """
def test_a(wasm_runtime):
    kept.append(wasm_runtime)
    assert ort.default_runtime() is wasm_runtime
    assert wasm_runtime.trace_allocations
    assert (wasm_runtime.memory().linear, wasm_runtime.maximum) == (16 << 20, (4 << 30) - 65536)
    with ort.InferenceSession.create(MODEL) as session:
        assert session.runtime is wasm_runtime
        session.run({"image": digit()})["probabilities"].dispose()

def test_b():
    assert kept[0].closed
    assert ort.default_runtime() is not kept[0]

def test_c(wasm_runtime):
    assert wasm_runtime is not kept[0]
    assert wasm_runtime.memory().blocks == 0
""",
    )
    result.assert_outcomes(passed=3)
    assert default_runtime() is before


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("maximum='24MiB'", "(16 << 20, 24 << 20, None)"),
        ("maximum=8 << 20", "(8 << 20, 8 << 20, None)"),
        ("initial='32 MiB'", "(32 << 20, (4 << 30) - 65536, None)"),
        ("memory_maximum='20MiB'", "(16 << 20, (4 << 30) - 65536, 20 << 20)"),
        ("policy='ios-like-512MiB'", "(16 << 20, (4 << 30) - 65536, 512 << 20)"),
        ("policy='2GiB', maximum='1 GiB'", "(16 << 20, 1 << 30, None)"),
        ("maximum=None, policy='1GiB', threads=1", "(16 << 20, 1 << 30, None)"),
    ],
)
def test_sizes_and_presets(project: pytest.Pytester, options: str, expected: str) -> None:
    result = run(
        project,
        f"""
@pytest.mark.wasm_heap({options})
def test_it(wasm_runtime):
    assert (wasm_runtime.memory().linear, wasm_runtime.maximum, wasm_runtime.policy.memory_maximum) == {expected}
""",
    )
    result.assert_outcomes(passed=1)


def test_a_policy_of_ones_own_and_the_variant(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
from onnx_wasm.heap_policy import HeapPolicy
from onnx_wasm.engine import Instance
MINE = HeapPolicy(linear_step=1 << 20)

@pytest.fixture(scope="module", autouse=True)
def made():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("onnx_wasm.heap.Instance", lambda *args: kept.append(args) or Instance(*args))
        yield

@pytest.mark.wasm_heap(policy=MINE, variant="strict")
def test_it(wasm_runtime):
    assert wasm_runtime.policy == MINE
    with ort.Tensor("uint8", np.zeros(10 << 20, np.uint8)):
        assert [(g.before >> 16, g.after >> 16) for g in wasm_runtime.memory().growths] == [(256, 272)]
    assert kept == [(256, 65535, "strict")]
""",
    )
    result.assert_outcomes(passed=1)


def test_the_limit_is_a_memory_error_and_no_leak(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
@pytest.mark.wasm_heap(maximum="8MiB")
def test_it():
    with ort.InferenceSession.create(MODEL) as session:
        with pytest.raises(MemoryError, match="a maximum of 9,633,792 bytes would have been enough"):
            ort.Tensor("uint8", np.zeros(3 << 20, np.uint8))
        session.run({"image": digit()})["probabilities"].dispose()
""",
    )
    result.assert_outcomes(passed=1)


def test_quarantine_of_the_debug_heap(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
def dispose_of_two():
    for _ in range(2):
        ort.Tensor("uint8", np.zeros(1000, np.uint8)).dispose()
    return ort.memory().quarantine

@pytest.mark.wasm_heap(debug=True)
def test_all_wait():
    assert dispose_of_two() == 2 * 1160

@pytest.mark.wasm_heap(debug=True, quarantine="2KiB")
def test_one_waits():
    assert dispose_of_two() == 1160

def test_none_waits(wasm_runtime):
    assert dispose_of_two() == 0
""",
    )
    result.assert_outcomes(passed=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("limit=3", "it has no limit; it is wasm_heap(maximum=None, initial=None, memory_maximum=None, policy="),
        ("limit=3, heap='x'", "it has no heap, limit; it is wasm_heap(maximum=None"),
        ("'64MiB'", "it takes keywords only, got '64MiB'"),
        ("maximum='8 megs'", "maximum='8 megs' is no size: a whole number of bytes, or a number with KiB, MiB, GiB"),
        ("quarantine=-1", "quarantine=-1 is no size: a whole number of bytes"),
        ("maximum='1MiB'", "maximum 1048576 must be at least heap_base + 4096 = 6307968 bytes"),
        ("policy='iphone'", "no preset 'iphone'; there are onnxruntime-web, 4GiB, 2GiB, 1GiB, ios-like, ios-like-512M"),
        ("variant='fast'", "variant 'fast' is neither 'relaxed' nor 'strict'"),
        ("threads=0", "threads 0 must"),
    ],
)
def test_what_a_marker_cannot_be_is_an_error_of_the_test(project: pytest.Pytester, options: str, message: str) -> None:
    result = run(
        project,
        f"""
@pytest.mark.wasm_heap({options})
def test_it():
    kept.append("never comes here")

def test_other(wasm_runtime):
    assert kept == []
""",
    )
    result.assert_outcomes(passed=1, errors=1)
    [line] = lines_with(result, "wrong use of the marker wasm_heap: ")[:1]
    assert line.startswith(f"wrong use of the marker wasm_heap: {message}")


def test_the_closest_marker_wins_option_by_option(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
pytestmark = pytest.mark.wasm_heap(initial="24MiB", maximum="48MiB")

def sizes():
    return ort.memory().linear >> 20, ort.memory().maximum >> 20

def test_of_the_module():
    assert sizes() == (24, 48)

@pytest.mark.wasm_heap(initial="32MiB")
class TestClass:
    def test_of_the_class(self):
        assert sizes() == (32, 48)

    @pytest.mark.wasm_heap(maximum="40MiB")
    def test_own(self, wasm_runtime):
        assert sizes() == (32, 40)

    @pytest.mark.wasm_heap(initial=None, maximum=None)
    def test_back_to_the_defaults(self):
        assert sizes() == (16, 4095)

@pytest.mark.wasm_heap(maximum="32MiB")
@pytest.mark.wasm_heap(maximum="36MiB")
def test_two():
    assert sizes() == (24, 36)
""",
    )
    result.assert_outcomes(passed=5)


def test_fixtures_of_the_test_lie_in_its_runtime_and_larger_ones_do_not(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
@pytest.fixture(scope="module")
def shared():
    with ort.Runtime() as runtime, ort.InferenceSession.create(MODEL, runtime=runtime) as session:
        kept.append(ort.default_runtime())
        yield session

@pytest.fixture
def session(tmp_path):
    with ort.InferenceSession.create(MODEL) as session:
        yield session

@pytest.fixture(autouse=True)
def where():
    return ort.default_runtime()

@pytest.mark.wasm_heap(initial="24MiB")
def test_marker(session, shared, where):
    assert session.runtime is ort.default_runtime() is where
    assert session.runtime.memory().linear == 24 << 20
    assert kept[0] is not where

def test_fixture_named_last(session, shared, where, wasm_runtime):
    assert session.runtime is where is wasm_runtime

def test_neither(session, where):
    assert session.runtime is where is kept[0]
""",
    )
    result.assert_outcomes(passed=3)


def test_parametrised_tests_have_a_runtime_each(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
@pytest.mark.parametrize("mib", [1, pytest.param(20, marks=pytest.mark.wasm_heap(maximum="24MiB"))])
def test_it(wasm_runtime, mib):
    assert wasm_runtime not in kept
    kept.append(wasm_runtime)
    with pytest.raises(MemoryError) if wasm_runtime.maximum < 30 << 20 else ort.Tensor("uint8", [1]):
        ort.Tensor("uint8", np.zeros(20 << 20, np.uint8)).dispose()

@pytest.mark.parametrize("text", [pytest.param("24MiB", marks=pytest.mark.wasm_heap(initial="24MiB")), "16MiB"])
def test_marker_on_one(text):
    assert (ort.default_runtime() in kept) == False
    if text == "24MiB":
        assert ort.memory().linear == 24 << 20
""",
    )
    result.assert_outcomes(passed=4)


def test_unittest_classes(project: pytest.Pytester) -> None:
    """Methods of TestCase cannot name fixtures; the marker is enough."""
    source = """
@pytest.mark.wasm_heap(initial="24MiB")
class TestPage(unittest.TestCase):
    def setUp(self):
        self.session = ort.InferenceSession.create(MODEL)

    def tearDown(self):
        self.session.dispose()

    def test_run(self):
        self.assertEqual(ort.memory().linear, 24 << 20)
        self.assertIs(self.session.runtime, ort.default_runtime())
        self.session.run({"image": digit()})["probabilities"].dispose()

    @pytest.mark.wasm_heap(initial="32MiB")
    def test_leak(self):
        self.assertEqual(ort.memory().linear, 32 << 20)
        kept.append(self.session.run({"image": digit()})["probabilities"])  # leak

    def test_failure(self):
        self.assertEqual(ort.memory().sessions, 2)

class TestOther(unittest.TestCase):
    def test_it(self):
        self.assertEqual(ort.memory().linear, 16 << 20)
"""
    result = run(project, source)
    result.assert_outcomes(passed=3, failed=1, errors=1)
    result.stdout.fnmatch_lines(["*ERROR at teardown of TestPage.test_leak*", "leaked: 1 tensor (40 bytes) never*"])
    # In CI the summary prints it once more.
    row = lines_with(result, "40 bytes at 0x")[0]
    assert row.endswith(f"test_it.py:{line_of(source, '# leak')}")
    result.stdout.fnmatch_lines(["*AssertionError: 1 != 2", "*- wasm heap -*"])


# What is checked


@pytest.mark.parametrize(
    ("body", "headline", "row"),
    [
        (
            "kept.append(ort.Tensor('float32', [1.0, 2.0]))  # here",
            "leaked: 1 tensor (8 bytes) never disposed",
            " 8 bytes at 0x{}  user        Tensor  made at {}",
        ),
        (
            "kept.append(ort.InferenceSession.create(MODEL))  # here",
            "leaked: 1 session (109,608 bytes) never disposed",
            " 109,608 bytes in 8 blocks  digits  created at {}",
        ),
        (
            "kept.append(ort.default_runtime().malloc(100))  # here",
            "leaked: 1 tensor (100 bytes) never disposed",
            " 100 bytes at 0x{}  user        malloc  made at {}",
        ),
        (
            "with ort.Tensor('float32', [1.0]) as t: kept.append(t.data)  # here",
            "leaked: 1 tensor (4 bytes) never disposed",
            " 4 bytes at 0x{}  user        Tensor  made at {}  disposed at {}  kept by 1 view made at {}",
        ),
        (
            "ort.Tensor('float32', [1.0])  # here",
            "forgotten: 1 tensor (4 bytes) dropped without dispose, which only Python collects:",
            " 4 bytes at 0x{}  user        Tensor  made at {}",
        ),
        (
            "ort.InferenceSession.create(MODEL)  # here",
            "forgotten: 1 session (109,608 bytes) dropped without dispose, which only Python collects:",
            " 109,608 bytes in 8 blocks  digits  created at {}",
        ),
    ],
)
def test_a_leak_is_named_with_its_line(project: pytest.Pytester, body: str, headline: str, row: str) -> None:
    source = f"""
def test_it(wasm_runtime):
    {body}

@pytest.mark.wasm_heap(no_leak=False)
def test_allowed():
    {body.replace("# here", "")}
"""
    result = run(project, source)
    result.assert_outcomes(passed=2, errors=1)
    place = f"*test_it.py:{line_of(source, '# here')}"
    result.stdout.fnmatch_lines(
        ["*ERROR at teardown of test_it*", headline, f"*{row.replace('{}', place, 4)}".replace(f"0x{place}", "0x*")]
    )


def test_an_output_that_is_never_disposed_of(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
def predict(session):
    return session.run({"image": digit()})["probabilities"].data.argmax()

def test_it(wasm_runtime):
    with ort.InferenceSession.create(MODEL) as session:
        assert predict(session) == 2
        assert predict(session) == 2
""",
    )
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(
        ["forgotten: 2 tensors (80 bytes) dropped without*", "*80 bytes in 2 blocks  output      digits probabilities*"]
    )


def test_what_the_users_fixture_disposes_of_is_no_leak(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
@pytest.fixture
def session(wasm_runtime):
    session = ort.InferenceSession.create(MODEL)
    yield session
    session.dispose()

def test_it(session):
    session.run({"image": digit()})["probabilities"].dispose()
""",
    )
    result.assert_outcomes(passed=1)


def test_growth(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
def upload(mib):
    ort.Tensor("uint8", np.zeros(mib << 20, np.uint8)).dispose()

@pytest.mark.wasm_heap(no_growth=True)
def test_small():
    upload(8)

@pytest.mark.wasm_heap(no_growth=True)
def test_large():
    upload(12)
    upload(15)

@pytest.mark.wasm_heap(no_growth=True, initial="32MiB")
def test_room():
    upload(12)

def test_unmarked(wasm_runtime):
    upload(12)
""",
    )
    result.assert_outcomes(passed=4, errors=1)
    result.stdout.fnmatch_lines(
        [
            "*ERROR at teardown of test_large*",
            "linear memory grew, and no_growth was asked for: 16,777,216 -> 20,185,088, 20,185,088 -> 24,248,320",
            "linear memory 24,248,320 of at most *(2 growths); used 0 in 0 blocks*(nothing held)",
        ]
    )


def test_the_debug_heap_finds_a_write_past_a_block(project: pytest.Pytester) -> None:
    source = """
def write_past(tensor):
    ort.default_runtime().heap_view("float32")[tensor.address // 4 + tensor.size] = 3

@pytest.mark.wasm_heap(debug=True)
class TestDebug:
    def test_alive(self):
        kept.append(ort.Tensor("float32", [1.0, 2.0]))  # alive
        write_past(kept[-1])

    def test_dropped(self):
        tensor = ort.Tensor("float32", [1.0, 2.0])  # dropped
        write_past(tensor)

    def test_disposed(self):
        tensor = ort.Tensor("float32", [1.0, 2.0])  # disposed
        write_past(tensor)
        with pytest.raises(ort.HeapCorruptionError, match="write past its end, 1 byte from it and 4 in all: block of"):
            tensor.dispose()
        tensor.dispose()

def test_without():
    tensor = ort.Tensor("float32", [1.0, 2.0])
    write_past(tensor)
    tensor.dispose()
"""
    result = run(project, source)
    result.assert_outcomes(passed=4, errors=2)
    found = lines_with(result, "the heap is damaged: ")[:2]
    for line, mark in zip(found, ["# alive", "# dropped"], strict=True):
        start = "the heap is damaged: write past its end, 1 byte from it and 4 in all: block of 8 bytes at 0x"
        assert line.startswith(start)
        assert f"(user of Tensor), made at {project.path}/test_it.py:{line_of(source, mark)}" in line


def test_a_damaged_heap_without_debug(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
def damage():
    tensor = ort.Tensor("float32", [1.0])
    kept.append(tensor)
    ort.default_runtime().heap_view("uint32")[tensor.address // 4 - 1] = 0xFFFFFFFF

@pytest.mark.wasm_heap(no_leak=False)
def test_passes():
    damage()

def test_fails(wasm_runtime):
    damage()
    assert not kept
""",
    )
    result.assert_outcomes(passed=1, failed=1, errors=1)
    result.stdout.fnmatch_lines(["the heap is damaged: chunk at 0x*: a chunk's size is impossible"])
    result.stdout.fnmatch_lines(["*- wasm heap -*", "linear memory 16,777,216 *"])


# Tests that fail


def test_a_failure_shows_the_heap_and_is_no_leak_besides(project: pytest.Pytester) -> None:
    source = """
def test_it(wasm_runtime):
    session = ort.InferenceSession.create(MODEL)
    kept.append(ort.Tensor("float32", np.zeros(1000, np.float32)))  # made
    view = kept[0].data
    assert view.max() == 1

def test_closed():
    kept.clear()

@pytest.mark.wasm_heap(no_leak=True)
@pytest.mark.xfail(strict=True)
def test_expected():
    kept.append(ort.Tensor("float32", [1.0]))
    assert False

def test_skipped(wasm_runtime):
    kept.append(ort.Tensor("float32", [1.0]))
    pytest.skip("no")
"""
    result = run(project, source, "-W", "error")
    result.assert_outcomes(failed=1, passed=1, xfailed=1, skipped=1)
    result.stdout.fnmatch_lines(
        [
            "*- wasm heap -*",
            "linear memory 16,777,216 of at most 4,294,901,760 bytes (0 growths); used 113,736 in 9 blocks, *",
            "*109,608 bytes in 8 blocks  weights     digits  made at *",
            f"*4,000 bytes at 0x*  user        Tensor  made at *test_it.py:{line_of(source, '# made')}  kept by 1 *",
        ]
    )
    assert lines_with(result, "leaked:") == []


def test_a_failure_in_setup_shows_the_heap(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
@pytest.fixture
def session(wasm_runtime):
    kept.append(ort.InferenceSession.create(MODEL))
    raise RuntimeError("no")

def test_it(session):
    pass
""",
    )
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*RuntimeError: no", "*- wasm heap -*", "*109,608 bytes in 8 blocks  weights *"])
    assert lines_with(result, "leaked:") == []


def test_runtimes_are_closed_however_a_test_ends(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_it=PRELUDE
        + """
import gc, weakref
runtimes, views = [], []

@pytest.fixture(autouse=True)
def note(wasm_runtime):
    runtimes.append(wasm_runtime if not runtimes else weakref.ref(wasm_runtime))

def test_fails_with_a_view():
    view = ort.Tensor("float32", [1.0, 2.0]).data
    assert view.sum() == 0

def test_keeps_a_view():
    with ort.Tensor("float32", [1.0, 2.0]) as tensor:
        views.append(tensor.data)

def test_closes_it_itself(wasm_runtime):
    assert runtimes[0].closed
    # A view keeps its memory alive, and when it goes so does the runtime.
    assert views[0].tolist() == [1, 2]
    alive = runtimes[1]() is not None
    assert alive
    views.clear()
    gc.collect()
    assert runtimes[1]() is None
    wasm_runtime.close()

def test_leaks():
    kept.append(ort.Tensor("float32", [1.0]))

def test_after():
    assert kept[0].location == "none"
"""
    )
    # In this process pytester keeps the arguments of every hook.
    result = project.runpytest_subprocess()
    result.assert_outcomes(passed=4, failed=1, errors=2)
    result.stdout.fnmatch_lines(["*ERROR at teardown of test_keeps_a_view*", "*kept by 1 view made at *"])
    result.stdout.fnmatch_lines(["*ERROR at teardown of test_leaks*", "leaked: 1 tensor (4 bytes)*"])


# The plugin among others


def test_a_run_that_does_not_use_it_does_not_import_the_package(project: pytest.Pytester) -> None:
    project.makeconftest(
        """
import sys

def pytest_unconfigure():
    print("imported:", sorted(n for n in sys.modules if n.startswith(("onnx_wasm", "pytest_onnx_wasm", "numpy"))))
"""
    )
    project.makepyfile(test_it="def test_it(): pass")
    result = project.runpytest_subprocess()
    result.assert_outcomes(passed=1)
    assert lines_with(result, "imported:") == ["imported: ['pytest_onnx_wasm']"]
    result = project.runpytest_subprocess("--markers")
    result.stdout.fnmatch_lines(["@pytest.mark.wasm_heap(maximum=None, initial=None, memory_maximum=None, policy=*"])
    assert lines_with(result, "imported:") == ["imported: ['pytest_onnx_wasm']"]
    result = project.runpytest_subprocess("--fixtures")
    result.stdout.fnmatch_lines(["wasm_runtime*", "*A runtime of the test's own, and its default runtime;*"])


def test_collecting_runs_nothing(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
@pytest.mark.wasm_heap(limit=1)
def test_marker(): pass

def test_fixture(wasm_runtime): pass
""",
        "--collect-only",
        "-q",
    )
    assert [line for line in result.outlines if "::" in line] == ["test_it.py::test_marker", "test_it.py::test_fixture"]
    assert result.ret == 0


@pytest.mark.parametrize("args", [("-p", "no:cacheprovider"), ("--strict-markers",), ("-p", "no:unraisableexception")])
def test_other_ways_to_run_pytest(project: pytest.Pytester, args: tuple[str, ...]) -> None:
    result = run(
        project,
        """
@pytest.mark.wasm_heap(initial="24MiB")
def test_it():
    assert ort.memory().linear == 24 << 20
""",
        *args,
    )
    result.assert_outcomes(passed=1)


def test_doctests_and_other_items_without_fixtures(project: pytest.Pytester) -> None:
    (project.path / "examples" / "digits" / "train.py").unlink()
    project.makepyfile(mine='def f():\n    """\n    >>> f()\n    1\n    """\n    return 1\n')
    project.makeconftest(
        """
import pytest

class Item(pytest.Item):
    def runtest(self):
        pass

class File(pytest.File):
    def collect(self):
        item = Item.from_parent(self, name="item")
        item.add_marker(pytest.mark.wasm_heap(maximum="8MiB"))
        yield item

def pytest_collect_file(file_path, parent):
    if file_path.suffix == ".wasm":
        return File.from_parent(parent, path=file_path)
"""
    )
    (project.path / "a.wasm").write_bytes(b"")
    result = project.runpytest_inprocess("--doctest-modules")
    result.assert_outcomes(passed=2)


def test_a_test_that_is_run_again_is_checked_again(project: pytest.Pytester) -> None:
    """As plugins do that repeat tests which fail."""
    project.makeconftest(
        """
from _pytest.runner import runtestprotocol

def pytest_runtest_protocol(item, nextitem):
    for _ in range(2):
        item._initrequest()
        for report in runtestprotocol(item, nextitem=nextitem, log=False):
            item.ihook.pytest_runtest_logreport(report=report)
    return True
"""
    )
    result = run(
        project,
        """
def test_it(wasm_runtime):
    kept.append(ort.Tensor("float32", [1.0]))
    assert len(kept) == 2
""",
    )
    result.assert_outcomes(failed=1, passed=1, errors=1)


def test_what_was_held_when_memory_ran_out_is_shown(project: pytest.Pytester) -> None:
    """After the error's way out nothing may be left to show."""
    project.makepyfile(
        test_it="""
        import numpy as np
        import onnx_wasm as ort
        import pytest

        @pytest.mark.wasm_heap(maximum="20MiB", mem_pattern=False)
        def test_it():
            with ort.InferenceSession.create("examples/digits/digits.onnx") as session:
                session.run({"image": np.zeros((2500, 1, 8, 8), np.float32)})
        """
    )
    result = project.runpytest_inprocess("test_it.py")
    result.assert_outcomes(failed=1)
    result.stdout.re_match_lines(
        [
            r"-+ wasm heap when memory ran out -+",
            r" +[\d,]+ bytes of a run: activations of digits",
            r" +640,000 bytes at 0x\w+  input +digits image  made at .*test_it.py:8",
            r" +[\d,]+ bytes in 8 blocks  weights +digits  made at .*test_it.py:7",
            r"-+ wasm heap -+",
            r"linear memory [\d,]+ of at most 20,971,520 bytes \(\d+ growths?\); used 0 in 0 blocks.*",
        ]
    )
