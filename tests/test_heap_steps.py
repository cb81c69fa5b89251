"""20,000 random steps leave nothing; `python tests/heap_steps.py` makes a million."""

from __future__ import annotations

from heap_steps import steps


def test_random_steps_leave_nothing() -> None:
    assert steps(20_000, 1) > 100  # some of them met a failed allocation
