"""Engine: a storage engine as a process on loopback, which a test starts, pauses, kills and starts again."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http.client import HTTPConnection
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

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
    `password`: what clients have to present, or empty. An engine that makes the secrets of its clients itself asks for
    them if there is any password.
    """

    folder: Path
    port: int
    capacity_bytes: int | None
    evicts: bool
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine. `backend`: the name of the storage backend that uses it, and of the extra that installs `library`.

    `program`: the executable, of the package `package`. `version`: what it says of its version. `arguments`: those of
    the program. `options`: those of a backend that connects to it. `prepare`: called after each start; makes the engine
    usable, and returns further options. `strangers`: by name, options of clients that an engine with a password
    refuses. `in_turn`: options with which a backend sends one request at a time, and none again. `has_capacity`:
    whether its memory can be limited. `timeout_s`: a short time in which it answers also on a busy machine.
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
    prepare: Callable[[EngineSettings], dict[str, Any]]
    strangers: Mapping[str, Mapping[str, Any]]
    in_turn: Mapping[str, Any]
    has_capacity: bool
    timeout_s: float
    known_failures: Path | None

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
        self.settings = EngineSettings(folder, _free_port(), capacity_bytes, evicts, password)
        self._prepared: dict[str, Any] = {}
        self._command = [engine.path or engine.program, *engine.arguments(self.settings), *arguments]
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
        try:
            self._prepared = self.engine.prepare(self.settings)
        except BaseException:
            self.kill()
            raise

    @property
    def options(self) -> dict[str, Any]:
        """Those of a backend that connects to the process that was started last."""
        return self.options_through(self.settings.port)

    def options_through(self, port: int) -> dict[str, Any]:
        """Those of a backend that connects to another port, which leads to the process."""
        return self.engine.options(replace(self.settings, port=port)) | self._prepared

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


def _program_version(program: str) -> str:
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603


def _nothing(_: EngineSettings) -> dict[str, Any]:
    return {}


def _redis(name: str) -> Engine:
    return Engine(
        name=name,
        backend="redis",
        library="redis",
        program=f"{name}-server",
        package=f"{name}-server",
        version=_program_version,
        arguments=_redis_arguments,
        options=_redis_options,
        prepare=_nothing,
        strangers={"no password": {"password": None}, "another password": {"password": "not-the-password"}},
        in_turn={},
        has_capacity=True,
        timeout_s=0.2,
        known_failures=None,
    )


BUCKET = "pages"
_ANYTHING = "anything"
"""A key that moto takes where it asks for none."""


def _moto_options(settings: EngineSettings) -> dict[str, Any]:
    endpoint = f"http://{HOST}:{settings.port}"
    keys = {"access_key_id": _ANYTHING, "secret_access_key": _ANYTHING}
    return {"bucket": BUCKET, "endpoint": endpoint, "region": "us-east-1", **keys}


def _moto_prepare(settings: EngineSettings) -> dict[str, Any]:
    """Make the bucket, which lives in the memory of the process, and a user with keys if there is a password."""
    _moto_request(settings, "PUT", f"/{BUCKET}", "")
    if not settings.password:
        return {}
    actions = '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}'
    user = {"UserName": "hicache", "Version": "2010-05-08"}
    _moto_request(settings, "POST", "/", urlencode({"Action": "CreateUser", **user}))
    policy = {"Action": "PutUserPolicy", "PolicyName": "all", "PolicyDocument": actions}
    _moto_request(settings, "POST", "/", urlencode({**policy, **user}))
    made = _moto_request(settings, "POST", "/", urlencode({"Action": "CreateAccessKey", **user}))
    found = [re.search(rf"<{field}>(.+?)</{field}>", made) for field in ("AccessKeyId", "SecretAccessKey")]
    names = ("access_key_id", "secret_access_key")
    # From now on requests are authenticated.
    _moto_request(settings, "POST", "/moto-api/reset-auth", "0")
    return {name: one[1] for name, one in zip(names, found, strict=True) if one is not None}


def _moto_request(settings: EngineSettings, method: str, path: str, body: str) -> str:
    """Send one request, and return the answer. Raises InvariantError for any other status than 200."""
    connection = HTTPConnection(HOST, settings.port, timeout=START_S)
    service = "s3" if path == f"/{BUCKET}" else "iam"
    credential = f"AWS4-HMAC-SHA256 Credential={_ANYTHING}/20260101/us-east-1/{service}/aws4_request"
    kind = "application/x-www-form-urlencoded" if service == "iam" and "=" in body else "text/plain"
    headers = {"Content-Type": kind, "Authorization": credential}
    connection.request(method, path, body, headers)
    reply = connection.getresponse()
    answer = reply.read().decode(errors="replace")
    connection.close()
    if reply.status != 200:  # noqa: PLR2004 - of HTTP
        raise InvariantError(f"moto: {method} {path} is answered with {reply.status}: {answer[:500]}")
    return answer


_MOTO = Engine(
    name="moto",
    backend="objects",
    library="obstore",
    program="moto_server",
    package="moto[server] of Python",
    version=lambda _: f"moto {version('moto')}, an emulator of S3, with obstore {version('obstore')}",
    arguments=lambda settings: ["-H", HOST, "-p", str(settings.port)],
    options=_moto_options,
    prepare=_moto_prepare,
    strangers={
        # A request without a signature is a failure within moto, status 500.
        "another key": {"access_key_id": "AKIANOBODYSKEY000000"},
        "another secret": {"secret_access_key": "not-the-password"},
    },
    in_turn={"connections": 1, "retries": 0},
    has_capacity=False,
    timeout_s=1,
    known_failures=None,
)

_MOTO_NIXL = replace(
    _MOTO,
    name="moto-nixl",
    backend="nixl-objects",
    library="nixl",
    version=lambda _: f"moto {version('moto')}, an emulator of S3, with NIXL {version('nixl')}",
    known_failures=Path(__file__).parents[1] / "adapters" / "known" / "nixl-objects.toml",
)

ENGINES: Mapping[str, Engine] = {
    engine.name: engine for engine in (_redis("redis"), _redis("valkey"), _MOTO, _MOTO_NIXL)
}
"""The engines by name. A further one is an entry here, and passes through the same tests."""
