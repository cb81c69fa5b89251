from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from harness import Harness
from onnx_nodes import Case, node_cases
from onnx_wasm.errors import ShapeError
from onnx_wasm.ops.einsum import einsum

EQUATIONS = [
    ("ij->ji", [(3, 4)]),
    ("ij->", [(3, 4)]),
    ("ij", [(3, 4)]),
    ("ba", [(3, 4)]),
    ("ii", [(5, 5)]),
    ("ii->i", [(5, 5)]),
    ("iij->ij", [(3, 3, 4)]),
    ("iji->j", [(3, 4, 3)]),
    ("...ii->...i", [(2, 3, 5, 5)]),
    ("i,i", [(7,), (7,)]),
    ("i,j->ij", [(3,), (4,)]),
    ("i,j->ji", [(3,), (4,)]),
    (",->", [(), ()]),
    (",ij->ij", [(), (2, 3)]),
    ("ij,jk->ik", [(3, 5), (5, 4)]),
    ("ij,kj->ik", [(3, 5), (4, 5)]),
    ("ji,jk->ik", [(5, 3), (5, 4)]),
    ("ji,kj->ki", [(5, 3), (4, 5)]),
    ("bhid,bhjd->bhij", [(2, 3, 4, 5), (2, 3, 6, 5)]),
    ("bhij,bhjd->bhid", [(2, 3, 4, 6), (2, 3, 6, 5)]),
    ("bihd,bjhd->bhij", [(2, 4, 3, 5), (2, 6, 3, 5)]),
    ("bcd,cde->be", [(2, 3, 4), (3, 4, 5)]),
    ("bcd,dce->eb", [(2, 3, 4), (4, 3, 5)]),
    ("...ij,...jk->...ik", [(2, 1, 3, 4), (5, 4, 2)]),
    ("...ij,jk", [(2, 3, 4), (4, 2)]),
    ("b...d,d...->b...", [(2, 3, 4), (4, 3)]),
    ("ij,ij->ij", [(3, 4), (3, 4)]),
    ("ij,i->ij", [(3, 4), (3,)]),
    ("ij,ik->j", [(3, 4), (3, 5)]),
    ("i,ij,j", [(3,), (3, 4), (4,)]),
    ("ab,bc,cd->ad", [(2, 3), (3, 4), (4, 5)]),
    ("ab,bc,ca->", [(2, 3), (3, 4), (4, 2)]),
    ("aab,bc->ca", [(3, 3, 2), (2, 4)]),
    ("ij,jk->ik", [(3, 0), (0, 4)]),
    ("ij,jk->ik", [(0, 3), (3, 4)]),
    ("i j , j k -> i k", [(2, 3), (3, 4)]),
    ("abcdefgh,hgfedcbi->i", [(2, 1, 2, 1, 2, 1, 2, 3), (3, 2, 1, 2, 1, 2, 1, 4)]),
]


def data(shapes: list[tuple[int, ...]], dtype: type) -> list[np.ndarray]:
    rng = np.random.default_rng(len(shapes))
    return [rng.integers(-3, 4, s).astype(dtype) for s in shapes]


@pytest.mark.parametrize(("equation", "shapes"), EQUATIONS)
def test_equations(harness: Harness, equation: str, shapes: list[tuple[int, ...]]) -> None:
    xs = data(shapes, np.float32)
    expected = np.einsum(equation.replace(" ", ""), *xs)
    for split in (1, 3):
        got = harness.op(einsum, xs, equation=equation, split=split)
        assert got.shape == expected.shape
        assert (got == expected).all()
    assert (harness.op(einsum, xs, equation=equation, weights=[len(xs) - 1]) == expected).all()


@pytest.mark.parametrize(
    "dtype", [np.float64, np.float16, ml_dtypes.bfloat16, np.int8, np.uint8, np.int16, np.uint32, np.int32, np.int64]
)
@pytest.mark.parametrize("equation", ["ij,jk->ki", "ij,ij->i", "ij,kl->il"])
def test_types(harness: Harness, dtype: type, equation: str) -> None:
    xs = [np.abs(x) for x in data([(4, 4), (4, 4)], dtype)]
    expected = np.einsum(equation, *(x.astype(np.int64) for x in xs)).astype(dtype)
    got = harness.op(einsum, xs, equation=equation)
    assert got.dtype == expected.dtype
    assert (got == expected).all()


def test_an_extent_of_one_broadcasts(harness: Harness) -> None:
    a, b = data([(1, 4), (3, 4)], np.float32)
    assert (harness.op(einsum, [a, b], equation="ij,ij->ij") == a * b).all()


@pytest.mark.parametrize(
    ("equation", "shapes", "message"),
    [
        ("ij,jk->ik", [(2, 3), (4, 5)], "'j' is 3 and 4"),
        ("ij->ik", [(2, 3)], "must name labels"),
        ("i->i", [(2, 3)], "does not label the 2 axes"),
        ("ij,jk", [(2, 3)], "has 2 operands"),
        ("ii", [(2, 3)], "'i' is 2 and 3"),
    ],
)
def test_bad_equations(harness: Harness, equation: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        harness.op(einsum, data(shapes, np.float32), equation=equation)


@pytest.mark.parametrize("case", node_cases("Einsum"), ids=lambda c: c.name)
def test_onnx_cases(harness: Harness, case: Case) -> None:
    for got, expected in zip(case.run(harness), case.outputs, strict=True):
        np.testing.assert_allclose(got, expected, rtol=case.rtol, atol=case.atol)
