"""ON_HOSTS: for each engine the processes of the first host and of the others, and the options of the caches."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from hicache.tests.storage.engines.engines import BUCKET, ENGINES, NODE

TIMEOUT_S = 2
"""The longest wait of a backend for its engine."""

_NODE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Site:
    """Where a cluster is. `folder`: for its files. `addresses`: of the hosts. `secret`: what clients present."""

    folder: Path
    addresses: Sequence[str]
    secret: str = field(repr=False)

    @property
    def first(self) -> str:
        """The address of the host with the engine."""
        return self.addresses[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOnHosts:
    """One engine. `server`: the command of the first host. `node`: of the host at a place; empty for none.

    `backend`, `options`: of the cache of the host at a place. `is_ready`: whether pages can be stored; it is asked
    until it can. `missing`: why the engine cannot be started, in words; empty if it can.
    """

    backend: str
    server: Callable[[Site], list[str]]
    options: Callable[[Site, int], dict[str, Any]]
    is_ready: Callable[[Site], bool]
    missing: Callable[[], str]
    node: Callable[[Site, int], list[str]] = lambda _site, _place: []


def _program(name: str) -> str:
    return ENGINES[name].path or ENGINES[name].program


def _reply(url: str, method: str = "GET") -> str | None:
    """What a server answers, or None while it does not."""
    try:
        with urlopen(Request(url, method=method), timeout=TIMEOUT_S) as reply:  # noqa: S310
            return str(reply.read().decode())
    except (OSError, HTTPException):
        return None


# Redis. The password stands in files, as other users see commands.


def _redis_server(site: Site) -> list[str]:
    file = site.folder / "redis.conf"
    lines = [f"bind {site.first}", "port 6379", f"requirepass {site.secret}", f"dir {site.folder}"]
    lines += ['save ""', "appendonly no", "maxmemory 256mb", "maxmemory-policy allkeys-lru"]
    file.write_text("\n".join(lines), encoding="utf-8")
    return [_program("redis"), str(file)]


def _redis_options(site: Site, _: int) -> dict[str, Any]:
    return {"host": site.first, "port": 6379, "password": site.secret, "timeout_s": TIMEOUT_S, "retry_s": 0.1}


def _redis_answers(site: Site) -> bool:
    import redis

    with redis.Redis(site.first, password=site.secret, socket_timeout=TIMEOUT_S) as client:
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False


# Mooncake Store: the master on the first host, and memory of each other one.


def _mooncake_server(site: Site) -> list[str]:
    listen = {"rpc_address": site.first, "rpc_port": 50051, "metrics_host": site.first, "metrics_port": 9003}
    lost = {"client_ttl": 3, "put_start_discard_timeout_sec": 1, "put_start_release_timeout_sec": 2}
    return [_program("mooncake"), *(f"--{name}={value}" for name, value in {**listen, **lost}.items())]


def _mooncake_node(site: Site, place: int) -> list[str]:
    if place == 0:
        return []
    return [sys.executable, "-c", NODE, site.addresses[place], f"{site.first}:50051", str(_NODE_BYTES)]


def _mooncake_options(site: Site, place: int) -> dict[str, Any]:
    own = {"local_host": site.addresses[place], "timeout_s": TIMEOUT_S, "retry_s": 0.1}
    return {"host": site.first, "port": 50051, "metrics_port": 9003, **own}


def _mooncake_has_nodes(site: Site) -> bool:
    segments = (_reply(f"http://{site.first}:9003/get_all_segments") or "").splitlines()
    return len([one for one in segments if one.strip()]) == len(site.addresses) - 1


# The metadata service of this project. All hosts mount one folder: on one machine they have it anyway.


def _hf3fs_server(site: Site) -> list[str]:
    token = site.folder / "token"
    token.write_text(site.secret, encoding="utf-8")
    command = [sys.executable, "-m", "hicache", "serve-metadata", "--host", site.first, "--port", "18000"]
    return [*command, "--file", str(site.folder / "metadata.json"), "--token-file", str(token)]


def _hf3fs_options(site: Site, _: int) -> dict[str, Any]:
    url, root = f"http://{site.first}:18000", str(site.folder / "pages")
    return {"root": root, "capacity_pages": 4096, "metadata_url": url, "token": site.secret, "timeout_s": TIMEOUT_S}


def _hf3fs_answers(site: Site) -> bool:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {site.secret}"}
    asked = Request(f"http://{site.first}:18000/0/namespaces", json.dumps({}).encode(), headers)
    try:
        urlopen(asked, timeout=TIMEOUT_S).close()  # noqa: S310
    except (OSError, HTTPException):
        return False
    return True


# An object store: moto, which emulates S3 and takes any key.


def _objects_options(site: Site, _: int) -> dict[str, Any]:
    keys = {"access_key_id": "any", "secret_access_key": site.secret}
    bounds = {"timeout_s": TIMEOUT_S, "retries": 0, "retry_s": 0.1}
    return {"bucket": BUCKET, "endpoint": f"http://{site.first}:5000", "region": "us-east-1", **keys, **bounds}


ON_HOSTS: Mapping[str, EngineOnHosts] = {
    "redis": EngineOnHosts(
        backend="redis",
        server=_redis_server,
        options=_redis_options,
        is_ready=_redis_answers,
        missing=lambda: ENGINES["redis"].missing,
    ),
    "mooncake": EngineOnHosts(
        backend="mooncake",
        server=_mooncake_server,
        node=_mooncake_node,
        options=_mooncake_options,
        is_ready=_mooncake_has_nodes,
        missing=lambda: ENGINES["mooncake"].missing,
    ),
    "hf3fs": EngineOnHosts(
        backend="hf3fs", server=_hf3fs_server, options=_hf3fs_options, is_ready=_hf3fs_answers, missing=lambda: ""
    ),
    "objects": EngineOnHosts(
        backend="objects",
        server=lambda site: [_program("moto"), "-H", site.first, "-p", "5000"],
        options=_objects_options,
        # Makes the bucket.
        is_ready=lambda site: _reply(f"http://{site.first}:5000/{BUCKET}", "PUT") is not None,
        missing=lambda: ENGINES["moto"].missing,
    ),
}
"""The engines by name."""
