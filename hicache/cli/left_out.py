"""left_out: the suites that a verification does not run, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hicache.cli.accuracy import missing_libraries
from hicache.testing.requirements import unsupported_transformers

if TYPE_CHECKING:
    from hicache.testing.adapter import CacheAdapter


def left_out(cache: type[CacheAdapter], *, quick: bool) -> dict[str, str]:
    """By suite, the reason in words: what is not declared, what is not installed, or that it takes long."""
    from hicache.testing.adapter import Capability

    reasons = {}
    if Capability.RANKS not in cache.capabilities:
        reasons["distributed_tests"] = f"{cache.__name__} does not declare RANKS"
    if Capability.BYTES not in cache.capabilities:
        reasons["accuracy"] = f"{cache.__name__} does not declare BYTES"
    elif quick:
        reasons["accuracy"] = "it takes minutes; without --quick it is run"
    elif missing := missing_libraries():
        reasons["accuracy"] = (
            f"{', '.join(missing)}: not installed; pip install 'hicache[accuracy]', or make .venv/models"
        )
    elif unsupported := unsupported_transformers():
        reasons["accuracy"] = unsupported
    return reasons
