"""Hf3fsStorage: stores pages in a file that many machines share; a metadata service assigns pages to keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

from hicache.errors import ConfigurationError
from hicache.storage.base import Pieces, PoolQuery, check_queries, usable_pages
from hicache.storage.hf3fs.access import checked_token, read_token
from hicache.storage.hf3fs.catalogue import MAX_NAMESPACE_PAGES
from hicache.storage.hf3fs.client import MetadataClient
from hicache.storage.hf3fs.file_io import FileIO, PlainFile
from hicache.storage.hf3fs.local import LocalMetadata
from hicache.storage.hf3fs.metadata import Asked, MetadataError, Namespace, PageMetadata, Reserved, Written
from hicache.storage.hf3fs.page_file import Page
from hicache.storage.hf3fs.pages import MAX_KEYS
from hicache.storage.hf3fs.pool_files import PoolFile, PoolFiles
from hicache.storage.hf3fs.usrbio import UsrbioFile, usrbio_of
from hicache.storage.keys import Shard
from hicache.storage.paged import Answer, PagedStorage
from hicache.storage.registry import Options
from hicache.types import Pool

T = TypeVar("T")

OPTIONS = ("root", "page_bytes", "capacity_pages", "metadata_url", "metadata_file", "timeout_s", "token", "usrbio")

MAX_TIMEOUT_S = 600

MAX_PAGE_BYTES = 1 << 36
"""Offsets in the file stay below the limit of the system."""


class Hf3fsStorage(PagedStorage):
    """Stores pages in `root/scope`, a folder of 3FS or of any file system, for the processes of all machines.

    Each pool of each rank has a namespace and a file, with slots for pages of its size: pages of one pool take no room
    of another, and evict none of it. Pages are reserved at the service, written, and confirmed.

    Options: `root`, the folder, a different one for each service; `capacity_pages`, of each pool, or a table by pool:
    above it the least recently used pages of the pool are evicted; `page_bytes`, the size of the largest page of a pool
    that no cache announces; `metadata_url`, of `hicache serve-metadata`; `timeout_s`, for a request and for its whole
    answer (default 5); `token`, that of the service (default: the variable HICACHE_METADATA_TOKEN, or none);
    `metadata_file`, in the place of the last three: the metadata are in this process, and in that file, for pages that
    no other process uses; `usrbio`, whether files are read and written through the user-space rings of 3FS (default:
    where `root` is on 3FS and its library `hf3fs_py_usrbio` is installed).
    """

    SECRET_OPTIONS = ("token",)

    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        super().__init__(scope)
        parsed = Options("hf3fs", options, OPTIONS, self.SECRET_OPTIONS)
        capacity_pages, page_bytes = _capacity(parsed), parsed.optional_count("page_bytes")
        if page_bytes is not None and page_bytes > MAX_PAGE_BYTES:
            parsed.refuse("page_bytes", page_bytes, f"at most {MAX_PAGE_BYTES}")
        folder = _made(parsed, scope)
        open_file = _opening(parsed, folder)
        self._metadata = _metadata(parsed)
        self._files = PoolFiles(folder, scope, capacity_pages, page_bytes, open_file)
        self._open({} if page_bytes is None else {Shard(Pool.KV.value, 0): page_bytes})

    def register_pools(self, page_bytes: Mapping[str, int]) -> None:
        self._open({Shard.of_key(segment): size for segment, size in page_bytes.items()})

    def exists(self, keys: Sequence[str], queries: Sequence[PoolQuery], prefix_keys: Sequence[str]) -> int:
        check_queries(keys, queries)
        answers = iter(self.has([*keys, *chain.from_iterable(query.keys for query in queries)]))
        present, *others = (list(islice(answers, len(keys))) for _ in range(1 + len(queries)))
        whole = present.index(False) if False in present else len(present)
        wants = zip(others, queries, strict=True)
        return usable_pages(whole, [(there[:whole], query.policy, query.trailing_pages) for there, query in wants])

    def _open(self, page_bytes: Mapping[Shard, int]) -> None:
        """Open the files and the namespaces of pools. Raises ConfigurationError; everything is closed then."""
        try:
            self._metadata.initialise(self._files.announce(page_bytes))
        except MetadataError as error:
            self.failed(error)
        except OSError as error:
            self._release()
            raise ConfigurationError(_unusable(self._files.folder, error)) from error
        except BaseException:
            self._release()
            raise

    def _present(self, keys: Sequence[str]) -> list[bool]:
        return self._answered(self._metadata.exist, keys, False)

    def _answered(
        self, ask: Callable[[Asked], Mapping[Namespace, list[T]]], keys: Sequence[str], otherwise: T
    ) -> list[T]:
        """An answer for each key, from one exchange for all pools. `otherwise`: for keys of a pool without a file."""
        answers, of_files = [otherwise] * len(keys), self._files.by_file(keys)
        found = ask(_asked(of_files, keys))
        for file, numbers in of_files.items():
            for number, answer in zip(numbers, found[file.space], strict=True):
                answers[number] = answer
        return answers

    def _read(self, keys: Sequence[str], targets: Sequence[Pieces]) -> list[Answer]:
        pages = self._answered(self._metadata.find, keys, None)
        answers = [Answer.ABSENT] * len(keys)
        for found, numbers in self._files.by_file(keys).items():
            there = [Page(keys[one], page, targets[one]) for one in numbers if (page := pages[one]) is not None]
            told = iter(self._told(found.file.read(there)))
            for one in numbers:
                answers[one] = answers[one] if pages[one] is None else next(told)
        damaged = [number for number, answer in enumerate(answers) if answer.is_damage]
        if damaged:
            self._recheck(damaged, keys, pages, answers)
        return answers

    def _told(self, answers: Sequence[Answer | OSError]) -> list[Answer]:
        return [self.failed(one) if isinstance(one, OSError) else one for one in answers]

    def _recheck(
        self, damaged: Sequence[int], keys: Sequence[str], pages: Sequence[int | None], answers: list[Answer]
    ) -> None:
        """Look up damaged pages again: a page that has another key now is absent, one with the same key is removed."""
        now = self._answered(self._metadata.find, [keys[number] for number in damaged], None)
        lost = [number for number, page in zip(damaged, now, strict=True) if page == pages[number]]
        for number in set(damaged).difference(lost):
            answers[number] = Answer.ABSENT
        lost_keys = [keys[number] for number in lost]
        self._metadata.remove(_asked(self._files.by_file(lost_keys), lost_keys))

    def _write(self, keys: Sequence[str], sources: Sequence[Pieces]) -> list[Answer]:
        answers, first = [Answer.FULL] * len(keys), {key: number for number, key in reversed(list(enumerate(keys)))}
        fitting = list[tuple[PoolFile, int]]()
        for found, numbers in self._files.by_file(keys).items():
            held = [one for one in numbers if first[keys[one]] == one and found.file.holds(sources[one])]
            # A batch of more pages than there are would evict its own.
            fitting += [(found, number) for number in held[: found.space.num_pages]]
        for begin in range(0, len(fitting), MAX_KEYS):
            some: dict[PoolFile, list[int]] = {}
            for found, number in fitting[begin : begin + MAX_KEYS]:
                some.setdefault(found, []).append(number)
            self._write_some(some, keys, sources, answers)
        for number, key in enumerate(keys):
            if first[key] != number:
                is_done = answers[first[key]] is Answer.DONE
                answers[number] = Answer.PRESENT if is_done else answers[first[key]]
        return answers

    def _write_some(
        self,
        some: Mapping[PoolFile, Sequence[int]],
        keys: Sequence[str],
        sources: Sequence[Pieces],
        answers: list[Answer],
    ) -> None:
        """Reserve pages of all pools in one exchange, write them, and confirm them in one more."""
        found = self._metadata.reserve(_asked(some, keys))
        self.tally.removed(sum(one.evicted for one in found.values()))
        reserved = {file: _own_pages(numbers, found[file.space], answers) for file, numbers in some.items()}
        written: dict[PoolFile, list[tuple[str, int]]] = {file: [] for file, own in reserved.items() if own}
        try:
            for file, done in written.items():
                own = reserved[file]
                told = file.file.write([Page(keys[one], page, sources[one]) for page, one in own.items()])
                for (page, number), answer in zip(own.items(), self._told(told), strict=True):
                    answers[number] = answer
                    if answer is Answer.DONE:
                        done.append((keys[number], page))
        finally:
            refused = self._confirm(reserved, written, found)
        for file, pages in refused.items():
            for page in pages.intersection(reserved[file]):
                answers[reserved[file][page]] = Answer.ERROR

    def _confirm(
        self,
        reserved: Mapping[PoolFile, Mapping[int, int]],
        written: Mapping[PoolFile, Sequence[tuple[str, int]]],
        found: Mapping[Namespace, Reserved],
    ) -> dict[PoolFile, set[int]]:
        """Confirm the pages that were written, and release the others. Returns those that are refused."""
        told = {
            file.space: Written(
                done, set(reserved[file]).difference(page for _, page in done), found[file.space].reservation
            )
            for file, done in written.items()
        }
        refused = self._metadata.confirm(told)
        return {file: refused[file.space] for file in written}

    def _remove_all(self) -> bool:
        self._metadata.clear(list(self._files.stored()))
        return True

    def _holdings(self) -> tuple[int, int]:
        """The bytes assume the largest page of its pool for each object: the service does not record sizes."""
        stored = self._files.stored()
        objects = self._metadata.confirmed(list(stored))
        return sum(objects), sum(count * size for count, size in zip(objects, stored.values(), strict=True))

    def _release(self) -> None:
        self._metadata.close()
        self._files.close()


def _asked(of_files: Mapping[PoolFile, Sequence[int]], keys: Sequence[str]) -> Asked:
    """The keys of each namespace, of which only the numbers are given."""
    return {file.space: [keys[number] for number in numbers] for file, numbers in of_files.items()}


def _own_pages(numbers: Sequence[int], found: Reserved, answers: list[Answer]) -> dict[int, int]:
    """The pages that are to be written, with the number of the key of each. The others have an answer already."""
    own: dict[int, int] = {}
    for number, (is_there, page) in zip(numbers, found.indices, strict=True):
        if page is None:
            answers[number] = Answer.FULL
        elif is_there:
            answers[number] = Answer.PRESENT
        elif own.setdefault(page, number) != number:
            # The service gave one page to two keys, and the first one has it.
            answers[number] = Answer.ERROR
    return own


def _capacity(parsed: Options) -> int | Mapping[str, int]:
    found = parsed.counts("capacity_pages")
    for num_pages in (found,) if isinstance(found, int) else found.values():
        if num_pages > MAX_NAMESPACE_PAGES:
            parsed.refuse("capacity_pages", found, f"at most {MAX_NAMESPACE_PAGES} of a pool")
    return found


def _made(parsed: Options, scope: str) -> Path:
    """The folder of a scope, which is there now."""
    folder = Path(parsed.text("root")).absolute() / scope
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise ConfigurationError(_unusable(folder, error)) from error
    if folder.is_symlink():
        raise ConfigurationError(f"{folder} is a link: the pages of a scope must be in its own folder")
    return folder


def _unusable(folder: Path, error: Exception) -> str:
    return f"storage option 'root': {str(folder)!r} cannot be used: {error}"


def _opening(parsed: Options, folder: Path) -> Callable[[Path, int], FileIO]:
    """What opens the files of a folder: through the rings of 3FS, or plainly."""
    is_wanted = parsed.optional_flag("usrbio")
    found = None if is_wanted is False else usrbio_of(folder)
    if found is not None:
        library, mount_point = found
        return lambda path, slot_bytes: UsrbioFile(path, slot_bytes, library, mount_point)
    if is_wanted:
        parsed.refuse("usrbio", True, f"false: hf3fs_py_usrbio is not installed, or {folder} is not on 3FS")
    return lambda path, _: PlainFile(path)


def _metadata(parsed: Options) -> PageMetadata:
    timeout_s = parsed.seconds("timeout_s", 5, MAX_TIMEOUT_S)
    file, token = parsed.optional_text("metadata_file"), _token(parsed)
    if file is None:
        return MetadataClient(parsed.text("metadata_url"), timeout_s, token)
    if url := parsed.optional_text("metadata_url"):
        parsed.refuse("metadata_url", url, "nothing beside 'metadata_file'")
    return LocalMetadata(Path(file))


def _token(parsed: Options) -> str | None:
    token = parsed.optional_text("token")
    return read_token(None) if token is None else checked_token(token, "storage option 'token'")
