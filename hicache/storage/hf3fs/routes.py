"""Routes: the operations of the metadata service by path, and their answers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hicache.storage.hf3fs.catalogue import Catalogue, NamespaceSizeError, UnknownNamespaceError, new_reservation
from hicache.storage.hf3fs.fields import Fields, RefusalError, read_rank
from hicache.storage.hf3fs.metadata import BATCH

LOG = logging.getLogger(__name__)


class Reply(NamedTuple):
    """An HTTP status and the JSON content, None for no content."""

    status: int
    content: Mapping[str, Any] | None


DONE = Reply(204, None)

_UNSTORED = 503

Route = Callable[[Catalogue, str, Fields], Reply]
"""Serves one operation on a namespace of a rank."""


def reply(catalogue: Catalogue, path: str, body: bytes) -> Reply:
    """The answer to one request of a client. What cannot be stored is logged."""
    try:
        found = answer(catalogue, path, Fields.of_body(body))
    except RefusalError as refusal:
        return Reply(refusal.status, {"detail": str(refusal)})
    for status, content in (found.content or {}).get("replies", [found]):
        if status == _UNSTORED:
            LOG.warning("metadata cannot be stored: %s", content["detail"])
    return found


def answer(catalogue: Catalogue, path: str, fields: Fields) -> Reply:
    """The answer to a request, or to a batch: 4xx for an invalid request, 503 for a change that cannot be stored."""
    if path != BATCH:
        return _reply(catalogue, path, fields)
    try:
        requests = fields.requests
    except RefusalError as refusal:
        return Reply(refusal.status, {"detail": str(refusal)})
    replies = [_reply(catalogue, *one) for one in requests]
    return Reply(200, {"replies": [[one.status, one.content or {}] for one in replies]})


def _reply(catalogue: Catalogue, path: str, fields: Fields) -> Reply:
    try:
        return _served(catalogue, path, fields)
    except RefusalError as refusal:
        return Reply(refusal.status, {"detail": str(refusal)})
    except NamespaceSizeError as error:
        return Reply(409, {"detail": str(error)})
    except OSError as error:
        return Reply(_UNSTORED, {"detail": f"the change cannot be stored: {error}"})


def _served(catalogue: Catalogue, path: str, fields: Fields) -> Reply:
    empty, _, rest = path.partition("/")
    rank_text, _, operation = rest.partition("/")
    if empty or operation not in ROUTES:
        raise RefusalError(404, "Not Found")
    rank = read_rank(rank_text)
    namespace = fields.namespace
    try:
        return ROUTES[operation](catalogue, f"{rank}:{namespace}", fields)
    except UnknownNamespaceError:
        message = f"Rank {rank} namespace '{namespace}' not initialized. Please call /{rank}/initialize first."
        raise RefusalError(404, message) from None


def _initialise(catalogue: Catalogue, state: str, fields: Fields) -> Reply:
    catalogue.initialise(state, fields.num_pages)
    return DONE


def _exists(catalogue: Catalogue, state: str, fields: Fields) -> Reply:
    return Reply(200, {"exists": catalogue.exist(state, fields.keys)})


def _reserve(catalogue: Catalogue, state: str, fields: Fields) -> Reply:
    reservation = new_reservation() if fields.wants_reservation else None
    found = catalogue.reserve(state, fields.keys_with_prefixes, reservation)
    added = {"evicted": found.evicted or None, "reservation": reservation}
    return Reply(200, {"indices": found.indices, **{name: value for name, value in added.items() if value}})


def _confirm(catalogue: Catalogue, state: str, fields: Fields) -> Reply:
    written, released = fields.written, fields.released
    beyond = catalogue.usage(state).num_pages
    if wrong := [page for page in (*(page for _, page in written), *released) if page >= beyond]:
        raise RefusalError(422, f"expected pages below {beyond}, got {wrong[:10]}; nothing was changed")
    refused = catalogue.confirm(state, written, released, fields.reservation).refused
    if not refused:
        return DONE
    detail = f"not reserved, or reserved by another call or key: {refused[:10]}; all others were applied"
    return Reply(409, {"detail": detail, "refused": refused})


def _delete(catalogue: Catalogue, state: str, fields: Fields) -> Reply:
    catalogue.remove(state, fields.keys)
    return DONE


def _clear(catalogue: Catalogue, state: str, _: Fields) -> Reply:
    catalogue.clear(state)
    return DONE


def _delete_namespace(catalogue: Catalogue, state: str, _: Fields) -> Reply:
    catalogue.delete(state)
    return DONE


def _namespaces(catalogue: Catalogue, state: str, _: Fields) -> Reply:
    rank, colon, _name = state.partition(":")
    usages = catalogue.usages(rank + colon)
    return Reply(200, {"namespaces": {name.partition(":")[2]: one._asdict() for name, one in usages.items()}})


def _find(catalogue: Catalogue, state: str, fields: Fields) -> Reply:
    return Reply(200, {"indices": catalogue.find(state, fields.keys)})


def _usage(catalogue: Catalogue, state: str, _: Fields) -> Reply:
    return Reply(200, catalogue.usage(state)._asdict())


ROUTES: Mapping[str, Route] = {
    "initialize": _initialise,
    "exists": _exists,
    "reserve_and_allocate_page_indices": _reserve,
    "confirm_write": _confirm,
    "delete_keys": _delete,
    "clear": _clear,
    "get_page_indices": _find,
    "usage": _usage,
    "namespaces": _namespaces,
    "delete_namespace": _delete_namespace,
}
"""By the last part of the path.

The last three extend the protocol of 3FS's metadata, as do BATCH, and `evicted` and the id of a reservation in its
answer.
"""
