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
    many the model has computed. `awaited`: while the request waits for a load, how many slots at the table's beginning
    are not its own, among them those that the load brings in; None when it waits for nothing.
    """

    request: Handle
    key: Key
    table: Slots
    state: int | None
    owner: int
    computed_tokens: int
    awaited: int | None

    @property
    def is_loading(self) -> bool:
        """Whether a part of what is cached is still on its way."""
        return self.awaited is not None

    def computed(self) -> Key:
        """What the model has computed so far."""
        return self.upto(self.computed_tokens)

    def upto(self, tokens: int) -> Key:
        """The beginning of the request."""
        return Key(self.key.tokens[:tokens], self.key.namespace)

    def own_slots(self, in_tree: npt.NDArray[np.bool_]) -> Slots:
        """The slots that are the request's alone, which are its last ones. `in_tree`: the tree's, by slot number."""
        if self.awaited is not None:
            return self.table[self.awaited :]
        shared = in_tree[self.table]
        count = int(shared.sum())
        if not shared[:count].all():
            place = f"table of a request of {len(self.key.tokens)} tokens"
            raise violation("REQ-4", place, "the tree's slots before its own", shared.tolist())
        own: Slots = self.table[count:]
        return own
