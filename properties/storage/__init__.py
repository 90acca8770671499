"""The contract of a storage backend under the sequences of verbs that Hypothesis generates, and under faults."""
