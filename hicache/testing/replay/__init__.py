"""Replay of traces on any cache, with law checks during the replay and the limits of every policy with the result."""

from hicache.testing.replay.configuration import UNLIMITED, HostSettings, ReplaySettings
from hicache.testing.replay.lru import lru_hit_tokens
from hicache.testing.replay.optimum import optimal_hit_tokens
from hicache.testing.replay.outcome import HostOutcome, ReplayOutcome
from hicache.testing.replay.part import Part
from hicache.testing.replay.report import write_report
from hicache.testing.replay.run import replay
from hicache.testing.replay.sample import Sample, replay_sample, samples
from hicache.testing.replay.storage import NEVER, StorageSettings
from hicache.testing.replay.storage_outcome import StorageOutcome
from hicache.testing.replay.survey import Survey, survey

__all__ = [
    "NEVER",
    "UNLIMITED",
    "HostOutcome",
    "HostSettings",
    "Part",
    "ReplayOutcome",
    "ReplaySettings",
    "Sample",
    "StorageOutcome",
    "StorageSettings",
    "Survey",
    "lru_hit_tokens",
    "optimal_hit_tokens",
    "replay",
    "replay_sample",
    "samples",
    "survey",
    "write_report",
]
