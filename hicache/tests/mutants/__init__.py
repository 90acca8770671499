"""Caches that are broken on purpose, each found by the test that is named for it."""
