"""Driving: a scheduler and a model runner over any adapter, and everything that watches what they do."""
