"""The eviction queue against a sort of all candidates, for every policy. Without torch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache.config import EvictionPolicy
from hicache.metrics import Counters
from hicache.tree.eviction import ORDERS, EvictionQueue, use_brings_eviction_nearer
from hicache.tree.node import FULL, Node, NodeShape
from hicache.types import SHARED, Tier

ACTIONS = st.lists(
    st.tuples(st.sampled_from(["offer", "use", "lock", "unlock", "withdraw", "pop"]), st.integers(0, 5)), max_size=60
)


def queue_of(policy: EvictionPolicy) -> EvictionQueue:
    return EvictionQueue(
        Tier.DEVICE,
        FULL,
        ORDERS[policy],
        lambda node: node.alive and not is_locked(node),
        use_brings_eviction_nearer(policy),
        Counters(),
    )


def is_locked(node: Node) -> bool:
    return node.device[FULL].lock_ref > 0


@pytest.mark.parametrize("policy", EvictionPolicy)
@given(actions=ACTIONS)
def test_pop_gives_the_smallest_candidate(policy: EvictionPolicy, actions: list[tuple[str, int]]) -> None:
    queue = queue_of(policy)
    nodes = [Node(None, b"", SHARED, number, NodeShape(1, has_host=False)) for number in range(6)]
    offered: set[Node] = set()
    for now, (action, number) in enumerate(actions, start=1):
        node = nodes[number]
        if action == "offer" and node not in offered:
            node.creation_time, node.last_access_time[FULL] = now, now
            queue.offer(node)
            offered |= set() if is_locked(node) else {node}
        elif action == "use":
            node.last_access_time[FULL], node.hit_count = now, node.hit_count + 1
            node.priority += number % 2
            queue.touch(node)
        elif action == "lock":
            node.device[FULL].lock_ref = 1
        elif action == "unlock":
            node.device[FULL].lock_ref = 0
            if node in offered:
                queue.offer(node)
        elif action == "withdraw":
            queue.withdraw(node)
            offered.discard(node)
        elif action == "pop":
            _check_pop(queue, policy, offered)


def _check_pop(queue: EvictionQueue, policy: EvictionPolicy, offered: set[Node]) -> None:
    candidates = [node for node in offered if not is_locked(node)]
    popped = queue.pop()
    best = min((ORDERS[policy](node) for node in candidates), default=None)
    actual = None if popped is None else ORDERS[policy](popped)
    assert actual == best, f"EVICT-2: {policy.value} expected {best}, popped {actual}"
    if popped is not None:
        offered.discard(popped)


def test_the_heap_does_not_outgrow_its_candidates() -> None:
    queue = queue_of(EvictionPolicy.MRU)
    node = Node(None, b"", SHARED, 1, NodeShape(1, has_host=False))
    queue.offer(node)
    for now in range(10_000):
        node.last_access_time[FULL] = now
        queue.touch(node)
    assert len(queue) <= 128, f"one candidate keeps {len(queue)} entries in the heap"
    popped = queue.pop()
    assert popped is node, f"expected the only candidate, popped {popped}"
