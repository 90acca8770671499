"""Passes: the same tasks over one cache, whose tiers lose what they hold one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hicache.config import CacheConfig, WritePolicy
from hicache.types import Tier

from ..engine.cache_room import device_config, with_host, with_storage
from ..engine.served_model import ServedModel
from ..stage import OpenCache, Stage
from .evaluate import evaluate
from .scored_pass import ScoredPass
from .vocabulary import Vocabulary

FAULTS: Mapping[str, float] = {"error": 0.03, "partial": 0.1, "short": 0.05, "torn": 0.1, "gone": 0.05}
"""How likely each is, of a call or of a page."""


@dataclass(frozen=True, slots=True)
class Room:
    """Slots of a cache in which all prompts of a pass find room. `tokens`: in whole pages. `states`: of MAMBA."""

    page_size: int
    chunk_tokens: int
    tokens: int
    states: int


class Passes:
    """`stage`: the model over its cache, with files in `folder` below a host tier. Close it in the end."""

    def __init__(
        self,
        model: ServedModel,
        vocabulary: Vocabulary,
        tasks: Sequence[Mapping[str, Any] | str],
        room: Room,
        open_cache: OpenCache,
        folder: Path,
    ) -> None:
        self._vocabulary = vocabulary
        self._tasks = tasks
        self._room = room
        self.folder = folder
        self._files = {"root": str(folder)}
        self.stage = Stage(model, self._config(model, "file", self._files), open_cache)

    def ask(self, *, limit: int | None = None, chats: bool = False) -> ScoredPass:
        """All tasks, over the cache as it is."""
        config = self.stage.model.runner.model.config.get_text_config(decoder=True)
        return evaluate(
            self.stage.engine(self._room.chunk_tokens),
            self._vocabulary,
            self._tasks,
            most_tokens=config.max_position_embeddings,
            limit=limit,
            chats=chats,
        )

    def lose_above(self, tier: Tier) -> None:
        """Let everything be copied down to this tier, and the tiers above it lose what they have."""
        if tier is Tier.HOST:
            self.stage.leave_device()
        elif tier is Tier.STORAGE:
            self._reopen("file", self._files)

    def lose_to_faults(self) -> None:
        """The same as down to storage, which fails now and then from here on, in reading and in writing."""
        self._reopen("faulty", {"inner": "file", "inner_options": self._files, "seed": 1, **FAULTS})

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Leave memory and storage to other processes meanwhile; all that was computed is stored before."""
        with self.stage.closed(), self.stage.model.runner.set_aside():
            yield

    def close(self) -> None:
        """Close the cache that is open."""
        self.stage.adapter.close()

    def _reopen(self, backend: str, options: Mapping[str, Any]) -> None:
        with self.stage.closed():
            self.stage.config = self._config(self.stage.model, backend, options)

    def _config(self, model: ServedModel, backend: str, options: Mapping[str, Any]) -> CacheConfig:
        room = self._room
        config = device_config(
            model.layout,
            page_size=room.page_size,
            chunk_tokens=room.chunk_tokens,
            tokens=room.tokens,
            states=room.states,
            device=model.runner.device.type,
        )
        config = with_host(config, tokens=room.tokens, states=room.states, policy=WritePolicy.WRITE_THROUGH)
        return with_storage(config, backend=backend, options=options, model=model.runner.model_type)
