"""SEEN: the backends of torch.distributed on which ranks of the running test were in a collective with each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable


class SeenCollectives:
    """Collects what launches report, until a test has ended."""

    def __init__(self) -> None:
        self._backends: set[str] = set()

    def add(self, by_rank: Iterable[Collection[str]]) -> None:
        """Add what the ranks of one launch saw: for each rank, the backends of its collectives with other ranks.

        A backend counts if two ranks or more saw it: one alone has waited for the others in vain.
        """
        counts = Counter(backend for backends in by_rank for backend in backends)
        self._backends.update(backend for backend, ranks in counts.items() if ranks > 1)

    def take(self) -> tuple[str, ...]:
        """The backends, sorted; from now on none."""
        backends = tuple(sorted(self._backends))
        self._backends.clear()
        return backends


SEEN = SeenCollectives()
