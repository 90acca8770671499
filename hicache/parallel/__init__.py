"""What the ranks of one model decide together."""
