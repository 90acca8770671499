"""compare_states: the hit rates of the policies of states of MAMBA, on traces and at shares of what they need."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hicache.config import EvictionPolicy, Recency
from hicache.testing.adapter import CacheAdapter
from hicache.testing.replay.configuration import UNLIMITED, ReplaySettings
from hicache.testing.replay.run import replay
from hicache.testing.traces import AGENTS, SHORT_TRACE, Trace, generate_agents, generate_trace, write_trace
from hicache.types import Component

CAPACITIES = ("5%", "10%", "25%")
"""States, as a share of the requests of a trace. FULL has room for the whole trace."""

INTERVAL_TOKENS = 2048

KEPT: Mapping[str, tuple[int | None, int | None]] = {
    "ends and forks": (None, None),
    f"every {INTERVAL_TOKENS:,} tokens": (INTERVAL_TOKENS, None),
    "one of a path": (None, 1),
}
"""What a request keeps, by name: the interval of its checkpoints, and the most states of its path."""

SEED = 1


@dataclass(frozen=True, slots=True)
class StatePolicy:
    """Which states are kept, by its name in `KEPT`, and which of them a use refreshes."""

    kept: str
    recency: Recency

    @property
    def name(self) -> str:
        """Both, for tables."""
        return f"{self.kept}, {self.recency.value}"


@dataclass(frozen=True, slots=True)
class StateReplay:
    """One replay of one policy. `capacity`: of `CAPACITIES`. Rates are shares of the input tokens, from 0 to 1.

    `unlimited_hit_rate`: of a cache with a state after each page that never loses any. `pinned_tokens`, `broken`: as in
    ReplayOutcome.
    """

    trace: str
    capacity: str
    policy: StatePolicy
    hit_rate: float
    unlimited_hit_rate: float
    pinned_tokens: Mapping[str, int]
    broken: str | None


@dataclass(frozen=True, slots=True)
class StateComparison:
    """Replays of every policy on the same traces and capacities. `requests`: by trace, how many were replayed."""

    adapter: str
    running: int
    requests: Mapping[str, int]
    replays: Sequence[StateReplay]

    @property
    def policies(self) -> list[StatePolicy]:
        """The policies, in the order of the replays."""
        return list(dict.fromkeys(one.policy for one in self.replays))

    def of(self, policy: StatePolicy) -> list[StateReplay]:
        """The replays of one policy, by trace and capacity."""
        return [one for one in self.replays if one.policy == policy]

    def worst_loss(self, policy: StatePolicy) -> float:
        """By how much the policy is below the best one, where it is worst."""
        rates = [[one.hit_rate for one in self.of(other)] for other in self.policies]
        best: list[float] = [max(at_one_place) for at_one_place in zip(*rates, strict=True)]
        return max(most - one.hit_rate for most, one in zip(best, self.of(policy), strict=True))

    def pinned(self, policy: StatePolicy, component: str) -> int:
        """The most that locks pinned of a component in any replay of the policy."""
        return max(one.pinned_tokens.get(component, 0) for one in self.of(policy))


def policies(adapter: type[CacheAdapter]) -> list[StatePolicy]:
    """The policies that a cache has: its recencies, and a limit of states for a path where it obeys one."""
    can_limit = "mamba_max_states_per_path" in adapter.state_options
    kept = [name for name, (_, most) in KEPT.items() if most is None or can_limit]
    return [StatePolicy(name, recency) for name in kept for recency in adapter.recencies]


def generated_traces(directory: Path) -> list[Trace]:
    """The generated conversations and agents, written to a folder."""
    conversations, agents = directory / "conversations.jsonl", directory / "agents.jsonl"
    write_trace(conversations, generate_trace(replace(SHORT_TRACE, requests=AGENTS.requests), SEED))
    write_trace(agents, generate_agents(AGENTS, SEED))
    return [Trace(path, skip_bad=False, limit=None) for path in (conversations, agents)]


def compare_states(
    traces: Sequence[Trace], adapter: type[CacheAdapter], running: int, on_replay: Callable[[StateReplay], None]
) -> StateComparison:
    """Replay each trace with each policy at each of `CAPACITIES`, in pages of the trace's blocks, on the device.

    `on_replay`: called after each replay. Raises the errors of `replay`.
    """
    replays: list[StateReplay] = []
    requests: dict[str, int] = {}
    for trace, policy, capacity in _runs(traces, policies(adapter)):
        interval, most = KEPT[policy.kept]
        settings = ReplaySettings(
            page_size=next(iter(trace)).block_tokens,
            capacity=UNLIMITED,
            components=(Component.FULL.value, Component.MAMBA.value),
            policy=EvictionPolicy.LRU,
            sliding_window_size=1,
            running=running,
            check_every=0,
            host=None,
            storage=None,
            recency=policy.recency,
            mamba_checkpoint_interval=interval,
            mamba_max_states_per_path=most,
            mamba_capacity=capacity,
        )
        found = replay(trace, adapter, settings, None)
        requests[found.trace] = found.requests
        rates = found.hit_rate, found.device_lru_hit_rate
        replays.append(StateReplay(found.trace, capacity, policy, *rates, found.pinned_tokens, found.broken))
        on_replay(replays[-1])
    return StateComparison(f"{adapter.__module__}:{adapter.__qualname__}", running, requests, replays)


def _runs(traces: Sequence[Trace], chosen: Sequence[StatePolicy]) -> Iterator[tuple[Trace, StatePolicy, str]]:
    return ((trace, policy, capacity) for trace in traces for policy in chosen for capacity in CAPACITIES)
