"""Hypothesis' profiles of the suites, and where they apply: hicache-quick, hicache-ci and hicache-nightly."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hypothesis import settings

PROFILES = ("hicache-quick", "hicache-ci", "hicache-nightly")

MAX_SHRINKING_S, QUICK_SHRINKING_S = 60, 10
"""For shrinking a failing example, and the first in hicache-quick. Most take seconds; a larger one tells the same."""

_FOLDERS: set[Path] = set()


def use_profiles_in(folder: Path) -> None:
    """Have the files of a folder imported, and its tests run, in a profile of the suites."""
    _FOLDERS.add(folder.resolve())


def has_searches(path: Path) -> bool:
    """Whether a file is of a suite that searches. An editable install reaches the suites through links."""
    resolved = _resolved(path)
    return not _FOLDERS.isdisjoint((resolved, *resolved.parents))


# Asked for each test of a run.
_resolved = lru_cache(maxsize=256)(Path.resolve)


@contextmanager
def suite_profile(path: Path, failures: int, *, is_chosen: bool) -> Iterator[None]:
    """For a file of a suite that searches: its profile, and afterwards the one from before. Nothing for other files.

    `is_chosen`: the run names a profile, which is loaded already and stays. Otherwise it is hicache-ci where the
    variable CI is set, and hicache-quick elsewhere. A failure is shrunk for so many seconds at most: Hypothesis has
    no setting for it, and stops after 300 seconds. `failures`: of searches before, in this process. In hicache-quick
    each one halves the time for the next: many searches find the same defect, and one short example of it is enough.
    """
    if not has_searches(path):
        yield
        return
    from hypothesis import settings
    from hypothesis.internal.conjecture import engine

    register_profiles()
    # The public function for it is younger than the oldest Hypothesis that the kit takes.
    profile, limit = settings._current_profile or "default", engine.MAX_SHRINKING_SECONDS  # noqa: SLF001
    if not is_chosen:
        settings.load_profile("hicache-ci" if "CI" in os.environ else "hicache-quick")
    is_quick = settings._current_profile == PROFILES[0]  # noqa: SLF001
    engine.MAX_SHRINKING_SECONDS = QUICK_SHRINKING_S / 2**failures if is_quick else MAX_SHRINKING_S
    try:
        yield
    finally:
        engine.MAX_SHRINKING_SECONDS = limit
        settings.load_profile(profile)


def register_profiles() -> None:
    """Register Hypothesis' profiles, unless they are registered, and load none.

    hicache-quick: for development, with the same examples each time where the variable CI is set; hicache-ci: the same
    examples everywhere, as a gate; hicache-nightly: other examples each night, for long runs.
    """
    from hypothesis import settings
    from hypothesis.errors import InvalidArgument

    try:
        settings.get_profile(PROFILES[0])
    except InvalidArgument:
        common, is_ci = _common(), "CI" in os.environ
        settings.register_profile("hicache-quick", common, max_examples=25, stateful_step_count=25, derandomize=is_ci)
        settings.register_profile("hicache-ci", common, max_examples=150, stateful_step_count=30, derandomize=True)
        settings.register_profile("hicache-nightly", common, max_examples=4000, stateful_step_count=60)


def _common() -> settings:
    """What all profiles have.

    A machine opens a cache and reads every byte after each step; slow steps are not a fault of its strategies. Only
    one failure of a search is shrunk, and no lines are collected to explain it: both would take minutes.
    """
    from hypothesis import HealthCheck, Phase, settings

    return settings(
        settings.get_profile("default"),
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
        report_multiple_bugs=False,
        phases=[phase for phase in Phase if phase is not Phase.explain],
    )
