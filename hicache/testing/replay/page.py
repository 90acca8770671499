"""The page of a replay: its figures, each with its meaning, its plot, and the latencies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hicache.testing.replay.outcome import HostOutcome, ReplayOutcome, StorageOutcome
from hicache.testing.replay.tally import share
from hicache.testing.report.pages import data_address, templates
from hicache.types import Component


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a replay, as text, and what it means."""

    name: str
    value: str
    meaning: str


def render_replay(outcome: ReplayOutcome, picture: bytes, data: str) -> str:
    """Render the page. `picture`: the plot as SVG. `data`: the name of the JSON file beside the page."""
    template = templates(Path(__file__).parent / "templates").get_template("replay.html")
    return template.render(outcome=outcome, figures=list(figures(outcome)), picture=data_address(picture), data=data)


def figures(outcome: ReplayOutcome) -> Iterator[Figure]:
    """The totals of a replay, in the order in which they are shown."""
    yield Figure("device capacity", _listed(outcome.capacity_tokens), "Slots that can be allocated, by component.")
    if outcome.host is not None:
        yield Figure("host capacity", _listed(outcome.host.capacity_tokens), "The same on the host.")
    yield Figure(
        "distinct pages", f"{outcome.footprint_tokens:,} tokens", "What a cache would hold that never evicts a page."
    )
    requests = f"{outcome.requests:,}, of which too large: {outcome.too_large:,}"
    yield Figure("requests", requests, "A request is too large when it does not fit an empty cache. It is skipped.")
    yield Figure("skipped lines", f"{outcome.skipped_lines:,}", "Lines of the trace without a valid request.")
    yield Figure("input", f"{outcome.input_tokens:,} tokens", "The tokens of all prompts. Rates are shares of these.")
    yield from _hits(outcome)
    evicted = _tokens(outcome.evicted_tokens)
    yield Figure("evicted", evicted, "FULL data that left the device, also where a lower tier kept a copy.")
    if outcome.pinned_tokens:
        yield Figure("locked", _listed(outcome.pinned_tokens), "The most that requests locked on the device at a time.")
    if outcome.host is not None:
        yield from _moved(outcome.host)
    if outcome.storage is not None:
        yield from _stored(outcome.storage)
    yield Figure("checks", _checks(outcome), "How often every law was checked on the whole cache.")
    spent = f"{outcome.seconds:.1f} s, peak {outcome.peak_rss_bytes / 2**30:.2f} GiB"
    yield Figure("time and memory", spent, "Of the replay with its checks, on the machine that it ran on.")


def _hits(outcome: ReplayOutcome) -> Iterator[Figure]:
    meaning = {
        "device": "Prompt tokens that were in device memory.",
        "host": "Prompt tokens that were loaded back from host memory.",
        "storage": "Prompt tokens that were prefetched from storage for their request.",
    }
    for tier, tokens in outcome.hit_tokens.items():
        yield Figure(f"hits on {tier}", f"{tokens:,} tokens, {outcome.hit_rates[tier]:.2%}", meaning[tier])
    yield Figure("hit rate", f"{outcome.hit_rate:.2%}", "All tiers together.")
    yield from _misses(outcome)
    above = "" if outcome.storage is None else " on device and host"
    device_alone = "" if outcome.host is None else f", {outcome.device_lru_hit_rate:.2%} on the device alone"
    yield Figure(
        "block-level LRU",
        f"{outcome.lru_hit_rate:.2%}{above}{device_alone}",
        "A plain LRU list of pages with the same capacity. It shares no code with the cache under test.",
    )
    if not outcome.broken and outcome.hit_rate < outcome.lru_hit_rate:
        gap = f"{outcome.lru_hit_rate - outcome.hit_rate:.2%} of the input tokens"
        reasons = "The LRU counts pages of FULL, and each prompt as cached at once. A gap is not a failure. "
        yield Figure("below that LRU", gap, reasons + " ".join(_beside_lru(outcome)))
    yield Figure(
        "offline optimum",
        f"{outcome.optimal_hit_rate:.2%}{above}",
        "A cache of the same capacity that knows the future and evicts what is needed last (Belady).",
    )


