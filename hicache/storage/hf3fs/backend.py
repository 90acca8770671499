"""Hf3fsStorage: stores pages in a file that many machines share; a metadata service assigns pages to keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hicache.errors import ConfigurationError
from hicache.storage.base import Pieces
from hicache.storage.hf3fs.access import checked_token, read_token
from hicache.storage.hf3fs.catalogue import MAX_NAMESPACE_PAGES
from hicache.storage.hf3fs.client import MetadataClient, MetadataError
from hicache.storage.hf3fs.page_file import PageFile, slot_bytes_of
from hicache.storage.hf3fs.pages import MAX_KEYS
from hicache.storage.paged import Answer, PagedStorage
from hicache.storage.registry import Options

OPTIONS = ("root", "page_bytes", "capacity_pages", "metadata_url", "timeout_s", "token")

MAX_TIMEOUT_S = 600

MAX_PAGE_BYTES = 1 << 36
"""Offsets in the file stay below the limit of the system."""


class Hf3fsStorage(PagedStorage):
    """Stores pages in `root/scope`, a folder of 3FS or of any file system, for the processes of all machines.

    Pages are reserved at the service, written, and confirmed. 3FS is used through the file system, not through its
    user-space ring (usrbio). Options: `root`, the folder, a different one for each service; `page_bytes`, the size of
    the largest page; `capacity_pages`, above which the least recently used pages are evicted; `metadata_url`, of
    `hicache serve-metadata`; `timeout_s`, for a request and for its whole answer (default 5); `token`, that of
    the service (default: the variable HICACHE_METADATA_TOKEN, or none).
    """

    SECRET_OPTIONS = ("token",)

    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        super().__init__(scope)
        parsed = Options("hf3fs", options, OPTIONS, self.SECRET_OPTIONS)
        num_pages, slot_bytes = _size(parsed)
        self._num_pages = num_pages
        self._page_bytes = parsed.count("page_bytes")
        timeout_s = parsed.number("timeout_s", 5, MAX_TIMEOUT_S) or parsed.refuse("timeout_s", 0, "more than none")
        # A scope may itself end with a dot and digits: only the last digits are the slot size.
        self._metadata = MetadataClient(
            parsed.text("metadata_url"), f"{scope}.{slot_bytes}", num_pages, timeout_s, _token(parsed)
        )
        self._file = _opened(parsed.text("root"), scope, num_pages, slot_bytes)
        try:
            self._metadata.initialise()
        except MetadataError as error:
            self.failed(error)
        except BaseException:
            self._release()
            raise

    def _present(self, keys: Sequence[str]) -> list[bool]:
        return self._metadata.exist(keys) if keys else []

    def _read(self, keys: Sequence[str], targets: Sequence[Pieces]) -> list[Answer]:
        pages = self._metadata.find(keys) if keys else []
        answers = [self._read_one(*each) for each in zip(keys, pages, targets, strict=True)]
        damaged = [number for number, answer in enumerate(answers) if answer.is_damage]
        if damaged:
            self._recheck(damaged, keys, pages, answers)
        return answers

    def _read_one(self, key: str, page: int | None, pieces: Pieces) -> Answer:
        if page is None:
            return Answer.ABSENT
        try:
            return self._file.read(key, page, pieces)
        except OSError as error:
            return self.failed(error)

    def _recheck(
        self, damaged: Sequence[int], keys: Sequence[str], pages: Sequence[int | None], answers: list[Answer]
    ) -> None:
        """Look up damaged pages again: a page that has another key now is absent, one with the same key is removed."""
        now = self._metadata.find([keys[number] for number in damaged])
        lost = [number for number, page in zip(damaged, now, strict=True) if page == pages[number]]
        for number in set(damaged).difference(lost):
            answers[number] = Answer.ABSENT
        if lost:
            self._metadata.remove([keys[number] for number in lost])

    def _write(self, keys: Sequence[str], sources: Sequence[Pieces]) -> list[Answer]:
        answers = [Answer.PRESENT if self._file.holds(pieces) else Answer.FULL for pieces in sources]
        fitting = [number for number, answer in enumerate(answers) if answer is Answer.PRESENT]
        # A batch of more pages than there are would evict its own.
        for number in fitting[self._num_pages :]:
            answers[number] = Answer.FULL
        for begin in range(0, min(len(fitting), self._num_pages), MAX_KEYS):
            self._write_some(fitting[begin : min(begin + MAX_KEYS, self._num_pages)], keys, sources, answers)
        return answers

    def _write_some(
        self, numbers: Sequence[int], keys: Sequence[str], sources: Sequence[Pieces], answers: list[Answer]
    ) -> None:
        """Reserve, write and confirm the pages of these numbers of a batch."""
        found = self._metadata.reserve([keys[number] for number in numbers])
        self.tally.removed(found.evicted)
        mine, again = dict[int, int](), list[tuple[int, int]]()
        for number, (is_there, page) in zip(numbers, found.indices, strict=True):
            if page is None:
                answers[number] = Answer.FULL
            elif not is_there and (first := mine.setdefault(page, number)) != number:
                again.append((first, number))
        if mine:
            self._write_reserved(mine, found.reservation, keys, sources, answers)
        for first, number in again:
            # A key that occurs twice; otherwise the service gave one page to two keys, and the first one has it.
            is_done = keys[first] == keys[number] and answers[first] is Answer.DONE
            answers[number] = Answer.PRESENT if is_done else Answer.ERROR

    def _write_reserved(
        self,
        mine: Mapping[int, int],
        reservation: str | None,
        keys: Sequence[str],
        sources: Sequence[Pieces],
        answers: list[Answer],
    ) -> None:
        """Write reserved pages, each for one page of the batch; confirm those that were written, release the others."""
        written, released = list[tuple[str, int]](), dict.fromkeys(mine)
        try:
            for page, number in mine.items():
                answers[number] = self._write_one(keys[number], page, sources[number])
                if answers[number] is Answer.DONE:
                    written.append((keys[number], page))
                    del released[page]
        finally:
            refused = self._metadata.confirm(written, released, reservation)
        for page in refused.intersection(mine):
            answers[mine[page]] = Answer.ERROR

    def _write_one(self, key: str, page: int, pieces: Pieces) -> Answer:
        try:
            self._file.write(key, page, pieces)
        except OSError as error:
            return self.failed(error)
        return Answer.DONE

    def _remove_all(self) -> bool:
        self._metadata.clear()
        return True

    def _holdings(self) -> tuple[int, int]:
        """The bytes assume the largest page for each object: the service does not record sizes."""
        objects = self._metadata.confirmed()
        return objects, objects * self._page_bytes

    def _release(self) -> None:
        self._metadata.close()
        self._file.close()


def _size(parsed: Options) -> tuple[int, int]:
    """The number of pages, and the bytes of the slot of one."""
    num_pages, page_bytes = parsed.count("capacity_pages"), parsed.count("page_bytes")
    if num_pages > MAX_NAMESPACE_PAGES:
        parsed.refuse("capacity_pages", num_pages, f"at most {MAX_NAMESPACE_PAGES}")
    if page_bytes > MAX_PAGE_BYTES:
        parsed.refuse("page_bytes", page_bytes, f"at most {MAX_PAGE_BYTES}")
    return num_pages, slot_bytes_of(page_bytes)


def _token(parsed: Options) -> str | None:
    token = parsed.optional_text("token")
    return read_token(None) if token is None else checked_token(token, "storage option 'token'")


def _opened(root: str, scope: str, num_pages: int, slot_bytes: int) -> PageFile:
    folder = Path(root).absolute() / scope
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if folder.is_symlink():
            raise ConfigurationError(f"{folder} is a link: the pages of a scope must be in its own folder")
        return PageFile(folder / f"pages-{slot_bytes}", scope, num_pages, slot_bytes)
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigurationError):
            raise
        raise ConfigurationError(f"storage option 'root': got {root!r}, which cannot be used: {error}") from error
