"""Random graphs of every family give what native onnxruntime or the reference gives, planned or not, fused or not, and
leave nothing in the heap. `python tests/fuzz.py` looks longer, with seeds of its own."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fuzzing.check import check
from fuzzing.families import FAMILIES, cases


@pytest.mark.parametrize("family", list(FAMILIES))
def test_random_graphs(family: str) -> None:
    @settings(
        max_examples=280,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink),
    )
    @given(st.data())
    def run(data: st.DataObject) -> None:
        check(data.draw(cases(family)))

    run()
