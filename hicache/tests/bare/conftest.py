"""Leaves the tests of this folder out where the kit is installed: they would prove nothing there."""

from __future__ import annotations

from hicache.testing.requirements import missing_libraries

collect_ignore_glob = [] if missing_libraries() else ["test_*.py"]
