"""nano-vllm, commit bb823b3: of two equal blocks the later one takes the hash entry, and removes it when it goes.

Usage: python nano_vllm_lost_duplicate.py CHECKOUT
"""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path
from typing import Any


def import_manager(checkout: str) -> tuple[Any, Any]:
    """BlockManager and Sequence of a checkout, without the `__init__` of the package, which imports models."""
    package = types.ModuleType("nanovllm")
    package.__path__ = [str(Path(checkout) / "nanovllm")]
    sys.modules["nanovllm"] = package
    manager = importlib.import_module("nanovllm.engine.block_manager").BlockManager
    return manager, importlib.import_module("nanovllm.engine.sequence").Sequence


def admit(manager: Any, sequence: Any) -> int:
    """Allocate the blocks of a sequence as the scheduler does; returns how many of them were cached."""
    cached: int = manager.can_allocate(sequence)
    manager.allocate(sequence, cached)
    sequence.num_scheduled_tokens = sequence.num_tokens - sequence.num_cached_tokens
    return cached


def main(checkout: str) -> None:
    """Two equal prompts in one batch. The block of the second one is reused, that of the first one is not."""
    block_manager, sequence = import_manager(checkout)
    sequence.block_size = 2
    manager = block_manager(4, 2)
    first, second = sequence([1, 2, 3]), sequence([1, 2, 3])
    admit(manager, first)
    admit(manager, second)
    kept, hashed = first.block_table[0], second.block_table[0]
    for one in (first, second):
        manager.hash_blocks(one)
    print("blocks", kept, "and", hashed, "have the tokens [1, 2]; the hash leads to", manager.hash_to_block_id)
    manager.deallocate(second)
    manager.deallocate(first)
    third = sequence([7, 8, 9])
    admit(manager, third)
    print("the third prompt takes:", third.block_table)
    print("block", kept, "has still the tokens", manager.blocks[kept].token_ids, "and is in no table")
    found = manager.can_allocate(sequence([1, 2, 3]))
    print("cached blocks that a request for [1, 2, 3] finds:", found)
    assert found == 1, f"block {kept} caches [1, 2], and no hash leads to it any more"


if __name__ == "__main__":
    main(sys.argv[1])
