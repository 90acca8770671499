"""A script that reads a configuration and a key from stdin, opens a cache, and prints the page hashes of the key."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from hicache.config import CacheConfig, EvictionPolicy, Layout, ModelShape, Topology
from hicache.testing.adapter import load_adapter
from hicache.types import Key, Namespace


def config_of(fields: dict[str, Any]) -> CacheConfig:
    """A configuration from the JSON form of its `dataclasses.asdict`."""
    rebuilt = {
        "components": tuple(fields["components"]),
        "sidecars": tuple(fields["sidecars"]),
        "policy": EvictionPolicy(fields["policy"]),
        "layout": Layout(fields["layout"]),
        "model": ModelShape(**fields["model"]),
        "topology": Topology(**fields["topology"]),
    }
    return CacheConfig(**{**fields, **rebuilt})


def main() -> None:
    """Read one request from stdin, and print one list."""
    request = json.load(sys.stdin)
    cache = load_adapter(request["adapter"])(config_of(request["config"]))
    key = Key(np.array(request["tokens"], dtype=np.int32), Namespace(**request["namespace"]))
    json.dump(list(cache.page_hashes(key)), sys.stdout)


if __name__ == "__main__":
    main()
