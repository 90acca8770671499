"""StorageKeys: names that two caches share only where a page means the same to both, and that lead nowhere else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache.errors import KeyFormError
from hicache.storage.keys import MAX_CHARACTERS, StorageKeys, check_key, check_scope
from hicache.tests.pools.two_tiers import stored_config
from hicache.types import Pool

LONGEST_HASH = "f" * 64


def scope_of(model: str) -> str:
    config = stored_config()
    assert config.storage is not None, "it has a storage tier"
    return StorageKeys.of(replace(config, storage=replace(config.storage, model=model))).scope


@pytest.mark.parametrize("other", ["org-llama", "org/llama ", "org//llama", "ORG/llama", "org.llama"])
def test_models_that_look_alike_in_a_name_share_nothing(other: str) -> None:
    assert scope_of(other) != scope_of("org/llama"), f"STORE-1: {other!r} is another model than 'org/llama'"


@given(st.text(min_size=1, max_size=300))
def test_the_name_of_any_model_makes_a_scope(model: str) -> None:
    assert check_scope(scope_of(model)) == scope_of(model), f"SEC-5: {model!r}"


@pytest.mark.parametrize("pool", Pool)
def test_every_key_keeps_to_the_grammar(pool: Pool) -> None:
    (key,) = StorageKeys.of(stored_config()).of_pages(pool, [LONGEST_HASH])
    assert check_key(key) == key, f"SEC-5: {key!r}"
    assert key.endswith(f"/{LONGEST_HASH}"), f"KEY-4: the hash of the prefix is in the key, got {key!r}"


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/",
        "a/",
        "/a",
        "a//b",
        ".",
        "..",
        "a/../b",
        "a/.b",
        "a\\b",
        "a b",
        "a\0b",
        "a\n",
        "ä",
        "x" * 201,
        "~",
        "a:b",
    ],
)
def test_what_could_lead_elsewhere_is_no_key(key: str) -> None:
    with pytest.raises(KeyFormError):
        check_key(key)
    with pytest.raises(KeyFormError):
        check_scope(key)


def test_a_scope_is_one_segment_and_a_key_may_be_several() -> None:
    longest = "x" * MAX_CHARACTERS
    assert check_key("kv.tp0of1/ab/cd") == "kv.tp0of1/ab/cd", "slashes divide a key"
    assert (check_key(longest), check_scope(longest)) == (longest, longest), "the longest there is"
    with pytest.raises(KeyFormError):
        check_scope("a/b")
