"""Names the adapter under test, and runs it in the Hypothesis profiles of the suites."""

from __future__ import annotations

from pathlib import Path

from hicache.testing.plugin.fixtures import adapter_type, pytest_generate_tests
from hicache.testing.plugin.profiles import use_profiles_in

__all__ = ["adapter_type", "pytest_generate_tests"]

use_profiles_in(Path(__file__).parent)
