"""The transfers by themselves."""
