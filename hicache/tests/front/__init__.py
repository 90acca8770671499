"""Tests of what a user meets first: the public names, open_cache, the examples and the README."""
