"""Adapters of vLLM's caches and of its file system tier."""
