"""Collectives that are left out where this rank sees no need for them."""

from __future__ import annotations

from collections.abc import Sequence

from hicache.parallel.agree import Agreement
from hicache.testing.adapters.reference import ReferenceAdapter
from hicache.testing.mutants.other_agreement import OtherAgreement
from hicache.tiers.prefetch import PrefetchOperation


class BreaksEarly(ReferenceAdapter):
    """Does not ask the others whether a prefetch is over while its own part is under way."""

    def check_prefetch(self, ticket: PrefetchOperation) -> int | None:
        job = ticket.job
        if job is not None and any(job is one for one, _ in self._pending_storage_jobs()):
            return None
        return super().check_prefetch(ticket)


class _OnlyWhenEnded(Agreement):
    def acknowledged(self, started: int, outcomes: Sequence[int]) -> Sequence[int]:
        if all(outcome <= 0 for outcome in outcomes):
            return outcomes
        return super().acknowledged(started, outcomes)


class SkipsIdleSteps(OtherAgreement):
    """Does not ask what has ended on the others while nothing has on this rank."""

    agreement_type = _OnlyWhenEnded
