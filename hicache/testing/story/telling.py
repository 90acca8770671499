"""tell(): plays the story on a new cache, act by act, and takes a picture after each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hicache.errors import InvariantError
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.configurations import needs_of
from hicache.testing.story.act import Act, require_claims
from hicache.testing.story.configuration import STORY
from hicache.testing.story.picture import Picture
from hicache.testing.story.script import ACTS
from hicache.testing.story.stage import Stage

_NEEDS = needs_of(STORY) | {Capability.SNAPSHOT}


@dataclass(frozen=True, slots=True)
class Scene:
    """An act that was played, and what the cache looked like afterwards. Acts are numbered from 1."""

    number: int
    act: Act
    picture: Picture


def missing(adapter: type[CacheAdapter]) -> list[Capability]:
    """What an adapter would have to declare besides, so that the story can be played on it and seen."""
    return [capability for capability in Capability if capability in _NEEDS - adapter.capabilities]


def tell(adapter: type[CacheAdapter]) -> Iterator[Scene]:
    """Play all acts on a new cache.

    Raises InvariantError, naming the act, when a law is broken or an act ends otherwise than it is told, and
    ConfigurationError when the cache cannot be opened.
    """
    opened = adapter(STORY)
    try:
        stage = Stage(opened)
        for number, act in enumerate(ACTS, start=1):
            yield Scene(number, act, _played(stage, number, act))
    finally:
        opened.close()


def _played(stage: Stage, number: int, act: Act) -> Picture:
    try:
        act.play(stage)
        picture = stage.picture()
        require_claims(act, picture)
    except InvariantError as error:
        raise InvariantError(f"act {number}, {act.title!r}: {error}") from error
    return picture
