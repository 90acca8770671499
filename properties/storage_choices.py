"""What a machine of three tiers may choose: what storage answers, what goes wrong there, what an operator does."""

from __future__ import annotations

from enum import Enum

from hypothesis import strategies as st


class Answer(str, Enum):
    """What happens to what storage was asked, and to those who wait."""

    ADVANCE = "it does a batch"
    COMPLETE = "it does all"
    CHECK = "somebody who waits looks how it stands"
    ABORT = "somebody who waits is gone"
    TIME = "time passes"
    COMPUTE = "somebody computes in the meantime what is fetched"


ANSWER = st.sampled_from(Answer)

ENDING = st.sampled_from([Answer.CHECK, Answer.CHECK, Answer.ABORT, Answer.COMPUTE, Answer.TIME])

MOVES = st.sampled_from([0, 1, 3, 3, 3, 5])
"""Steps of the cache and answers of storage by turns: after three of them storage is asked for pages."""

PRESSED = st.sampled_from([True, True, False])
"""Whether both tiers lose what they can first, without which there is little to fetch."""


class Trouble(str, Enum):
    """What goes wrong in storage."""

    LOST = "an object is lost, and nobody knows"
    DAMAGED = "an object is damaged, and nobody knows"
    GONE = "an object is gone"
    READS = "the next pages cannot be read"
    WRITES = "the next pages are not kept"
    RAISING = "a verb raises"
    NOTHING = "nothing goes wrong any more"


class Operation(str, Enum):
    """What an operator does."""

    DETACH = "closes the backend"
    ATTACH = "opens it again"
    CLEAR = "removes the objects"
    RESTART = "ends the cache and starts another"
