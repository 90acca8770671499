"""vLLM's storage tier in files, FileSystemTierManager of release 0.33.0, under the backend suite.

The tier is made by vLLM's TieringOffloadingSpec and SecondaryTierFactory, and gets the calls of its tiering manager:
`lookup` and `on_schedule_end` until no answer is RETRY, `submit_load` of the pages that were found, `submit_store`,
`drain_jobs`, `get_finished_jobs`, `shutdown`. Each verb is a request of its own. Calls do not overlap, as in vLLM.

- A scope is a model's name. The groups of its KV cache are the pools that hicache names.
- The key `kv.tp0of1.cp0of1.pp0of1/9f86…`, with 64 digits, is the block hash `9f86…` in the group of `kv`. A key of
  another form is not one that a cache makes: it becomes the SHA-256 of its text, since every hash of vLLM is a digest.
- vLLM has the bytes of all workers in one page. Here each rank in a key has a tier of its own, opened as that rank with
  the bytes of one worker. All keys of a call are of one rank.
- A tier has one size of pages, the stride of the memory that it reads and writes: `page_bytes`, rounded up by vLLM to
  the alignment of direct I/O. A smaller page takes a whole chunk of this memory, and one that is larger is refused.
- vLLM's scheduler has this memory in `/dev/shm`; here it is anonymous, since killed writers would leave it there.
- `set` has one answer for all pages, that of the job. A load ends at the first page that fails: those before it are
  hits. There is no way to remove a page, so `clear` does nothing and answers False, and there is no capacity.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from mmap import mmap
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar, NamedTuple

import numpy as np

from hicache.engines.interface import require_interface
from hicache.engines.vllm.imports import import_from
from hicache.errors import ConfigurationError
from hicache.storage.base import BATCH_PAGES, Pieces, StorageBackend, StorageStats
from hicache.storage.registry import Options
from hicache.types import Pool

OFFLOAD = "vllm.v1.kv_offload"

BLOCK_TOKENS = 16

STEP_S = 0.0002
"""The time between two steps of the scheduler, which asks for the results of lookups in each."""

LOOKUP_S = 60.0
"""The longest time that a lookup may take."""

POOLS = tuple(pool.value for pool in Pool)
"""The pool of each group of the KV cache."""

_PAGE = re.compile(
    rf"(?P<pool>{'|'.join(POOLS)})\.tp(\d+)of(\d+)\.cp(\d+)of(\d+)\.pp(\d+)of(\d+)/(?P<hash>[0-9a-f]{{64}})", re.ASCII
)


class Rank(NamedTuple):
    """The place of a worker in its mesh: tensor, context and pipeline parallel, each with its size."""

    tp: int = 0
    tp_size: int = 1
    cp: int = 0
    cp_size: int = 1
    pp: int = 0
    pp_size: int = 1

    @property
    def number(self) -> int:
        """The number of the worker, in vLLM's order of the axes."""
        return (self.pp * self.cp_size + self.cp) * self.tp_size + self.tp


