"""PoolFiles: for each pool and rank of a scope a namespace and a file with slots for pages of its size."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from hicache.errors import ConfigurationError
from hicache.storage.hf3fs.file_io import FileIO
from hicache.storage.hf3fs.metadata import Namespace
from hicache.storage.hf3fs.page_file import PageFile, slot_bytes_of
from hicache.storage.keys import Shard

_NAME = re.compile(r"(.+)\.rank(\d+)\.(\d+)x(\d+)")
"""The name of a file: the pool, the rank, the number of pages and the bytes of one."""


class PoolFile(NamedTuple):
    """The pages of one pool of one rank."""

    space: Namespace
    file: PageFile
    page_bytes: int


class PoolFiles:
    """The files of a scope, opened at their first use.

    `capacity_pages`: of each pool, or by pool. `page_bytes`: of pools that no cache has announced; None if all are
    announced before their first use. `open_file`: opens a file for pages of so many bytes.
    """

    def __init__(
        self,
        folder: Path,
        scope: str,
        capacity_pages: int | Mapping[str, int],
        page_bytes: int | None,
        open_file: Callable[[Path, int], FileIO],
    ) -> None:
        self.folder = folder
        self._scope = scope
        self._capacity_pages = capacity_pages
        self._page_bytes = page_bytes
        self._open_file = open_file
        self._announced = dict[Shard, int]()
        self._files = dict[tuple[Shard, int], PoolFile]()
        self._lock = Lock()

    def announce(self, page_bytes: Mapping[Shard, int]) -> list[Namespace]:
        """Open the files of pools, by the bytes of a page. Raises ConfigurationError for a pool without a capacity."""
        self._announced.update(page_bytes)
        without = [shard.pool for shard in page_bytes if self._num_pages(shard.pool) is None]
        if without:
            raise ConfigurationError(f"storage option 'capacity_pages' names no {', '.join(map(repr, without))}")
        return [found.space for found in map(self.of, page_bytes) if found is not None]

    def of(self, shard: Shard) -> PoolFile | None:
        """The file of a pool, None for one without a capacity or a size. Raises OSError when it cannot be opened."""
        num_pages, page_bytes = self._num_pages(shard.pool), self._announced.get(shard, self._page_bytes)
        if num_pages is None or page_bytes is None:
            return None
        with self._lock:
            if (shard, page_bytes) not in self._files:
                name = f"{shard.pool}.rank{shard.rank}.{num_pages}x{page_bytes}"
                opened = self._open_file(self.folder / name, slot_bytes_of(page_bytes))
                file = PageFile(opened, self._scope, num_pages, page_bytes)
                self._files[shard, page_bytes] = PoolFile(self._space(shard, num_pages, page_bytes), file, page_bytes)
            return self._files[shard, page_bytes]

    def by_file(self, keys: Sequence[str]) -> dict[PoolFile, list[int]]:
        """The numbers of the keys of each file. Those of pools without a file are left out."""
        shards: dict[Shard, list[int]] = {}
        for number, key in enumerate(keys):
            shards.setdefault(Shard.of_key(key), []).append(number)
        found = [(self.of(shard), numbers) for shard, numbers in shards.items()]
        return {file: numbers for file, numbers in found if file is not None}

    def stored(self) -> dict[Namespace, int]:
        """The bytes of a page of each namespace of the scope, also of those that only other instances have opened."""
        found: dict[str, tuple[Namespace, int]] = {}
        for path in self.folder.iterdir():
            if name := _NAME.fullmatch(path.name):
                num_pages, page_bytes = int(name[3]), int(name[4])
                space = self._space(Shard(name[1], int(name[2])), num_pages, page_bytes)
                found[space.state] = space, page_bytes
        return dict(found.values())

    def close(self) -> None:
        """Close all files."""
        for found in self._files.values():
            found.file.close()
        self._files.clear()

    def _num_pages(self, pool: str) -> int | None:
        return self._capacity_pages if isinstance(self._capacity_pages, int) else self._capacity_pages.get(pool)

    def _space(self, shard: Shard, num_pages: int, page_bytes: int) -> Namespace:
        # A scope may itself end with a dot and a name: only the last two parts are the pool and the size.
        return Namespace(shard.rank, f"{self._scope}.{shard.pool}.{page_bytes}", num_pages)
