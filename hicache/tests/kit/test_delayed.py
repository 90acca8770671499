"""Threads that copy bytes are delayed in tests, to meet transfers in flight, and nowhere else."""

from __future__ import annotations

import pytest

from hicache.testing.adapter import CacheAdapter
from hicache.testing.adapters.reference import ReferenceAdapter
from hicache.tests.kit.flat_cache import FlatCache


@pytest.mark.parametrize("adapter", [ReferenceAdapter, FlatCache])
def test_the_delayed_class_is_the_same_cache(adapter: type[CacheAdapter]) -> None:
    delayed = adapter.delayed()
    assert issubclass(delayed, adapter), f"expected a subclass of the named class, got {delayed.__mro__}"
    assert delayed.__name__ == adapter.__name__, f"expected the name {adapter.__name__}, got {delayed.__name__}"
    assert delayed.__module__ == adapter.__module__, f"expected the same module, got {delayed.__module__}"


def test_the_reference_is_delayed_for_tests_alone() -> None:
    plain, delayed = ReferenceAdapter, ReferenceAdapter.delayed()
    pauses = [getattr(one, "max_pause_s", None) for one in (plain, delayed)]
    assert pauses[0] == 0, f"expected no delay in a replay or a benchmark, got {pauses[0]} s"
    assert 0 < (pauses[1] or 0) <= 0.001, f"expected a delay of at most a millisecond in a test, got {pauses[1]} s"
