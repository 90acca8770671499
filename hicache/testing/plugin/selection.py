"""Selection: the subject of a run, and the configurations that a test runs with, or the reason why it is skipped."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from hicache.config import CacheConfig, ExecutorKind
from hicache.errors import ConfigurationError, MissingTorchError
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.configurations import (
    OF_NAME,
    USUAL_LAYOUTS,
    needs_of,
    quick_configurations,
    standard_configurations,
)
from hicache.testing.contract import CONTRACT, Checks, Clause
from hicache.testing.geometry import geometry_of
from hicache.testing.load import load_adapter
from hicache.testing.plugin.options import (
    ADAPTER,
    BACKEND,
    BACKEND_CONFIG,
    DEFAULT_ADAPTER,
    ENGINE_SOURCE,
    QUICK,
    adapter_path,
)
from hicache.testing.report.run import Execution
from hicache.testing.requirements import missing_libraries
from hicache.testing.storage.subject import BACKEND_CLAUSES, SHIPPED, BackendSubject, read_subject

OF_CONFIGURATIONS = frozenset(
    {
        *(*OF_NAME.values(), Capability.PAGED, Capability.BIGRAM, Capability.EVENTS),
        *(Capability.HOST, Capability.STORAGE, Capability.STEPPED, Capability.STEPPED_STORAGE),
    }
)
"""Capabilities that depend on the configuration, and not only on the adapter."""


@dataclass(frozen=True, slots=True)
class Subject:
    """`path`: that of the adapter class, `package.module:Class`."""

    path: str
    adapter: type[CacheAdapter]
    configurations: tuple[CacheConfig, ...]


_SUBJECT = pytest.StashKey[Subject]()


def subject_of(config: pytest.Config) -> Subject:
    """The subject of a run. Raises UsageError when the adapter cannot be loaded."""
    if _SUBJECT not in config.stash:
        config.stash[_SUBJECT] = _load(config)
    return config.stash[_SUBJECT]


def has_subject(config: pytest.Config) -> bool:
    """Whether this process has loaded the subject of its run."""
    return _SUBJECT in config.stash


def own_adapter(item: pytest.Item | pytest.Collector) -> type[CacheAdapter] | None:
    """The adapter that the class of a test names, as a CacheContract does; None for a test of the run's adapter."""
    found = getattr(getattr(item, "cls", None), "adapter", None)
    return found if isinstance(found, type) and issubclass(found, CacheAdapter) else None


def adapter_of(item: pytest.Item) -> type[CacheAdapter]:
    """The adapter that a test is about. Raises UsageError when that of the run cannot be loaded."""
    return own_adapter(item) or subject_of(item.config).adapter


def include_this_folder() -> None:
    """Let modules be imported from the current folder, after all others: a file there must not hide a library."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)


class NotOpened(CacheAdapter):
    """Stands for the reference in a run of a storage backend without torch: tests that open a cache are skipped."""

    capabilities = frozenset(Capability)

    def __init__(self, config: CacheConfig) -> None:
        raise MissingTorchError.of("the reference cache over the backend")


def _load(config: pytest.Config) -> Subject:
    include_this_folder()
    path = adapter_path(config)
    try:
        adapter = load_adapter(path)
    except (ImportError, ValueError) as error:
        if isinstance(error, MissingTorchError) and path == DEFAULT_ADAPTER and BACKEND.text(config) is not None:
            return Subject(path, NotOpened, ())
        source = ADAPTER.source(config) if ADAPTER.text(config) else "the default adapter"
        message = f"{source}: {path}: {error}"
        if ENGINE_SOURCE.text(config) is not None:
            pytest.exit(message, returncode=2)
        raise pytest.UsageError(message) from error
    return Subject(path, adapter, tuple(configurations_of(adapter, quick=QUICK.switch(config))))


def configurations_of(adapter: type[CacheAdapter], *, quick: bool) -> Sequence[CacheConfig]:
    """The configurations of a run: the adapter's own, or the standard ones."""
    own = adapter.configurations()
    if own is not None:
        return own
    return (quick_configurations if quick else standard_configurations)(adapter.capabilities)


