"""MUTANTS: the metadata service, or the backend that asks it, with one defect each, and the test that finds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from typing import Any

from hicache.storage.hf3fs import fields, service
from hicache.storage.hf3fs.access import Access
from hicache.storage.hf3fs.catalogue import Catalogue
from hicache.storage.hf3fs.client import MetadataClient
from hicache.storage.hf3fs.fields import Fields, RefusalError
from hicache.storage.hf3fs.journal import Journal
from hicache.storage.hf3fs.metadata import Content, Namespace
from hicache.storage.hf3fs.pages import Change, Pages, Reservation
from hicache.storage.hf3fs.pool_files import PoolFiles
from hicache.storage.keys import Shard


@dataclass(frozen=True, slots=True)
class MetadataMutant:
    """One defect: `defect` replaces `name` of `owner`. `test`: of this `file` in `conformance/storage`."""

    slug: str
    clause: str
    owner: Any
    name: str
    defect: Any
    test: str
    file: str = "test_metadata.py"


def _accepts(*_: object) -> None:
    """Accept everything."""


def _compares_the_beginning(access: Access, presented: str) -> None:
    token = access._token
    if token is not None and not token.decode().startswith(presented.removeprefix("Bearer ")):
        raise RefusalError(401, "Authorization: expected Bearer and the token of this service")


def _takes_every_size(*_: object) -> None:
    """Let any namespace be of any size."""


def _forgets_reservations(journal: Journal, state: str, change: Change) -> None:
    _CHANGE(journal, state, change._replace(taken=(), reservation=None))


def _reclaims_nothing(*_: object) -> list[int]:
    return []


def _takes_any_list(fields: Fields, name: str, default: Any) -> Any:
    return fields._found.get(name, default)


def _is_all_one_pool(_: type[Shard], key: str) -> Shard:
    return Shard("kv", _SHARD(key).rank)


def _is_all_one_rank(_: type[Shard], key: str) -> Shard:
    return Shard(_SHARD(key).pool, 0)


def _takes_the_largest_size(files: PoolFiles, page_bytes: Mapping[Shard, int]) -> list[Namespace]:
    return _ANNOUNCE(files, dict.fromkeys(page_bytes, max(page_bytes.values(), default=0)))


def _asks_one_by_one(
    client: MetadataClient, operation: str, asked: Mapping[Namespace, Content], *, is_repeatable: bool = False
) -> dict[Namespace, tuple[int, Content]]:
    found: dict[Namespace, tuple[int, Content]] = {}
    for space, one in asked.items():
        found.update(_EXCHANGE(client, operation, {space: one}, is_repeatable=is_repeatable))
    return found


_ANNOUNCE = PoolFiles.announce
_CHANGE = Journal.change
_EXCHANGE = MetadataClient._exchange
_SHARD = Shard.of_key

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
        service._Server,
        "server_bind",
        ThreadingHTTPServer.server_bind,
        "test_an_address_that_others_reach_needs_a_token",
    ),
    MetadataMutant(
        "one-namespace-for-all-pools",
        "STORE-15",
        Shard,
        "of_key",
        classmethod(_is_all_one_pool),
        "test_pages_of_one_pool_evict_none_of_another",
        "test_pools.py",
    ),
    MetadataMutant(
        "one-namespace-for-all-ranks",
        "STORE-15",
        Shard,
        "of_key",
        classmethod(_is_all_one_rank),
        "test_pages_of_one_rank_evict_none_of_another",
        "test_pools.py",
    ),
    MetadataMutant(
        "pages-of-the-largest-size",
        "STORE-15",
        PoolFiles,
        "announce",
        _takes_the_largest_size,
        "test_a_page_takes_the_room_of_a_page_of_its_pool",
        "test_pools.py",
    ),
    MetadataMutant(
        "states-beside-kv-take-its-size",
        "STORE-15",
        PoolFiles,
        "announce",
        _takes_the_largest_size,
        "test_the_pages_of_a_hybrid_take_the_room_that_each_pool_needs",
        "test_under_a_cache.py",
    ),
    MetadataMutant(
        "an-exchange-for-each-pool",
        "STORE-15",
        MetadataClient,
        "_exchange",
        _asks_one_by_one,
        "test_all_pools_are_asked_for_in_one_exchange",
        "test_pools.py",
    ),
)
