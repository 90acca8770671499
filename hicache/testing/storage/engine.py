"""Engine: a storage engine as a process on loopback, which a test starts, pauses, kills and starts again."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hicache.errors import InvariantError

HOST = "127.0.0.1"

START_S = 60
"""How long a started engine may take until it is ready."""

STOP_S = 30
_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What one process of an engine is started with.

    `folder`: where it keeps its files. `port`: the TCP port on loopback. `admin_port`: a second one, for an engine that
    has another for its administration. `capacity_bytes`: its memory for objects with their overhead, None for no limit.
    `evicts`: whether objects are evicted at the limit, or new ones refused. `password`: what clients have to present,
    or empty. An engine that makes the secrets of its clients itself asks for them if there is any password.
    """

    folder: Path
    port: int
    admin_port: int
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
    the program. `options`: those of a backend that connects to it. `is_ready`: whether a started process accepts what
    is stored. `prepare`: called after each start; makes the engine usable, and returns further options. `node`: the
    command of a second process, which keeps the objects while the first one is killed, paused and started again; empty
    for none. `strangers`: by name, options of clients that an engine with a password refuses. `in_turn`: options with
    which a backend sends one request at a time, and none again. `lacks`: what it does not have, by the name of the
    feature, with the reason in words. `timeout_s`: a short time in which it answers also on a busy machine.
    `known_failures`: the file of those of the backend on it, or None.
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
    strangers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    in_turn: Mapping[str, Any] = field(default_factory=dict)
    lacks: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 0.2
    known_failures: Path | None = None

    @property
    def path(self) -> str | None:
        """The path of the program, beside that of Python or on `PATH`; None if it is not installed."""
        return shutil.which(self.program, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")

    @property
    def missing(self) -> str:
        """Why the engine cannot be started, in words; empty if it can."""
        return "" if self.path else f"{self.program} is not installed; the package {self.package} has it"


class EngineProcess:
    """A running process of an engine.

    `arguments`: further ones of the program. The other parameters are those of EngineSettings.
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
        self.settings = EngineSettings(folder, _free_port(), _free_port(), capacity_bytes, evicts, password)
        self._prepared: dict[str, Any] = {}
        self._command = [engine.path or engine.program, *engine.arguments(self.settings), *arguments]
        self._process: subprocess.Popen[bytes] | None = None
        self._node: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start the process, and wait until it is ready. Raises InvariantError with its output otherwise."""
        output, node = self.settings.folder / f"{self.engine.name}.log", self.engine.node(self.settings)
        with output.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)  # noqa: S603
            if node and self._node is None:
                self._node = subprocess.Popen(node, stdout=log, stderr=log)  # noqa: S603
        until = time.monotonic() + START_S
        while not self.engine.is_ready(self.settings):
            if self._process.poll() is not None or time.monotonic() > until:
                self.close()
                raise InvariantError(f"{self.engine.name} does not start: {output.read_text(errors='replace')[-2000:]}")
            time.sleep(_POLL_S)
        try:
            self._prepared = self.engine.prepare(self.settings)
        except BaseException:
            self.close()
            raise

    @property
    def options(self) -> dict[str, Any]:
        """Those of a backend that connects to the process that was started last."""
        return self.options_through(self.settings.port)

    def options_through(self, port: int) -> dict[str, Any]:
        """Those of a backend that connects to another port, which leads to the process."""
        return self.engine.options(replace(self.settings, port=port)) | self._prepared

    def kill(self) -> None:
        """End the process at once, also where it is paused. What the engine has stored is lost."""
        process, self._process = self._process, None
        _end(process)

    def pause(self) -> None:
        """Stop the process with SIGSTOP: the system accepts connections for it, and nothing is answered."""
        os.kill(self._running.pid, signal.SIGSTOP)
        # The signal returns before all threads have stopped.
        os.waitid(os.P_PID, self._running.pid, os.WSTOPPED)

    def resume(self) -> None:
        """Continue the process after `pause`."""
        os.kill(self._running.pid, signal.SIGCONT)

    def close(self) -> None:
        """End the processes. A second call has no effect."""
        self.kill()
        node, self._node = self._node, None
        _end(node)

    @property
    def node_pid(self) -> int:
        """The number of the second process of the engine."""
        assert self._node is not None, f"{self.engine.name} has no second process"
        return self._node.pid

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, f"{self.engine.name} is not running"
        return self._process


def _end(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None:
        process.kill()
        process.wait(STOP_S)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind((HOST, 0))
        return int(free.getsockname()[1])
