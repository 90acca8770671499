"""Tests of the cache itself."""
