"""Caches that believe their caller: one thing of what a verb gets is not looked at."""

from __future__ import annotations

from threading import get_ident

import numpy as np

from hicache import cache
from hicache.cache import UnifiedRadixCache
from hicache.components.component_tree import ComponentTree
from hicache.errors import HiCacheError, SlotError
from hicache.pools import buffers
from hicache.pools.allocator import PageAllocator
from hicache.pools.device import DevicePools
from hicache.testing.caches import reference
from hicache.tests.proof.mutants.accuracy.transfers import OtherParts
from hicache.tests.proof.mutants.rows import Row
from hicache.tiers.load_back import LoadBackManager, LoadBackTicket
from hicache.tiers.prefetch import PrefetchManager, PrefetchOperation
from hicache.tree.node import Node
from hicache.types import Slots, TransferPhase
from hicache.verbs import Turn


class _AnyOnce(PageAllocator):
    def check_held(self, pages: Slots) -> None:
        if len(np.unique(pages)) < len(pages) or ((pages < 1) | (pages > self.capacity_pages)).any():
            raise SlotError(f"pages {pages.tolist()}")


class TakesFreeSlots(OtherParts):
    """A slot that is free may be inserted, and is handed out again."""

    parts = ((buffers, "PageAllocator", _AnyOnce),)


class _HeldOften(PageAllocator):
    def check_held(self, pages: Slots) -> None:
        super().check_held(np.unique(pages))


class TakesSlotsTwice(OtherParts):
    """One page may stand at two places of a prompt."""

    parts = ((buffers, "PageAllocator", _HeldOften),)


class _AnyPlace(ComponentTree):
    def _duplicates(self, pages: Slots, tree_pages: bytes) -> Slots:
        own = np.frombuffer(tree_pages, dtype=np.int64)
        given = pages[: len(own)]
        return given.compress((given != own) & (own > 0))


class TakesTheTreesSlots(OtherParts):
    """Two prompts may share a page with different contents."""

    parts = ((cache, "ComponentTree", _AnyPlace),)


class _RoundedDown(DevicePools):
    def pages_of(self, slots: Slots) -> Slots:
        return slots[:: self.page_size] // self.page_size


class TakesPartsOfPages(OtherParts):
    """The first slot of each page stands for all of it."""

    parts = ((cache, "DevicePools", _RoundedDown),)


class _AnyState(UnifiedRadixCache):
    def _own_state(self, slot: int) -> Slots:
        return np.array([slot], dtype=np.int64)


class TakesAnyState(OtherParts):
    """A state that is free, or the tree's, may be inserted."""

    parts = ((reference, "UnifiedRadixCache", _AnyState),)


class _AnySign(UnifiedRadixCache):
    def _units_of(self, component: str, tokens: int) -> int:
        return super()._units_of(component, abs(tokens))


class EvictsLessThanNothing(OtherParts):
    """A number of slots below zero is taken for one above it."""

    parts = ((reference, "UnifiedRadixCache", _AnySign),)


class _AnyNumber(UnifiedRadixCache):
    def allocate(self, tokens: int) -> Slots | None:
        if isinstance(tokens, float) and tokens > 0:
            self.pools.allocators["full"].free_pages -= tokens / self.config.page_size  # type: ignore[assignment]
            raise TypeError(f"slice indices must be integers, not {tokens}")
        return super().allocate(tokens)


class CountsInFloats(OtherParts):
    """An allocation of 4.0 slots makes the number of free pages a float before it fails."""

    parts = ((reference, "UnifiedRadixCache", _AnyNumber),)


class _AnyTree(ComponentTree):
    def require(self, node: object) -> None:
        if not (isinstance(node, Node) and node.alive):
            super().require(node)


class TakesAnyHandle(OtherParts):
    """A node of another cache may be locked and loaded."""

    parts = ((cache, "ComponentTree", _AnyTree),)


