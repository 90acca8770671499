"""The pages of prompts: each has its number, and similar ones differ in few bits of one token."""

from __future__ import annotations

import pytest

from hicache.testing.driving.prompts import TOP_ID, page_numbers, page_tokens
from hicache.tests.kit.snapshots import FULL, tiny_config

SIZES = pytest.mark.parametrize("size", [1, 2, 3, 16, 64])
NUMBERS = [*range(500), 65_536, 1_000_000]


@SIZES
@pytest.mark.parametrize("bigram", [False, True], ids=["tokens", "pairs"])
def test_tokens_tell_the_numbers_of_their_pages(size: int, bigram: bool) -> None:
    config = tiny_config(FULL, page_size=size, pages=8, window=3, bigram=bigram)
    tokens = page_tokens(NUMBERS, config)
    assert page_numbers(tokens, config) == tuple(NUMBERS), f"expected {NUMBERS}, got {page_numbers(tokens, config)}"
    outside = [token for token in tokens if not 0 <= token <= TOP_ID]
    assert not outside, f"expected ids from 0 to {TOP_ID}, got {outside}"


@SIZES
def test_each_page_differs_from_page_1_in_one_token(size: int) -> None:
    config = tiny_config(FULL, page_size=size, pages=8, window=3)
    first = page_tokens([1], config)
    for number in NUMBERS:
        differing = sum(token != own for token, own in zip(page_tokens([number], config), first, strict=True))
        assert differing == (number != 1), f"page {number}: expected one token unlike page 1, got {differing}"


def test_the_pages_that_tests_use_most_are_alike_in_what_weak_keys_look_at() -> None:
    config = tiny_config(FULL, page_size=3, pages=8, window=3)
    pages = [page_tokens([number], config) for number in range(1, 8)]
    alike: dict[str, set[object]] = {
        "the first token": {page[0] for page in pages},
        "the last token": {page[-1] for page in pages},
        "the sum": {sum(page) for page in pages},
        "the tokens without their order": {tuple(sorted(page)) for page in pages},
        "the low 16 bits": {tuple(token & 0xFFFF for token in page) for page in pages},
    }
    different = {name: values for name, values in alike.items() if len(values) == len(pages)}
    assert not different, f"expected pages that have each of these in common, got {different}"


def test_other_tokens_have_no_number() -> None:
    config = tiny_config(FULL, page_size=3, pages=8, window=3)
    with pytest.raises(ValueError, match=r"expected a page of `page_tokens`, got \[7, 8, 9\]"):
        page_numbers([7, 8, 9], config)
    with pytest.raises(ValueError, match="expected a page number of 0 or more, got -1"):
        page_tokens([-1], config)
