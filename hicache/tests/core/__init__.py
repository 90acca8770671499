"""What works without torch."""
