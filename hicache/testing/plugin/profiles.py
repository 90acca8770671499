"""Hypothesis' profiles of the suites: hicache-quick, hicache-ci and hicache-nightly."""

from __future__ import annotations

import os

PROFILES = ("hicache-quick", "hicache-ci", "hicache-nightly")

MAX_SHRINKING_S = 60
"""For reducing a failing example. Most are reduced in a few seconds; a larger example tells the same."""


def register_profiles() -> None:
    """Register Hypothesis' profiles, and load hicache-ci when the variable CI is set, otherwise hicache-quick.

    Once in a process. hicache-quick: for development; hicache-ci: the same examples everywhere, as a gate;
    hicache-nightly: for long runs. With each of them a failure is reduced for MAX_SHRINKING_S at most: Hypothesis has
    no setting for it, and stops after 300 seconds.
    """
    from hypothesis import HealthCheck, Phase, settings
    from hypothesis.internal.conjecture import engine

    if engine.MAX_SHRINKING_SECONDS == MAX_SHRINKING_S:
        # A suite that is collected later must not load another profile than the one that was chosen since.
        return
    # A machine opens a cache and reads every byte after each step; being slow is no fault of its strategies. Only one
    # failure of a search is reduced, and no lines are collected to explain it: both would take minutes.
    engine.MAX_SHRINKING_SECONDS = MAX_SHRINKING_S
    common = settings(
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
        report_multiple_bugs=False,
        phases=[phase for phase in Phase if phase is not Phase.explain],
    )
    settings.register_profile("hicache-quick", common, max_examples=25, stateful_step_count=25)
    settings.register_profile("hicache-ci", common, max_examples=150, stateful_step_count=30, derandomize=True)
    settings.register_profile("hicache-nightly", common, max_examples=4000, stateful_step_count=60)
    settings.load_profile("hicache-ci" if "CI" in os.environ else "hicache-quick")