@dataclass(frozen=True, slots=True)
class Selection:
    """The configurations that a test runs with and the clauses that it checks; or none, and the reason."""

    configurations: tuple[CacheConfig, ...]
    clauses: tuple[str, ...]
    reason: str


def select(checks: Checks, adapter: type[CacheAdapter], configurations: Iterable[CacheConfig]) -> Selection:
    """For a test with `config`: the configurations in which all its clauses apply."""
    needs = _needs(checks)
    lacking = _lacking(needs, adapter) or _excepted(checks, adapter)
    if lacking:
        return Selection((), (), lacking)
    fitting = tuple(config for config in configurations if _fits(checks, needs & OF_CONFIGURATIONS, config))
    reason = "" if fitting else f"no configuration of this run has {_wanted(checks, needs & OF_CONFIGURATIONS)}"
    return Selection(fitting, checks.clauses, reason)


@cache
def select_clauses(checks: Checks, adapter: type[CacheAdapter]) -> Selection:
    """For a test without `config`: those of its clauses that apply to the adapter."""
    lacking = _lacking(_own_needs(checks), adapter)
    lacking_by_clause = {
        clause_id: _lacking(CONTRACT[clause_id].needs, adapter) or _exception(clause_id, adapter)
        for clause_id in checks.clauses
    }
    clauses = tuple(clause_id for clause_id, lacks in lacking_by_clause.items() if not lacks)
    if checks.clauses and not clauses:
        lacking = lacking or next(iter(lacking_by_clause.values()))
    return Selection((), checks.clauses if lacking else clauses, lacking)


def _excepted(checks: Checks, adapter: type[CacheAdapter]) -> str:
    """Why a clause of the test does not apply to the design of the cache; empty when all of them apply."""
    return next(filter(None, (_exception(clause_id, adapter) for clause_id in checks.clauses)), "")


def _exception(clause_id: str, adapter: type[CacheAdapter]) -> str:
    reason = CONTRACT[clause_id].exceptions.get(adapter.profile, "")
    return f"{clause_id} does not apply to the profile {adapter.profile}: {reason}" if reason else ""


@cache
def undeclared(checks: Checks, adapter: type[CacheAdapter]) -> tuple[str, ...]:
    """The names of the capabilities that a test needs and the adapter does not declare."""
    needs = _needs(checks)
    return tuple(one.name for one in Capability if one in needs and one not in adapter.capabilities)


def _needs(checks: Checks) -> frozenset[Capability]:
    """The capabilities that a test needs. A test that steps storage needs stepped transfers only if it says so."""
    own = _own_needs(checks)
    needs = own.union(*(CONTRACT[clause_id].needs for clause_id in checks.clauses))
    return needs - ({Capability.STEPPED} - own) if Capability.STEPPED_STORAGE in needs else needs


def _own_needs(checks: Checks) -> frozenset[Capability]:
    door = {Capability.VERBS} if checks.drives_verbs else set()
    return checks.needs | door | {OF_NAME[name] for name in (checks.components | checks.sidecars) & OF_NAME.keys()}


def _lacking(needs: Collection[Capability], adapter: type[CacheAdapter]) -> str:
    """Why capabilities are not tested: the adapter does not declare them, or torch is missing; empty when they are."""
    lacking = [f"{one.name}: {one.value}" for one in Capability if one in needs and one not in adapter.capabilities]
    if lacking:
        return f"adapter {adapter.__name__} does not declare {'; '.join(lacking)}"
    of_torch = [one.name for one in (Capability.CENSUS, Capability.RANKS) if one in needs]
    return str(MissingTorchError.of(of_torch[0])) if of_torch and missing_libraries(("torch",)) else ""


