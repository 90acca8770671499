"""The radix tree: nodes, recency, eviction orders."""
