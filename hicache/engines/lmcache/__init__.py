"""Adapters of LMCache's cache in host memory and of its storage."""
