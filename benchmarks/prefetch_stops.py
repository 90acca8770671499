"""What the stop policies of prefetches save: hits and bytes of replays, by components and policy, as a table.

    python -m benchmarks.prefetch_stops

The trace is the one that ships with the kit, cut to whole blocks, so that a state at the end of a prompt is of use to
the next turn. Transfers are stepped, and the clock is the cache's: the figures are the same on every machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from hicache.config import EvictionPolicy, ExecutorKind, Layout, WritePolicy
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.testing.replay import HostSettings, ReplayOutcome, ReplaySettings, StorageSettings, replay
from hicache.testing.traces import BLOCK_TOKENS, SHIPPED_TRACE, Trace, TraceRequest, write_trace
from hicache.types import Component, StopPolicy, Tier

FULL, SWA, MAMBA = (component.value for component in Component)

TITLES = (
    "components",
    "stop policy",
    "steps",
    "hit rate",
    "tokens from storage",
    "bytes prefetched",
    "bytes backed up",
    "cut",
)

COMPONENTS = ((FULL,), (FULL, SWA), (FULL, MAMBA))

EXTRA = '{"prefetch_timeout_base": 0.016, "prefetch_timeout_per_ki_token": 0}'
"""The policy `timeout` waits for 16 steps of a millisecond."""

WAITS = (
    (StopPolicy.BEST_EFFORT, 4),
    (StopPolicy.BEST_EFFORT, 8),
    (StopPolicy.TIMEOUT, 8),
    (StopPolicy.WAIT_COMPLETE, 8),
)
"""The policies, and how many steps pass before they are asked. In one, storage answers a query or reads a batch."""


def whole_blocks(trace: Trace) -> Iterator[TraceRequest]:
    """The requests without their last, incomplete block."""
    for request in trace:
        blocks = request.input_length // BLOCK_TOKENS
        if blocks:
            yield replace(request, input_length=blocks * BLOCK_TOKENS, hash_ids=request.hash_ids[:blocks])


def settings(components: tuple[str, ...], policy: StopPolicy, steps: int) -> ReplaySettings:
    """Small pages, so that a prompt is several batches long, and a restart, after which storage has all prompts."""
    return ReplaySettings(
        page_size=4,
        capacity="25%",
        components=components,
        policy=EvictionPolicy.LRU,
        sliding_window_size=256,
        running=8,
        check_every=0,
        host=HostSettings("25%", WritePolicy.WRITE_THROUGH, Layout.PAGE_FIRST, ExecutorKind.STEPPED),
        storage=StorageSettings("memory", EXTRA, policy, steps, 0.5),
    )


def figures(outcome: ReplayOutcome) -> tuple[str, ...]:
    """What the table says of a replay."""
    assert outcome.storage is not None, "the replay has storage"
    assert outcome.broken is None, f"{outcome.configuration}: {outcome.broken}"
    counted: Counter[str] = Counter()
    for part in outcome.storage.parts:
        counted.update(part.counters)
    return (
        f"{outcome.hit_rate:.2%}",
        f"{outcome.hit_tokens[Tier.STORAGE.value]:,}",
        f"{counted['bytes_prefetched']:,}",
        f"{counted['bytes_backed_up']:,}",
        f"{counted['prefetches_cut']}",
    )


def main() -> None:
    """Print the table."""
    print(f"| {' | '.join(TITLES)} |\n|{'---|' * len(TITLES)}")  # noqa: T201
    with TemporaryDirectory() as directory:
        path = Path(directory) / "trace.jsonl"
        write_trace(path, whole_blocks(Trace(SHIPPED_TRACE, skip_bad=False, limit=None)))
        trace = Trace(path, skip_bad=False, limit=None)
        for components, (policy, steps) in product(COMPONENTS, WAITS):
            outcome = replay(trace, ReferenceAdapter, settings(components, policy, steps), progress=None)
            cells = ("+".join(components).upper(), policy.value, str(steps), *figures(outcome))
            print(f"| {' | '.join(cells)} |", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
