"""ObjectStorage: stores each page as an object in a bucket of an S3 service, or as a file of a folder, with obstore."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

from hicache.errors import ConfigurationError, KeyFormError
from hicache.storage.base import Breaker, Pieces
from hicache.storage.keys import check_key
from hicache.storage.page_io import HEADER_BYTES, checksum_bytes, identity, scatter
from hicache.storage.paged import Answer, PagedStorage, page_bytes
from hicache.storage.pause import Pause
from hicache.storage.registry import Options
from hicache.storage.secrets import concealed

ACCESS = ("endpoint", "region", "access_key_id", "secret_access_key", "session_token")
LIMITS = ("connections", "timeout_s", "retries", "retry_s", "part_bytes")

MIN_PART_BYTES = 5 << 20
"""The smallest part of an upload in parts that S3 accepts."""

LISTED = 1_000
"""The objects of one page of a list, and the most that one request deletes."""

FIRST_BACKOFF, LAST_BACKOFF = timedelta(milliseconds=20), timedelta(seconds=1)

_SHOWN = 500
"""The most characters of an error: the answer of a service may be a page of HTML."""

_SECRET_VARIABLES = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_TOKEN")


class ObjectStorage(PagedStorage):
    """Stores pages in an S3 service, or in a folder. The capacity is that of the service or the disk.

    Options: `bucket`, or `root`, a folder; `prefix` ("hicache"), the first part of all names. For a bucket: `endpoint`,
    the URL of the service (by default that of AWS), `region`, `access_key_id`, `secret_access_key` and `session_token`,
    each by default as AWS's tools find it in the environment; `anonymous` (false), to sign no request. `connections`
    (8), the most requests at a time; `timeout_s` (5), the longest time of one request, and after which get and set
    begin no further page; `retries` (2) of a request, which all begin within `timeout_s`; `retry_s` (1), the shortest
    time until a service that failed is asked again; `part_bytes` (16 MiB): larger pages are uploaded in parts. Raises
    ConfigurationError without the library of the extra `objects`, and when the service refuses the keys or the bucket.

    An object has a checksum over scope, key and bytes, followed by the bytes. It is created on the condition that there
    is none, but one in parts without a condition. `clear` and `stats` list the objects of the scope.
    """

    NAME: ClassVar[str] = "objects"
    OPTIONS: ClassVar[tuple[str, ...]] = ("bucket", "root", "prefix", *ACCESS, "anonymous", *LIMITS)
    SECRET_OPTIONS: ClassVar[tuple[str, ...]] = ("secret_access_key", "session_token")

    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        super().__init__(scope)
        parsed = Options(self.NAME, options, self.OPTIONS, self.SECRET_OPTIONS)
        self._library = _library(self.NAME)
        self._timeout_s = parsed.seconds("timeout_s", 5, 3_600)
        self._part_bytes = parsed.optional_count("part_bytes") or 16 << 20
        if self._part_bytes < MIN_PART_BYTES:
            parsed.refuse("part_bytes", self._part_bytes, f"{MIN_PART_BYTES} or more")
        self._connections = parsed.optional_count("connections") or 8
        self._retries = parsed.whole("retries", 2)
        is_local = parsed.optional_text("root") is not None
        self._folder = f"{_prefix(parsed)}/{scope}"
        # In a folder one key may be the beginning of another one. No key contains a plus sign.
        self._separator = "+" if is_local else "/"
        self._store = self._local(parsed) if is_local else self._bucket(parsed)
        # A folder is asked again at once: a failure costs no time.
        self._pause = Pause(parsed.number("retry_s", 0 if is_local else 1, 3_600), time.monotonic)
        self._threads = ThreadPoolExecutor(self._connections, "hicache-objects")
        self._check_access()

    def breaker(self) -> Breaker:
        return self._pause.breaker

    def _local(self, parsed: Options) -> Any:
        for name in ("bucket", *ACCESS):
            if (value := parsed.optional_text(name)) is not None:
                parsed.refuse(name, value, "nothing, as the objects are in a folder, the option 'root'")
        root = parsed.text("root")
        try:
            return self._library.store.LocalStore(Path(root).absolute(), mkdir=True)
        except (OSError, ValueError, self._library.exceptions.BaseError) as error:
            return parsed.refuse("root", root, f"a folder ({_summary(error)})")

    def _bucket(self, parsed: Options) -> Any:
        concealed([value for name in _SECRET_VARIABLES if (value := os.environ.get(name))])
        given = {name: value for name in ACCESS if (value := parsed.optional_text(name)) is not None}
        if ("access_key_id" in given) != ("secret_access_key" in given):
            parsed.refuse("access_key_id", given.get("access_key_id"), "both 'access_key_id' and 'secret_access_key'")
        endpoint, limit = given.get("endpoint", ""), timedelta(seconds=self._timeout_s)
        backoff = {"init_backoff": FIRST_BACKOFF, "max_backoff": LAST_BACKOFF, "base": 2}
        return self._library.store.S3Store(
            parsed.text("bucket"),
            **given,
            conditional_put="etag",
            skip_signature=parsed.flag("anonymous", False),
            client_options={"allow_http": endpoint.startswith("http://"), "connect_timeout": limit, "timeout": limit},
            retry_config={"max_retries": self._retries, "retry_timeout": limit, "backoff": backoff},
        )

    def _check_access(self) -> None:
        """Raise ConfigurationError if the service refuses the keys, or has no such bucket."""
        refusals = self._library.exceptions
        try:
            with self._asked():
                # Of a list obstore does not say that it is forbidden.
                self._has_object(f"{self._folder}/access")
            next(self._listed(), None)
        except OSError as error:
            self.failed(error)
            cause = error.__cause__.__cause__ if error.__cause__ else None
            is_refused = isinstance(cause, (refusals.PermissionDeniedError, refusals.UnauthenticatedError))
            if is_refused or "NoSuchBucket" in str(error):
                self._threads.shutdown()
                message = f"storage backend {self.NAME!r}: the service refuses the access: {error}"
                raise ConfigurationError(message) from None

    def _present(self, keys: Sequence[str]) -> list[bool]:
        return list(self._threads.map(self._is_there, keys))

    def _is_there(self, key: str) -> bool:
        try:
            with self._asked():
                return self._has_object(self._name(key))
        except OSError as error:
            self.failed(error)
            return False

    def _has_object(self, name: str) -> bool:
        try:
            self._library.head(self._store, name)
        except FileNotFoundError:
            return False
        return True

    def _read(self, keys: Sequence[str], targets: Sequence[Pieces]) -> list[Answer]:
        answers = self._in_time(self._read_one, keys, targets)
        self._remove([key for key, answer in zip(keys, answers, strict=True) if answer.is_damage])
        return answers

    def _read_one(self, key: str, pieces: Pieces) -> Answer:
        expected = HEADER_BYTES + page_bytes(pieces)
        with self._asked():
            try:
                size, received = self._fetched(self._name(key), expected)
            except FileNotFoundError:
                return Answer.ABSENT
        if size != expected:
            return Answer.SHORT if size < expected else Answer.LONG
        scatter(received[HEADER_BYTES:], pieces)
        return Answer.DONE if received[:HEADER_BYTES] == self._header(key, pieces) else Answer.CORRUPT

    def _fetched(self, name: str, expected: int) -> tuple[int, memoryview]:
        """The size of an object, and its bytes if these are as many as expected."""
        found = self._library.get(self._store, name)
        # Known before the bytes of the object are received.
        size = found.meta["size"]
        return size, memoryview(found.bytes() if size == expected else b"")

    def _remove(self, damaged: Sequence[str]) -> None:
        """Remove damaged objects. One that another instance has replaced meanwhile is lost with them."""
        try:
            self._delete([self._name(key) for key in damaged])
        except OSError as error:
            self.failed(error)

    def _delete(self, names: Sequence[str]) -> None:
        # A folder stops at a file that another instance has removed, so one request removes one file there.
        step = LISTED if self._separator == "/" else 1
        for begin in range(0, len(names), step):
            with self._asked():
                try:
                    self._library.delete(self._store, list(names[begin : begin + step]))
                except FileNotFoundError:
                    continue

    def _write(self, keys: Sequence[str], sources: Sequence[Pieces]) -> list[Answer]:
        return self._in_time(self._write_one, keys, sources)

    def _write_one(self, key: str, pieces: Pieces) -> Answer:
        name = self._name(key)
        with self._asked():
            # Asked first, so that a page that is there is not sent.
            if self._has_object(name):
                return Answer.PRESENT
            try:
                self._send(name, [self._header(key, pieces), *pieces])
            except self._library.exceptions.AlreadyExistsError:
                return Answer.PRESENT
        return Answer.DONE

    def _send(self, name: str, content: Sequence[bytes | memoryview]) -> None:
        """Write an object. Raises AlreadyExistsError of obstore if there is one."""
        is_large = sum(map(len, content)) > self._part_bytes
        # obstore creates no object in parts on a condition (apache/arrow-rs-object-store#289).
        how = {"chunk_size": self._part_bytes} if is_large else {"mode": "create"}
        self._library.put(self._store, name, content, use_multipart=is_large, **how)

    def _in_time(
        self, act: Callable[[str, Pieces], Answer], keys: Sequence[str], pages: Sequence[Pieces]
    ) -> list[Answer]:
        """The answer for each page. A page that would begin after `timeout_s` is an error."""
        deadline = time.monotonic() + self._timeout_s

        def answer(key: str, pieces: Pieces) -> Answer:
            if time.monotonic() > deadline:
                return Answer.ERROR
            try:
                return act(key, pieces)
            except OSError as error:
                return self.failed(error)

        return list(self._threads.map(answer, keys, pages))

    def _remove_all(self) -> bool:
        for objects in self._listed():
            self._delete([one["path"] for one in objects])
        return not any(self._listed())

    def _holdings(self) -> tuple[int, int]:
        sizes = [one["size"] - HEADER_BYTES for objects in self._listed() for one in objects]
        kept = [size for size in sizes if size >= 0]
        return len(kept), sum(kept)

    def _listed(self) -> Iterator[list[Any]]:
        """The objects of the scope, in parts that are not empty."""
        with self._asked():
            objects = self._library.list(self._store, self._folder, chunk_size=LISTED)
        while True:
            with self._asked():
                part = next(objects, None)
            if not part:
                return
            yield part

    def _release(self) -> None:
        self._threads.shutdown()

    @contextmanager
    def _asked(self) -> Iterator[None]:
        """The block asks the service. Raises OSError for each of its failures."""
        with self._pause.attempt((OSError,)):
            try:
                yield
            except (OSError, self._library.exceptions.BaseError) as error:
                raise OSError(_summary(error)) from error

    def _name(self, key: str) -> str:
        return f"{self._folder}/{key.replace('/', self._separator)}"

    def _header(self, key: str, pieces: Pieces) -> bytes:
        return checksum_bytes(pieces, identity(self.scope, key))


def _library(backend: str) -> Any:
    """The module of obstore. Raises ConfigurationError, naming the extra, where it is not installed."""
    try:
        import obstore
        import obstore.exceptions
        import obstore.store
    except ImportError as error:
        message = f"storage backend {backend!r} needs obstore, which is not installed: pip install 'hicache[{backend}]'"
        raise ConfigurationError(message) from error
    return obstore


def _prefix(parsed: Options) -> str:
    prefix = parsed.optional_text("prefix") or "hicache"
    try:
        return check_key(prefix)
    except KeyFormError:
        return parsed.refuse("prefix", prefix, "segments of letters, digits and ._- with slashes between them")


def _summary(error: Exception) -> str:
    """The error of obstore in one line, without the structures that it shows after a blank line."""
    return " ".join(str(error).partition("\n\n")[0].split())[:_SHOWN]
