"""Caches that trust their storage backend: what it answers, and that it answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hicache import cache
from hicache.storage.answers import Reading
from hicache.testing.mutants.accuracy.transfers import OtherParts
from hicache.testing.mutants.rows import Row
from hicache.tiers.storage_io import StorageWorker


class _NotFalse(StorageWorker):
    def _call(self, verb: str, ask: Callable[[], object], read: Callable[[object], Reading]) -> int:
        return super()._call(verb, ask, _pages_not_false if verb in {"get", "set"} else read)


def _pages_not_false(answer: Any) -> Reading:
    return Reading(answer.index(False) if False in answer else len(answer), "")


class ErrorsAreSuccess(OtherParts):
    """A page has come unless the answer equals False: None and -1 are pages too."""

    parts = ((cache, "StorageWorker", _NotFalse),)


class _AnyNumber(StorageWorker):
    def _call(self, verb: str, ask: Callable[[], object], read: Callable[[object], Reading]) -> int:
        return super()._call(verb, ask, _as_it_is if verb == "exists" else read)


def _as_it_is(answer: Any) -> Reading:
    return Reading(answer, "")


class AnyNumberIsPages(OtherParts):
    """What storage answers to the question for a prefix is the number of its pages, whatever it is."""

    parts = ((cache, "StorageWorker", _AnyNumber),)


MISBEHAVING = "test_storage_misbehaving.py::"

ROWS = (
    Row(
        slug="an-error-value-is-a-page",
        source="ours",
        clauses=("STORE-12",),
        adapter=ErrorsAreSuccess,
        test=f"{MISBEHAVING}test_pages_come_only_if_the_answer_is_true_itself",
        told="STORE-12|REQ-3",
    ),
    Row(
        slug="any-number-is-pages",
        source="ours",
        clauses=("STORE-12",),
        adapter=AnyNumberIsPages,
        test=f"{MISBEHAVING}test_a_prefix_is_in_storage_only_if_the_answer_is_a_number_of_its_pages",
        told="STORE-12|TypeError",
    ),
)
