"""The contract under every interleaving that Hypothesis finds."""
