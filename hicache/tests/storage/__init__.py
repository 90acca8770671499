"""Backends and their wrappers, from inside."""
