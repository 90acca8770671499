"""The components, from inside."""
