"""Names the adapter under test, and runs it in the Hypothesis profiles of the suites."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hicache.testing.adapter import CacheAdapter
from hicache.testing.plugin.failures import recorded
from hicache.testing.plugin.fixtures import pytest_generate_tests
from hicache.testing.plugin.options import use_profiles_in
from hicache.testing.plugin.selection import subject_of
from hicache.testing.plugin.tags import OPERATIONS

__all__ = ["pytest_generate_tests"]

use_profiles_in(Path(__file__).parent)


@pytest.fixture(scope="session")
def adapter_type(pytestconfig: pytest.Config) -> type[CacheAdapter]:
    """The class under test, with randomly delayed transfers. It records its calls, for the evidence of a failure."""
    return recorded(subject_of(pytestconfig).adapter.delayed())


@pytest.fixture
def operations(request: pytest.FixtureRequest) -> Iterator[list[int]]:
    """The number of verbs of each example of a test; the report has their sum, also of a test that fails."""
    counts: list[int] = []
    yield counts
    request.node.user_properties.append((OPERATIONS, sum(counts)))