def _fits(checks: Checks, needs: frozenset[Capability], config: CacheConfig) -> bool:
    return (
        checks.components.issubset(config.components)
        and checks.sidecars.issubset(config.sidecars)
        and (not checks.alone or checks.components | checks.sidecars >= {*config.components, *config.sidecars})
        and (checks.page_sizes is None or config.page_size in checks.page_sizes)
        and config.policy in checks.policies
        and (checks.bigram or not config.bigram or Capability.BIGRAM in needs)
        and _fits_host(checks, config)
        and _fits_storage(checks, config)
        and needs_of(config).issuperset(needs)
    )


def _fits_host(checks: Checks, config: CacheConfig) -> bool:
    host = config.host
    if host is None:
        return not checks.is_of_host
    if is_beside_the_device(config) and not checks.is_of_host:
        # Such a cache has no configuration without a host. A test of the device steps no transfer.
        return host.executor is not ExecutorKind.STEPPED
    return (
        checks.is_of_host
        and (host.load_back_threshold_tokens > 0) == checks.load_back_threshold
        and host.write_policy in checks.write_policies
        and (checks.executors is None or host.executor in checks.executors)
        and (checks.layouts or (config.layout, host.layout) == USUAL_LAYOUTS)
    )


def _fits_storage(checks: Checks, config: CacheConfig) -> bool:
    storage = config.storage
    if storage is None:
        return not checks.is_of_storage
    if is_beside_the_device(config) and not checks.is_of_storage:
        return True
    return (
        checks.is_of_storage
        and (storage.extra.prefetch_threshold > 0) == checks.prefetch_threshold
        and (checks.stop_policies is None or storage.stop_policy in checks.stop_policies)
    )


def is_beside_the_device(config: CacheConfig) -> bool:
    """Whether a configuration is of a cache of chunks, which keeps nothing on the device."""
    return geometry_of(config).chunk_tokens is not None


def _wanted(checks: Checks, needs: frozenset[Capability]) -> str:
    words = [*sorted(checks.components | checks.sidecars), *sorted(capability.name for capability in needs)]
    if checks.page_sizes is not None:
        words.append(f"a page size of {' or '.join(map(str, sorted(checks.page_sizes)))}")
    if checks.is_of_host:
        words.append(f"write policy {' or '.join(sorted(policy.value for policy in checks.write_policies))}")
    if checks.executors is not None:
        words.append(f"executor {' or '.join(sorted(executor.value for executor in checks.executors))}")
    if checks.load_back_threshold:
        words.append("a threshold for loads")
    if checks.stop_policies is not None:
        words.append(f"stop policy {' or '.join(sorted(policy.value for policy in checks.stop_policies))}")
    if checks.prefetch_threshold:
        words.append("a threshold for prefetches")
    return ", ".join([*words, f"policy {' or '.join(sorted(policy.value for policy in checks.policies))}"])


def backends_of(config: pytest.Config) -> tuple[BackendSubject, ...]:
    """The backend given by --hicache-backend, or those that ship; none when the run verifies another adapter's cache.

    Raises UsageError for a backend that cannot be found, and for options that cannot be read.
    """
    name, options = BACKEND.text(config), BACKEND_CONFIG.text(config)
    if name is None and options is not None:
        raise pytest.UsageError(f"{BACKEND_CONFIG.source(config)} is given without {BACKEND.flag}")
    if name is None:
        return SHIPPED if adapter_path(config) == DEFAULT_ADAPTER else ()
    include_this_folder()
    try:
        return (read_subject(name, options),)
    except ConfigurationError as error:
        raise pytest.UsageError(f"{BACKEND.source(config)}: {name}: {error}") from error


def contract_of(config: pytest.Config, executions: Sequence[Execution]) -> Mapping[str, Clause]:
    """The clauses that apply to the subject of a run: a backend's if only a backend was tested, or else all."""
    is_about_backend = BACKEND.text(config) is not None
    named = {clause_id for execution in executions for clause_id in execution.clauses}
    return BACKEND_CLAUSES if is_about_backend and named <= BACKEND_CLAUSES.keys() else CONTRACT
