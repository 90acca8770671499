"""run_story(): runs all acts on a new cache and takes a picture after each."""

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
    """An act that was run, and the picture of the cache after it. Acts are numbered from 1."""

    number: int
    act: Act
    picture: Picture


def missing_capabilities(adapter: type[CacheAdapter]) -> list[Capability]:
    """The capabilities that the story needs and the adapter does not declare."""
    return [capability for capability in Capability if capability in _NEEDS - adapter.capabilities]


def run_story(adapter: type[CacheAdapter]) -> Iterator[Scene]:
    """Run all acts on a new cache.

    Raises InvariantError with the act if an invariant is violated or the cache does not do what the act describes,
    and ConfigurationError if the cache cannot be opened.
    """
    opened = adapter(STORY)
    try:
        stage = Stage(opened)
        for number, act in enumerate(ACTS, start=1):
            yield Scene(number, act, _run(stage, number, act))
    finally:
        opened.close()


def _run(stage: Stage, number: int, act: Act) -> Picture:
    try:
        act.play(stage)
        picture = stage.picture()
        require_claims(act, picture)
    except InvariantError as error:
        raise InvariantError(f"act {number}, {act.title!r}: {error}") from error
    return picture