def _misses(outcome: ReplayOutcome) -> Iterator[Figure]:
    """What became of the tokens that were not hit. With the hits they are all of the input."""
    cut = "Prompt tokens that FULL has, and that cannot be used for want of this component."
    parts = [(f"refused by {name}", tokens, cut) for name, tokens in (outcome.refused_tokens or {}).items()]
    parts.append(
        (outcome.lost_name, outcome.lost_tokens, "Prompt tokens that an earlier request computed, and that are gone.")
    )
    parts.append(("never seen", outcome.unseen_tokens, "Prompt tokens that no earlier request computed."))
    for name, tokens, meaning in parts:
        yield Figure(name, f"{tokens:,} tokens, {share(tokens, outcome.input_tokens):.2%}", meaning)


def _beside_lru(outcome: ReplayOutcome) -> Iterator[str]:
    """What bounds the hits of this replay and not those of the LRU."""
    if states := outcome.capacity_tokens.get(Component.MAMBA):
        room = f"there is room for {states:,}, and {outcome.requests:,} requests came"
        yield f"A hit must end where a recurrent state is kept: {room}."
    if window := outcome.capacity_tokens.get(Component.SWA):
        yield f"A hit needs the SWA data of the window before its end: there is room for {window:,} tokens."
    if outcome.too_large:
        yield f"{outcome.too_large:,} requests were too large, and had no hits."
    if outcome.running > 1:
        yield f"Up to {outcome.running} requests run at a time, and hold slots that cannot be evicted."
    if outcome.storage is not None and outcome.storage.restarted:
        yield "At the restart the device and the host were emptied."


def _moved(host: HostOutcome) -> Iterator[Figure]:
    backed_up = _bytes(host.bytes_backed_up, host.bytes_per_token)
    yield Figure("backed up", backed_up, "Copied from the device to the host, in all layers and pools.")
    yield Figure("loaded back", _bytes(host.bytes_loaded, host.bytes_per_token), "Copied from the host to the device.")
    yield Figure("backups refused", count(host.backups_refused), "Back-ups that found no room on the host.")


def _stored(storage: StorageOutcome) -> Iterator[Figure]:
    prefetched = f"{count(storage.total('bytes_prefetched'))} bytes, {count(storage.total('fetched_tokens'))} tokens"
    prefetches = f"{count(storage.total('prefetches'))}, refused {count(storage.total('prefetches_refused'))}"
    yield Figure("stored", f"{count(storage.total('bytes_stored'))} bytes", "Written to the backend.")
    yield Figure("prefetched", prefetched, "Read from the backend to the host, whether a request used it or not.")
    yield Figure("prefetches", prefetches, "Refused: too many tokens are in flight, or no host slots are left.")
    yield Figure(
        "unlimited cache", f"{storage.unbounded_hit_rate:.2%}", "The hit rate of a cache that never loses a page."
    )


def count(number: int | None) -> str:
    """A count, or `unknown` when the cache does not count it."""
    return "unknown" if number is None else f"{number:,}"


def _listed(capacity_tokens: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size:,}" for name, size in capacity_tokens.items())


def _tokens(number: int | None) -> str:
    return "unknown" if number is None else f"{number:,} tokens"


def _bytes(number: int | None, bytes_per_token: int | None) -> str:
    if number is None:
        return "unknown"
    in_tokens = f", equal to {number // bytes_per_token:,} tokens of full" if bytes_per_token else ""
    return f"{number:,} bytes{in_tokens}"


def _checks(outcome: ReplayOutcome) -> str:
    if outcome.broken is not None:
        return "an invariant was violated"
    return f"{outcome.checks} of the whole cache, all passed" if outcome.checks else "none: the adapter has no snapshot"
