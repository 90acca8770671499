"""The contract: the clauses in contract.toml, and the decorator that names the clauses of a test."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from hicache.config import EvictionPolicy, ExecutorKind, WritePolicy, read_table
from hicache.errors import ConfigurationError
from hicache.testing.adapter import Capability
from hicache.types import StopPolicy

if TYPE_CHECKING:
    import pytest

TIERS = ("device", "host", "storage", "metadata", "ranks", "config")
"""What must exist before a clause can be tested."""

PROFILES = ("tree", "blocks", "offload")
"""The designs that exceptions are stated for: a radix tree, a table of hashed blocks, and chunks beside the device."""

NO_CACHE = ("metadata", "config")
"""The tiers of clauses that are tested without a cache."""

LEVELS = ("MUST", "SHOULD")


@dataclass(frozen=True, slots=True)
class Clause:
    """One rule of the contract.

    `title`: a short name. `level`: one of LEVELS. `tier`: one of TIERS. `needs`: capabilities that an adapter must
    declare for the clause. `source`: the upstream issue or pull request that the rule comes from, or "ours".
    `note`: the reason, or empty. `gpu`: whether it can be tested on a GPU alone. `exceptions`: by profile, why the
    clause does not apply to caches of this design.
    """

    id: str
    title: str
    level: str
    tier: str
    needs: tuple[Capability, ...]
    sentence: str
    source: str
    note: str
    gpu: bool
    exceptions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Checks:
    """The arguments of `@clause`: the clauses that a test checks, and the configurations that it runs over.

    `needs`: capabilities beyond those that the clauses need. `page_sizes`, `executors`, `stop_policies`: None for any.
    `verbs`: False for a test that drives the cache by requests alone. `alone`: no other components and no sidecars than
    those named. `bigram`, `layouts`: whether the test also runs with bigram keys, with unusual layouts.
    `each`: the values of the test's parameter `component`; a case needs the component that it has as its value.
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
    verbs: bool
    alone: bool
    each: tuple[str, ...]

    @property
    def is_of_host(self) -> bool:
        """Whether the test is about the host tier: it runs only over configurations with one."""
        return self.is_of_storage or self._speaks_of(Capability.HOST, "host")

    @property
    def is_of_storage(self) -> bool:
        """Whether the test is about the storage tier, which always has a host tier above it."""
        return self._speaks_of(Capability.STORAGE, "storage")

    @property
    def drives_verbs(self) -> bool:
        """Whether the test calls verbs of a cache one by one. Tests of servers and of configuration call no cache."""
        return self.verbs and any(CONTRACT[clause_id].tier not in NO_CACHE for clause_id in self.clauses)

    def for_component(self, component: str) -> Checks:
        """The checks of the cases with one value of `each`."""
        return replace(self, components=self.components | {component}, each=())

    def _speaks_of(self, capability: Capability, tier: str) -> bool:
        return capability in self.needs or any(CONTRACT[clause_id].tier == tier for clause_id in self.clauses)


def load_contract(path: Path) -> tuple[int, Mapping[str, Clause]]:
    """Read the version of a contract, and its clauses by id, in the order of the file.

    Raises ConfigurationError with the file, and the clause or the version, if an entry is invalid.
    """
    clauses, table = {}, read_table(f"@{path}")
    version = table.pop("version", None)
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise ConfigurationError(f"{path}: version is {version!r}, not an integer above zero")
    for clause_id, entry in table.items():
        try:
            clauses[clause_id] = _clause(clause_id, **entry)
        except (TypeError, KeyError, ValueError) as error:
            raise ConfigurationError(f"{path}: {clause_id}: {error}") from error
    return version, MappingProxyType(clauses)


def _clause(  # noqa: PLR0913 - one keyword for each key of the file
    clause_id: str,
    *,
    title: str,
    tier: str,
    sentence: str,
    level: str = "MUST",
    needs: Iterable[str] = (),
    source: str = "ours",
    note: str = "",
    gpu: bool = False,
    exceptions: Mapping[str, str] = MappingProxyType({}),
) -> Clause:
    if not set(exceptions) <= set(PROFILES):
        raise ValueError(f"exceptions for {sorted(exceptions)}; profiles: {', '.join(PROFILES)}")
    if tier not in TIERS or level not in LEVELS:
        raise ValueError(f"tier {tier!r} and level {level!r}; tiers: {', '.join(TIERS)}; levels: {', '.join(LEVELS)}")
    return Clause(
        id=clause_id,
        title=title,
        level=level,
        tier=tier,
        needs=tuple(Capability[name] for name in needs),
        sentence=" ".join(sentence.split()),
        source=source,
        note=" ".join(note.split()),
        gpu=gpu,
        exceptions=MappingProxyType({profile: " ".join(reason.split()) for profile, reason in exceptions.items()}),
    )


CONTRACT_VERSION: int
"""The version of the contract. Two runs with one version asked the same of a cache."""

CONTRACT: Mapping[str, Clause]
"""Every clause by its id, in the order of contract.toml."""

CONTRACT_VERSION, CONTRACT = load_contract(Path(__file__).with_suffix(".toml"))


def clauses_not_checked(profile: str, departures: Collection[str]) -> frozenset[str]:
    """The clauses that do not apply to a cache: those its profile excepts, and those it departs from on its own."""
    return _excepted(profile).union(departures)


@cache
def _excepted(profile: str) -> frozenset[str]:
    return frozenset(clause_id for clause_id, one in CONTRACT.items() if profile in one.exceptions)


def _known(ids: tuple[str, ...]) -> tuple[str, ...]:
    unknown = [clause_id for clause_id in ids if clause_id not in CONTRACT]
    if unknown:
        raise ValueError(f"the contract has no clause {', '.join(unknown)}")
    return ids


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
    verbs: bool = True,
    alone: bool = False,
    each: Iterable[str] = (),
) -> pytest.MarkDecorator:
    """Name the clauses that a test checks, and choose its configurations. Raises ValueError for an unknown clause.

    A test with the argument `config` runs over each configuration of the run that has the named components, sidecars,
    policies and page sizes, and what its clauses need: for MATCH-3, SWA. A test without `config` covers those of its
    clauses whose needs the adapter declares. A test without ids tests the suite itself. Checks says what the other
    arguments are. If a clause has the tier host, or HOST is in `needs`, the test runs over configurations with a host
    tier, otherwise over those without: with a load-back threshold if `load_back_threshold`, and with the named
    `write_policies` (write_through_selective differs only in when it copies) and `executors`. The same holds for
    storage, `prefetch_threshold` and `stop_policies`.
    """
    import pytest  # The command line reads the contract, and starts without pytest.

    checks = Checks(
        clauses=_known(ids),
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
        verbs=verbs,
        alone=alone,
        each=tuple(each),
    )
    return pytest.mark.clause(checks)
