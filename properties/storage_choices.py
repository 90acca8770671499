"""The choices of the machine of three tiers: answers of storage, faults in storage, and calls of an operator."""

from __future__ import annotations

from enum import Enum

from hypothesis import strategies as st


class Answer(str, Enum):
    """What happens to a storage job, or to a prefetch that a request waits for."""

    ADVANCE = "a job does one batch"
    COMPLETE = "a job completes"
    CHECK = "a waiting request checks its prefetch"
    ABORT = "a waiting request aborts its prefetch"
    TIME = "the clock advances"
    COMPUTE = "another request computes the pages of a prefetch"


ANSWER = st.sampled_from(Answer)

ENDING = st.sampled_from([Answer.CHECK, Answer.CHECK, Answer.ABORT, Answer.COMPUTE, Answer.TIME])

MOVES = st.sampled_from([0, 1, 3, 3, 3, 5])
"""Alternating steps of the cache and answers of storage. After three of them storage is asked for pages."""

PRESSURE = st.sampled_from([True, True, False])
"""Whether both tiers are evicted first. Without that there is little to prefetch."""


class StorageFault(str, Enum):
    """A fault in storage."""

    LOST = "an object cannot be read, and storage still says it has it"
    DAMAGED = "an object is corrupt, and storage still says it has it"
    GONE = "an object is removed"
    READS = "the next pages cannot be read"
    WRITES = "the next pages are not stored"
    RAISING = "a verb raises"
    NOTHING = "all faults end"


class OperatorAction(str, Enum):
    """A call of an operator."""

    DETACH = "detach"
    ATTACH = "attach"
    CLEAR = "clear"
    RESTART = "restart"
