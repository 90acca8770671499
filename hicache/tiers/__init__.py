"""What is evicted, backed up, loaded back, prefetched and stored, and when."""
