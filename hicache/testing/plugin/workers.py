"""Workers: the worker processes of a run, as far as they did not end as they should."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from hicache.testing.plugin.failures import CRASHED, DOING, TIMED_OUT, read_doing, to_property
from hicache.testing.plugin.items import DOING_FOLDER, doing_folder

LEFT_THREADS, IDENTITY = "hicache_left_threads", "hicache_identity"
"""What a worker process says at its end: the threads that are left, and who the subject is."""

Identity = tuple[str, str, tuple[str, ...]]
"""Who the subject of a run is: its name, its profile, and the capabilities that it declares."""


class Workers:
    """The worker processes of pytest-xdist, each of which says in a file what it does.

    `left_threads`: the names of threads that a worker could not end. `identity`: of the subject, as the workers say, so
    that the main process need not import it; None in a run without workers. In a worker, opens its file.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.left_threads: list[str] = []
        self.identity: Identity | None = None
        self._limit_s = float(config.getini("faulthandler_timeout") or 0.0)
        self._began: dict[str, float] = {}
        given = getattr(config, "workerinput", None)
        if given is None:
            self._folder = doing_folder(config)
        else:
            DOING.open(Path(given[DOING_FOLDER], given["workerid"]))

    def ended(self, output: Mapping[str, Any]) -> None:
        """A worker has ended, with this `workeroutput`."""
        self.left_threads += output.get(LEFT_THREADS, [])
        self.identity = output.get(IDENTITY, self.identity)

    def begin(self, test: str) -> None:
        """A test has begun."""
        self._began[test] = time.monotonic()

    def end(self, test: str) -> None:
        """A test has ended."""
        self._began.pop(test, None)

    def explain(self, report: Any) -> None:
        """Add to the report of a test whose worker died why it did, and in which verb."""
        verb, reason = read_doing(self._folder / report.node.workerinput["workerid"])
        took_s = time.monotonic() - self._began.pop(report.nodeid, time.monotonic())
        cause = reason or (TIMED_OUT if 0 < self._limit_s <= took_s else CRASHED)
        report.user_properties.append(to_property([f"{cause}, in {verb}" if verb else cause]))

    def left_behind(self) -> str:
        """What was left running in words; empty if nothing was."""
        names = ", ".join(sorted(set(self.left_threads)))
        return f"a worker process was ended with threads that a test left running: {names}" if names else ""

    def problems(self) -> Iterator[str]:
        """What was left running, and which tests did not end."""
        if left := self.left_behind():
            yield left
        if missing := sorted(self._began):
            verbs = sorted({read_doing(path)[0] for path in self._folder.iterdir()} - {""})
            yield f"did not end: {', '.join(missing)}" + (f"; in {', '.join(verbs)}" if verbs else "")
