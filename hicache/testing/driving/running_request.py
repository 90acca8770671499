"""RunningRequest: the driver's record of a running request."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hicache.testing.violation import violation
from hicache.types import Handle, Key, Slots


@dataclass(slots=True, eq=False)
class RunningRequest:
    """A running request.

    `table`: its FULL slots, those of the tree before its own. `owner`: its number in the lock book. `computed_tokens`:
    how many tokens the model has computed. `awaited`: while the request waits for a load, the number of slots at the
    start of the table that are not its own, including those that are being loaded; None when it waits for nothing.
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
        """Whether a part of the cached prefix is still being loaded."""
        return self.awaited is not None

    def computed(self) -> Key:
        """The tokens computed so far, as a key."""
        return self.upto(self.computed_tokens)

    def upto(self, tokens: int) -> Key:
        """The first `tokens` tokens of the request, as a key."""
        return Key(self.key.tokens[:tokens], self.key.namespace)

    def own_slots(self, in_tree: npt.NDArray[np.bool_]) -> Slots:
        """The slots that belong to the request alone, at the table's end. `in_tree`: whether the tree has a slot."""
        if self.awaited is not None:
            return self.table[self.awaited :]
        shared = in_tree[self.table]
        count = int(shared.sum())
        if not shared[:count].all():
            place = f"table of a request of {len(self.key.tokens)} tokens"
            raise violation("REQ-4", place, "all slots of the tree before its own", shared.tolist())
        own: Slots = self.table[count:]
        return own
