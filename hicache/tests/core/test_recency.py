"""The eviction queue against a sort of all candidates, for every policy. Without torch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache.config import EvictionPolicy
from hicache.metrics import Counters
from hicache.tree.eviction import ORDERS, EvictionQueue, falls_when_touched
from hicache.tree.node import Node, NodeShape
from hicache.types import SHARED

ACTIONS = st.lists(
    st.tuples(st.sampled_from(["offer", "use", "lock", "unlock", "withdraw", "pop"]), st.integers(0, 5)), max_size=60
)


def queue_of(policy: EvictionPolicy) -> EvictionQueue:
    return EvictionQueue(
        0, ORDERS[policy], lambda node: node.alive and not node.locks[0], falls_when_touched(policy), Counters()
    )


@pytest.mark.parametrize("policy", EvictionPolicy)
@given(actions=ACTIONS)
def test_pop_gives_the_smallest_candidate(policy: EvictionPolicy, actions: list[tuple[str, int]]) -> None:
    queue = queue_of(policy)
    nodes = [Node(None, b"", SHARED, number, NodeShape(1, 1)) for number in range(6)]
    offered: set[Node] = set()
    for now, (action, number) in enumerate(actions, start=1):
        node = nodes[number]
        if action == "offer" and node not in offered:
            node.created, node.touched[0] = now, now
            queue.offer(node)
            offered |= set() if node.locks[0] else {node}
        elif action == "use":
            node.touched[0], node.hits, node.priority = now, node.hits + 1, node.priority + number % 2
            queue.touched(node)
        elif action == "lock":
            node.locks[0] = 1
        elif action == "unlock":
            node.locks[0] = 0
            if node in offered:
                queue.offer(node)
        elif action == "withdraw":
            queue.withdraw(node)
            offered.discard(node)
        elif action == "pop":
            _check_pop(queue, policy, offered)


def _check_pop(queue: EvictionQueue, policy: EvictionPolicy, offered: set[Node]) -> None:
    candidates = [node for node in offered if not node.locks[0]]
    popped = queue.pop()
    best = min((ORDERS[policy](node) for node in candidates), default=None)
    actual = None if popped is None else ORDERS[policy](popped)
    assert actual == best, f"EVICT-2: {policy.value} expected {best}, popped {actual}"
    if popped is not None:
        offered.discard(popped)


def test_the_heap_does_not_outgrow_its_candidates() -> None:
    queue = queue_of(EvictionPolicy.MRU)
    node = Node(None, b"", SHARED, 1, NodeShape(1, 1))
    queue.offer(node)
    for now in range(10_000):
        node.touched[0] = now
        queue.touched(node)
    assert len(queue) <= 128, f"one candidate keeps {len(queue)} entries in the heap"
    assert queue.pop() is node
