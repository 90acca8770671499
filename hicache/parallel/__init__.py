"""Groups of ranks, and the decisions that the ranks of one model take together."""
