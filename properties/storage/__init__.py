"""The contract of a storage backend under every interleaving that Hypothesis finds, and under faults."""
