"""Tests of the adapters of other projects; most are skipped where the project is not installed."""
