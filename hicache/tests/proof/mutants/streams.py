"""MUTANTS: copies on CUDA streams that lack one order each, and the accesses that may then come in either order.

Each does what the class does that it replaces, as long as all that is queued runs in the order in which it was queued.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch

from hicache.pools.buffers import PoolBuffers
from hicache.pools.copy import SCRATCH_BYTES, Addresses, BufferPair, GatheredPair, KernelCopies
from hicache.pools.host import seen_from
from hicache.transfer.job import Copier, CopyJob, Progress
from hicache.transfer.streams import StreamExecutor
from hicache.types import TransferKind

Actor = Literal["backup", "load", "model", "host"]
"""Who accesses memory: the kernels of a copy on a GPU, those of the model, or the CPU."""

Does = Literal["reads", "writes", "frees"]

Memory = Literal["device page", "host page", "scratch", "page numbers"]
"""A page of a pool, what a kernel gathers pages into, or the pinned memory that page numbers are uploaded from."""


@dataclass(frozen=True, slots=True)
class Access:
    """What one side of a race does."""

    actor: Actor
    does: Does
    memory: Memory

    def __str__(self) -> str:
        return f"{self.actor} {self.does} {self.memory}"


Race = tuple[Access, Access]
"""Two accesses to one memory, at least one of which changes it, that nothing orders. The one queued first is first."""


@dataclass(frozen=True, slots=True)
class StreamMutant:
    """One defect: `mutant` in the place of `replaces`, with the same arguments.

    `source`: an issue or pull request in which it was seen, or ours. `races`: what the missing order allows. The first
    needs the fewest steps; a schedule that has the steps of another shows that one.
    """

    slug: str
    source: str
    replaces: type[StreamExecutor | KernelCopies]
    mutant: type[StreamExecutor | KernelCopies]
    races: tuple[Race, ...]


# Before a copy.


class _OneWaits(StreamExecutor):
    """Only the copies of one kind wait for the stream that submits them."""

    waits: ClassVar[TransferKind]

    def submit(self, job: CopyJob) -> None:
        if job.kind is self.waits:
            super().submit(job)
            return
        # The stream of the copies is the current one: it waits for itself.
        with self._cuda.stream(self._stream):
            super().submit(job)


class BackupsDoNotWait(_OneWaits):
    """Lacks `wait_stream` in front of a backup. Loads still wait.

    On a GPU the scheduler is ahead of the model: the backup reads pages that a kernel has not written yet. The host has
    what was in them before, under the key of the new tokens, and a request that loads it answers with garbage. In
    vllm#45704 computed tokens, by the count of the scheduler, were taken for written ones. sglang#20611 and vllm#31341
    are the same.
    """

    waits = TransferKind.LOAD


class LoadsDoNotWait(_OneWaits):
    """Lacks `wait_stream` in front of a load. Backups still wait.

    On a GPU a page that was freed and given to a load is overwritten while attention of the request before still reads
    it, and that request answers with garbage. vllm#47324 (found in vllm#47282) is this, after the store side had been
    mended; in sglang#36738 the request before still writes the page, and damages what was loaded.
    """

    waits = TransferKind.BACKUP


# Between copies.


class _Staged(BufferPair):
    """Gathers pages into one buffer, the same one each time, and scatters them from there."""

    def __init__(self, device: Any, host: Any) -> None:
        super().__init__(device, host)
        self._scratch = torch.empty(min(SCRATCH_BYTES, device.numel()), dtype=torch.uint8, device=device.device)

    def copy(self, kind: TransferKind, addresses: Addresses, layers: slice) -> None:
        for device, host in addresses:
            ends = [(self._device, device), (self._host, host)]
            (source, pages), (target, places) = ends if kind is TransferKind.BACKUP else reversed(ends)
            rows = source[:, layers]
            shape = (len(pages), *rows.shape[1:])
            gathered = self._scratch[: torch.Size(shape).numel()].view(shape)
            torch.index_select(rows, 0, pages, out=gathered)
            target[places, layers] = gathered


class _StagedPair(GatheredPair, _Staged):
    """As many pages and layers at a time as the buffer takes."""


class SharedScratch(KernelCopies):
    """Lacks an order between the two directions, which gather into one buffer.

    Torch gives each kernel memory that its own stream has done with. A buffer that is kept, so as to save allocations,
    belongs to no stream: on a GPU a load gathers into it what a backup has not scattered yet, and the host page has
    bytes of another prompt. Reported where the next job came too early: vllm#51667, ROCm/ATOM#1956.
    """

    def pair(self, device: PoolBuffers, host: PoolBuffers, buffer: int) -> BufferPair:
        return _StagedPair(device.raw[buffer], seen_from(self._device, host.raw[buffer]))


MAX_PAGES = 1 << 16
"""The page numbers of one upload, at most."""


class ReusedPageNumbers(KernelCopies):
    """Lacks an order between the upload of page numbers and the next use of the pinned memory that they are in.

    An upload without a waiter reads its source when the stream comes to it. On a GPU the CPU has written the
    numbers of the host's pages over those of the device's by then, or those of the next job: the kernels gather and
    scatter other pages than meant, of other requests. TensorRT-LLM#15546; LMCache#4830 gives the memory back early.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._numbers = torch.empty(MAX_PAGES, dtype=torch.int64, pin_memory=device.type == "cuda")

    def _uploaded(self, pages: list[int]) -> torch.Tensor:
        numbers = self._numbers[: len(pages)]
        numbers.copy_(torch.tensor(pages, dtype=torch.int64))
        return numbers.to(self._device, non_blocking=True, copy=True)


