"""Agreement: every decision that ranks take together, each in one place that every rank passes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from hicache.config import CacheConfig
from hicache.errors import ConfigurationError, InvariantError, RankError
from hicache.parallel.group import Group, Reduction
from hicache.parallel.mesh import AXES

T = TypeVar("T")
NameT = TypeVar("NameT", bound=str)


class Agreement:
    """The decisions of the ranks that share a tree. A cache on one rank agrees with itself and calls no collective.

    `groups`: by axis, this rank's group; an axis of one rank has none. What ranks found is reduced over all axes. Where
    ranks may see different things, such as the time, the first stage of a pipeline decides.
    """

    def __init__(self, groups: Mapping[str, Group]) -> None:
        self._groups = [groups[axis] for axis in AXES if axis in groups]
        self._stages = groups.get("pp")
        self._place, self.ranks = 0, 1
        for group in self._groups:
            self._place += self.ranks * group.rank
            self.ranks *= group.size

    def least(self, numbers: Mapping[str, int], purpose: str) -> dict[str, int]:
        """Of each number the least that a rank has."""
        return self._packed(numbers, purpose)

    def acknowledged(self, started: int, outcomes: Sequence[int]) -> Sequence[int]:
        """Of each number the least that a rank reports: how far jobs have come on every rank.

        `started`: jobs since the cache was opened. Raises InvariantError when it differs from rank to rank.
        """
        if not self._groups:
            return outcomes
        least, negative, *agreed = self._reduce([started, -started, *outcomes], "progress")
        if least != -negative:
            raise InvariantError(f"RANK-1: the ranks diverged: they started from {least} to {-negative} jobs")
        return agreed

    def is_over(self, *, is_over: bool) -> bool:
        """Whether a prefetch is waited for no longer: as soon as one rank of the first stage says so."""
        value = [int(is_over)]
        for group in self._groups:
            if group is not self._stages:
                value = group.reduce(value, Reduction.MAX, "prefetch end")
        return bool(self._stages.broadcast(value, "prefetch end")[0] if self._stages else value[0])

    def completed(self, pages: Mapping[NameT, int]) -> dict[NameT, int]:
        """Of each pool the pages that have come on every rank: in one reduction, in the order of the names."""
        return self._packed(pages, "completed")

    def together(self, act: Callable[[], T], undo: Callable[[T], object], purpose: str) -> T:
        """Do what succeeds on every rank or on none. Raises what it raised here, or RankError for another rank."""
        try:
            result = act()
        except Exception:
            self._first_lacking(purpose, lacks=True)
            raise
        failed = self._first_lacking(purpose, lacks=False)
        if failed is not None:
            undo(result)
            raise RankError(f"rank {failed} of {self.ranks} failed ({purpose})", "all", (failed,))
        return result

    def every(self, purpose: str, *, did: bool) -> bool:
        """Whether every rank did."""
        return self._first_lacking(purpose, lacks=not did) is None

    def _first_lacking(self, purpose: str, *, lacks: bool) -> int | None:
        """The first rank that did not do it, counted along the axes."""
        (first,) = self._reduce([self._place if lacks else self.ranks], purpose)
        return first if first < self.ranks else None

    def _packed(self, numbers: Mapping[NameT, int], purpose: str) -> dict[NameT, int]:
        """By name, and not as the mapping happens to be ordered."""
        names = sorted(numbers)
        return dict(zip(names, self._reduce([numbers[name] for name in names], purpose), strict=True))

    def _reduce(self, values: list[int], purpose: str) -> list[int]:
        for group in self._groups:
            values = group.reduce(values, Reduction.MIN, purpose)
        return values


ALONE = Agreement({})
"""A cache on one rank."""


PER_RANK = frozenset({"capacity_tokens", "components", "device", "executor", "host", "options", "storage", "topology"})
"""Fields that may differ from rank to rank, or that are compared field by field."""


def agreed_config(config: CacheConfig, agreement: Agreement) -> CacheConfig:
    """The configuration with the capacities that every rank can serve.

    Raises ConfigurationError, on every rank, when anything else differs that decides what a cache does.
    """
    if agreement.ranks == 1:
        return config
    digest = _digest(config)
    least = agreement.least({"digest": digest, "-digest": -digest}, "configuration")
    if least["digest"] != -least["-digest"]:
        raise ConfigurationError(f"RANK-1: ranks were opened with different configurations; here it is {config.name}")
    own = _named("device", config.capacity_tokens)
    if config.host is not None:
        own |= _named("host", config.host.capacity_tokens)
    agreed = agreement.least(own, "capacities")
    host = config.host and replace(config.host, capacity_tokens=_agreed("host", config.host.capacity_tokens, agreed))
    return replace(config, capacity_tokens=_agreed("device", config.capacity_tokens, agreed), host=host)


def _digest(config: CacheConfig) -> int:
    """63 bits of a digest over all that must be the same. The order of tables does not matter."""
    parts = {"cache": config, "host": config.host, "storage": config.storage}
    compared = {name: {} if part is None else _fields(part) for name, part in parts.items()}
    text = json.dumps([sorted(config.components), compared], sort_keys=True, default=repr)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def _fields(part: Any) -> dict[str, Any]:
    return {field.name: getattr(part, field.name) for field in fields(part) if field.name not in PER_RANK}


def _named(tier: str, capacities: Mapping[str, int]) -> dict[str, int]:
    return {f"{tier} {component}": tokens for component, tokens in capacities.items()}


def _agreed(tier: str, capacities: Mapping[str, int], agreed: Mapping[str, int]) -> dict[str, int]:
    return {component: agreed[f"{tier} {component}"] for component in capacities}
