"""Answer: what became of one page that a backend was asked for, or was given."""

from __future__ import annotations

from enum import Enum


class Answer(str, Enum):
    """Done; there already; or why not, by the reason under which StorageStats counts it."""

    DONE = "done"
    PRESENT = "present"
    ABSENT = "absent"
    SHORT = "short"
    LONG = "long"
    CORRUPT = "corrupt"
    FULL = "full"
    ERROR = "error"
    MISMATCH = "mismatch"

    @property
    def is_damage(self) -> bool:
        """Whether the object can be read by nobody, so that only its removal lets it be written anew."""
        return self in (Answer.SHORT, Answer.LONG, Answer.CORRUPT)
