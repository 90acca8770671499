"""What pytest runs in this checkout where no path is given: unit tests, and the suites in the quick profile."""

from __future__ import annotations

from pathlib import Path

import pytest

FULL = "--hicache-full"

QUICK_PATHS = ("hicache/tests", "conformance", "properties", "distributed_tests")

LEFT_OUT = ("docs", "engines", "proof")
"""Folders of hicache/tests whose tests start programs and take minutes together."""


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
    is_left_out = collection_path.parent == config.rootpath / "hicache" / "tests" and collection_path.name in LEFT_OUT
    return True if is_left_out and _is_narrow(config) else None


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say what is left out."""
    if not _is_narrow(config):
        return None
    return (
        f"hicache: quick profile, without accuracy, benchmarks and hicache/tests/{{{','.join(LEFT_OUT)}}}; all: {FULL}"
    )


def _is_narrow(config: pytest.Config) -> bool:
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS and not config.getoption(FULL)
