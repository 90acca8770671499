"""What ranks must have in common before they open a cache together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from hicache.config import CacheConfig
from hicache.errors import ConfigurationError
from hicache.parallel.agree import Agreement

OWN = frozenset(
    {"capacity_tokens", "components", "device", "executor", "extra", "host", "options", "storage", "topology"}
)
"""Fields that each rank may have of its own, or that are looked into."""


def agreed_config(config: CacheConfig, agreement: Agreement) -> CacheConfig:
    """The configuration with the capacities that every rank can serve.

    Raises ConfigurationError, on every rank, when something else differs that decides what a cache does.
    """
    if agreement.ranks == 1:
        return config
    terms = _number(config)
    least = agreement.least({"terms": terms, "-terms": -terms}, "configuration")
    if least["terms"] != -least["-terms"]:
        raise ConfigurationError(f"RANK-1: ranks were opened with different configurations; here it is {config.name}")
    own = _named("device", config.capacity_tokens)
    if config.host is not None:
        own |= _named("host", config.host.capacity_tokens)
    agreed = agreement.least(own, "capacities")
    host = config.host and replace(config.host, capacity_tokens=_agreed("host", config.host.capacity_tokens, agreed))
    return replace(config, capacity_tokens=_agreed("device", config.capacity_tokens, agreed), host=host)


def _number(config: CacheConfig) -> int:
    """63 bits of a digest over what decides. The order of tables does not."""
    storage = config.storage
    parts = {"cache": config, "host": config.host, "storage": storage, "extra": storage.extra if storage else None}
    terms = {name: {} if part is None else _fields(part) for name, part in parts.items()}
    text = json.dumps([sorted(config.components), terms], sort_keys=True, default=repr)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def _fields(part: Any) -> dict[str, Any]:
    return {field.name: getattr(part, field.name) for field in fields(part) if field.name not in OWN}


def _named(tier: str, capacities: Mapping[str, int]) -> dict[str, int]:
    return {f"{tier} {component}": tokens for component, tokens in capacities.items()}


def _agreed(tier: str, capacities: Mapping[str, int], agreed: Mapping[str, int]) -> dict[str, int]:
    return {component: agreed[f"{tier} {component}"] for component in capacities}
