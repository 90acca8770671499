"""FAMILIES: every family by its name. REPRESENTATIVES: one of each kind."""

from __future__ import annotations

from collections.abc import Mapping

from .attention import FULL_FAMILIES, WINDOW_FAMILIES
from .family import Family
from .latent import INDEXED_FAMILIES, LATENT_FAMILIES
from .recurrent import CONVOLUTION_FAMILIES, DELTA_FAMILIES, MAMBA_FAMILIES
from .three_way import THREE_WAY_FAMILIES

FAMILIES: Mapping[str, Family] = {
    **FULL_FAMILIES,
    **WINDOW_FAMILIES,
    **DELTA_FAMILIES,
    **MAMBA_FAMILIES,
    **CONVOLUTION_FAMILIES,
    **LATENT_FAMILIES,
    **INDEXED_FAMILIES,
    **THREE_WAY_FAMILIES,
}

REPRESENTATIVES = ("qwen3", "gemma3", "qwen3_next", "bamba", "deepseek_v32", "lfm3", "zaya")
"""One family of each kind, for tests that do not run on every family."""
