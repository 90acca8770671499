"""Adapters of other projects' caches and storage, what is known to fail there, and this package below their engines."""
