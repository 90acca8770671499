"""Hypothesis profiles: quick while one works, ci (the same examples on every machine) as a gate, nightly to search."""

from __future__ import annotations

import os


def register_profiles() -> None:
    """Register all three, and load ci where CI runs, otherwise quick."""
    from hypothesis import HealthCheck, settings

    # A machine opens a cache and reads every byte after each step: slow on purpose, and no sign of a bad strategy.
    common = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("quick", common, max_examples=25, stateful_step_count=25)
    settings.register_profile("ci", common, max_examples=150, stateful_step_count=30, derandomize=True)
    settings.register_profile("nightly", common, max_examples=4000, stateful_step_count=60)
    settings.load_profile("ci" if "CI" in os.environ else "quick")
