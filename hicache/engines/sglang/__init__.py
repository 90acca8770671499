"""Adapters of SGLang's caches and of its storage backends."""
