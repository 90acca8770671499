"""The example of `hicache explain`: a tiny cache on three tiers, drawn from the snapshots of any adapter."""
