"""Ranks: groups, meshes and what they agree on."""
