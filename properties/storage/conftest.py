"""Names the backends under test. The Hypothesis profiles come from the parent folder."""

from __future__ import annotations

from hicache.testing.plugin.fixtures import parametrize_backends as pytest_generate_tests

__all__ = ["pytest_generate_tests"]
