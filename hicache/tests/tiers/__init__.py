"""What moves between the tiers and storage, tested from inside."""
