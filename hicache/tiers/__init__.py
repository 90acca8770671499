"""What happens between the tiers: what is backed up, what comes back, what goes."""
