"""A cluster of several hosts on one machine: network namespaces, an engine over them, and a cache on each."""
