"""Trees that evict in another order than the contract says: what they know of uses, inserts and hits is wrong."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy.typing as npt

from hicache.components import component_tree
from hicache.components.base import TreeComponent
from hicache.components.component_tree import REGISTRY
from hicache.components.full import FullComponent
from hicache.components.mamba import MambaComponent
from hicache.components.swa import SwaComponent
from hicache.testing.caches.dictionary import Array, PrefixDictionary
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.tests.proof.mutants.accuracy.transfers import OtherParts
from hicache.tests.proof.mutants.black_box import DictionaryOf
from hicache.tests.proof.mutants.rows import Row
from hicache.tree.eviction import ORDERS, Order
from hicache.tree.node import Node
from hicache.types import InsertResult, Key, Slots

NEVER = 1 << 62
"""A time that does not come."""


class OtherComponent(OtherParts):
    """The reference with another class for one component."""

    component: ClassVar[type[TreeComponent]]

    def __init_subclass__(cls) -> None:
        cls.parts = ((component_tree, "REGISTRY", {**REGISTRY, cls.component.name: cls.component}),)


class _ForgetsWindowUse(SwaComponent):
    def split(self, upper: Node, lower: Node) -> None:
        super().split(upper, lower)
        upper.last_access_time[self.index] = 0
        for tier in self.tiers:
            tier.queue.move_forward(upper)


class WindowUseLostAtSplit(OtherComponent):
    """The first part of a split node has SWA data that counts as never used."""

    component = _ForgetsWindowUse


class _NewAtSplit(FullComponent):
    def split(self, upper: Node, lower: Node) -> None:
        super().split(upper, lower)
        upper.creation_time = NEVER


class AgeLostAtSplit(OtherComponent):
    """The first part of a split node counts as inserted after all others."""

    component = _NewAtSplit


class _NoHits(FullComponent):
    def split(self, upper: Node, lower: Node) -> None:
        super().split(upper, lower)
        upper.hit_count = 0


class HitsLostAtSplit(OtherComponent):
    """The first part of a split node begins to count its hits anew."""

    component = _NoHits


class _RefreshesBelow(MambaComponent):
    def touch(self, node: Node, now: int) -> None:
        super().touch(node, now)
        for child in node.children.values():
            child.last_access_time[self.index] = now


class StateUsedByAMatchBefore(OtherComponent):
    """A match refreshes also the states after it, which it does not use."""

    component = _RefreshesBelow


class _ByPolicy(SwaComponent):
    def order(self) -> Order:
        return ORDERS[self.config.policy]


class WindowByPolicy(OtherComponent):
    """SWA evicts by the policy of FULL."""

    component = _ByPolicy


class _StateByPolicy(MambaComponent):
    def order(self) -> Order:
        return ORDERS[self.config.policy]


class StateByPolicy(OtherComponent):
    """MAMBA evicts by the policy of FULL."""

    component = _StateByPolicy


class _AllOnPath(SwaComponent):
    def touch(self, node: Node, now: int) -> None:
        while node.parent is not None:
            node.last_access_time[self.index] = now
            node = node.parent


class WindowUsedFromTheRoot(OtherComponent):
    """A match refreshes SWA data also before its window."""

    component = _AllOnPath


class _FirstPart(tuple[int, int]):
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple) and self[0] == other[0]

    __hash__ = tuple.__hash__


class _TakesEquals(FullComponent):
    def order(self) -> Order:
        order = super().order()

        def first_part(node: Node) -> Any:
            key = order(node)
            return _FirstPart(key) if isinstance(key, tuple) else key

        return first_part


class UsesLostAmongEquals(OtherComponent):
    """A use without a hit does not move a node behind those with as many hits, or of the same priority."""

    component = _TakesEquals


class FirstPriority(ReferenceAdapter):
    """Only the insert that creates a node gives it a priority."""

    def insert(
        self, key: Key, slots: Slots, *, shared: int, window_start: int, state: int | None, priority: int
    ) -> InsertResult:
        before = {id(node): (node, node.priority) for node in self.cache.tree.radix.nodes()}
        result = super().insert(key, slots, shared=shared, window_start=window_start, state=state, priority=priority)
        for node, earlier in before.values():
            node.priority = earlier
        return result


class _FindsWithoutUse(PrefixDictionary):
    def find(self, tokens: npt.NDArray[Any]) -> tuple[bytes, Array]:
        order = list(self.slots)
        found = super().find(tokens)
        self.slots = {prefix: self.slots[prefix] for prefix in order}
        return found


class DictionaryMatchIsNoUse(DictionaryOf):
    """A match does not refresh what it finds, so that prompts are evicted in the order of their inserts."""

    cache_type = _FindsWithoutUse


EVICT = "test_evict.py::"

ROWS = (
    Row(
        slug="window-use-lost-at-a-split",
        source="ours",
        clauses=("INS-8", "EVICT-10"),
        adapter=WindowUseLostAtSplit,
        test=f"{EVICT}test_a_split_keeps_how_recent_window_data_is",
        told="INS-8",
    ),
    Row(
        slug="age-lost-at-a-split",
        source="ours",
        clauses=("INS-8", "EVICT-2"),
        adapter=AgeLostAtSplit,
        test=f"{EVICT}test_a_split_keeps_the_age_of_both_parts",
        told="INS-8",
    ),
    Row(
        slug="hits-lost-at-a-split",
        source="ours",
        clauses=("INS-8", "EVICT-2"),
        adapter=HitsLostAtSplit,
        test=f"{EVICT}test_a_match_inside_a_node_counts_for_the_part_that_matched",
        told="EVICT-2",
    ),
    Row(
        slug="state-used-by-a-match-before-it",
        source="ours",
        clauses=("MATCH-10", "EVICT-10"),
        adapter=StateUsedByAMatchBefore,
        test="test_match.py::test_a_match_refreshes_no_state_below_it",
        told="MATCH-10",
    ),
    Row(
        slug="window-evicted-by-the-policy",
        source="ours",
        clauses=("EVICT-10",),
        adapter=WindowByPolicy,
        test=f"{EVICT}test_window_data_is_evicted_by_use_whatever_the_policy",
        told="EVICT-10",
    ),
    Row(
        slug="state-evicted-by-the-policy",
        source="ours",
        clauses=("EVICT-10",),
        adapter=StateByPolicy,
        test=f"{EVICT}test_states_are_evicted_by_use_whatever_the_policy",
        told="EVICT-10",
    ),
    Row(
        slug="window-used-from-the-root",
        source="ours",
        clauses=("MATCH-10", "EVICT-10"),
        adapter=WindowUsedFromTheRoot,
        test="test_match.py::test_data_before_the_window_is_not_refreshed",
        told="MATCH-10",
    ),
    Row(
        slug="dictionary-match-is-no-use",
        source="ours",
        clauses=("EVICT-2",),
        adapter=DictionaryMatchIsNoUse,
        test=f"{EVICT}test_prompts_that_are_looked_up_are_evicted_in_the_order_of_use",
        told="EVICT-2",
    ),
    Row(
        slug="uses-lost-among-equals",
        source="ours",
        clauses=("EVICT-2",),
        adapter=UsesLostAmongEquals,
        test=f"{EVICT}test_a_chunked_request_that_matches_again_is_not_a_new_hit",
        told="EVICT-2",
    ),
    Row(
        slug="later-priorities-ignored",
        source="ours",
        clauses=("EVICT-2",),
        adapter=FirstPriority,
        test=f"{EVICT}test_a_later_insert_raises_the_priority_and_never_lowers_it",
        told="EVICT-2",
    ),
)
"""One for each defect."""
