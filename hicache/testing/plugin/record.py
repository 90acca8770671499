"""Record: what one run of the suites leaves behind: the subject, the machine, and every execution."""

from __future__ import annotations

import os
import platform
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version

import pytest

from hicache import __version__
from hicache.testing.plugin.subject import subject_of
from hicache.testing.report.run import SCHEMA_VERSION, Execution, RunRecord

PACKAGES = ("numpy", "torch", "pytest", "hypothesis")


def record_of(config: pytest.Config, started: datetime, executions: Sequence[Execution]) -> RunRecord:
    """The record of a run that has ended. `started`: in UTC."""
    subject = subject_of(config)
    return RunRecord(
        schema_version=SCHEMA_VERSION,
        implementation=subject.path,
        started=started.isoformat(timespec="seconds"),
        environment=_environment(config),
        capabilities=tuple(sorted(capability.name for capability in subject.adapter.capabilities)),
        executions=tuple(executions),
    )


def _environment(config: pytest.Config) -> Mapping[str, str]:
    return {
        "command": shlex.join(["pytest", *config.invocation_params.args]),
        "hicache": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processors": str(os.cpu_count()),
        **dict(_versions()),
    }


def _versions() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        try:
            yield package, version(package)
        except PackageNotFoundError:
            continue
