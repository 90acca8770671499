"""The pools by themselves."""