class _AnyLoad(LoadBackManager):
    def phase(self, ticket: LoadBackTicket) -> TransferPhase:
        return ticket.phase


class TakesAnyLoad(OtherParts):
    """The ticket of another cache's load says how far that one has come."""

    parts = ((cache, "LoadBackManager", _AnyLoad),)


class _AnyPrefetch(PrefetchManager):
    def abort(self, operation: PrefetchOperation) -> None:
        self._awaited.add(operation)
        super().abort(operation)


class TakesAnyPrefetch(OtherParts):
    """The prefetch of another cache may be aborted."""

    parts = ((cache, "PrefetchManager", _AnyPrefetch),)


class _Passed(Turn):
    def fail(self, error: BaseException, harmless: type[Exception] = HiCacheError) -> None:
        if self.thread == get_ident():
            self.thread = None
            self.release()


class PassesOverInterruptions(OtherParts):
    """After an interruption the cache goes on as if the verb had ended."""

    parts = ((cache, "Turn", _Passed),)


class _Anyone(Turn):
    def __init__(self) -> None:
        super().__init__()
        self.acquire, self.release = lambda *_, **__: True, lambda: None


class ServesTwoThreads(OtherParts):
    """Two threads may be in verbs at once."""

    parts = ((cache, "Turn", _Anyone),)


MISUSE = "test_misuse.py::"
INSERT = f"{MISUSE}test_an_insert_of_slots_that_are_not_the_callers_is_refused"
PARTS = f"{MISUSE}test_an_insert_of_parts_of_pages_is_refused"
STATE = f"{MISUSE}test_an_insert_of_a_state_that_the_caller_does_not_hold_is_refused"
BELOW_ZERO = f"{MISUSE}test_a_number_of_slots_below_zero_is_refused"
FLOAT = f"{MISUSE}test_a_float_of_slots_does_no_harm"
HANDLE = f"{MISUSE}test_a_handle_of_another_cache_is_refused"
LOAD = f"{MISUSE}test_a_handle_or_ticket_of_another_host_tier_is_refused"
PREFETCH = f"{MISUSE}test_the_ticket_of_another_caches_prefetch_is_refused"
INTERRUPTED = "test_interruptions.py::test_no_slot_is_lost_by_an_interruption"
TWO_THREADS = "test_interruptions.py::test_allocations_of_two_threads_do_not_mix"

ROWS = (
    Row("takes-free-slots", "ours", ("POOL-9",), TakesFreeSlots, INSERT, "POOL-9"),
    Row("takes-slots-twice", "ours", ("POOL-9",), TakesSlotsTwice, INSERT, "POOL-9"),
    Row("takes-the-trees-slots", "ours", ("POOL-9",), TakesTheTreesSlots, INSERT, "POOL-9"),
    Row("takes-parts-of-pages", "ours", ("POOL-9",), TakesPartsOfPages, PARTS, "POOL-9"),
    Row("takes-any-state", "ours", ("POOL-9",), TakesAnyState, STATE, "POOL-9"),
    Row("evicts-less-than-nothing", "ours", ("POOL-10",), EvictsLessThanNothing, BELOW_ZERO, "POOL-10"),
    Row("counts-in-floats", "ours", ("POOL-10",), CountsInFloats, FLOAT, "slice indices must be integers"),
    Row("takes-any-handle", "ours", ("LOCK-9",), TakesAnyHandle, HANDLE, "LOCK-2"),
    Row("takes-any-load", "ours", ("LOCK-9",), TakesAnyLoad, LOAD, "LOCK-9"),
    Row("passes-over-interruptions", "ours", ("POOL-11",), PassesOverInterruptions, INTERRUPTED, "POOL-11"),
    Row("serves-two-threads", "ours", ("POOL-11",), ServesTwoThreads, TWO_THREADS, "POOL-11"),
    Row("takes-any-prefetch", "ours", ("LOCK-9",), TakesAnyPrefetch, PREFETCH, "LOCK-9"),
)
"""One for each kind of mistake."""
