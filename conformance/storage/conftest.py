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
    if place.metadata is None:
        pytest.skip(f"no option of {place.subject.name} is a metadata service: it asks none")
    return Metadata(str(place.metadata.host), place.metadata.port)
