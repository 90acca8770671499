"""Keys of what the plugin stores on a test. They need pytest, which commands do not load before they run a suite."""

from __future__ import annotations

from collections.abc import Callable

import pytest

FINAL_CHECK = pytest.StashKey[Callable[[], None]]()
"""A check that runs after the test has passed; a failure of it fails the test."""

STARTED_BEFORE = pytest.StashKey[int]()
"""The number of processes that were started before the test."""

KNOWN_FAILURE = pytest.StashKey[str]()
"""The position of the entry that lists a test as a known failure."""
