"""Tests of the verification kit."""
