"""Engine: a storage engine as a process on loopback, which a test starts, pauses, kills and starts again."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hicache.errors import InvariantError

HOST = "127.0.0.1"

PORTS = range(20_000, 32_000)
"""Below those that systems give to connections, one of which could take the port of a process that is not running."""

START_S = 60
"""How long a started engine may take until it is ready."""

STOP_S = 30
_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What one process of an engine is started with.

    `folder`: where it keeps its files. `port`: the TCP port on loopback. `admin_port`: a second one, for an engine that
    has another for its administration. `ports`: the first port of each process. `capacity_bytes`: its memory for
    objects with their overhead, None for no limit. `evicts`: whether objects are evicted at the limit, or new ones
    refused. `password`: what clients have to present, or empty. An engine that makes the secrets of its clients itself
    asks for them if there is any password.
    """

    folder: Path
    port: int
    admin_port: int
    ports: tuple[int, ...]
    capacity_bytes: int | None
    evicts: bool
    password: str = field(repr=False)


def accepts(settings: EngineSettings) -> bool:
    """Whether a process accepts connections."""
    try:
        socket.create_connection((HOST, settings.port)).close()
    except ConnectionRefusedError:
        return False
    return True


def _no_options(_: EngineSettings) -> dict[str, Any]:
    return {}


def _no_node(_: EngineSettings) -> list[str]:
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One engine. `backend`: the name of the storage backend that uses it, and of the extra that installs `library`.

    `program`: the executable, of the package `package`. `version`: what it says of its version. `arguments`: those of
    the program. `processes`: how many of it there are. `options`: those of a backend that connects to it. `is_ready`:
    whether a started process accepts what is stored. `prepare`: called after each start; makes the engine usable, and
    returns further options. `node`: the command of one more process, which keeps the objects while the others are
    killed, paused and started again; empty for none. `strangers`: by name, options of clients that an engine with a
    password refuses. `in_turn`: options with which a backend sends one request at a time, and none again. `lacks`: what
    it does not have, by the name of the feature, with the reason in words. `timeout_s`: a short time in which it
    answers also on a busy machine. `known_failures`: the file of those of the backend on it, or None. `benchmark`: the
    bytes that the engine's own client stores and reads in a second, given the size of a value and how many are under
    way at a time.
    """

    name: str
    backend: str
    library: str
    program: str
    package: str
    version: Callable[[str], str]
    arguments: Callable[[EngineSettings], list[str]]
    options: Callable[[EngineSettings], dict[str, Any]]
    is_ready: Callable[[EngineSettings], bool] = accepts
    prepare: Callable[[EngineSettings], dict[str, Any]] = _no_options
    node: Callable[[EngineSettings], list[str]] = _no_node
    processes: int = 1
    strangers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    in_turn: Mapping[str, Any] = field(default_factory=dict)
    lacks: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 0.2
    known_failures: Path | None = None
    benchmark: Callable[[EngineSettings, int, int], tuple[float, float]] | None = None

    @property
    def path(self) -> str | None:
        """The path of the program, beside that of Python or on `PATH`; None if it is not installed."""
        return shutil.which(self.program, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")

    @property
    def missing(self) -> str:
        """Why the engine cannot be started and used, in words; empty if it can."""
        if find_spec(self.library) is None:
            return f"{self.library} is not installed: pip install 'hicache[{self.backend}]'"
        return "" if self.path else f"{self.program} is not installed; the package {self.package} has it"


class EngineProcess:
    """A running engine: its process, or several equal ones.

    `arguments`: further ones of the program. The other parameters are those of EngineSettings. Verbs that take numbers
    of processes mean all of them where none is given.
    """

    def __init__(
        self,
        engine: Engine,
        folder: Path,
        *,
        capacity_bytes: int | None = None,
        evicts: bool = True,
        password: str = "",
        arguments: Sequence[str] = (),
    ) -> None:
        self.engine = engine
        ports = free_ports(2 * engine.processes)
        self.settings = EngineSettings(folder, ports[0], ports[1], tuple(ports[::2]), capacity_bytes, evicts, password)
        self._each = [
            replace(self.settings, port=port, admin_port=admin_port)
            for port, admin_port in zip(ports[::2], ports[1::2], strict=True)
        ]
        self._prepared: dict[str, Any] = {}
        program = engine.path or engine.program
        self._commands = [[program, *engine.arguments(one), *arguments] for one in self._each]
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * engine.processes
        self._node: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start what does not run, and wait until it is ready. Raises InvariantError with its output otherwise."""
        output, node = self.settings.folder / f"{self.engine.name}.log", self.engine.node(self.settings)
        with output.open("ab") as log:
            for number, command in enumerate(self._commands):
                if self._processes[number] is None:
                    self._processes[number] = subprocess.Popen(command, stdout=log, stderr=log)
            if node and self._node is None:
                self._node = subprocess.Popen(node, stdout=log, stderr=log)
        until = time.monotonic() + START_S
        while not all(self.engine.is_ready(one) for one in self._each):
            if any(self._running(number).poll() is not None for number in self.numbers) or time.monotonic() > until:
                self.close()
                raise InvariantError(f"{self.engine.name} does not start: {output.read_text(errors='replace')[-2000:]}")
            time.sleep(_POLL_S)
        try:
            self._prepared = self.engine.prepare(self.settings)
        except BaseException:
            self.close()
            raise

    @property
    def numbers(self) -> range:
        """Those of the processes."""
        return range(self.engine.processes)

    @property
    def options(self) -> dict[str, Any]:
        """Those of a backend that connects to the process that was started last."""
        return self.options_through(self.settings.port)

    def options_through(self, port: int) -> dict[str, Any]:
        """Those of a backend that connects to another port, which leads to the process."""
        return self.engine.options(replace(self.settings, port=port)) | self._prepared

    def kill(self, *numbers: int) -> None:
        """End processes at once, also where they are paused. What they have stored is lost."""
        for number in numbers or self.numbers:
            process, self._processes[number] = self._processes[number], None
            _end(process)

    def pause(self, *numbers: int) -> None:
        """Stop processes with SIGSTOP: the system accepts connections for them, and nothing is answered."""
        for number in numbers or self.numbers:
            _stop(self._running(number))

    def resume(self, *numbers: int) -> None:
        """Continue processes after `pause`."""
        for number in numbers or self.numbers:
            os.kill(self._running(number).pid, signal.SIGCONT)

    def kill_node(self) -> None:
        """End the process that keeps the objects, if the engine has one. A second call has no effect."""
        node, self._node = self._node, None
        _end(node)

    def pause_node(self) -> None:
        """Stop the process that keeps the objects with SIGSTOP."""
        assert self._node is not None, f"{self.engine.name} has no second process"
        _stop(self._node)

    def close(self) -> None:
        """End the processes. A second call has no effect."""
        self.kill()
        self.kill_node()

    def _running(self, number: int) -> subprocess.Popen[bytes]:
        process = self._processes[number]
        assert process is not None, f"process {number} of {self.engine.name} is not running"
        return process


def _stop(process: subprocess.Popen[bytes]) -> None:
    os.kill(process.pid, signal.SIGSTOP)
    # The signal returns before all threads have stopped.
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)


def _end(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None:
        process.kill()
        process.wait(STOP_S)


def free_ports(count: int) -> list[int]:
    """Different ports on loopback without a listener."""
    found: list[int] = []
    while len(found) < count:
        port = secrets.choice(PORTS)
        if port not in found and _is_free(port):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as free:
        try:
            free.bind((HOST, port))
        except OSError:
            return False
    return True
