"""Verification of one cache on several ranks, whose collectives are compared before they are entered."""
