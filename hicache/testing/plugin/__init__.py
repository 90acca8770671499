"""The pytest plugin of the suites. It stays empty, since pytest imports it wherever hicache is installed."""
