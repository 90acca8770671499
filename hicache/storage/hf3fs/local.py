"""LocalMetadata: the metadata of 3FS in this process, for pages that no other process uses."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import ParamSpec, TypeVar

from hicache.errors import ConfigurationError
from hicache.storage.hf3fs.catalogue import Catalogue, NamespaceSizeError, UnknownNamespaceError, new_reservation
from hicache.storage.hf3fs.metadata import Asked, MetadataError, Namespace, Reserved, Written, exchanges, joined
from hicache.storage.hf3fs.pages import NO_PAGE

A = TypeVar("A")
T = TypeVar("T")
P = ParamSpec("P")


class _Shared:
    """The catalogue of a file, which all instances of a process share. `users`: how many have it open."""

    def __init__(self, file: Path) -> None:
        self.catalogue = Catalogue(file)
        self.users = 0


_opened: dict[Path, _Shared] = {}
_opening = Lock()


class LocalMetadata:
    """PageMetadata of a file, without a service. Another process that opens the file is refused.

    `file`: as that of `hicache serve-metadata`. Methods raise MetadataError. Raises ConfigurationError for a file that
    cannot be used.
    """

    def __init__(self, file: Path) -> None:
        self._file = file.absolute()
        with _opening:
            if self._file not in _opened:
                _opened[self._file] = _Shared(self._file)
            self._shared = _opened[self._file]
            self._shared.users += 1
        self._catalogue, self._is_open = self._shared.catalogue, True

    def initialise(self, spaces: Collection[Namespace]) -> None:
        """Create namespaces. Raises ConfigurationError if one exists with another number of pages."""
        for space in spaces:
            try:
                self._done(self._catalogue.initialise, space.state, space.num_pages)
            except NamespaceSizeError as error:
                raise ConfigurationError(f"the metadata file {self._file} refuses a namespace: {error}") from error

    def exist(self, asked: Asked) -> dict[Namespace, list[bool]]:
        """Whether each key has a confirmed page. The number of keys is not limited."""
        return joined(self._each(some, self._catalogue.exist) for some in exchanges(asked))

    def find(self, asked: Asked) -> dict[Namespace, list[int | None]]:
        """The page of each key. The number of keys is not limited."""
        return joined(self._each(some, self._catalogue.find) for some in exchanges(asked))

    def reserve(self, asked: Asked) -> dict[Namespace, Reserved]:
        """The page of each of up to MAX_KEYS keys, or a reserved one."""
        return self._each(asked, self._reserve)

    def confirm(self, written: Mapping[Namespace, Written]) -> dict[Namespace, set[int]]:
        """Confirm written pages, and release others. Returns the refused pages, which had expired."""
        return self._each(written, lambda state, one: set(self._catalogue.confirm(state, *one).refused))

    def remove(self, asked: Asked) -> None:
        """Free the pages of keys. The number of keys is not limited."""
        for some in exchanges(asked):
            self._each(some, self._catalogue.remove)

    def clear(self, spaces: Collection[Namespace]) -> None:
        """Free all pages of those namespaces that exist."""
        for space in spaces:
            self._of_existing(space, self._catalogue.clear, None)

    def confirmed(self, spaces: Sequence[Namespace]) -> list[int]:
        """How many keys of each namespace have a page."""
        return [self._of_existing(space, lambda state: self._catalogue.usage(state).confirmed, 0) for space in spaces]

    def close(self) -> None:
        """Close the file if no other instance of this process has it open. May be called twice."""
        with _opening:
            self._shared.users -= self._is_open
            self._is_open = False
            if not self._shared.users and _opened.get(self._file) is self._shared:
                del _opened[self._file]
                self._catalogue.close()

    def _reserve(self, state: str, keys: Sequence[str]) -> Reserved:
        reservation = new_reservation()
        found = self._catalogue.reserve(state, keys, reservation)
        indices = [(is_there, None if page == NO_PAGE else page) for is_there, page in found.indices]
        return Reserved(indices, found.evicted, reservation)

    def _each(self, asked: Mapping[Namespace, A], act: Callable[[str, A], T]) -> dict[Namespace, T]:
        """What is answered for each namespace. Those that do not exist are created."""
        try:
            self.initialise(asked)
        except ConfigurationError as error:
            raise MetadataError(str(error)) from error
        return {space: self._done(act, space.state, one) for space, one in asked.items()}

    def _of_existing(self, space: Namespace, act: Callable[[str], T], otherwise: T) -> T:
        try:
            return self._done(act, space.state)
        except UnknownNamespaceError:
            return otherwise

    def _done(self, act: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        try:
            return act(*arguments, **named)
        except OSError as error:
            raise MetadataError(f"metadata file {error}") from error
