"""Record: what a run of the suites reports: the subject, the machine, and every execution."""

from __future__ import annotations

import os
import platform
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version

import pytest

from hicache import __version__
from hicache.testing.plugin.hooks import DEFAULT_ADAPTER
from hicache.testing.plugin.subject import subject_of
from hicache.testing.report.run import SCHEMA_VERSION, Execution, RunRecord

PACKAGES = ("numpy", "torch", "pytest", "hypothesis", "sglang")


def record_of(config: pytest.Config, started: datetime, executions: Sequence[Execution]) -> RunRecord:
    """The record of a finished run. `started`: in UTC."""
    implementation, capabilities = _subject(config)
    return RunRecord(
        schema_version=SCHEMA_VERSION,
        implementation=implementation,
        started=started.isoformat(timespec="seconds"),
        environment=_environment(config),
        capabilities=capabilities,
        executions=tuple(executions),
    )


def _subject(config: pytest.Config) -> tuple[str, tuple[str, ...]]:
    """The name of the subject, and the capabilities it declares; a backend declares none."""
    backend, adapter = config.getoption("--backend"), config.getoption("--adapter")
    if backend is not None and adapter == DEFAULT_ADAPTER:
        return backend, ()
    subject = subject_of(config)
    capabilities = tuple(sorted(capability.name for capability in subject.adapter.capabilities))
    return (subject.path if backend is None else f"{subject.path} and {backend}"), capabilities


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
