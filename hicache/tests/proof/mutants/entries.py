"""A cache to break whose entries own their memory: a request gets a copy of what it shares with an entry."""

from __future__ import annotations

from collections.abc import Sequence

from hicache.config import CacheConfig
from hicache.testing.geometry import GeometricConfig, Geometry, Publish
from hicache.tests.proof.mutants.copied_pages import CopiedPages, CopiedPagesAdapter, Page, PageRequest, common
from hicache.types import Tokens

PLACES = 24
"""The tokens that the memory of the configuration has room for."""


class Entries(CopiedPages):
    """Whole prompts with their memory, the least recent first. A place has one token. `spare`: free places."""

    def __init__(self, pages: int, size: int) -> None:
        super().__init__(pages, size)
        self.spare = list(self.pages)
        self.entries: dict[bytes, list[Page]] = {}

    def find(self, tokens: Tokens) -> list[Page]:
        """The places of the longest beginning that an entry has."""
        lengths = {entry: common(entry, tokens.tobytes()) for entry in self.entries}
        best = max(lengths, key=lambda entry: lengths[entry], default=b"")
        return self.entries[best][: lengths[best]] if best else []

    def admit(self, tokens: Tokens, limit: int) -> PageRequest | None:
        """Take a place for each token, and copy what an entry has; None when there are too few."""
        found = self.find(tokens[:limit])
        for page in found:
            page.readers = 1
        taken = self.take(len(tokens))
        for page in found:
            page.readers = 0
        if taken is None:
            # It may fit without the entry that it copies from.
            return self.admit(tokens, 0) if found else None
        sources, targets = ([page.number for page in pages] for pages in (found, taken[: len(found)]))
        self.memory[:, targets] = self.memory[:, sources]
        return PageRequest(tokens, taken, 0, len(found), len(found))

    def take(self, count: int) -> list[Page] | None:
        """Take places. Entries without a reader make room, the least recent first."""
        idle = [entry for entry, pages in self.entries.items() if not any(page.readers for page in pages)]
        if count > len(self.spare) + sum(len(self.entries[entry]) for entry in idle):
            return None
        while len(self.spare) < count:
            self.spare += self.entries.pop(idle.pop(0))
        taken, self.spare = self.spare[:count], self.spare[count:]
        return taken

    def compute(self, request: PageRequest, tokens: int) -> None:
        """The first tokens of a request are computed. They are not found before it ends."""
        request.computed = tokens

    def release(self, pages: list[Page]) -> None:
        """Give places back."""
        self.spare += pages

    def keep(self, request: PageRequest) -> None:
        """The memory of a request becomes an entry, in the place of an equal one."""
        entry = request.tokens.tobytes()
        self.spare += self.entries.pop(entry, [])
        self.entries[entry] = request.pages


class EntriesAdapter(CopiedPagesAdapter):
    """Requests over entries. A slot is a place in the memory, and all that a request finds is copied."""

    def __init__(self, config: CacheConfig) -> None:
        super().__init__(config)
        self.cache: Entries = Entries(config.capacity_tokens["full"], 1)

    @classmethod
    def configurations(cls) -> Sequence[CacheConfig]:
        geometry = Geometry({"full": 1}, publish=Publish.REQUEST)
        return [GeometricConfig({"full": PLACES}, 1, ("full",), geometry=geometry)]

    def finish(self, request: PageRequest) -> None:
        self.cache.keep(request)
