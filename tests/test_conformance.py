"""The list of the onnx package's backend cases that pass says what is true, in both memory modes."""

from __future__ import annotations

import pytest

import conformance


@pytest.mark.parametrize("planned", [True, False], ids=["planned", "unplanned"])
@pytest.mark.parametrize("kind", conformance.KINDS)
def test_the_list_of_passing_cases_is_true(kind: str, planned: bool) -> None:
    found = conformance.results([kind], planned=planned)
    passed = {r.id for r in found if r.passed}
    must = {i for i in conformance.listed() if i.startswith(f"{kind}/")}
    failures = {r.id: r.reason for r in found}
    lost = {i: failures.get(i, "there is no such case") for i in must - passed}
    assert not lost
    assert not passed - must, "these pass and are not listed: python tests/conformance.py --update"
