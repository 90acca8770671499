"""Agreement: every decision that the ranks take together. Every rank executes the same calls in the same order."""

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
    """The decisions of the ranks that share a tree. A cache on one rank decides alone and calls no collective.

    `groups`: by axis, this rank's group; an axis of one rank has none. Values are reduced over all axes. Where values
    may differ between ranks, such as the time, the first stage of the pipeline decides.
    """

    def __init__(self, groups: Mapping[str, Group]) -> None:
        self._groups = [groups[axis] for axis in AXES if axis in groups]
        self._stages = groups.get("pp")
        self._rank, self.ranks = 0, 1
        for group in self._groups:
            self._rank += self.ranks * group.rank
            self.ranks *= group.size

    def least(self, numbers: Mapping[str, int], purpose: str) -> dict[str, int]:
        """The least value of each number over all ranks."""
        return self._packed(numbers, purpose)

    def acknowledged(self, started: int, outcomes: Sequence[int]) -> Sequence[int]:
        """The least value of each outcome over all ranks: the progress that every rank has reached.

        `started`: the number of jobs since the cache was opened. Raises InvariantError when it differs between ranks.
        """
        if not self._groups:
            return outcomes
        least, negative, *agreed = self._reduce([started, -started, *outcomes], "progress")
        if least != -negative:
            raise InvariantError(f"RANK-1: the ranks diverged: they started from {least} to {-negative} jobs")
        return agreed

    def is_over(self, *, is_over: bool) -> bool:
        """Whether the wait for a prefetch is over: as soon as one rank of the pipeline's first stage says so."""
        value = [int(is_over)]
        for group in self._groups:
            if group is not self._stages:
                value = group.reduce(value, Reduction.MAX, "prefetch end")
        return bool(self._stages.broadcast(value, "prefetch end")[0] if self._stages else value[0])

    def completed(self, pages: Mapping[NameT, int]) -> dict[NameT, int]:
        """For each pool the number of pages that arrived on every rank: one reduction, in the order of the names."""
        return self._packed(pages, "completed")

    def together(self, act: Callable[[], T], undo: Callable[[T], object], purpose: str) -> T:
        """Run `act` on every rank. If it failed on another rank, `undo` its result: it takes effect on all or none.

        Raises the error that `act` raised on this rank, or RankError when it failed on another rank.
        """
        try:
            result = act()
        except Exception:
            self._first_failed(purpose, failed=True)
            raise
        failed = self._first_failed(purpose, failed=False)
        if failed is not None:
            undo(result)
            raise RankError(f"rank {failed} of {self.ranks} failed ({purpose})", "all", (failed,))
        return result

    def every(self, purpose: str, *, did: bool) -> bool:
        """Whether `did` is true on every rank."""
        return self._first_failed(purpose, failed=not did) is None

    def _first_failed(self, purpose: str, *, failed: bool) -> int | None:
        """The first rank on which `failed` is true, counted along the axes."""
        (first,) = self._reduce([self._rank if failed else self.ranks], purpose)
        return first if first < self.ranks else None

    def _packed(self, numbers: Mapping[NameT, int], purpose: str) -> dict[NameT, int]:
        """Reduce in the order of the names: the order of a mapping may differ between ranks."""
        names = sorted(numbers)
        return dict(zip(names, self._reduce([numbers[name] for name in names], purpose), strict=True))

    def _reduce(self, values: list[int], purpose: str) -> list[int]:
        for group in self._groups:
            values = group.reduce(values, Reduction.MIN, purpose)
        return values


ALONE = Agreement({})
"""The agreement of a cache on one rank."""


PER_RANK = frozenset({"capacity_tokens", "components", "device", "executor", "host", "options", "storage", "topology"})
"""Fields that may differ between ranks, or that are compared on their own."""


def agreed_config(config: CacheConfig, agreement: Agreement) -> CacheConfig:
    """The configuration with the least capacities over all ranks.

    Raises ConfigurationError, on every rank, when another field that decides what a cache does differs between ranks.
    """
    if agreement.ranks == 1:
        return config
    digest = _digest(config)
    least = agreement.least({"digest": digest, "-digest": -digest}, "configuration")
    if least["digest"] != -least["-digest"]:
        raise ConfigurationError(
            f"RANK-1: ranks were opened with different configurations; on this rank it is {config.name}"
        )
    own = _named("device", config.capacity_tokens)
    if config.host is not None:
        own |= _named("host", config.host.capacity_tokens)
    agreed = agreement.least(own, "capacities")
    host = config.host and replace(config.host, capacity_tokens=_agreed("host", config.host.capacity_tokens, agreed))
    return replace(config, capacity_tokens=_agreed("device", config.capacity_tokens, agreed), host=host)


def _digest(config: CacheConfig) -> int:
    """63 bits of a digest over all fields that must be equal on every rank. The order of mappings does not matter."""
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