# After a copy.


class EndBeforeTheCopy(StreamExecutor):
    """Records the event that says that a job has ended in front of its copies.

    On a GPU it fires as soon as the job before is over. The cache gives the host page to storage, which writes what the
    copy has not brought yet, or frees the device page, which a kernel overwrites before the copy has read it. As in
    sglang#9909, where a page was counted and then copied.
    """

    def submit(self, job: CopyJob) -> None:
        end = self._stream.record_event()
        super().submit(job)
        self._queued[job.number] = replace(self._queued[job.number], end=end)


class DoneAtSubmit(StreamExecutor):
    """Acknowledges a job when it has been queued, and asks no event.

    On a GPU the next step of the scheduler hands out what the copy still works on: a host page to storage, a device
    page of a backup to another request, and the pages of a load to a reader. In LMCache#5048 a chunk is sent to another
    machine while it is being gathered.
    """

    def progress(self, number: int) -> Progress:
        queued = self._queued[number]
        if not queued.layers:
            return super().progress(number)
        return Progress(len(queued.layers), (1,) * len(queued.job.parts), has_ended=True)


class StreamOfTheCurrentDevice(StreamExecutor):
    """Makes its stream on the current device, which is another one than that of the cache.

    Kernels run on the current stream of the device that their tensors are on, and `torch.cuda.stream` changes that of
    the stream's own device. So on a machine with two GPUs copies run on the stream of the model, and the events, on a
    stream that has nothing to do, fire when the kernels before the copies are over: a job is done before its bytes have
    moved. None is reported; reviews warned of it in vllm#41780 and ModelTC/LightX2V#1035.
    """

    def __init__(self, copier: Copier, cuda: Any = torch.cuda) -> None:
        super().__init__(copier, cuda)
        self._stream = cuda.Stream()


class SideStreamNotAwaited(StreamExecutor):
    """Copies every other layer of a load on a second stream, and does not wait for it at the end of the job.

    On a GPU the load has ended, and its pages are the tree's, while the second stream still copies: who finds them
    reads layers that are not there. Who waits for a layer gets it. In LMCache#2916 page numbers came on one stream and
    were used on another.
    """

    def __init__(self, copier: Copier, cuda: Any = torch.cuda) -> None:
        super().__init__(copier, cuda)
        self._side = cuda.Stream(copier.device)

    def _queue_layer(self, job: CopyJob, layer: int) -> Any:
        if layer % 2 == 0:
            return super()._queue_layer(job, layer)
        self._side.wait_stream(self._stream)
        with self._cuda.stream(self._side):
            self._copier.queue_layer(job, layer)
        return self._side.record_event()


class FirstLayerForAll(StreamExecutor):
    """Lets the reader of any layer wait for the first one.

    On a GPU attention of a later layer reads pages that the load has not written. In sglang#22811 who read the index
    did not wait for the layer, in sglang#36743 who copied a state of all layers did not wait for the last.
    """

    def wait_layer(self, number: int, layer: int) -> bool:
        return super().wait_layer(number, 0)


class ClosesAtOnce(StreamExecutor):
    """Does not wait for its stream when it is closed.

    After an interruption no other code waits. On a GPU the host pool is unpinned and unmapped while a backup writes to
    it, which stops the process or damages what is mapped there next; after a reset a load goes on writing to device
    pages that the new tree has given to others. None is reported.
    """

    def close(self) -> bool:
        return True


