"""RefusedFamily: the error for an architecture that the engine would compute wrongly, and therefore refuses."""

from __future__ import annotations

from collections.abc import Mapping

DROPPED_STATE = "several tokens at once start from an empty state, whatever the cache holds"

REFUSED: Mapping[str, str] = {
    "jamba": DROPPED_STATE,
    "mamba": DROPPED_STATE,
    "falcon_mamba": DROPPED_STATE,
    "zamba": DROPPED_STATE,
    "recurrent_gemma": "its recurrent state is kept in the modules and not in the cache",
    "minimax": "its linear layers are kept in a cache of its own, which counts the tokens of the first layer alone",
}
"""Architectures that transformers does not continue correctly from a cache, by `model_type`, with the reason."""


class RefusedFamily(Exception):  # noqa: N818 - it is the family that is refused
    """An architecture whose layers cannot be written to, or restored from, the pools of a cache."""

    def __init__(self, model_type: str, reason: str) -> None:
        super().__init__(f"{model_type}: {reason}")
        self.model_type = model_type
        self.reason = reason
