"""Running: a request under way, as its driver knows it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hicache.testing.violation import violation
from hicache.types import Handle, Key, Slots


@dataclass(slots=True, eq=False)
class Running:
    """A request under way.

    `table`: its FULL slots, the tree's before its own. `owner`: its number in the lock book. `computed_tokens`: how
    many the model has computed. `is_loading`: a part of what is cached is still on its way, and the request waits.
    """

    request: Handle
    key: Key
    table: Slots
    state: int | None
    owner: int
    computed_tokens: int
    is_loading: bool

    def computed(self) -> Key:
        """What the model has computed so far."""
        return self.upto(self.computed_tokens)

    def upto(self, tokens: int) -> Key:
        """The beginning of the request."""
        return Key(self.key.tokens[:tokens], self.key.namespace)

    def own_slots(self, is_shared: npt.NDArray[np.bool_]) -> Slots:
        """The slots that are the request's alone, which are its last ones. `is_shared`: the others, by slot number."""
        shared = is_shared[self.table]
        count = int(shared.sum())
        if not shared[:count].all():
            place = f"table of a request of {len(self.key.tokens)} tokens"
            raise violation("REQ-4", place, "the tree's slots before its own", shared.tolist())
        own: Slots = self.table[count:]
        return own
