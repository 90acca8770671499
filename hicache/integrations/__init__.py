"""The reference inside engines; and the old place of hicache.engines.below_sglang, for one release."""

from hicache.moved import find_moved_modules

find_moved_modules()
