"""Transfers between tiers: what they move, the queues that they wait in, and who runs them. Nothing knows the tree."""
