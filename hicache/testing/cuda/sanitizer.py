"""Sanitizer: a second check of a model's operations, by the engine of torch's own sanitizer for CUDA."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from hicache.testing.cuda.races import Race, SlotAccess, Where


@dataclass(frozen=True, slots=True, eq=False)
class KernelLaunch:
    """A launch, and the bytes that it turned out to touch when it ran, by address."""

    access: SlotAccess
    reads: set[int] = field(default_factory=set)
    writes: set[int] = field(default_factory=set)


class Sanitizer:
    """The observer of a model. Afterwards it tells torch's engine all that the host asked for, in that order.

    The engine counts whole tensors: by itself it would call two streams that write to different pages of a pool a race.
    So it gets ranges of bytes as if they were tensors. It knows streams and events, but neither accesses of the host
    nor the allocator, and of an event that the host has seen only that the host waited for it.
    """

    def __init__(self) -> None:
        self._asked: list[KernelLaunch | tuple[str, tuple[int, ...]]] = []
        self._launches: dict[SlotAccess, KernelLaunch] = {}

    def told(self, what: str, *numbers: int) -> None:
        """Something other than a launch."""
        self._asked.append((what, numbers))

    def launched(self, access: SlotAccess) -> None:
        """A launch on a stream."""
        self._launches[access] = KernelLaunch(access)
        self._asked.append(self._launches[access])

    def touched(self, access: SlotAccess, address: int, where: Where, *, is_write: bool) -> None:
        """A launch runs, and reads or writes some bytes of the memory at an address."""
        launch = self._launches.get(access)
        if launch is not None:
            found = range(where.start, where.stop) if isinstance(where, slice) else where.tolist()
            (launch.writes if is_write else launch.reads).update(address + byte for byte in found)

    def found(self) -> dict[int, Exception]:
        """The engine's first error for each byte."""
        from torch.cuda._sanitizer import EventHandler

        engine, errors = EventHandler(), dict[int, Exception]()
        names: defaultdict[int, list[str]] = defaultdict(list)
        alike = self._alike()
        for asked in self._asked:
            if isinstance(asked, KernelLaunch):
                access, written = asked.access, asked.writes & alike.keys()
                read = (asked.reads & alike.keys()) - written
                for error in engine._handle_kernel_launch(access.actor, read, written, set(), access.operation, names):
                    errors.setdefault(error.data_ptr, error)  # type: ignore[attr-defined]
            else:
                getattr(engine, f"_handle_{asked[0]}")(*asked[1])
        return {byte: error for first, error in errors.items() for byte in alike[first]}

    def _alike(self) -> dict[int, list[int]]:
        """Bytes that the same launches touch in the same way, by the first of them, which the engine gets."""
        touched: defaultdict[int, list[tuple[int, bool]]] = defaultdict(list)
        for number, launch in enumerate(self._launches.values()):
            for is_write, bytes_of in ((False, launch.reads), (True, launch.writes)):
                for byte in bytes_of:
                    touched[byte].append((number, is_write))
        groups: defaultdict[tuple[tuple[int, bool], ...], list[int]] = defaultdict(list)
        for byte, launches in touched.items():
            groups[tuple(launches)].append(byte)
        return {group[0]: group for group in groups.values()}

    def agrees(self, races: list[Race]) -> bool:
        """Whether the engine finds errors in the same bytes, among the races of streams, which it knows."""
        of_streams = [race for race in races if self._knows(race.first[1]) and self._knows(race.second[1])]
        found = self.found()
        is_explained = all(any(race.covers(byte) for race in of_streams) for byte in found)
        return is_explained and all(any(race.covers(byte) for byte in found) for race in of_streams)

    def _knows(self, access: SlotAccess) -> bool:
        return access in self._launches
