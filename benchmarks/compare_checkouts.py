"""Compare the verbs of two checkouts: what each costs in this one, beside another, such as the commit before a change.

    python -m benchmarks.compare_checkouts ../before --pairs 30 --verbs match_short lock_long

Each checkout has a worker process that imports its own hicache. The two workers do the same work by turns: other, this,
this, other and so on. A worker that has no turn waits, so what slows the machine slows both. Both work on the same
prompts, so their counts must be equal. The exit status is 1 when the counts of a pair differ.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from itertools import product
from pathlib import Path
from statistics import median, quantiles
from time import process_time_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.configurations import standard_configurations
from hicache.types import SHARED, Component, Handle, Key, Slots, Tokens

if TYPE_CHECKING:
    from hicache.testing.caches.reference import ReferenceAdapter

FULL, SWA, MAMBA = (component.value for component in Component)

TIERS = ("device", "host", "storage")
"""The lowest tier of a configuration; each has those before it too."""

CONFIGURATIONS = tuple("/".join(parts) for parts in product(("full/page1", "full+swa+mamba/page16"), TIERS))

ROOM_PAGES, ROOM_STATES = 16_384, 1_024
"""On each tier: nothing is evicted unless a verb does so."""

PROMPTS = 512
PROMPT_PAGES = 16
CHAIN_NODES, CHAIN_NODE_PAGES = 64, 4

SLOWER_MEDIAN = 1.05
"""A verb is reported as slower from this median ratio on, when its lower quartile is above 1 as well."""

RENAMED = {
    "bytes_persisted": "bytes_stored",
    "bytes_fetched": "bytes_prefetched",
    "persists_failed": "stores_failed",
}
"""Counters of earlier commits, and what they are called now."""


def imported(name: str, *modules: str) -> Any:
    """What the worker's own checkout has by this name. `modules`: the present one, then those of earlier commits."""
    for module in modules:
        try:
            return getattr(import_module(module), name)
        except (ModuleNotFoundError, AttributeError):
            continue
    raise ImportError(f"this checkout has no {name} in {', '.join(modules)}")


def reference() -> type[ReferenceAdapter]:
    """The adapter of the reference cache."""
    found: type[ReferenceAdapter] = imported(
        "ReferenceAdapter", "hicache.testing.caches.reference", "hicache.testing.adapters.reference"
    )
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """What an insert takes: a prompt, all its slots, and a MAMBA state, or None without MAMBA."""

    key: Key
    slots: Slots
    state: int | None


class FilledCache:
    """A cache, and the prompts that verbs are called with.

    `base`: a prompt that is always cached. `short`: prompts that begin with it; a verb caches those that it needs, and
    each has a path of two nodes. `fresh`: more of these, never cached before the verb. `unknown`: prompts that share
    nothing with what is cached. `long`: a prompt that is cached as a path of CHAIN_NODES nodes. `held`: slots that the
    caller has, and that `clear` frees.
    """

    def __init__(self, config: CacheConfig) -> None:
        self.config = config
        self.cache: CacheAdapter = reference()(config)
        self._random = np.random.default_rng(0)
        base = self.random_tokens(PROMPT_PAGES)
        self.base = Key(base, SHARED)
        self.short = [Key(np.concatenate((base, own)), SHARED) for own in self._prompts()]
        self.fresh = [Key(np.concatenate((base, own)), SHARED) for own in self._prompts()]
        self.unknown = [Key(own, SHARED) for own in self._prompts()]
        self.long = Key(self.random_tokens(CHAIN_NODES * CHAIN_NODE_PAGES), SHARED)
        self.held: list[Slots] = []

    def random_tokens(self, pages: int) -> Tokens:
        """Token ids of so many pages. With pages of one token too no two prompts here begin with the same page."""
        return self._random.integers(np.iinfo(np.int32).max, size=pages * self.config.page_size, dtype=np.int32)

    def clear(self) -> None:
        """Drop everything on all tiers, and cache `base`."""
        while self.held:
            self.cache.free(self.held.pop())
        self.cache.reset()
        if self.config.storage is not None:
            assert self.cache.clear_storage(), "storage is cleared while nothing is under way"
        self.fill([self.base])

    def fill(self, keys: Sequence[Key]) -> None:
        """Cache these prompts, on all tiers."""
        for key in keys:
            self.insert(self.offer(key))
        self.cache.drain()

    def fill_short(self, count: int) -> list[Key]:
        """Cache so many of `short`, and return them."""
        keys = self.short[:count]
        self.fill(keys)
        return keys

    def fill_long(self) -> Key:
        """Cache `long` node by node, and return it."""
        node_tokens = CHAIN_NODE_PAGES * self.config.page_size
        ends = range(node_tokens, len(self.long.tokens) + 1, node_tokens)
        self.fill([Key(self.long.tokens[:end], SHARED) for end in ends])
        return self.long

    def demote(self) -> None:
        """Evict everything from the device. All of it has a copy on the host."""
        for component in reversed(self.config.components):
            self.cache.evict(component, self.config.capacity_tokens[component])

    def offer(self, key: Key) -> Offer:
        """Match a prompt, and allocate what it lacks."""
        cached = self.cache.match(key, chunked=False).device_indices
        return Offer(key, np.concatenate((cached, self.allocate(len(key.tokens) - len(cached)))), self._state())

    def offer_anew(self, key: Key) -> Offer:
        """Allocate slots for all of a prompt, so that the insert must free what is cached twice."""
        return Offer(key, self.allocate(len(key.tokens)), self._state())

    def insert(self, offer: Offer) -> None:
        """Insert a prompt whose end is not cached."""
        self.cache.insert(offer.key, offer.slots, shared=0, window_start=0, state=offer.state, priority=0)

    def allocate(self, tokens: int) -> Slots:
        """Allocate slots, of which there are enough."""
        slots = self.cache.allocate(tokens)
        assert slots is not None, f"{self.config.name}: {tokens} tokens cannot be allocated"
        return slots

    def match(self, key: Key) -> Handle:
        """The best match of a prompt."""
        return self.cache.match(key, chunked=False).best_match

    def _state(self) -> int | None:
        return self.cache.allocate_state() if MAMBA in self.config.components else None

    def _prompts(self) -> list[Tokens]:
        return [self.random_tokens(PROMPT_PAGES) for _ in range(PROMPTS)]


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """What one sample measures: a call with each of the arguments."""

    call: Callable[[Any], object]
    arguments: Sequence[Any]


