"""The contract, clause by clause, by example."""
