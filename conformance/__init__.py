"""The contract of a cache, clause by clause, tested by examples."""
