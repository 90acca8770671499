"""Tests of groups, meshes and the decisions of ranks."""
