"""Tests of the adapters of other projects' caches and storage. Most need the project, and are skipped where it is not installed."""
