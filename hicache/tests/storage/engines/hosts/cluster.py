"""Cluster: an engine and caches as processes on the hosts of a network, and the run that cuts one host off."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from hicache.errors import InvariantError
from hicache.tests.storage.engines.hosts.engines import TIMEOUT_S, EngineOnHosts, Site
from hicache.tests.storage.engines.hosts.network import Network
from hicache.tests.storage.engines.hosts.serving import PREFIX
from hicache.tests.storage.engines.server import Served

RETURN_S = 60
"""How long a host that was cut off may take until all its prompts hit again."""

_START_S = 60
_END_S = 10
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Passes:
    """What one host served: before, while and after one host was cut off."""

    before: Served
    cut: Served
    after: Sequence[Served]

    @property
    def all(self) -> list[Served]:
        """All passes in their order."""
        return [self.before, self.cut, *self.after]


class Cluster:
    """An engine on the hosts of a network, and a cache on each host. A `with` block starts and ends all processes."""

    def __init__(self, engine: EngineOnHosts, site: Site, network: Network, prompts: int) -> None:
        self._engine, self._site, self._network, self._prompts = engine, site, network, prompts
        self._caches: list[subprocess.Popen[str]] = []
        self._held = ExitStack()

    def __enter__(self) -> Cluster:  # noqa: PYI034 - 3.10 has no Self
        with self._held:
            places = range(len(self._site.addresses))
            server = self._start(0, self._engine.server(self._site), "engine")
            for place in places:
                if command := self._engine.node(self._site, place):
                    self._start(place, command, f"node{place + 1}")
            until = time.monotonic() + _START_S
            while not self._engine.is_ready(self._site):
                if server.poll() is not None or time.monotonic() > until:
                    raise InvariantError(f"the engine does not start: {self._log('engine')}")
                time.sleep(_POLL_S)
            self._caches = [self._start_cache(place) for place in places]
            self._held = self._held.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._held.close()

    def run(self, say: Callable[[str], None]) -> list[Passes]:
        """Host 1 computes all prompts, then all serve them; the last host is cut off meanwhile, and comes back."""
        places, last = range(len(self._caches)), len(self._caches) - 1
        self.serve([0])
        say("host 1 has computed the prompts")
        before = self.serve(places)
        self._network.cut(last)
        say(f"host {last + 1} is cut off")
        cut = self.serve(places)
        self._network.restore(last)
        say(f"host {last + 1} is connected again")
        after = [self.serve(places)]
        until = time.monotonic() + RETURN_S
        while not all(map(self.is_whole, after[-1])) and time.monotonic() < until:
            after.append(self.serve(places))
        return [Passes(before[one], cut[one], [turn[one] for turn in after]) for one in places]

    def serve(self, places: Sequence[int]) -> list[Served]:
        """One pass of some hosts, side by side."""
        for place in places:
            stdin = self._caches[place].stdin
            assert stdin is not None, "the input is a pipe"
            stdin.write("serve\n")
            stdin.flush()
        return [self._served(place) for place in places]

    def is_whole(self, served: Served) -> bool:
        """Whether all that can come from storage came."""
        return served.storage_tokens == self._prompts * PREFIX

    def _served(self, place: int) -> Served:
        stdout = self._caches[place].stdout
        assert stdout is not None, "the output is a pipe"
        line = stdout.readline()
        if not line:
            raise InvariantError(f"the cache of host {place + 1} has ended: {self._log(f'cache{place + 1}')}")
        return Served(**json.loads(line))

    def _start_cache(self, place: int) -> subprocess.Popen[str]:
        settings = self._site.folder / f"cache{place + 1}.json"
        options = self._engine.options(self._site, place)
        content = {"backend": self._engine.backend, "options": options, "prompts": self._prompts}
        settings.write_text(json.dumps(content), encoding="utf-8")
        return self._start(
            place,
            [sys.executable, "-m", "hicache.tests.storage.engines.hosts.serving", str(settings)],
            f"cache{place + 1}",
        )

    def _start(self, place: int, command: Sequence[str], name: str) -> subprocess.Popen[str]:
        with self._log_file(name).open("ab") as log:
            process = subprocess.Popen(
                self._network.on(place, command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if name.startswith("cache") else log,
                stderr=log,
                text=True,
            )
        self._held.callback(_end, process)
        return process

    def _log_file(self, name: str) -> Path:
        return self._site.folder / f"{name}.log"

    def _log(self, name: str) -> str:
        return self._log_file(name).read_text(encoding="utf-8", errors="replace")[-2000:]


def complaints(hosts: Sequence[Passes], prompts: int) -> list[str]:
    """What is wrong with a run, in words."""
    found = []
    for number, host in enumerate(hosts, start=1):
        expected, is_cut = prompts * PREFIX, number == len(hosts)
        if wrong := sum(one.wrong_bytes for one in host.all):
            found.append(f"host {number} read {wrong} bytes other than those that were computed")
        if (came := host.before.storage_tokens) != expected:
            found.append(f"host {number} read {came} of {expected} tokens from storage before one was cut off")
        if is_cut and host.cut.storage_tokens:
            found.append(f"host {number} read {host.cut.storage_tokens} tokens while it was cut off")
        if (came := host.after[-1].storage_tokens) != expected:
            found.append(f"host {number} read {came} of {expected} tokens {RETURN_S} seconds after the return")
        if (longest_s := max(one.longest_s for one in host.all)) >= TIMEOUT_S:
            found.append(f"host {number} waited {longest_s:.1f} seconds in a verb, as if verbs waited for the engine")
    return found


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate(timeout=_END_S)
