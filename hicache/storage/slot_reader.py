"""SlotReader: reads pages out of slots straight into memory, and tells which of them are whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hicache.storage.answers import Answer
from hicache.storage.base import Pieces
from hicache.storage.checksums import SLOT_SEED, checksum
from hicache.storage.places import Place
from hicache.storage.slot_files import SlotFiles, in_runs
from hicache.storage.tally import page_bytes


class SlotReader:
    """Reads as many pages at a time as lie together, and compares checksums while the bytes are near.

    `is_verified`: whether checksums are compared at all. `failed`: gives the answer for a read that raised.
    """

    def __init__(self, files: SlotFiles, is_verified: bool, failed: Callable[[Exception], Answer]) -> None:
        self._files = files
        self._is_verified = is_verified
        self._failed = failed

    def read(self, places: Sequence[Place | None], targets: Sequence[Pieces]) -> list[Answer]:
        """Read each page whose place is known and has the size of its target; what became of each."""
        done = Answer.DONE
        answers = [
            done if place is not None and place.length == wanted else _refusal(place, wanted)
            for place, wanted in zip(places, map(page_bytes, targets), strict=True)
        ]
        if answers.count(done) < len(answers):
            places = [place if answer is done else None for place, answer in zip(places, answers, strict=True)]
        for run in in_runs(places):
            try:
                self._read_run(places[run], targets[run], answers, run.start)
            except OSError as error:
                answers[run] = [self._failed(error)] * len(places[run])
        return answers

    def _read_run(
        self, places: Sequence[Place | None], targets: Sequence[Pieces], answers: list[Answer], start: int
    ) -> None:
        first = places[0]
        assert first is not None, "what is in a run has a place"
        pieces = targets[0] if len(targets) == 1 else [piece for page in targets for piece in page]
        found = self._files.read(first, pieces)
        for number, (place, target) in enumerate(zip(places, targets, strict=True), start):
            assert place is not None, "what is in a run has a place"
            found -= place.length
            if found < 0:
                answers[number] = Answer.SHORT
            elif self._is_verified and checksum(target, SLOT_SEED) != place.checksum:
                answers[number] = Answer.CORRUPT


def _refusal(place: Place | None, wanted_bytes: int) -> Answer:
    """Why a page is not read."""
    if place is None:
        return Answer.ABSENT
    return Answer.SHORT if place.length < wanted_bytes else Answer.LONG
