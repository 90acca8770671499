"""Trial: a model, its tasks and a cache through all passes, and what the gates say of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from hicache.types import Tier

from .comparison import differences, owed_tokens, unserved
from .judged_pass import JudgedPass, judged
from .passes import Passes
from .scored_pass import ScoredPass
from .whole import whole


@dataclass(frozen=True, slots=True)
class Trial:
    """`limit`: documents of each task, None for all. `chats`: by the chat template."""

    passes: Passes
    page_size: int
    limit: int | None
    chats: bool

    def run(self) -> Iterator[JudgedPass]:
        """The first pass, the same without a cache, one from each tier; in float32 also through faults and after them.

        In another dtype what faults took away is computed in other chunks, and a text may rightly go on otherwise.
        """
        first = self._ask()
        yield judged("first", first, first, ())
        dtype = self.passes.stage.model.layout.dtype
        at_once = whole(self.passes.stage.model.runner, first)
        yield judged("at once", first, at_once, [*differences("at once", dtype, first, at_once, same_bytes=False)])
        for tier in Tier:
            self.passes.lose_above(tier)
            yield self._from_tier(tier.value, tier, first, same_bytes=True)
        if dtype is torch.float32:
            self.passes.lose_to_faults()
            yield self._through_faults(first)
            self.passes.lose_above(Tier.STORAGE)
            yield self._from_tier("after faults", Tier.STORAGE, first, same_bytes=False)

    def _ask(self) -> ScoredPass:
        return self.passes.ask(limit=self.limit, chats=self.chats)

    def _from_tier(self, name: str, tier: Tier, first: ScoredPass, *, same_bytes: bool) -> JudgedPass:
        later, dtype = self._ask(), self.passes.stage.model.layout.dtype
        problems = [*differences(name, dtype, first, later, same_bytes=same_bytes)]
        return judged(name, first, later, [*problems, *unserved(name, tier, self.page_size, later)])

    def _through_faults(self, first: ScoredPass) -> JudgedPass:
        later = self._ask()
        problems = [*differences("faults", torch.float32, first, later, same_bytes=False)]
        owed = sum(owed_tokens(first.asked, self.page_size))
        if not 0 < later.hits.storage < owed:
            problems.append(f"faults: expected some of {owed} tokens from storage, and not all: {later.hits}")
        return judged("faults", first, later, problems)
