"""Caches that are broken on purpose, one defect each, to show that the suites find it and say what it is."""
