"""ENGINES: the storage engines that tests start: Redis, a cluster of it, Valkey, moto as S3, and Mooncake Store."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from http.client import HTTPConnection
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

from hicache.errors import InvariantError
from hicache.tests.storage.engines.engine import HOST, START_S, STOP_S, Engine, EngineSettings
from hicache.tests.storage.engines.transfer_benchmark import transfer_rates

_POLL_S = 0.05


def _program_version(program: str) -> str:
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.strip()


# Redis, and Valkey with the same protocol.


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


BENCHMARK_TURNS = 16
"""How often the client of Redis stores and reads each of its values, on average. Fewer would leave some unwritten."""


def _redis_benchmark(*further: str) -> Callable[[EngineSettings, int, int], tuple[float, float]]:
    """The rates of redis-benchmark over one connection to each server, with as many commands under way as values."""

    def measured(settings: EngineSettings, value_bytes: int, values: int) -> tuple[float, float]:
        if shutil.which("redis-benchmark") is None:
            raise InvariantError("redis-benchmark is not installed; the package redis-tools has it")
        command = ["redis-benchmark", "-h", HOST, "-p", str(settings.port), "-c", str(len(settings.ports)), "--csv"]
        command += ["-t", "set,get", "-d", str(value_bytes), "-r", str(values), "-P", str(values), *further]
        command += ["-n", str(BENCHMARK_TURNS * values)]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        requests = dict(re.findall(r'^"(SET|GET)","([\d.]+)"', output, re.MULTILINE))
        return float(requests["SET"]) * value_bytes, float(requests["GET"]) * value_bytes

    return measured


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
        strangers={"no password": {"password": None}, "another password": {"password": "not-the-password"}},
        benchmark=_redis_benchmark(),
    )


# A cluster of three Redis servers. With six processes, each has a replica.

NODES = 3
SLOTS = 16_384


def _cluster_arguments(settings: EngineSettings) -> list[str]:
    # The memory limit is that of each server.
    share = None if settings.capacity_bytes is None else settings.capacity_bytes // NODES
    arguments = _redis_arguments(replace(settings, capacity_bytes=share))
    arguments += ["--cluster-enabled", "yes", "--cluster-port", str(settings.admin_port)]
    arguments += ["--cluster-config-file", f"nodes-{settings.port}.conf", "--cluster-node-timeout", "2000"]
    return [*arguments, "--cluster-require-full-coverage", "no"]


def _cluster_options(settings: EngineSettings) -> dict[str, Any]:
    options: dict[str, Any] = {"nodes": [f"{HOST}:{port}" for port in settings.ports]}
    return options | ({"password": settings.password} if settings.password else {})


def _cluster_prepare(settings: EngineSettings) -> dict[str, Any]:
    """Make the servers a cluster if they are none yet, and wait until each says that it is one with all slots."""
    first = str(settings.ports[0])
    if "cluster_known_nodes:1\n" in _redis_cli(settings, first, "cluster", "info"):
        nodes, replicas = [f"{HOST}:{port}" for port in settings.ports], str(len(settings.ports) // NODES - 1)
        _redis_cli(settings, first, "--cluster", "create", *nodes, "--cluster-replicas", replicas, "--cluster-yes")
    sound, until = ("cluster_state:ok", f"cluster_slots_ok:{SLOTS}"), time.monotonic() + START_S
    for port in settings.ports:
        while not all(line in (state := _info(settings, port)) for line in sound) or "master_link_status:down" in state:
            if time.monotonic() > until:
                raise InvariantError(f"the cluster of Redis is not ready after {START_S} seconds: {state}")
            time.sleep(_POLL_S)
    return {}


def _info(settings: EngineSettings, port: int) -> str:
    """What a node reports of its cluster, and of its primary if it is a replica."""
    return "".join(_redis_cli(settings, str(port), *words) for words in (("cluster", "info"), ("info", "replication")))


def _redis_cli(settings: EngineSettings, port: str, *arguments: str) -> str:
    """What redis-cli prints. Raises InvariantError if it fails."""
    command = ["redis-cli", "-h", HOST, "-p", port, *arguments]
    environment = os.environ | ({"REDISCLI_AUTH": settings.password} if settings.password else {})
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if ended.returncode:
        raise InvariantError(f"{' '.join(command)}: exit code {ended.returncode}: {ended.stdout}{ended.stderr}")
    return ended.stdout


_REDIS_CLUSTER = replace(
    _redis("redis"),
    name="redis-cluster",
    version=lambda program: f"{_program_version(program)}, {NODES} of them as a cluster",
    arguments=_cluster_arguments,
    processes=NODES,
    options=_cluster_options,
    prepare=_cluster_prepare,
    benchmark=_redis_benchmark("--cluster"),
    lacks={"one connection": "pages of a cluster pass through a connection to each node, at the address that it tells"},
)

# moto, an emulator of S3, with obstore and with NIXL.

BUCKET = "pages"
_ANYTHING = "anything"
"""A key that moto takes where it asks for none."""
_NO_LIMIT = "the memory of moto has no limit"


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
    if reply.status != 200:
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
    lacks={"a full state": _NO_LIMIT, "eviction": _NO_LIMIT},
    timeout_s=1,
)

_MOTO_NIXL = replace(
    _MOTO,
    name="moto-nixl",
    backend="nixl-objects",
    library="nixl",
    version=lambda _: f"moto {version('moto')}, an emulator of S3, with NIXL {version('nixl')}",
    known_failures=Path(__file__).parents[3] / "engines" / "known" / "nixl-objects.toml",
)


# Mooncake Store: a master, and a node that lends its memory.

LEASE_MS = 100
"""How long the master of Mooncake keeps an object that was read or asked for. Its default is ten seconds."""

NODE = """
import signal, sys
from mooncake.store import MooncakeDistributedStore
address, master, size = sys.argv[1:]
store = MooncakeDistributedStore()
code = store.setup(address, "P2PHANDSHAKE", int(size), 0, "tcp", "", master)
assert code == 0, f"the node cannot be set up: code {code}"
while True:
    signal.pause()
