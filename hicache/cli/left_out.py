"""left_out: the suites that `hicache verify` does not run, with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hicache.cli.accuracy import missing_libraries
from hicache.testing.requirements import unsupported_transformers

if TYPE_CHECKING:
    from hicache.testing.adapter import CacheAdapter


def left_out(cache: type[CacheAdapter], *, quick: bool) -> dict[str, str]:
    """The reason for each suite that is left out: a capability, a library, or the time that it takes."""
    from hicache.testing.adapter import Capability

    reasons = {}
    if Capability.RANKS not in cache.capabilities:
        reasons["distributed_tests"] = f"{cache.__name__} does not declare RANKS"
    if Capability.BYTES not in cache.capabilities:
        reasons["accuracy"] = f"{cache.__name__} does not declare BYTES"
    elif quick:
        reasons["accuracy"] = "takes minutes and is not part of --quick"
    elif missing := missing_libraries():
        reasons["accuracy"] = (
            f"not installed: {', '.join(missing)}; run pip install 'hicache[accuracy]', or make .venv/models"
        )
    elif unsupported := unsupported_transformers():
        reasons["accuracy"] = unsupported
    return reasons
