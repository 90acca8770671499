"""The skeletons that `hicache init-adapter` writes, one for each door. As they lie here they are complete adapters."""
