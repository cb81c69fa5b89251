from __future__ import annotations

import pytest

from harness import Harness


@pytest.fixture(scope="session")
def harness() -> Harness:
    return Harness()


@pytest.fixture(scope="session")
def strict_harness() -> Harness:
    return Harness("strict")
