"""Opens the backend under test. It stands alone: of the folders above, nothing is needed."""

from __future__ import annotations

from hicache.testing.plugin.backends import place, pytest_generate_tests, store, writers

__all__ = ["place", "pytest_generate_tests", "store", "writers"]
