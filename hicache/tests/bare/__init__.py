"""What works where hicache is installed without extras, or with the kit alone. Only tox runs these tests."""
