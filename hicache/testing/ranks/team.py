"""Team: a thread for each rank of a mesh, which do the same at once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from hicache.errors import RankError
from hicache.testing.ranks.local_world import local_worlds
from hicache.testing.ranks.mesh import Mesh

Result = TypeVar("Result")


class Team:
    """A thread for each rank of a mesh. `worlds`: by rank. Close it in the end."""

    def __init__(self, mesh: Mesh, timeout_s: float) -> None:
        self.worlds = local_worlds(mesh, timeout_s)
        self._threads = ThreadPoolExecutor(mesh.ranks, thread_name_prefix="rank")

    def each(self, act: Callable[[int], Result]) -> list[Result]:
        """Let every rank do something at once, and return what each came to, by rank.

        Raises what a rank raised that is no RankError, or else the first RankError. Where one raises, the others are
        not waited for by the ranks that need it.
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
        """Let the threads end."""
        self._threads.shutdown()
