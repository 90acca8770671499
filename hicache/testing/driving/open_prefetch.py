"""OpenPrefetch: the driver's record of a prefetch that its caller waits for."""

from __future__ import annotations

from dataclasses import dataclass

from hicache.types import Handle, Key


@dataclass(frozen=True, slots=True, eq=False)
class OpenPrefetch:
    """A prefetch that was neither checked to its end nor aborted.

    `before`: elements that a match found when the prefetch began. `gains`: how many more it found since, after each
    verb.
    """

    ticket: Handle
    key: Key
    before: int
    gains: set[int]
