"""Verification of a storage backend: places, page bytes, a model, a driver, faults, killed writers, throughput."""