class VllmFileSystemTier(StorageBackend):
    """vLLM's tier `fs`. Options: `directory`, `page_bytes`, and `tier`, further arguments such as `n_read_threads`."""

    version: ClassVar[str] = "0.33.0"

    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        try:
            require_interface("vllm", type(self))
        except ImportError as error:
            raise ConfigurationError(f"vLLM's tier cannot be opened: {error}") from error
        read = Options("vllm-fs", options, ("directory", "page_bytes", "tier"))
        config = {"type": "fs", "root_dir": read.text("directory"), **read.table("tier")}
        size = read.count("page_bytes")
        self._open: Callable[[Rank], Tier] = lambda rank: Tier(offloading_config(scope, size, rank, config))
        self._lock = Lock()
        self.tiers: dict[Rank, Tier] = {Rank(): self._open(Rank())}

    def has(self, keys: Sequence[str]) -> list[bool]:
        with self._lock:
            tier = self._of(keys)
            with tier.request() as request:
                return tier.lookup(_blocks(keys), request)

    def get(self, keys: Sequence[str], targets: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        blocks = _blocks(keys)
        with self._lock:
            tier = self._of(keys)
            if not tier.holds(targets):
                return [False] * len(keys)
            with tier.request() as request:
                found = [page for page, is_there in enumerate(tier.lookup(blocks, request)) if is_there]
                # A chunk for each target, also where their number differs from that of the keys.
                chunks = [page for page, _ in enumerate(targets) if page in found or page >= len(keys)]
                loaded = found[: tier.load([blocks[page] for page in found], chunks, request)]
            for page, target in enumerate(targets):
                if page in loaded:
                    tier.read(page, target)
        return [page in loaded for page in range(len(keys))]

    def set(self, keys: Sequence[str], sources: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        with self._lock:
            tier = self._of(keys)
            if not tier.holds(sources):
                return [False] * len(keys)
            for page, source in enumerate(sources):
                tier.write(page, source)
            with tier.request() as request:
                return [tier.store(_blocks(keys), range(len(sources)), request)] * len(keys)

    def clear(self) -> bool:
        return False

    def stats(self) -> StorageStats:
        """The files of this model, as the tier counts nothing."""
        sizes = [file.stat().st_size for tier in self.tiers.values() for file in tier.folder.rglob("*.bin")]
        return StorageStats(len(sizes), sum(sizes), 0, {}, 0, 0, {}, 0, 0, 0)

    def close(self) -> None:
        for tier in self.tiers.values():
            tier.manager.shutdown()

    def _of(self, keys: Sequence[str]) -> Tier:
        """The tier of the rank that the keys name. Raises ValueError if they name several."""
        ranks = {_rank(key) for key in keys} or {Rank()}
        if len(ranks) > 1:
            raise ValueError(f"a tier has the pages of one rank, not of {sorted(ranks)}")
        rank = ranks.pop()
        if rank not in self.tiers:
            self.tiers[rank] = self._open(rank)
        return self.tiers[rank]


class Tier:
    """One FileSystemTierManager, and the memory in which vLLM has the pages that it moves: a chunk for each."""

    def __init__(self, config: Any) -> None:
        self._base: Any = import_from(f"{OFFLOAD}.base")
        (spec_class,) = import_from(f"{OFFLOAD}.tiering.spec", "TieringOffloadingSpec")
        (factory,) = import_from(f"{OFFLOAD}.tiering.factory", "SecondaryTierFactory")
        (self._job,) = import_from(f"{OFFLOAD}.tiering.base", "TransferJob")
        spec = spec_class(config)
        self._stride: int = spec.kv_bytes_per_chunk
        self._memory = memoryview(mmap(-1, spec.num_chunks * self._stride))
        chunks = self._memory.cast("B", [spec.num_chunks, self._stride])
        self.manager: Any = factory.create_secondary_tier(spec.secondary_tier_configs[0], chunks, spec)
        self._numbers = itertools.count()

    @property
    def folder(self) -> Path:
        """The folder of the files of this model and rank."""
        mapper = self.manager.file_mapper
        return Path(f"{mapper.base_path}_r{mapper.rank}")

    def holds(self, pages: Sequence[Pieces]) -> bool:
        """Whether each page has room in a chunk."""
        return all(sum(piece.nbytes for piece in page) <= self._stride for page in pages)

    def write(self, chunk: int, page: Pieces) -> None:
        """Copy a page into a chunk."""
        for piece, part in self._parts(chunk, page):
            part[:] = piece

    def read(self, chunk: int, page: Pieces) -> None:
        """Copy a chunk into a page."""
        for piece, part in self._parts(chunk, page):
            piece[:] = part

    def _parts(self, chunk: int, page: Pieces) -> Iterator[tuple[memoryview, memoryview]]:
        begin = chunk * self._stride
        for piece in page:
            yield piece, self._memory[begin : begin + piece.nbytes]
            begin += piece.nbytes

    @contextmanager
    def request(self) -> Iterator[Any]:
        """A request, for which the tier keeps the results of its lookups until the block ends."""
        request = self._base.ReqContext(f"request-{next(self._numbers)}")
        self.manager.on_new_request(request)
        try:
            yield request
        finally:
            self.manager.on_request_finished(request)

    def lookup(self, blocks: Sequence[bytes], request: Any) -> list[bool]:
        """Whether each block is in the tier. Raises TimeoutError if the tier gives no result."""
        result, step = self._base.LookupResult, self._base.ScheduleEndContext((), ())
        deadline_s = time.monotonic() + LOOKUP_S
        while result.RETRY in (answers := [self.manager.lookup(block, request) for block in blocks]):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"expected the results of {len(blocks)} lookups within {LOOKUP_S:g} s")
            self.manager.on_schedule_end(step)
            time.sleep(STEP_S)
        return [answer is result.HIT for answer in answers]

    def load(self, blocks: Sequence[bytes], chunks: Sequence[int], request: Any) -> int:
        """Read blocks into chunks; how many were read, the first ones."""
        if not blocks:
            return 0
        done = self._run(self.manager.submit_load, blocks, chunks, request, is_promotion=True)
        return len(blocks) if done.success else len(done.successful_keys or ())

    def store(self, blocks: Sequence[bytes], chunks: Sequence[int], request: Any) -> bool:
        """Write chunks under the names of blocks; whether the job succeeded as a whole."""
        return bool(self._run(self.manager.submit_store, blocks, chunks, request, is_promotion=False).success)

    def _run(
        self, submit: Callable[[Any], None], blocks: Sequence[bytes], chunks: Sequence[int], request: Any, **kind: bool
    ) -> Any:
        """Submit a job, and wait for its end; its result."""
        submit(self._job(next(self._numbers), blocks, np.array(chunks, dtype=np.int64), req_context=request, **kind))
        self.manager.drain_jobs()
        (result,) = self.manager.get_finished_jobs()
        return result


def offloading_config(model: str, page_bytes: int, rank: Rank, tier: Mapping[str, Any]) -> Any:
    """The configuration that vLLM's connector would make for a model on one rank, with memory for a batch of pages."""
    module: Any = import_from(f"{OFFLOAD}.config")
    (spec_class,) = import_from(f"{OFFLOAD}.tiering.spec", "TieringOffloadingSpec")
    stride = -(-page_bytes // spec_class.BLOCK_SIZE_ALIGNMENT) * spec_class.BLOCK_SIZE_ALIGNMENT
    return module.OffloadingConfig(
        groups=tuple(module.OffloadingGroupConfig(BLOCK_TOKENS, (pool,), group) for group, pool in enumerate(POOLS)),
        worker_kv_bytes_per_block=page_bytes,
        enable_kv_cache_events=False,
        extra_config={"cpu_bytes_to_use": stride * BATCH_PAGES, "secondary_tiers": [dict(tier)]},
        engine_id="engine",
        model=module.OffloadingModelConfig(model, "float16"),
        cache=module.OffloadingCacheConfig(tokens_per_hash=BLOCK_TOKENS, blocks_per_chunk=1),
        parallel=module.OffloadingParallelConfig(
            rank=rank.number,
            world_size=1,
            tp_size=rank.tp_size,
            pp_size=rank.pp_size,
            pcp_size=rank.cp_size,
            dcp_size=1,
            data_parallel_index=0,
            data_parallel_size=1,
            data_parallel_rank_local=None,
            is_parallelism_agnostic=False,
        ),
    )


def _rank(key: str) -> Rank:
    """The rank in a key; without one, the only rank."""
    found = _PAGE.fullmatch(key)
    return Rank(*map(int, found.groups()[1:-1])) if found else Rank()


def _blocks(keys: Sequence[str]) -> list[bytes]:
    """The key of each page in vLLM: a block hash, and the number of its group."""
    make = import_from(f"{OFFLOAD}.base", "make_offload_key")[0]
    return [make(*_block(key)) for key in keys]


def _block(key: str) -> tuple[bytes, int]:
    found = _PAGE.fullmatch(key)
    if found is None:
        return hashlib.sha256(key.encode(errors="surrogatepass")).digest(), 0
    return bytes.fromhex(found["hash"]), POOLS.index(found["pool"])
