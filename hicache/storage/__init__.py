"""What keeps pages beyond the life of a process. Nothing in here knows the tree, the pools or torch."""
