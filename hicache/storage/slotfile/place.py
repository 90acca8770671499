"""Place: the slot of an object, as the index states it."""

from __future__ import annotations

from typing import NamedTuple

from hicache.storage.page_io import whole_blocks

MAX_OFFSET = 1 << 62


class Place(NamedTuple):
    """The slot of an object, and its expected length and checksum.

    `generation`: unique among all objects that ever existed; 0 for a page in a slot that is still reserved.
    """

    key: str
    generation: int
    slot_bytes: int
    slot: int
    length: int
    checksum: int

    @property
    def is_sound(self) -> bool:
        """Whether these can be the values of an object: an index that is damaged may have any others."""
        numbers = (self.slot_bytes, self.slot, self.length, self.checksum)
        return (
            all(type(number) is int and 0 <= number <= MAX_OFFSET * 2 for number in numbers)
            and self.slot_bytes == whole_blocks(self.length)
            and self.slot * self.slot_bytes < MAX_OFFSET
        )
