"""Tiny models of many architectures, with random weights."""
