"""A reference implementation of the hierarchical prefix cache, and the harness that verifies any such cache."""

__version__ = "0.1.0"
