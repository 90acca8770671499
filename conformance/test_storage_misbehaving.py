"""STORE-12: what a cache believes of a backend that lies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.testing.storage.misbehaving import BACKEND, Lie, Script, script
from hicache.types import Pool

from .scenario import evict_all, put, put_and_back_up, tier_hits
from .storage_scenes import (
    PAIR,
    PROMPT,
    in_storage,
    prefetch,
    put_in_storage_alone,
    storage_config,
    storage_variant,
    store,
)

LISTS: Mapping[str, Lie] = {
    "none": lambda _: None,
    "true": lambda _: True,
    "a-number": lambda keys: keys,
    "a-text": lambda keys: "x" * keys,
    "a-table": lambda keys: dict.fromkeys(range(keys), True),
    "an-array": lambda keys: np.ones(keys, dtype=np.bool_),
    "nones": lambda keys: [None] * keys,
    "ones": lambda keys: [1] * keys,
    "negative": lambda keys: [-1] * keys,
    "zeros": lambda keys: [0] * keys,
    "texts": lambda keys: ["err"] * keys,
    "bytes": lambda keys: [b""] * keys,
    "numpy-bools": lambda keys: [np.True_] * keys,
    "one-less": lambda keys: [True] * (keys - 1),
    "one-more": lambda keys: [True] * (keys + 1),
}
"""What `get` and `set` may give in the place of an answer, for so many keys."""

NUMBERS: Mapping[str, Lie] = {
    "none": lambda _: None,
    "true": lambda _: True,
    "a-text": str,
    "a-list": lambda keys: [keys],
    "a-float": float,
    "not-a-number": lambda _: float("nan"),
    "a-numpy-float": np.float64,
    "a-numpy-int": np.int64,
    "negative": lambda _: -1,
    "one-more": lambda keys: keys + 1,
    "huge": lambda _: 10**30,
}
"""What `exists` may give."""

FLAGS: Mapping[str, Lie] = {
    "none": lambda _: None,
    "one": lambda _: 1,
    "a-text": lambda _: "yes",
    "a-numpy-bool": lambda _: np.True_,
}
"""What `clear` may give."""


@contextmanager
def over_a_script(driver: Driver) -> Iterator[tuple[Driver, Script]]:
    """A driver of an empty cache over the same store, whose backend follows a script."""
    tier = storage_config(driver)
    with script() as (name, told):
        options = {"inner": tier.backend, "inner_options": tier.extra.options, "script": name}
        with storage_variant(driver, storage={"backend": BACKEND, "options": options}) as other:
            yield other, told
            told.lies.clear()


@clause("STORE-12", "STORE-3", page_sizes=[16])
def test_pages_come_only_if_the_answer_is_true_itself(driver: Driver) -> None:
    put_in_storage_alone(driver, PROMPT)
    with over_a_script(driver) as (other, told):
        for name, lie in LISTS.items():
            told.lies["get"] = lie
            came, found = prefetch(other, PROMPT), tier_hits(other, PROMPT)
            assert (came, found) == (0, (0, 0)), (
                f"STORE-12: get gave {name}: expected no page to come, {came} came, and {found} are found"
            )
        require_all_come(other, told)


@clause("STORE-12", "STORE-2", page_sizes=[16])
def test_a_prefix_is_in_storage_only_if_the_answer_is_a_number_of_its_pages(driver: Driver) -> None:
    put_in_storage_alone(driver, PROMPT)
    with over_a_script(driver) as (other, told):
        for name, lie in NUMBERS.items():
            told.lies["exists"] = lie
            came = prefetch(other, PROMPT)
            assert came == 0, f"STORE-12: exists gave {name}: expected no page to come, {came} came"
        require_all_come(other, told)


@clause("STORE-12", "FETCH-9", page_sizes=[16])
def test_pages_are_stored_only_if_the_answer_is_true_itself(driver: Driver) -> None:
    with over_a_script(driver) as (other, told):
        for name, lie in LISTS.items():
            told.lies["set"] = lie
            put_and_back_up(other, PAIR)
            evict_all(other)
            other.drain()
            told.lies.clear()
            put(other, PAIR)
            evict_all(other)
            other.drain()
            there = in_storage(driver, PAIR)[Pool.KV]
            assert all(there), f"STORE-12: set gave {name}: expected {PAIR} to be stored again, got {there}"
            store(driver).empty()
            other.reset()


@clause("STORE-12", "FLOW-12", page_sizes=[16])
def test_storage_is_cleared_only_if_the_answer_is_true_itself(driver: Driver) -> None:
    put_in_storage_alone(driver, PROMPT)
    with over_a_script(driver) as (other, told):
        for name, lie in FLAGS.items():
            told.lies["clear"] = lie
            is_clear = other.clear_storage()
            assert is_clear is False, f"STORE-12: clear gave {name}: expected False, got {is_clear!r}"
        require_all_come(other, told)


def require_all_come(driver: Driver, told: Script) -> None:
    """Nothing is lost by the lies before: the backend answers again, and all of the prompt comes."""
    told.lies.clear()
    came = prefetch(driver, PROMPT)
    assert came == len(PROMPT), f"STORE-12: the backend answers again: expected {len(PROMPT)} pages, {came} came"
