"""Fields: read and validate the fields of a request to the metadata service."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from hicache.storage.hf3fs.json_file import DEFAULT_NAMESPACE
from hicache.storage.hf3fs.pages import MAX_KEYS

MAX_KEY_CHARACTERS = 1 << 10

MAX_NUMBER = 1 << 53
"""The limit up to which every JSON reader represents integers exactly."""

_RESERVATION = re.compile(r"[0-9a-f]{16}")
_NAMESPACE = re.compile(r"[A-Za-z0-9._-]{1,256}")
_RANK = re.compile(r"[0-9]{1,9}")


class RefusalError(Exception):
    """A request that cannot be served. `status`: the HTTP status of the answer, 4xx."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def read_rank(text: str) -> int:
    """The rank of a path. Raises RefusalError."""
    if not _RANK.fullmatch(text):
        _refuse("the rank in the path", text, "an integer that is 0 or more")
    return int(text)


class Fields:
    """The fields of a request. Raises RefusalError unless they are an object; properties raise it for invalid ones."""

    def __init__(self, found: Any) -> None:
        if not isinstance(found, dict):
            _refuse("the body", found, "an object")
        self._found: dict[str, Any] = found

    @classmethod
    def of_body(cls, body: bytes) -> Fields:
        """The fields of the body of a request. Raises RefusalError unless it is a JSON object."""
        try:
            return cls(json.loads(body))
        except (ValueError, RecursionError) as error:
            raise RefusalError(400, f"the body is not JSON: {error}") from error

    @property
    def namespace(self) -> str:
        """The namespace, `kv` by default."""
        name = self._found.get("namespace", DEFAULT_NAMESPACE)
        if not (isinstance(name, str) and _NAMESPACE.fullmatch(name)):
            _refuse("namespace", name, "up to 256 letters, digits and ._-")
        return name

    @property
    def num_pages(self) -> int:
        """The number of pages."""
        pages = _number("num_pages", self._found.get("num_pages"))
        if not pages:
            _refuse("num_pages", pages, "a positive integer")
        return pages

    @property
    def keys(self) -> list[str]:
        """The keys."""
        return [_key("keys", key) for key in self._list("keys", None)]

    @property
    def keys_with_prefixes(self) -> list[str]:
        """The keys of a reservation. Each comes with the key of the page before it, which is ignored."""
        pairs = [_pair("keys", pair) for pair in self._list("keys", None)]
        for _, prefix in pairs:
            if not isinstance(prefix, str):
                _refuse("keys", prefix, "pairs of texts")
        return [_key("keys", key) for key, _ in pairs]

    @property
    def written(self) -> list[tuple[str, int]]:
        """Keys and the pages that were written for them; empty if the field is missing."""
        name = "written_keys_to_confirm"
        pairs = [_pair(name, pair) for pair in self._list(name, [])]
        return [(_key(name, key), _number(name, page)) for key, page in pairs]

    @property
    def released(self) -> list[int]:
        """Pages that were not written; empty if the field is missing."""
        return [_number("pages_to_release", page) for page in self._list("pages_to_release", [])]

    @property
    def wants_reservation(self) -> bool:
        """Whether the writer names the reservation when it confirms; false by default."""
        found = self._found.get("with_reservation", False)
        if not isinstance(found, bool):
            _refuse("with_reservation", found, "true or false")
        return found

    @property
    def reservation(self) -> str | None:
        """The id of a reservation, None if the field is missing."""
        found = self._found.get("reservation")
        if found is not None and not (isinstance(found, str) and _RESERVATION.fullmatch(found)):
            _refuse("reservation", found, "the id of a reservation")
        return found

    @property
    def requests(self) -> list[tuple[str, Fields]]:
        """The requests of a batch: the path and the fields of each. They have at most MAX_KEYS keys together."""
        pairs = [_pair("requests", pair) for pair in self._list("requests", None)]
        requests = [(_key("requests", path), Fields(found)) for path, found in pairs]
        total = sum(len(one) for _, found in pairs for one in found.values() if isinstance(one, list))
        if total > MAX_KEYS:
            raise RefusalError(413, f"requests: got {total} keys and pages, expected at most {MAX_KEYS} in a batch")
        return requests

    def _list(self, name: str, default: list[Any] | None) -> list[Any]:
        found = self._found.get(name, default)
        if not isinstance(found, list):
            _refuse(name, found, "a list")
        if len(found) > MAX_KEYS:
            raise RefusalError(413, f"{name}: got {len(found)}, expected at most {MAX_KEYS} in a request")
        return found


def _pair(name: str, pair: Any) -> tuple[Any, Any]:
    if not (isinstance(pair, (list, tuple)) and len(pair) == 2):  # noqa: PLR2004 - a pair
        _refuse(name, pair, "a list of pairs")
    return pair[0], pair[1]


def _key(name: str, key: Any) -> str:
    if not (isinstance(key, str) and 0 < len(key) <= MAX_KEY_CHARACTERS):
        _refuse(name, key, f"texts of 1 to {MAX_KEY_CHARACTERS} characters")
    return key


def _number(name: str, value: Any) -> int:
    # In Python True is an int.
    if type(value) is not int or not 0 <= value < MAX_NUMBER:
        _refuse(name, value, "an integer that is 0 or more")
    return value


def _refuse(name: str, value: Any, expected: str) -> NoReturn:
    found = "nothing" if value is None else ascii(value)[:100]
    raise RefusalError(422, f"{name}: got {found}, expected {expected}")
