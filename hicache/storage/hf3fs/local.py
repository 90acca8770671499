"""LocalMetadata: the metadata of 3FS in this process, for pages that no other process uses."""

from __future__ import annotations

from pathlib import Path
from threading import Lock

from hicache.storage.hf3fs.catalogue import Catalogue
from hicache.storage.hf3fs.fields import Fields
from hicache.storage.hf3fs.metadata import Content, PageMetadata
from hicache.storage.hf3fs.routes import answer


class _Shared:
    """The catalogue of a file, which all instances of a process share. `users`: how many have it open."""

    def __init__(self, file: Path) -> None:
        self.catalogue = Catalogue(file)
        self.users = 0


_opened: dict[Path, _Shared] = {}
_opening = Lock()


class LocalMetadata(PageMetadata):
    """PageMetadata of a file, without a service. Another process that opens the file is refused.

    `file`: as that of `hicache serve-metadata`. Raises ConfigurationError for a file that cannot be used.
    """

    def __init__(self, file: Path) -> None:
        self._file = file.absolute()
        super().__init__(f"the metadata file {self._file}")
        with _opening:
            if self._file not in _opened:
                _opened[self._file] = _Shared(self._file)
            self._shared = _opened[self._file]
            self._shared.users += 1
        self._is_open = True

    def close(self) -> None:
        """Close the file if no other instance of this process has it open. May be called twice."""
        with _opening:
            self._shared.users -= self._is_open
            self._is_open = False
            if not self._shared.users and _opened.get(self._file) is self._shared:
                del _opened[self._file]
                self._shared.catalogue.close()

    def _sent(self, path: str, fields: Content, *, is_repeatable: bool) -> tuple[int, Content]:
        status, content = answer(self._shared.catalogue, path, Fields(fields))
        return status, content or {}
