"""Agreement: every decision that the ranks take together. Every rank executes the same calls in the same order."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import chain
from typing import Any, TypeVar

from hicache.config import CacheConfig
from hicache.errors import ConfigurationError, InvariantError, RankError
from hicache.parallel.group import GREATEST, Group, Reduction
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

    def acknowledged(
        self, started: int, outcomes: Sequence[int], bits: int = 0, count: int = 0, waiting: str = ""
    ) -> tuple[Sequence[int], int]:
        """What every rank has reached: the least value of each outcome, and the bits that are set on all ranks.

        `started`: the number of jobs since the cache was opened. Raises InvariantError when it differs between ranks.
        `count`: how many bits there are. `waiting`: the prefetches that this rank waits for, in words; RankError has
        those of each rank where they differ.
        """
        numbers = [started, -started, *outcomes]
        for group in self._groups:
            numbers, bits = _reduced(group, numbers, bits, count, f"progress: {waiting}" if waiting else "progress")
        least, negative, *agreed = numbers
        if least != -negative:
            raise InvariantError(f"RANK-1: the ranks diverged: they started from {least} to {-negative} jobs")
        return agreed, bits

    def votes(self, are_late: Sequence[bool]) -> list[int]:
        """Of each wait 0 where this rank ends it, for any call that takes the least: the first stage alone may."""
        may_end = self._stages is None or self._stages.rank == 0
        return [int(not (may_end and is_late)) for is_late in are_late]

    def ended_waits(self, votes: Sequence[int], waiting: str) -> list[int]:
        """The least of the votes about each wait over all ranks, in one call. `waiting`: as in `acknowledged`."""
        return self._reduce(list(votes), f"prefetch end: {waiting}")

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


def _reduced(group: Group, numbers: Sequence[int], bits: int, count: int, purpose: str) -> tuple[list[int], int]:
    """The least of each number and the bits that all ranks of a group have set, in one call.

    The words of each rank have a place of their own, where the others pass the greatest number: MIN gathers them, and
    each rank intersects them. NCCL has no bitwise reduction, and a group has none.
    """
    words = struct.Struct(f"<{-(-count // 64)}q")
    own = words.unpack(bits.to_bytes(words.size, "little"))
    places = [own if rank == group.rank else (GREATEST,) * len(own) for rank in range(group.size)]
    reduced = group.reduce([*numbers, *chain.from_iterable(places)], Reduction.MIN, purpose)
    gathered = reduced[len(numbers) :]
    for first in range(0, len(gathered), len(own) or 1):
        bits &= int.from_bytes(words.pack(*gathered[first : first + len(own)]), "little")
    return reduced[: len(numbers)], bits


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
