"""Benchmarks of the contract: times that are compared within one run, and counts that are equal on every machine."""
