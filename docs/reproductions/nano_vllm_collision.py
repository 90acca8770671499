"""nano-vllm, commit bb823b3: a hit compares a hash of 64 bits and the tokens of one block, not the prefix before it.

Usage: python nano_vllm_collision.py CHECKOUT
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
    """All hashes are made equal, as xxh64 is not cryptographic: a block is then served after another prefix."""
    block_manager, sequence = import_manager(checkout)
    sequence.block_size = 2
    block_manager.compute_hash = staticmethod(lambda *_: 1)
    manager = block_manager(6, 2)
    first = sequence([1, 2, 3, 4, 5])
    admit(manager, first)
    manager.hash_blocks(first)
    second = sequence([3, 4, 9])
    cached = admit(manager, second)
    print("the prompt [1, 2, 3, 4, 5] has the blocks", first.block_table)
    print("the prompt [3, 4, 9] finds", cached, "cached block:", second.block_table[:cached])
    assert not cached, "the KV of [3, 4] was computed after [1, 2], and is read at the start of another prompt"


if __name__ == "__main__":
    main(sys.argv[1])