MODEL_READS = Access("model", "reads", "device page")
MODEL_WRITES = Access("model", "writes", "device page")
BACKUP_READS = Access("backup", "reads", "device page")
BACKUP_WRITES = Access("backup", "writes", "host page")
LOAD_READS = Access("load", "reads", "host page")
LOAD_WRITES = Access("load", "writes", "device page")
HOST_READS = Access("host", "reads", "host page")
HOST_WRITES = Access("host", "writes", "host page")

STORED_BEFORE_IT_CAME: Race = (BACKUP_WRITES, HOST_READS)
LOADED_BEFORE_IT_CAME: Race = (BACKUP_WRITES, LOAD_READS)
READ_BEFORE_IT_CAME: Race = (LOAD_WRITES, MODEL_READS)
OVERWRITTEN_ON_DEVICE: Race = (BACKUP_READS, MODEL_WRITES)
OVERWRITTEN_ON_HOST: Race = (LOAD_READS, HOST_WRITES)
BACKED_UP_OVER: Race = (LOAD_READS, BACKUP_WRITES)

MUTANTS = (
    StreamMutant(
        "backups-do-not-wait",
        "vllm#45704",
        StreamExecutor,
        BackupsDoNotWait,
        ((MODEL_WRITES, BACKUP_READS),),
    ),
    StreamMutant(
        "loads-do-not-wait",
        "vllm#47324",
        StreamExecutor,
        LoadsDoNotWait,
        ((MODEL_READS, LOAD_WRITES), (MODEL_WRITES, LOAD_WRITES)),
    ),
    StreamMutant(
        "scratch-of-both-directions",
        "vllm#51667",
        KernelCopies,
        SharedScratch,
        (
            (Access("backup", "writes", "scratch"), Access("load", "writes", "scratch")),
            (Access("backup", "reads", "scratch"), Access("load", "writes", "scratch")),
            (Access("backup", "writes", "scratch"), Access("load", "reads", "scratch")),
        ),
    ),
    StreamMutant(
        "page-numbers-reused",
        "TensorRT-LLM#15546",
        KernelCopies,
        ReusedPageNumbers,
        (
            (Access("backup", "reads", "page numbers"), Access("host", "writes", "page numbers")),
            (Access("load", "reads", "page numbers"), Access("host", "writes", "page numbers")),
        ),
    ),
    StreamMutant(
        "end-before-the-copy",
        "sglang#9909",
        StreamExecutor,
        EndBeforeTheCopy,
        (
            STORED_BEFORE_IT_CAME,
            LOADED_BEFORE_IT_CAME,
            OVERWRITTEN_ON_DEVICE,
            READ_BEFORE_IT_CAME,
            OVERWRITTEN_ON_HOST,
            BACKED_UP_OVER,
        ),
    ),
    StreamMutant(
        "done-at-submit",
        "LMCache#5048",
        StreamExecutor,
        DoneAtSubmit,
        (
            STORED_BEFORE_IT_CAME,
            LOADED_BEFORE_IT_CAME,
            OVERWRITTEN_ON_DEVICE,
            READ_BEFORE_IT_CAME,
            OVERWRITTEN_ON_HOST,
            BACKED_UP_OVER,
        ),
    ),
    StreamMutant(
        "stream-of-the-current-device",
        "ours",
        StreamExecutor,
        StreamOfTheCurrentDevice,
        (STORED_BEFORE_IT_CAME, OVERWRITTEN_ON_HOST),
    ),
    StreamMutant(
        "side-stream-not-awaited",
        "LMCache#2916",
        StreamExecutor,
        SideStreamNotAwaited,
        (READ_BEFORE_IT_CAME, OVERWRITTEN_ON_HOST, BACKED_UP_OVER),
    ),
    StreamMutant(
        "first-layer-for-all",
        "sglang#36743",
        StreamExecutor,
        FirstLayerForAll,
        (READ_BEFORE_IT_CAME,),
    ),
    StreamMutant(
        "closes-at-once",
        "ours",
        StreamExecutor,
        ClosesAtOnce,
        (
            (BACKUP_WRITES, Access("host", "frees", "host page")),
            (LOAD_READS, Access("host", "frees", "host page")),
            (LOAD_WRITES, MODEL_WRITES),
            (BACKUP_READS, MODEL_WRITES),
        ),
    ),
)
"""One for each order."""
