"""Replay of traces on any cache, with law checks during the replay and the limits of every policy with the result."""

from hicache.testing.replay.configuration import NEVER, UNLIMITED, HostSettings, ReplaySettings, StorageSettings
from hicache.testing.replay.limits import Survey, lru_hit_tokens, optimal_hit_tokens, survey
from hicache.testing.replay.outcome import HostOutcome, ReplayOutcome, StorageOutcome
from hicache.testing.replay.report import write_report, write_state_comparison
from hicache.testing.replay.run import replay
from hicache.testing.replay.sample import Sample, replay_sample, samples
from hicache.testing.replay.states import StateComparison, StateReplay, compare_states, generated_traces
from hicache.testing.replay.tally import TallyPart

__all__ = [
    "NEVER",
    "UNLIMITED",
    "HostOutcome",
    "HostSettings",
    "ReplayOutcome",
    "ReplaySettings",
    "Sample",
    "StateComparison",
    "StateReplay",
    "StorageOutcome",
    "StorageSettings",
    "Survey",
    "TallyPart",
    "compare_states",
    "generated_traces",
    "lru_hit_tokens",
    "optimal_hit_tokens",
    "replay",
    "replay_sample",
    "samples",
    "survey",
    "write_report",
    "write_state_comparison",
]
