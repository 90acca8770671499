"""Opens the cache under test. Each test of this suite names its clauses, and runs on configurations of the run."""

from __future__ import annotations

from hicache.testing.plugin.fixtures import adapter, adapter_type, driver, pytest_generate_tests

__all__ = ["adapter", "adapter_type", "driver", "pytest_generate_tests"]
