"""Services that are closed at the end of a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import pytest

from hicache.storage.hf3fs.catalogue import Catalogue
from hicache.storage.hf3fs.service import MetadataService

Serve: TypeAlias = Callable[..., MetadataService]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves a catalogue: `serve(catalogue, port=18000)`."""
    services: list[MetadataService] = []

    def serve_one(catalogue: Catalogue, port: int = 0) -> MetadataService:
        services.append(MetadataService(catalogue, port=port))
        services[-1].start()
        return services[-1]

    yield serve_one
    for service in services:
        service.close()


@pytest.fixture
def service(serve: Serve) -> MetadataService:
    """A service that keeps nothing."""
    return serve(Catalogue(None))
