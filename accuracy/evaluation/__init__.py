"""lm-eval over a cache: the same tasks in passes, each answered from another tier, and held to the first."""
