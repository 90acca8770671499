"""The radix tree: nodes, page hashes, eviction queues, invariants."""
