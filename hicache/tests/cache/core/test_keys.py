"""RadixKey and the page hashes, without torch."""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache.errors import KeyFormError
from hicache.keys import RadixKey, chain_seed, encode_namespace, hash_pages, page_bytes
from hicache.types import SHARED, Namespace

FIELDS = st.one_of(st.none(), st.text(max_size=4))
NAMESPACES = st.builds(Namespace, lora=FIELDS, salt=FIELDS, tenant=FIELDS)


def tokens(*ids: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(ids, dtype=np.int32)


@pytest.mark.parametrize(("page_size", "count"), [(1, 5), (2, 4), (3, 3), (5, 5), (6, 0)])
def test_a_key_holds_whole_pages_only(page_size: int, count: int) -> None:
    key = RadixKey.of(tokens(7, 8, 9, 10, 11), SHARED, page_size, bigram=False)
    expected = struct.pack(f"<{count}i", *[7, 8, 9, 10, 11][:count])
    assert key.data == expected, f"KEY-1: page {page_size} keeps {count} tokens, got {len(key.data) // 4}"


@pytest.mark.parametrize("ids", [(), (1,), (1, 2), (1, 2, 3, 4)])
def test_bigram_elements_are_the_neighbouring_pairs(ids: tuple[int, ...]) -> None:
    key = RadixKey.of(tokens(*ids), SHARED, 1, bigram=True)
    pairs = [token for pair in pairwise(ids) for token in pair]
    assert key.data == struct.pack(f"<{len(pairs)}i", *pairs), f"KEY-3: pairs of {ids}"


@pytest.mark.parametrize("wrong", [np.zeros((2, 2), dtype=np.int32), np.zeros(4, dtype=np.float32)])
def test_tokens_of_another_form_are_refused(wrong: np.ndarray[tuple[int, ...], np.dtype[np.int32]]) -> None:
    with pytest.raises(KeyFormError, match=f"{wrong.dtype}"):
        RadixKey.of(wrong, SHARED, 1, bigram=False)


def test_the_chain_without_a_namespace_is_the_shared_definition() -> None:
    key = RadixKey.of(tokens(1, 2, 3, 4), SHARED, 2, bigram=False)
    first = hashlib.sha256(bytes([1, 0, 0, 0, 2, 0, 0, 0])).digest()
    second = hashlib.sha256(first + bytes([3, 0, 0, 0, 4, 0, 0, 0])).digest()
    assert hash_pages(key.data, page_bytes(2, bigram=False), chain_seed(SHARED)) == [first, second], "KEY-4"


@given(NAMESPACES, NAMESPACES)
def test_namespaces_are_encoded_injectively(left: Namespace, right: Namespace) -> None:
    same = encode_namespace(left) == encode_namespace(right)
    assert same == (left == right), f"SEC-1: {left} and {right} have {'equal' if same else 'different'} bytes"


def test_an_empty_salt_is_not_no_salt() -> None:
    assert chain_seed(Namespace(None, "", None)) != chain_seed(SHARED), "SEC-1: an empty salt is a salt"


@given(st.lists(st.integers(0, 2**31 - 1), max_size=24), st.integers(1, 4), st.integers(0, 24))
def test_hashing_can_be_resumed_at_any_page(ids: list[int], page_size: int, cut_page: int) -> None:
    key = RadixKey.of(tokens(*ids), SHARED, page_size, bigram=False)
    size = page_bytes(page_size, bigram=False)
    whole = hash_pages(key.data, size, b"")
    head = hash_pages(key.data[: cut_page * size], size, b"")
    tail = hash_pages(key.data[cut_page * size :], size, head[-1] if head else b"")
    assert head + tail == whole, f"KEY-5: cut after page {cut_page}"


def test_hashes_do_not_depend_on_the_process() -> None:
    program = (
        "import numpy as np; from hicache.keys import *; from hicache.types import Namespace;"
        "key = RadixKey.of(np.arange(8, dtype=np.int32), Namespace('a', None, 'b'), 2, False);"
        "print(hash_pages(key.data, 8, chain_seed(key.namespace))[-1].hex())"
    )
    seen = set()
    for seed in ("0", "1", "random"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        seen.add(
            subprocess.run([sys.executable, "-c", program], env=environment, check=True, capture_output=True).stdout
        )
    assert len(seen) == 1, f"KEY-4: PYTHONHASHSEED changes the hash: {seen}"
