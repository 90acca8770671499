"""Hypothesis profiles: quick while one works, ci (the same examples on every machine) as a gate, nightly to search."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

from hicache.testing.plugin.fixtures import adapter_type, pytest_generate_tests

__all__ = ["adapter_type", "pytest_generate_tests"]

# A machine opens a cache and reads every byte after each step: slow on purpose, and no sign of a bad strategy.
COMMON = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", COMMON, max_examples=25, stateful_step_count=25)
settings.register_profile("ci", COMMON, max_examples=150, stateful_step_count=30, derandomize=True)
settings.register_profile("nightly", COMMON, max_examples=4000, stateful_step_count=60)
settings.load_profile("ci" if "CI" in os.environ else "quick")
