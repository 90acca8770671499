"""Driving: a scheduler and a model runner over any adapter, which check the cache after every verb."""
