"""Opens the backend under test. It stands alone: of the folders above, nothing is needed."""

from __future__ import annotations

import pytest

from hicache.testing.plugin.backends import place, pytest_generate_tests, store, writers
from hicache.testing.storage.place import Place

from .metadata import Metadata

__all__ = ["metadata", "place", "pytest_generate_tests", "store", "writers"]


@pytest.fixture
def metadata(place: Place) -> Metadata:
    """The metadata service that a backend is told, which is ours."""
    assert place.metadata is not None, "a test that takes this runs for backends that ask a metadata service"
    return Metadata(str(place.metadata.host), place.metadata.port)
