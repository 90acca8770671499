"""load_adapter: the adapter that a user names, also on a device such as `cuda` or `cuda:1`."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from hicache.config import CacheConfig, ExecutorKind
from hicache.moved import MOVED
from hicache.testing.adapter import INTERFACE_VERSION, METHODS, CacheAdapter, Capability
from hicache.testing.contract import CONTRACT, PROFILES
from hicache.testing.devices import missing_device
from hicache.testing.imports import without_collection

OF_THREADS = frozenset({Capability.STEPPED, Capability.STEPPED_STORAGE, Capability.HELD})
"""What an adapter declares for copies by threads alone: on a GPU streams copy, and no test steps or holds them."""

READ_AFTER_VERBS = (Capability.SNAPSHOT, Capability.SIZES, Capability.BYTES, Capability.TABLES)
"""The capabilities whose methods the driver calls after each verb: without these methods no test can pass."""


def load_adapter(path: str) -> type[CacheAdapter]:
    """Import `package.module:Class`. Raises ValueError or ImportError, naming the path, when it is not an adapter.

    With `@` and a device behind it, such as `package.module:Class@cuda`, its caches are opened on that device, which
    this machine must have. An adapter that was written for another version of the interface, that declares no door, or
    that shows blocks and no tables of requests, is a ValueError too, and so is one whose profile, departures or
    capabilities do not exist, or that lacks a method which the driver calls after each verb. For the old name of a
    module a line on the standard error gives the new one.
    """
    place, _, device = path.partition("@")
    module, separator, name = place.partition(":")
    if not separator or not module or not name:
        raise ValueError(f"adapter {path!r} is not of the form package.module:Class")
    if module in MOVED:
        # No warning: a project that turns warnings into errors would lose its run.
        sys.stderr.write(f"{module} has moved to {MOVED[module]}; the old name will be removed in 0.2\n")
    with without_collection():
        loaded = importlib.import_module(MOVED.get(module, module))
    if not hasattr(loaded, name):
        known = [one for one in vars(loaded) if not one.startswith("_")]
        close = "".join(f"; did you mean {one}?" for one in get_close_matches(name, known, n=1))
        raise ValueError(f"adapter {path!r}: {module} has no {name}{close}")
    found = getattr(loaded, name)
    if not (isinstance(found, type) and issubclass(found, CacheAdapter)):
        raise ValueError(f"adapter {path!r}: {name} is {found!r}, not a CacheAdapter class")
    if found.interface != INTERFACE_VERSION:
        raise ValueError(
            f"adapter {path!r} was written for interface {found.interface}, this hicache has interface "
            f"{INTERFACE_VERSION}: see docs/reference/versions.md"
        )
    _require_known(path, found)
    if not found.capabilities & {Capability.VERBS, Capability.REQUESTS}:
        raise ValueError(f"adapter {path!r} declares neither VERBS nor REQUESTS: no test can drive its cache")
    shows = found.capabilities & {Capability.SNAPSHOT, Capability.TABLES}
    if found.profile != "tree" and shows == {Capability.SNAPSHOT}:
        raise ValueError(
            f"adapter {path!r} declares SNAPSHOT with the profile {found.profile}: its laws need TABLES as well"
        )
    _require_methods(path, found)
    return on_device(found, device) if device else found


def _require_known(path: str, adapter: type[CacheAdapter]) -> None:
    """Raise ValueError for a profile, a departure or a capability that does not exist."""
    if adapter.profile not in PROFILES:
        raise ValueError(f"adapter {path!r}: profile {adapter.profile!r} is none of {', '.join(PROFILES)}")
    if unknown := sorted(adapter.departures - CONTRACT.keys()):
        raise ValueError(f"adapter {path!r}: departures: the contract has no clause {unknown[0]}")
    strange = sorted(map(repr, adapter.capabilities - {*Capability}))
    if strange:
        raise ValueError(f"adapter {path!r}: capabilities must be members of Capability, got {strange[0]}")


def _require_methods(path: str, adapter: type[CacheAdapter]) -> None:
    """Raise ValueError for a declared capability of READ_AFTER_VERBS whose methods are not overridden."""
    of_blocks = {} if adapter.profile == "tree" else {Capability.SNAPSHOT: ("block_snapshot",)}
    methods = {one: of_blocks.get(one, METHODS[one]) for one in READ_AFTER_VERBS if one in adapter.capabilities}
    missing = {
        one.name: [f"{name}()" for name in names if getattr(adapter, name) is getattr(CacheAdapter, name)]
        for one, names in methods.items()
    }
    if lines := [f"{name} without {', '.join(names)}" for name, names in missing.items() if names]:
        raise ValueError(f"adapter {path!r} declares {', '.join(lines)}")


def on_device(adapter: type[CacheAdapter], device: str) -> type[CacheAdapter]:
    """The adapter on a device. Each configuration is moved there when it is opened; the suites choose it as before.

    Raises ValueError for a device that this machine lacks.
    """
    if missing := missing_device(device):
        raise ValueError(f"{adapter.__name__} on {device}: {missing}")
    opened = adapter.__init__

    def open_there(self: CacheAdapter, config: CacheConfig, *others: Any, **named: Any) -> None:
        opened(self, moved(config, device), *others, **named)

    names = {"__module__": adapter.__module__, "__qualname__": adapter.__qualname__, "__doc__": adapter.__doc__}
    capabilities = adapter.capabilities - (OF_THREADS if _is_gpu(device) else frozenset())
    return type(adapter.__name__, (adapter,), {"__init__": open_there, "capabilities": capabilities} | names)


def moved(config: CacheConfig, device: str) -> CacheConfig:
    """The configuration on another device: on a GPU the host tier copies on streams, and on a CPU on threads."""
    host = config.host
    if host is not None and _is_gpu(device):
        host = replace(host, executor=ExecutorKind.STREAMS)
    elif host is not None and host.executor is ExecutorKind.STREAMS:
        host = replace(host, executor=ExecutorKind.THREADED)
    return replace(config, device=device, host=host)


def _is_gpu(device: str) -> bool:
    return device.partition(":")[0] != "cpu"
