"""The old place of the adapters, for one release: see hicache.engines and hicache.testing.caches."""

from hicache.moved import find_moved_modules

find_moved_modules()
