"""What the contract costs: times to compare within one run, and counts that are the same on every machine."""
