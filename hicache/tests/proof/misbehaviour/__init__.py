"""Adapters that misbehave, one kind in one verb each, under each stage of `hicache verify`, and what it says."""
