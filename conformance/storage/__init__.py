"""The contract of a storage backend, clause by clause, tested by examples."""
