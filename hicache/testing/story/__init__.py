"""A short story on a tiny cache of two tiers, drawn from what any cache shows of itself."""
