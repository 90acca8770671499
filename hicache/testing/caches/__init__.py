"""Small caches of several designs, each beside its adapter, and the adapter of the reference."""
