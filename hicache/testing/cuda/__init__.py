"""A model of CUDA on the CPU. Work runs in any order that CUDA allows; each access is checked against the others."""

from __future__ import annotations

from hicache.optional_torch import require_torch

require_torch("hicache.testing.cuda")
