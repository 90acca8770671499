"""What verifies a storage backend: places to open one in, page bytes, a model, a driver, faults, kills, throughput."""
