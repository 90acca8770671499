"""A script that reads a configuration and a key from stdin, opens a cache, and prints the page hashes of the key."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from hicache.config import CacheConfig, EvictionPolicy, Layout, Topology
from hicache.testing.hybrid_model import HybridModel
from hicache.testing.load import load_adapter
from hicache.types import Key, Namespace


def config_of(fields: dict[str, Any]) -> CacheConfig:
    """A configuration from JSON: its fields, and for the model those of HybridModel."""
    rebuilt = {
        "components": tuple(fields["components"]),
        "policy": EvictionPolicy(fields["policy"]),
        "layout": Layout(fields["layout"]),
        "model": HybridModel(**fields["model"]).shape,
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
