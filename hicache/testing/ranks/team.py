"""Team: a thread for each rank of a mesh, which run the same function at the same time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from hicache.errors import RankError
from hicache.testing.ranks.local_world import local_worlds
from hicache.testing.ranks.mesh import Mesh

Result = TypeVar("Result")


class Team:
    """A thread for each rank of a mesh. `worlds`: by rank. Must be closed."""

    def __init__(self, mesh: Mesh, timeout_s: float) -> None:
        self.worlds = local_worlds(mesh, timeout_s)
        self._threads = ThreadPoolExecutor(mesh.ranks, thread_name_prefix="rank")

    def each(self, act: Callable[[int], Result]) -> list[Result]:
        """Run a function on every rank at the same time, and return the results by rank.

        Raises a rank's first error that is not a RankError, or else the first RankError. When one rank raises, the
        ranks that wait for it get a RankError at once.
        """
        futures = [self._threads.submit(self._guarded, act, rank) for rank in range(len(self.worlds))]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise next((error for error in errors if not isinstance(error, RankError)), errors[0])
        return [future.result() for future in futures]

    def _guarded(self, act: Callable[[int], Result], rank: int) -> Result:
        try:
            return act(rank)
        except Exception as error:
            self.worlds[rank].leave(f"had raised {type(error).__name__}: {error}")
            raise

    def close(self) -> None:
        """Shut down the threads."""
        self._threads.shutdown()
