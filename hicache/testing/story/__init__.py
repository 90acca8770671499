"""The story of `hicache explain`: a tiny cache on two tiers, drawn from the snapshots of any adapter."""
