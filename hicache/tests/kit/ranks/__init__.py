"""Tests of the rank worlds, and of the errors that are raised when ranks diverge."""
