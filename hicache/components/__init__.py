"""What FULL, SWA and MAMBA each decide about the nodes of the tree, and how they act together."""
