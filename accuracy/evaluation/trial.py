"""Trial: a model, its tasks and a cache through all passes, and what the gates say of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from hicache.types import Tier

from .comparison import differences, unserved, unspared
from .controls import controls
from .judged_pass import JudgedPass, judged
from .passes import Passes
from .processes import ask_anew, ask_ranks
from .rank_gates import judged_ranks
from .scored_pass import ScoredPass
from .subject import Subject
from .whole import whole


@dataclass(frozen=True, slots=True)
class Trial:
    """`passes`: of the subject, over a cache of this process. `ranks`: how many it is asked on in the end, or 1.

    `controls`: whether at the very end one component after the other is lost.
    """

    subject: Subject
    passes: Passes
    ranks: int
    controls: bool

    def run(self) -> Iterator[JudgedPass]:
        """The first pass, the same without a cache, and one from each tier, from storage by a new process.

        In float32 also one through faults and one after them: in another dtype what faults took away is computed in
        other chunks, and a text may rightly go on otherwise. At last those of several ranks, and those that lose
        something.
        """
        first = self._ask()
        yield judged("first", first, first, ())
        dtype = self.subject.dtype
        at_once = whole(self.passes.stage.model.runner, first)
        yield judged("at once", first, at_once, [*differences("at once", dtype, first, at_once, same_bytes=False)])
        for tier in (Tier.DEVICE, Tier.HOST):
            self.passes.lose_above(tier)
            yield self._from_tier(tier.value, tier, first, self._ask(), same_bytes=True)
        with self.passes.set_aside():
            anew = ask_anew(self.subject, self.passes.folder, first)
        yield self._from_tier("storage", Tier.STORAGE, first, anew, same_bytes=True)
        if dtype is torch.float32:
            self.passes.lose_to_faults()
            yield self._through_faults(first)
            self.passes.lose_above(Tier.STORAGE)
            yield self._from_tier("after faults", Tier.STORAGE, first, self._ask(), same_bytes=False)
        if self.ranks > 1:
            with self.passes.set_aside():
                by_rank = ask_ranks(self.subject, self.ranks, first)
            yield from judged_ranks(first, by_rank, dtype, self.subject.room.page_size)
        if self.controls:
            yield from controls(self.passes, self._ask, first)

    def _ask(self) -> ScoredPass:
        return self.subject.ask(self.passes)

    def _from_tier(
        self, name: str, tier: Tier, first: ScoredPass, later: ScoredPass, *, same_bytes: bool
    ) -> JudgedPass:
        problems = [*differences(name, self.subject.dtype, first, later, same_bytes=same_bytes)]
        problems += unserved(name, tier, self.subject.room.page_size, later)
        return judged(name, first, later, problems)

    def _through_faults(self, first: ScoredPass) -> JudgedPass:
        later = self._ask()
        problems = [*differences("faults", torch.float32, first, later, same_bytes=False)]
        problems += unspared("faults", self.subject.room.page_size, later)
        return judged("faults", first, later, problems)
