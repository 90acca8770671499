"""lmdeploy 0.18.0: blocks that were used within one second are evicted in any order.

Usage: python lmdeploy_order_within_a_second.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
from lmdeploy.pytorch.paging.block_manager.base_block_manager import LogicalAllocator
from lmdeploy.pytorch.paging.block_trie import BlockTrie
from lmdeploy.pytorch.paging.block_trie.node import Node


def cache_block(trie: Any, token: int) -> Any:
    """Cache one block of one token below the root, as `BlockTrie.allocate` does."""
    block = trie.allocator.allocate(1)
    node = Node(token, int(block[0]), np.array([token]), prefix_len=1)
    node.attach_to(trie._get_or_create_root(None))  # noqa: SLF001
    trie.leaves.add(node)
    return node


def is_last_used_evicted() -> bool:
    """Cache two blocks, use the first one again, and evict one: the second one was used longest ago."""
    trie = BlockTrie(allocator=LogicalAllocator(0, 4), block_size=1, enabled=True)
    first, second = cache_block(trie, 1), cache_block(trie, 2)
    trie.allocator.update_access_time(np.array([first.block_id]))
    trie.evict(1)
    return second.is_attached() and not first.is_attached()


def main() -> None:
    """Count how often the block that was used last is evicted."""
    wrong = sum(is_last_used_evicted() for _ in range(100))
    print(f"the block that was used last was evicted in {wrong} of 100 caches")
    assert not wrong, (
        "`LogicalMemory.access_time` has whole seconds, and the order of equal times is that of `id(node)`"
    )


if __name__ == "__main__":
    main()
