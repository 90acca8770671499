"""Adapters of vLLM's caches and storage. `Checkout` is the adapter that fits the source which is there."""

from __future__ import annotations

from hicache.engines.interface import checkouts

__getattr__ = checkouts("vllm")
