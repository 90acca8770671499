"""Opens the backend under test. This folder does not depend on its parent folders."""

from __future__ import annotations

import pytest

from hicache.storage.hf3fs import service
from hicache.storage.hf3fs.catalogue import Catalogue
from hicache.storage.hf3fs.routes import Reply, reply
from hicache.testing.plugin.fixtures import adapter_type, place, store, writers
from hicache.testing.plugin.fixtures import parametrize_backends as pytest_generate_tests
from hicache.testing.storage.subject import Place

from .metadata import Metadata

__all__ = ["adapter_type", "metadata", "place", "pytest_generate_tests", "store", "writers"]


@pytest.fixture
def exchanges(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The path of each exchange with the metadata services of this process, from now on."""
    paths: list[str] = []

    def note(catalogue: Catalogue, path: str, body: bytes) -> Reply:
        paths.append(path)
        return reply(catalogue, path, body)

    monkeypatch.setattr(service, "reply", note)
    return paths


@pytest.fixture
def metadata(place: Place) -> Metadata:
    """The metadata service that the backend under test uses: the one of this package."""
    assert place.metadata is not None, "a test that takes this runs for backends that ask a metadata service"
    return Metadata(str(place.metadata.host), place.metadata.port)
