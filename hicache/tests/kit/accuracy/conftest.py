"""Collects nothing where the libraries that run models are missing."""

from __future__ import annotations

from accuracy.conftest import OBSTACLE

collect_ignore_glob = ["test_*.py"] if OBSTACLE else []
