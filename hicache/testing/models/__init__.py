"""What a cache must answer, computed without the cache."""
