"""What pytest runs in this checkout where no path is given: unit tests, and the suites in the quick profile."""

from __future__ import annotations

from pathlib import Path

import pytest

FULL = "--hicache-full"

QUICK_PATHS = ("hicache/tests", "conformance", "properties", "distributed_tests", "accuracy", "benchmarks")

LEFT_OUT = (
    *(f"hicache/tests/{name}" for name in ("docs/test_commands.py", "proof", "storage/engines")),
    *(f"accuracy/test_{name}.py" for name in ("batches", "completions", "concurrent_requests", "controls", "families")),
    *(f"accuracy/test_{name}.py" for name in ("language_model", "namespaces", "passes", "public_tasks")),
    *(f"benchmarks/test_{name}.py" for name in ("gpu_transfers", "ranks", "speed", "storage", "transfers")),
)
"""What takes minutes: models of every family, times, mutants and attacks, and tests that start programs."""


collect_ignore = ["src", "hicache/suites"]
"""Links to the package and to the suites, whose tests are collected by their own paths."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that asks for everything."""
    parser.addoption(
        FULL, action="store_true", help="where no path is given: all tests of this checkout, in all configurations"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Narrow a run without paths. A worker of xdist has the same command line, and comes to the same."""
    if _is_narrow(config):
        config.args[:] = QUICK_PATHS
        config.option.hicache_quick = True


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what takes minutes, in a run without paths."""
    place = collection_path.relative_to(config.rootpath) if collection_path.is_relative_to(config.rootpath) else None
    return True if place and place.as_posix() in LEFT_OUT and _is_narrow(config) else None


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say what is left out."""
    if not _is_narrow(config):
        return None
    return f"hicache: quick profile, without {', '.join(LEFT_OUT)}; all: {FULL}"


def _is_narrow(config: pytest.Config) -> bool:
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS and not config.getoption(FULL)
