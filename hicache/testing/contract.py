"""The contract: every clause of the catalogue in contract.toml, and the decorator that names the clauses of a test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pytest

from hicache.config import EvictionPolicy, ExecutorKind, WritePolicy, read_table
from hicache.errors import ConfigurationError
from hicache.testing.adapter import Capability
from hicache.types import StopPolicy

TIERS = ("device", "host", "storage", "metadata", "ranks", "config")
"""What has to exist before a clause can be tested."""

LEVELS = ("MUST", "SHOULD")


@dataclass(frozen=True, slots=True)
class Clause:
    """One rule. `needs`: what an adapter has to declare. `source`: where it was learnt. `note`: why it reads so."""

    id: str
    level: str
    tier: str
    needs: tuple[Capability, ...]
    sentence: str
    source: str
    note: str


@dataclass(frozen=True, slots=True)
class Checks:
    """What a test says of itself: the clauses that it checks, and the configurations that it runs over.

    `needs`: capabilities beyond those of its clauses. `page_sizes`, `executors`, `stop_policies`: None for any.
    """

    clauses: tuple[str, ...]
    needs: frozenset[Capability]
    components: frozenset[str]
    sidecars: frozenset[str]
    page_sizes: frozenset[int] | None
    policies: frozenset[EvictionPolicy]
    bigram: bool
    write_policies: frozenset[WritePolicy]
    executors: frozenset[ExecutorKind] | None
    load_back_threshold: bool
    layouts: bool
    stop_policies: frozenset[StopPolicy] | None
    prefetch_threshold: bool

    @property
    def is_of_host(self) -> bool:
        """Whether the test speaks of the host tier, and runs where there is one and nowhere else."""
        return self.is_of_storage or self._speaks_of(Capability.HOST, "host")

    @property
    def is_of_storage(self) -> bool:
        """The same for the storage tier, below a host tier."""
        return self._speaks_of(Capability.STORAGE, "storage")

    def _speaks_of(self, capability: Capability, tier: str) -> bool:
        return capability in self.needs or any(CONTRACT[clause_id].tier == tier for clause_id in self.clauses)


def load_contract(path: Path) -> Mapping[str, Clause]:
    """The clauses of a file, by id, in its order. Raises ConfigurationError naming the file and the clause."""
    clauses = {}
    for clause_id, entry in read_table(f"@{path}").items():
        try:
            clauses[clause_id] = _clause(clause_id, **entry)
        except (TypeError, KeyError, ValueError) as error:
            raise ConfigurationError(f"{path}: {clause_id}: {error}") from error
    return MappingProxyType(clauses)


def _clause(
    clause_id: str,
    *,
    tier: str,
    sentence: str,
    level: str = "MUST",
    needs: Iterable[str] = (),
    source: str = "ours",
    note: str = "",
) -> Clause:
    if tier not in TIERS or level not in LEVELS:
        raise ValueError(f"tier {tier!r} and level {level!r}, known: {', '.join(TIERS)}; {', '.join(LEVELS)}")
    return Clause(
        id=clause_id,
        level=level,
        tier=tier,
        needs=tuple(Capability[name] for name in needs),
        sentence=" ".join(sentence.split()),
        source=source,
        note=" ".join(note.split()),
    )


CONTRACT: Mapping[str, Clause] = load_contract(Path(__file__).with_suffix(".toml"))
"""Every clause by its id, in the order of the catalogue."""


def clause(  # noqa: PLR0913 - one keyword for each choice
    *ids: str,
    needs: Iterable[Capability] = (),
    components: Iterable[str] = (),
    sidecars: Iterable[str] = (),
    page_sizes: Iterable[int] | None = None,
    policies: Iterable[EvictionPolicy] = (EvictionPolicy.LRU,),
    bigram: bool = False,
    write_policies: Iterable[WritePolicy] = (WritePolicy.WRITE_THROUGH, WritePolicy.WRITE_BACK),
    executors: Iterable[ExecutorKind] | None = None,
    load_back_threshold: bool = False,
    layouts: bool = False,
    stop_policies: Iterable[StopPolicy] | None = None,
    prefetch_threshold: bool = False,
) -> pytest.MarkDecorator:
    """Name the clauses that a test checks; choose the configurations over which it runs, if it takes `config`.

    It runs over each configuration of the run that has the named components, sidecars, policies and page sizes, and
    what its clauses need: for MATCH-3 those with SWA. `bigram`: also over those with bigram keys. `needs`: what the
    test needs of the adapter beyond its clauses. A test that does not take `config` stands for those of its clauses
    that the adapter can be held to. Without ids: a test of the suite itself.
    A test of a clause of the host tier, or with HOST among its `needs`, runs over the configurations with a host tier,
    and any other over those without: those with a threshold for loads if `load_back_threshold`, else those without
    one, and of them those with the named `write_policies` and `executors`; write_through_selective has to be named, as
    it is write_through in all but when it copies. `layouts`: also over those with other layouts than most have.
    The same holds for the storage tier: those with a threshold for prefetches if `prefetch_threshold`, else those
    without one, and of them those with the named `stop_policies`.
    Raises ValueError for an id that the catalogue lacks.
    """
    unknown = [clause_id for clause_id in ids if clause_id not in CONTRACT]
    if unknown:
        raise ValueError(f"the contract has no clause {', '.join(unknown)}")
    checks = Checks(
        clauses=ids,
        needs=frozenset(needs),
        components=frozenset(components),
        sidecars=frozenset(sidecars),
        page_sizes=None if page_sizes is None else frozenset(page_sizes),
        policies=frozenset(policies),
        bigram=bigram,
        write_policies=frozenset(write_policies),
        executors=None if executors is None else frozenset(executors),
        load_back_threshold=load_back_threshold,
        layouts=layouts,
        stop_policies=None if stop_policies is None else frozenset(stop_policies),
        prefetch_threshold=prefetch_threshold,
    )
    marked: pytest.MarkDecorator = pytest.mark.clause(checks)
    return marked
