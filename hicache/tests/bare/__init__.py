"""What works where hicache is installed without extras. Only the tox environment `bare` runs these tests."""
