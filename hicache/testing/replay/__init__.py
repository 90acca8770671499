"""Replay of traces on any cache, with the laws checked on the way and the limits of every policy beside the result."""

from hicache.testing.replay.configuration import UNLIMITED, ReplaySettings
from hicache.testing.replay.lru import lru_hit_tokens
from hicache.testing.replay.optimum import optimal_hit_tokens
from hicache.testing.replay.outcome import ReplayOutcome
from hicache.testing.replay.report import write_report
from hicache.testing.replay.run import replay
from hicache.testing.replay.sample import replay_sample, sample_settings
from hicache.testing.replay.survey import Survey, survey

__all__ = [
    "UNLIMITED",
    "ReplayOutcome",
    "ReplaySettings",
    "Survey",
    "lru_hit_tokens",
    "optimal_hit_tokens",
    "replay",
    "replay_sample",
    "sample_settings",
    "survey",
    "write_report",
]