"""
"""A program that lends memory of a host to a master: `python -c NODE ADDRESS MASTER BYTES`, MASTER as `HOST:PORT`."""

NODE_BYTES = 1 << 30


def _mooncake_arguments(settings: EngineSettings) -> list[str]:
    arguments = {
        "rpc_address": HOST,
        "rpc_port": settings.port,
        "metrics_host": HOST,
        "metrics_port": settings.admin_port,
        "default_kv_lease_ttl": LEASE_MS,
        "client_ttl": 3,
        "put_start_discard_timeout_sec": 1,
        "put_start_release_timeout_sec": 2,
    }
    return [f"--{name}={value}" for name, value in arguments.items()]


def _mooncake_options(settings: EngineSettings) -> dict[str, Any]:
    return {"host": HOST, "port": settings.port, "metrics_port": settings.admin_port}


def _mooncake_node(settings: EngineSettings) -> list[str]:
    size = settings.capacity_bytes or NODE_BYTES
    return [sys.executable, "-c", NODE, HOST, f"{HOST}:{settings.port}", str(size)]


def _has_node(settings: EngineSettings) -> bool:
    """Whether the node has lent its memory to the master, also to one that was started again."""
    try:
        with urlopen(f"http://{HOST}:{settings.admin_port}/get_all_segments", timeout=STOP_S) as reply:
            return bool(reply.read().strip())
    except OSError:
        return False


_MOONCAKE = Engine(
    name="mooncake",
    backend="mooncake",
    library="mooncake",
    program="mooncake_master",
    package="mooncake-transfer-engine-non-cuda of Python",
    version=lambda program: f"{_program_version(program)}, with {version('mooncake-transfer-engine-non-cuda')}",
    arguments=_mooncake_arguments,
    options=_mooncake_options,
    is_ready=_has_node,
    node=_mooncake_node,
    benchmark=transfer_rates,
    lacks={
        "password": "Mooncake has no passwords",
        "a full state": "Mooncake evicts in a thread of its own, and refuses pages until that has made room",
        "one connection": "pages of Mooncake pass through a connection to the node, and not to the master",
    },
)

ENGINES: Mapping[str, Engine] = {
    engine.name: engine for engine in (_redis("redis"), _redis("valkey"), _REDIS_CLUSTER, _MOTO, _MOTO_NIXL, _MOONCAKE)
}
"""The engines by name. A further one is an entry here, and passes through the same tests."""