# Verbs. Each takes a cache that was cleared, prepares what is not measured, and returns what is.


def match_short(filled: FilledCache) -> Batch:
    return Batch(filled.match, filled.fill_short(128) * 8)


def match_long(filled: FilledCache) -> Batch:
    return Batch(filled.match, [filled.fill_long()] * 128)


def match_nothing(filled: FilledCache) -> Batch:
    return Batch(filled.match, filled.unknown * 2)


def match_on_host(filled: FilledCache) -> Batch:
    keys = filled.fill_short(128)
    filled.demote()
    return Batch(filled.match, keys * 4)


def lock_short(filled: FilledCache) -> Batch:
    nodes = [filled.match(key) for key in filled.fill_short(128)]
    return Batch(lambda node: filled.cache.unlock(filled.cache.lock(node)), nodes * 12)


def lock_long(filled: FilledCache) -> Batch:
    node = filled.match(filled.fill_long())
    return Batch(lambda node: filled.cache.unlock(filled.cache.lock(node)), [node] * 256)


def allocate_and_free(filled: FilledCache) -> Batch:
    tokens = PROMPT_PAGES * filled.config.page_size
    return Batch(lambda _: filled.cache.free(filled.allocate(tokens)), range(1024))


def allocate_from_full(filled: FilledCache) -> Batch:
    """Every slot is in use, so that each call evicts."""
    filled.fill_short(PROMPTS)
    sizes = filled.cache.sizes()
    filled.held.append(filled.allocate(min(sizes[name].free for name in filled.config.components if name != MAMBA)))
    tokens = PROMPT_PAGES * filled.config.page_size
    return Batch(lambda _: filled.held.append(filled.allocate(tokens)), range(PROMPTS))


def insert_new(filled: FilledCache) -> Batch:
    return Batch(filled.insert, [filled.offer(key) for key in filled.fresh])


