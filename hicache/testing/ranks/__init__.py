"""What verifies one cache on several ranks: worlds of ranks, and collectives that are compared before they begin."""
