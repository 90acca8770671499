"""Storage backends, which store pages beyond the life of a process. They do not depend on the tree, pools or torch."""