def insert_overlap(filled: FilledCache) -> Batch:
    """Each prompt splits a node, has duplicates of what is before the split, and a new node after it."""
    half = PROMPT_PAGES // 2
    shared = (PROMPT_PAGES + half) * filled.config.page_size
    cached = filled.fill_short(PROMPTS // 2)
    keys = [Key(np.concatenate((key.tokens[:shared], filled.random_tokens(half))), SHARED) for key in cached]
    return Batch(filled.insert, [filled.offer_anew(key) for key in keys])


def evict(filled: FilledCache) -> Batch:
    """By turns one state, one page of the window, and the pages of one prompt."""
    filled.fill_short(PROMPTS)
    page = filled.config.page_size
    amounts = {MAMBA: 1, SWA: page, FULL: PROMPT_PAGES * page}
    turns = [(name, amounts[name]) for name in reversed(filled.config.components)]
    return Batch(lambda turn: filled.cache.evict(*turn), turns * (PROMPTS // len(turns)))


def reset(filled: FilledCache) -> Batch:
    """One call on a cache with PROMPTS prompts."""
    filled.fill_short(PROMPTS)
    return Batch(lambda _: filled.cache.reset(), range(1))


def release_window(filled: FilledCache) -> Batch:
    """Release the first half of a prompt's SWA partners."""
    tokens = PROMPT_PAGES * filled.config.page_size
    filled.held += [filled.allocate(tokens) for _ in range(256)]
    return Batch(filled.cache.release_window, [slots[: tokens // 2] for slots in filled.held])


def fork_state(filled: FilledCache) -> Batch:
    """Copy a node's state to a slot of the caller's own, and free the slot."""
    nodes = [filled.match(key) for key in filled.fill_short(64)]

    def fork(node: Handle) -> None:
        slot = filled.cache.fork_state(node)
        assert slot is not None, f"{filled.config.name}: no slot for a state"
        filled.cache.free_state(slot)

    return Batch(fork, nodes * 4)


def run_request(filled: FilledCache) -> Batch:
    """Admit a request, cache its prompt, extend it by a page, and finish it."""
    cache, page = filled.cache, filled.random_tokens(1)

    def run(key: Key) -> None:
        admission = cache.admit(key)
        assert admission is not None, f"{filled.config.name}: a request of {len(key.tokens)} tokens is not admitted"
        cache.checkpoint(admission.request, len(key.tokens))
        cache.extend(admission.request, page)
        cache.finish(admission.request)

    return Batch(run, filled.fresh[:128])


def lock_on_host(filled: FilledCache) -> Batch:
    nodes = [filled.match(key) for key in filled.fill_short(128)]
    return Batch(lambda node: filled.cache.unlock_host(filled.cache.lock_host(node)), nodes * 4)


def evict_host(filled: FilledCache) -> Batch:
    """As `evict`, of prompts that are on the host alone."""
    filled.fill_short(PROMPTS)
    filled.demote()
    page = filled.config.page_size
    amounts = {MAMBA: 1, SWA: page, FULL: PROMPT_PAGES * page}
    turns = [(name, amounts[name]) for name in reversed(filled.config.components)]
    return Batch(lambda turn: filled.cache.evict_host(*turn), turns * (PROMPTS // len(turns)))


def step_idle(filled: FilledCache) -> Batch:
    return Batch(lambda _: filled.cache.step(), range(1024))


def back_up(filled: FilledCache) -> Batch:
    """Insert a prompt and drain. With a storage tier the prompt is written to storage too."""

    def insert(offer: Offer) -> None:
        filled.insert(offer)
        filled.cache.drain()

    return Batch(insert, [filled.offer(key) for key in filled.fresh[:48]])


def load_back(filled: FilledCache) -> Batch:
    keys = filled.fill_short(64)
    filled.demote()

    def load(node: Handle) -> None:
        loading = filled.cache.load_back(node, quota=None)
        assert loading is not None, f"{filled.config.name}: a prompt that is on the host alone is not loaded back"
        filled.cache.drain()
        assert filled.cache.claim(loading.ticket) is not None, f"{filled.config.name}: the load-back failed"

    return Batch(load, [filled.match(key) for key in keys])


def prefetch(filled: FilledCache) -> Batch:
    keys = filled.fill_short(32)
    filled.cache.reset()

    def fetch(key: Key) -> None:
        operation = filled.cache.prefetch(key)
        assert operation is not None, f"{filled.config.name}: the prefetch is refused"
        filled.cache.drain()
        assert filled.cache.check_prefetch(operation), f"{filled.config.name}: the prefetch brings nothing"

    return Batch(fetch, keys)


Verb = Callable[[FilledCache], Batch]

VERBS_BY_TIER: Mapping[str, tuple[Verb, ...]] = {
    "device": (
        *(match_short, match_long, match_nothing, lock_short, lock_long, allocate_and_free, allocate_from_full),
        *(insert_new, insert_overlap, evict, reset, release_window, fork_state, run_request),
    ),
    "host": (match_on_host, lock_on_host, evict_host, step_idle, back_up, load_back),
    "storage": (prefetch,),
}

COMPONENT_OF: Mapping[Verb, str] = {release_window: SWA, fork_state: MAMBA}
"""The component that a configuration must have for the verb."""

VERBS = {verb.__name__: verb for verbs in VERBS_BY_TIER.values() for verb in verbs}


def has_verb(configuration: str, verb: str) -> bool:
    """Whether a configuration has the tier and the component that the verb needs."""
    components, _, tier = configuration.split("/")
    is_on_tier = any(VERBS[verb] in VERBS_BY_TIER[above] for above in TIERS[: TIERS.index(tier) + 1])
    return is_on_tier and COMPONENT_OF.get(VERBS[verb], FULL) in components.split("+")


def with_tier(tier: str, config: CacheConfig) -> CacheConfig:
    """Add a tier, by the function of the worker's own checkout. Earlier ones have it in a module for each tier."""
    modules = ("hicache.testing.configurations", f"hicache.testing.{tier}_configurations")
    added: CacheConfig = imported(f"with_{tier}", *modules)(config)
    return added


def config_named(name: str) -> CacheConfig:
    """One of CONFIGURATIONS: a standard configuration, with room for all that is cached."""
    standard, _, tier = name.rpartition("/")
    every = standard_configurations(frozenset(Capability))
    config = next(config for config in every if config.name == f"{standard}/lru")
    tokens = ROOM_PAGES * config.page_size
    room = {component: ROOM_STATES if component == MAMBA else tokens for component in config.components}
    config = replace(config, capacity_tokens=room, events=False)
    if tier != "device":
        config = with_tier("host", config)
        assert config.host is not None, "a host tier was added"
        config = replace(config, host=replace(config.host, capacity_tokens=room))
    if tier == "storage":
        config = with_tier("storage", config)
        assert config.storage is not None, "a storage tier was added"
        config = replace(config, storage=replace(config.storage, limit_tokens=room[FULL]))
    return config


# The worker process.


@dataclass(frozen=True, slots=True)
class Sample:
    """The CPU time of one call in microseconds, the mean over a batch; and what the batch added to the counters."""

    call_us: float
    counts: dict[str, int]


def take_sample(filled: FilledCache, verb: Verb) -> Sample:
    """Clear the cache, and measure a batch of calls. The garbage collector runs before, not meanwhile."""
    filled.clear()
    batch = verb(filled)
    call, before = batch.call, filled.cache.counters()
    gc.collect()
    gc.disable()
    begin = process_time_ns()
    for argument in batch.arguments:
        call(argument)
    taken_ns = process_time_ns() - begin
    gc.enable()
    after = filled.cache.counters()
    counts = {RENAMED.get(name, name): count - before[name] for name, count in after.items() if count != before[name]}
    return Sample(taken_ns / 1000 / len(batch.arguments), counts)


def serve() -> None:
    """Answer each line of the standard input, a verb and a configuration, with a sample."""
    print_line(inspect.getfile(reference()))
    # What was imported is not looked at by any collection.
    gc.freeze()
    opened, filled = "", None
    for line in sys.stdin:
        verb, configuration = json.loads(line)
        if filled is None or configuration != opened:
            if filled is not None:
                filled.cache.close()
            opened, filled = configuration, FilledCache(config_named(configuration))
        print_line(asdict(take_sample(filled, VERBS[verb])))


def print_line(value: object) -> None:
    """Write a value to the standard output, as a line of JSON."""
    sys.stdout.write(f"{json.dumps(value)}\n")
    sys.stdout.flush()


# The parent process.


class Worker:
    """A process that measures the hicache of one checkout, with one thread for torch."""

    def __init__(self, checkout: Path) -> None:
        self._checkout = checkout.resolve(strict=True)

    def __enter__(self) -> Worker:  # noqa: PYI034 - 3.10 has no Self
        single = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), "--worker"],
            cwd=self._checkout,
            env={**os.environ, **single, "PYTHONPATH": str(self._checkout)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()

    def require_own_hicache(self) -> None:
        """Raise RuntimeError unless the worker imported the hicache of its checkout."""
        adapter = Path(self._answer())
        if self._checkout not in adapter.parents:
            raise RuntimeError(f"the worker of {self._checkout} imported {adapter}")

    def sample(self, verb: str, configuration: str) -> Sample:
        """Let the worker measure one batch. Raises RuntimeError when it ended."""
        assert self._process.stdin is not None, "the standard input is a pipe"
        self._process.stdin.write(f"{json.dumps([verb, configuration])}\n")
        self._process.stdin.flush()
        return Sample(**self._answer())

    def _answer(self) -> Any:
        assert self._process.stdout is not None, "the standard output is a pipe"
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker of {self._checkout} ended with status {self._process.wait()}")
        return json.loads(line)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The samples of one verb and configuration, pair by pair: of the other checkout and of this one."""

    verb: str
    configuration: str
    pairs: list[tuple[Sample, Sample]]

    @property
    def ratios(self) -> list[float]:
        """By pair: how many times as long this checkout takes as the other."""
        return sorted(this.call_us / other.call_us for other, this in self.pairs)

    @property
    def has_equal_counts(self) -> bool:
        """Whether both checkouts did the same work in each pair."""
        return all(other.counts == this.counts for other, this in self.pairs)

    def lines(self) -> Iterator[str]:
        """The line of times and ratios, and the line of counts."""
        other_us, this_us = (median(sample.call_us for sample in side) for side in zip(*self.pairs, strict=True))
        ratios = self.ratios
        lower, middle, upper = quantiles(ratios, n=4, method="inclusive")
        minima = min(this.call_us for _, this in self.pairs) / min(other.call_us for other, _ in self.pairs)
        spread = " ".join(f"{ratio:6.3f}" for ratio in (minima, middle, ratios[0], lower, upper, ratios[-1]))
        slower = "  slower" if middle > SLOWER_MEDIAN and lower > 1 else ""
        yield f"{self.verb:18} {self.configuration:29} {other_us:10.2f} {this_us:10.2f}  {spread}{slower}"
        other, this = next(((other, this) for other, this in self.pairs if other.counts != this.counts), self.pairs[0])
        if self.has_equal_counts:
            yield f"    counts equal: {_listed(other.counts)}"
        else:
            yield f"    counts differ: other {_listed(other.counts)}; this {_listed(this.counts)}"


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"


HEADER = (
    f"{'verb':18} {'configuration':29} {'other us':>10} {'this us':>10}  "
    f"{'minima':>6} {'median':>6} {'least':>6} {'lower':>6} {'upper':>6} {'most':>6}"
)
"""Times are medians of the CPU time of one call. Ratios are this to other: of the shortest times of both, which other
processes disturb least; then of the pairs the median, the least, the quartiles and the most."""


def compare(other: Worker, this: Worker, verb: str, configuration: str, pairs: int) -> Comparison:
    """Take samples by turns. A first pair is left out: it fills the caches of the machine."""
    found: list[tuple[Sample, Sample]] = []
    for number in range(pairs + 1):
        if number % 2:
            of_this = this.sample(verb, configuration)
            of_other = other.sample(verb, configuration)
        else:
            of_other = other.sample(verb, configuration)
            of_this = this.sample(verb, configuration)
        found.append((of_other, of_this))
    return Comparison(verb, configuration, found[1:])


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """The arguments of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare_checkouts", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("other", type=Path, metavar="OTHER_CHECKOUT", help="the folder that holds the other hicache")
    parser.add_argument("--pairs", type=int, default=30, help="samples of each checkout (default 30, at least 2)")
    parser.add_argument("--verbs", nargs="+", choices=VERBS, default=list(VERBS), metavar="VERB", help=" ".join(VERBS))
    parser.add_argument(
        "--configurations",
        nargs="+",
        choices=CONFIGURATIONS,
        default=CONFIGURATIONS,
        metavar="CONFIGURATION",
        help=" ".join(CONFIGURATIONS),
    )
    options = parser.parse_args(arguments)
    if options.pairs < 2:
        parser.error(f"--pairs must be at least 2, got {options.pairs}")
    return options


def main(arguments: Sequence[str]) -> int:
    """Print the comparison of each verb in each configuration that has it."""
    options = parsed(arguments)
    has_equal_counts = True
    with Worker(options.other) as other, Worker(Path(__file__).parent.parent) as this:
        for worker in (other, this):
            worker.require_own_hicache()
        sys.stdout.write(f"{HEADER}\n")
        for configuration, verb in product(options.configurations, options.verbs):
            if has_verb(configuration, verb):
                comparison = compare(other, this, verb, configuration, options.pairs)
                sys.stdout.writelines(f"{line}\n" for line in comparison.lines())
                sys.stdout.flush()
                has_equal_counts = has_equal_counts and comparison.has_equal_counts
    return 0 if has_equal_counts else 1


if __name__ == "__main__":
    if sys.argv[1:] == ["--worker"]:
        serve()
    else:
        sys.exit(main(sys.argv[1:]))
