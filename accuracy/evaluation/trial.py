"""Trial: run all passes of a model, its tasks and a cache, and compare each pass with the first by the gates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from hicache.types import Tier

from .compared_pass import ComparedPass, compared
from .compared_ranks import compared_ranks
from .comparison import differences, missing_hits, missing_partial_hits
from .controls import control_passes
from .passes import Passes
from .processes import ask_new_process, ask_ranks
from .scored_pass import ScoredPass
from .subject import Subject
from .uncached_pass import uncached_pass


@dataclass(frozen=True, slots=True)
class Trial:
    """`passes`: of the subject, over a cache of this process. `ranks`: how many run passes as a group, 1 for no group.

    `controls`: whether to run passes at the end that lose the data of one component each.
    """

    subject: Subject
    passes: Passes
    ranks: int
    controls: bool

    def run(self) -> Iterator[ComparedPass]:
        """Run the first pass, one without a cache, and one from each tier; a new process runs that from storage.

        In float32 also a pass with storage faults and one after them. In other dtypes they are left out: lost tokens
        are computed in other chunks, and rounding may change a generated text. Then the passes of several ranks, and
        the control passes.
        """
        first = self._ask()
        yield compared("first", first, first, ())
        dtype = self.subject.dtype
        uncached = uncached_pass(self.passes.setup.model.runner, first)
        yield compared(
            "one forward", first, uncached, [*differences("one forward", dtype, first, uncached, same_bytes=False)]
        )
        for tier in (Tier.DEVICE, Tier.HOST):
            self.passes.drop_above(tier)
            yield self._from_tier(tier.value, tier, first, self._ask(), same_bytes=True)
        with self.passes.released():
            later = ask_new_process(self.subject, self.passes.folder, first)
        yield self._from_tier("storage", Tier.STORAGE, first, later, same_bytes=True)
        if dtype is torch.float32:
            self.passes.reopen_with_faults()
            yield self._through_faults(first)
            self.passes.drop_above(Tier.STORAGE)
            yield self._from_tier("after faults", Tier.STORAGE, first, self._ask(), same_bytes=False)
        if self.ranks > 1:
            with self.passes.released():
                by_rank = ask_ranks(self.subject, self.ranks, first)
            yield from compared_ranks(first, by_rank, dtype, self.subject.size.page_size)
        if self.controls:
            yield from control_passes(self.passes, self._ask, first)

    def _ask(self) -> ScoredPass:
        return self.subject.ask(self.passes)

    def _from_tier(
        self, name: str, tier: Tier, first: ScoredPass, later: ScoredPass, *, same_bytes: bool
    ) -> ComparedPass:
        problems = [*differences(name, self.subject.dtype, first, later, same_bytes=same_bytes)]
        problems += missing_hits(name, tier, self.subject.size.page_size, later)
        return compared(name, first, later, problems)

    def _through_faults(self, first: ScoredPass) -> ComparedPass:
        later = self._ask()
        problems = [*differences("faults", torch.float32, first, later, same_bytes=False)]
        problems += missing_partial_hits("faults", self.subject.size.page_size, later)
        return compared("faults", first, later, problems)
