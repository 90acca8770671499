"""The contract of a storage backend, clause by clause, by example."""
