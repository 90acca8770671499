"""Engine: a storage engine as a process on loopback, which a test starts, pauses, kills and starts again."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hicache.errors import InvariantError

HOST = "127.0.0.1"

START_S = 60
"""How long a started engine may take until it accepts connections."""

STOP_S = 30
_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What one process of an engine is started with.

    `folder`: where it keeps its files. `port`: the TCP port on loopback. `capacity_bytes`: its memory for objects with
    their overhead, None for no limit. `evicts`: whether objects are evicted at the limit, or new ones refused.
    `password`: what clients have to present, or empty.
    """

    folder: Path
    port: int
    capacity_bytes: int | None
    evicts: bool
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine. `backend`: the name of the storage backend that uses it, and of the extra that installs `library`.

    `program`: the executable, of the Debian package `package`. `arguments`: those of the program. `options`: those of a
    backend that connects to it.
    """

    name: str
    backend: str
    library: str
    program: str
    package: str
    arguments: Callable[[EngineSettings], list[str]]
    options: Callable[[EngineSettings], dict[str, Any]]

    @property
    def missing(self) -> str:
        """Why the engine cannot be started, in words; empty if it can."""
        if shutil.which(self.program):
            return ""
        return f"{self.program} is not installed; the package {self.package} has it"

    @property
    def version(self) -> str:
        """What the program says of its version."""
        return subprocess.run([self.program, "--version"], capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603


class EngineProcess:
    """A running process of an engine. `options`: those of a backend that connects to it.

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
        self.settings = EngineSettings(folder, _free_port(), capacity_bytes, evicts, password)
        self.options: Mapping[str, Any] = engine.options(self.settings)
        self._command = [engine.program, *engine.arguments(self.settings), *arguments]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start the process, and wait until it accepts connections. Raises InvariantError with its output otherwise."""
        output = self.settings.folder / f"{self.engine.name}.log"
        with output.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)  # noqa: S603
        until = time.monotonic() + START_S
        while not self._accepts():
            if self._process.poll() is not None or time.monotonic() > until:
                self.kill()
                raise InvariantError(f"{self.engine.name} does not start: {output.read_text(errors='replace')[-2000:]}")
            time.sleep(_POLL_S)

    def kill(self) -> None:
        """End the process at once, also where it is paused. The memory of the engine is lost."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(STOP_S)

    def pause(self) -> None:
        """Stop the process with SIGSTOP: the system accepts connections for it, and nothing is answered."""
        os.kill(self._running.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Continue the process after `pause`."""
        os.kill(self._running.pid, signal.SIGCONT)

    def close(self) -> None:
        """End the process. A second call has no effect."""
        self.kill()

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, f"{self.engine.name} is not running"
        return self._process

    def _accepts(self) -> bool:
        try:
            socket.create_connection((HOST, self.settings.port)).close()
        except ConnectionRefusedError:
            return False
        return True


def _free_port() -> int:
    with socket.socket() as free:
        free.bind((HOST, 0))
        return int(free.getsockname()[1])


def _redis_arguments(settings: EngineSettings) -> list[str]:
    arguments = ["--bind", HOST, "--port", str(settings.port), "--dir", str(settings.folder)]
    arguments += ["--save", "", "--appendonly", "no"]
    if settings.capacity_bytes is not None:
        policy = "allkeys-lru" if settings.evicts else "noeviction"
        arguments += ["--maxmemory", str(settings.capacity_bytes), "--maxmemory-policy", policy]
    return arguments + (["--requirepass", settings.password] if settings.password else [])


def _redis_options(settings: EngineSettings) -> dict[str, Any]:
    options: dict[str, Any] = {"host": HOST, "port": settings.port}
    return options | ({"password": settings.password} if settings.password else {})


ENGINES: Mapping[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine("redis", "redis", "redis", "redis-server", "redis-server", _redis_arguments, _redis_options),
        Engine("valkey", "redis", "redis", "valkey-server", "valkey-server", _redis_arguments, _redis_options),
    )
}
"""The engines by name. A further one is a line here, and passes through the same tests."""
