"""Names the adapter under test, and registers the Hypothesis profiles quick, ci and nightly."""

from __future__ import annotations

from hicache.testing.plugin.fixtures import adapter_type, pytest_generate_tests
from hicache.testing.plugin.profiles import register_profiles

__all__ = ["adapter_type", "pytest_generate_tests"]

register_profiles()
