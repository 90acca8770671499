"""The verification kit: drives any prefix cache through one adapter and checks it against the contract."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hicache.testing.cache_contract import CacheContract

__all__ = ["CacheContract"]


def __getattr__(name: str) -> Any:
    # The kit is imported by every run of pytest, and this class imports the suite.
    if name != "CacheContract":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hicache.testing.cache_contract import CacheContract

    return CacheContract
