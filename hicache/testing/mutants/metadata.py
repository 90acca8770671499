"""MUTANTS: the metadata service with one defect each, and the test of the conformance suite that finds it."""

from __future__ import annotations

from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from typing import Any

from hicache.storage.hf3fs import fields, service
from hicache.storage.hf3fs.access import Access
from hicache.storage.hf3fs.catalogue import Catalogue
from hicache.storage.hf3fs.fields import Fields, RefusalError
from hicache.storage.hf3fs.journal import Journal
from hicache.storage.hf3fs.pages import Change, Pages, Reservation


@dataclass(frozen=True, slots=True)
class MetadataMutant:
    """One defect: `defect` replaces `name` of `owner`. `test`: of `conformance/storage/test_metadata.py`."""

    slug: str
    clause: str
    owner: Any
    name: str
    defect: Any
    test: str


def _accepts(*_: object) -> None:
    """Accept everything."""


def _compares_the_beginning(access: Access, presented: str) -> None:
    token = access._token  # noqa: SLF001 - the defect
    if token is not None and not token.decode().startswith(presented.removeprefix("Bearer ")):
        raise RefusalError(401, "Authorization: expected Bearer and the token of this service")


def _takes_every_size(*_: object) -> None:
    """Let any namespace be of any size."""


def _forgets_reservations(journal: Journal, state: str, change: Change) -> None:
    _CHANGE(journal, state, change._replace(taken=(), reservation=None))


def _reclaims_nothing(*_: object) -> list[int]:
    return []


def _takes_any_list(fields: Fields, name: str, default: Any) -> Any:
    return fields._found.get(name, default)  # noqa: SLF001 - the defect


_CHANGE = Journal.change

MUTANTS = (
    MetadataMutant(
        "late-word-frees-the-next-reservation",
        "STORE-14",
        Reservation,
        "is_of",
        lambda *_: True,
        "test_a_late_word_does_not_concern_the_next_owner_of_a_page",
    ),
    MetadataMutant(
        "reservations-lost-in-a-crash",
        "STORE-14",
        Journal,
        "change",
        _forgets_reservations,
        "test_a_reservation_outlives_a_crash",
    ),
    MetadataMutant(
        "pages-of-dead-writers-are-lost",
        "STORE-14",
        Pages,
        "_reclaim",
        _reclaims_nothing,
        "test_the_pages_of_a_dead_writer_are_not_lost",
    ),
    MetadataMutant(
        "one-namespace-takes-all",
        "SEC-4",
        Catalogue,
        "_check_room",
        _takes_every_size,
        "test_no_namespace_takes_the_room_of_all",
    ),
    MetadataMutant(
        "lists-are-not-checked",
        "SEC-4",
        Fields,
        "_list",
        _takes_any_list,
        "test_no_request_ends_in_an_error_of_the_server",
    ),
    MetadataMutant(
        "any-number-of-keys", "SEC-4", fields, "MAX_KEYS", 1 << 30, "test_a_request_of_too_many_keys_is_refused"
    ),
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
