"""Hypothesis profiles: quick for development, ci (the same examples everywhere) as a gate, nightly for long runs."""

from __future__ import annotations

import os


def register_profiles() -> None:
    """Register all three; load ci when the variable CI is set, otherwise quick."""
    from hypothesis import HealthCheck, settings

    # A machine opens a cache and reads every byte after each step; being slow is no fault of its strategies.
    common = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("quick", common, max_examples=25, stateful_step_count=25)
    settings.register_profile("ci", common, max_examples=150, stateful_step_count=30, derandomize=True)
    settings.register_profile("nightly", common, max_examples=4000, stateful_step_count=60)
    settings.load_profile("ci" if "CI" in os.environ else "quick")
