"""ProcessStarts: counts the processes that this process starts. A run says how many: each start costs."""

from __future__ import annotations

import sys
from functools import cache

EVENT = "hicache.process_started"
"""The audit event of a process that starts without one of Python's own, as those of a fork server do."""

_EVENTS = frozenset({"subprocess.Popen", "os.fork", EVENT})


class ProcessStarts:
    """`count`: the processes that were started since this object was made."""

    def __init__(self) -> None:
        self.count = 0
        sys.addaudithook(self._count)

    def _count(self, event: str, _arguments: object) -> None:
        if event in _EVENTS:
            self.count += 1


@cache
def process_starts() -> ProcessStarts:
    """The count of this process. It begins at the first call, and no audit hook is added before."""
    return ProcessStarts()
