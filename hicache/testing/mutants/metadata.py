"""MUTANTS: the metadata service with one defect each, and the test of the conformance suite that finds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from typing import Any

from hicache.storage.hf3fs import service
from hicache.storage.hf3fs.access import Access
from hicache.storage.hf3fs.fields import RefusalError


@dataclass(frozen=True, slots=True)
class MetadataMutant:
    """One defect: `defect` replaces `name` of `owner`. `test`: of `conformance/storage/test_metadata.py`."""

    slug: str
    clause: str
    owner: Any
    name: str
    defect: Callable[..., Any]
    test: str


def _accepts(*_: object) -> None:
    """Accept everything."""


def _compares_the_beginning(access: Access, presented: str) -> None:
    token = access._token  # noqa: SLF001 - the defect
    if token is not None and not token.decode().startswith(presented.removeprefix("Bearer ")):
        raise RefusalError(401, "Authorization: expected Bearer and the token of this service")


MUTANTS = (
    MetadataMutant(
        "any-content-type", "SEC-7", Access, "_check_form", _accepts, "test_a_page_of_another_site_changes_nothing"
    ),
    MetadataMutant("any-host", "SEC-7", Access, "_check_host", _accepts, "test_a_page_of_another_site_changes_nothing"),
    MetadataMutant(
        "any-origin", "SEC-7", Access, "_check_origin", _accepts, "test_a_page_of_another_site_changes_nothing"
    ),
    MetadataMutant("no-token", "SEC-7", Access, "_check_token", _accepts, "test_nothing_is_changed_without_the_token"),
    MetadataMutant(
        "beginning-of-the-token",
        "SEC-7",
        Access,
        "_check_token",
        _compares_the_beginning,
        "test_nothing_is_changed_without_the_token",
    ),
    MetadataMutant(
        "listens-anywhere",
        "SEC-7",
        service._Server,  # noqa: SLF001 - the defect
        "server_bind",
        ThreadingHTTPServer.server_bind,
        "test_an_address_that_others_reach_needs_a_token",
    ),
)
