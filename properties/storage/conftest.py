"""Names the backends under test; the profiles of Hypothesis come from the folder above."""

from __future__ import annotations

from hicache.testing.plugin.backends import pytest_generate_tests

__all__ = ["pytest_generate_tests"]
