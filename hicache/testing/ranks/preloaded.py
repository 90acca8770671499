"""The libraries of ranks, imported without garbage collection: the fork server imports this module first.

numpy would import `numpy.ma` at the first `unique` of each rank.
"""

from __future__ import annotations

from hicache.testing.imports import without_collection

with without_collection():
    import hypothesis  # noqa: F401
    import numpy.ma  # noqa: F401
    import pytest  # noqa: F401

    from hicache.optional_torch import distributed  # noqa: F401
