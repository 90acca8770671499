"""nano-vllm, commit bb823b3: a cached block is evicted while a block that caches nothing is free.

Usage: python nano_vllm_blank_blocks.py CHECKOUT
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
    """Two prompts that end inside their second block, and a third one that needs two blocks."""
    block_manager, sequence = import_manager(checkout)
    sequence.block_size = 2
    manager = block_manager(4, 2)
    for tokens in ([1, 2, 3], [4, 5, 6]):
        ended = sequence(tokens)
        admit(manager, ended)
        manager.hash_blocks(ended)
        manager.deallocate(ended)
    blank = [number for number in manager.free_block_ids if manager.blocks[number].hash == -1]
    print("the free queue:", list(manager.free_block_ids), "of which cache nothing:", blank)
    third = sequence([7, 8, 9])
    admit(manager, third)
    print("the third prompt takes:", third.block_table)
    taken = [number for number in third.block_table if number not in blank]
    assert not taken, (
        f"blocks {taken} were cached, and are taken while blocks {set(blank) - {*third.block_table}} are blank"
    )


if __name__ == "__main__":
    main(sys.argv[1])
