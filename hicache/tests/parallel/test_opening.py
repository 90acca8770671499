"""Opening a cache on several ranks: if one rank fails, no cache stays open, and every rank raises an error."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from hicache.cache import UnifiedRadixCache
from hicache.clock import VirtualClock
from hicache.config import CacheConfig
from hicache.errors import ConfigurationError, RankError
from hicache.parallel.agree import Agreement
from hicache.runtime import Runtime
from hicache.storage.registry import open_backend
from hicache.testing.ranks.world import Mesh, Team
from hicache.tests.tiers.stored_cache import stored_config
from hicache.transfer.executors import ThreadExecutor
from hicache.transfer.job import CopyWorker

FAILING = 1


class NoRoomError(Exception):
    """An error of a machine that has no more memory, threads or disk space."""


def refuse(*_: Any) -> Any:
    raise NoRoomError("there is none left")


@pytest.fixture
def team() -> Iterator[Team]:
    team = Team(Mesh(tp_size=2, cp_size=1, pp_size=1), timeout_s=20.0)
    yield team
    team.close()


def outcomes(team: Team, openers: Callable[[int], Mapping[str, Any]]) -> list[BaseException | None]:
    """The error of each rank when all open a cache, or None; a cache that was opened is closed again."""

    def opens(rank: int) -> BaseException | None:
        parts = openers(rank)
        agreement = Agreement(team.worlds[rank].groups(dict))
        runtime = Runtime(parts["executor"], parts["storage"], parts["backend"], VirtualClock())
        try:
            agreement.together(
                lambda: UnifiedRadixCache.open(parts["config"], runtime, agreement),
                UnifiedRadixCache.close,
                "open",
            ).close()
        except Exception as error:  # noqa: BLE001 - the test compares it
            return error
        return None

    return team.each(opens)


def openers(usual_config: CacheConfig, **failing: Any) -> Callable[[int], Mapping[str, Any]]:
    """By rank, the parts a cache is opened with. `failing`: the parts that differ on rank FAILING."""
    usual = {
        "config": usual_config,
        "executor": lambda kind, copier: ThreadExecutor(kind.value, CopyWorker(copier).rest),
        "storage": lambda name, worker: ThreadExecutor(name, worker.step),
        "backend": lambda scope: open_backend("memory", scope, {}),
    }
    return lambda rank: {**usual, **failing} if rank == FAILING else usual


@pytest.mark.parametrize("part", ["executor", "storage", "backend"])
def test_a_rank_that_cannot_open_a_part_is_named_on_the_others_and_no_thread_stays(team: Team, part: str) -> None:
    before = set(threading.enumerate())
    team.each(lambda _: None)
    own, other = reversed(outcomes(team, openers(stored_config(), **{part: refuse})))
    assert isinstance(own, NoRoomError), f"RANK-2: expected rank {FAILING} to raise its own error, got {own!r}"
    assert isinstance(other, RankError), f"RANK-2: expected the other rank to raise a RankError, got {other!r}"
    expected = f"rank {FAILING} of 2 failed (open)"
    assert str(other) == expected, f"RANK-8: expected {expected!r}, got {other}"
    left = [thread.name for thread in set(threading.enumerate()) - before if not thread.name.startswith("rank")]
    assert not left, f"expected no thread to run after the failed opening, got {left}"


def test_an_unknown_component_on_one_rank_is_refused_on_every_rank(team: Team) -> None:
    config = stored_config()
    assert config.host is not None, "expected a configuration with a host tier"
    strange = replace(
        config,
        components=(*config.components, "odd"),
        capacity_tokens={**config.capacity_tokens, "odd": config.page_size},
        host=replace(config.host, capacity_tokens={**config.host.capacity_tokens, "odd": config.page_size}),
    )
    for rank, error in enumerate(outcomes(team, openers(config, config=strange))):
        assert isinstance(error, ConfigurationError), f"RANK-2: expected a ConfigurationError on rank {rank}: {error!r}"
