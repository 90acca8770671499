"""Pages and namespaces that a cache takes for one another if its key is weak: a part, a sum or some bits of them."""

from __future__ import annotations

from collections.abc import Iterator

from hicache.types import Namespace

Page = tuple[int, ...]

ID_BITS = 31
"""Bits of a token id."""

MULTIPLIERS = (1, 2, 3, 10, 31, 33, 131, 256, 257, 1_000, 65_536, 65_599, 1_000_003)
"""Multipliers of polynomial hashes, and of hashes that join tokens without a fixed width."""

POLYNOMIALS = (0x1_04C1_1DB7, 0x1_1EDC_6F41, 0x1_DB71_0641, 0x1_05EC_76F1)
"""Generators of CRC-32 and CRC-32C, and both in the reverse order of bits: a change by one changes no remainder."""

JOINED = (((1, 23), (12, 3)), ((1, 0x203), (0x102, 3)), ((0x1, 0x2_0003), (0x1_0002, 3)))
"""Pairs that are equal when decimal digits, bytes or words are joined without a fixed width."""

LENGTH_OF_ONE = (1).to_bytes(8, "little").decode("ascii")

CUT_LENGTHS = (8, 16, 32, 64, 255)
"""Lengths in characters to which a name may be cut off."""


def _namespaces(*names: tuple[str | None, str | None, str | None]) -> tuple[Namespace, ...]:
    return tuple(Namespace(lora=lora, salt=salt, tenant=tenant) for lora, salt, tenant in names)


EMPTY_NAMES = _namespaces(
    (None, None, None), ("", None, None), (None, "", None), (None, None, ""), ("", "", ""), ("None", None, None)
)
"""Namespaces whose fields are absent, or empty."""

SIMILAR_NAMESPACES = (
    # The same texts in other fields, or joined.
    _namespaces(
        *(("a", "b", None), ("b", "a", None), ("a", None, "b"), (None, "a", "b"), ("a", "b", "")),
        *(("ab", None, None), (None, "ab", None), (None, None, "ab")),
    ),
    # Texts with what may stand between two fields.
    _namespaces(
        *(("a|b", None, None), ("a/b", None, None), ("a,b", None, None), ("a:b", None, None), ("a\0b", None, None)),
        *(("a b", None, None), ("a", "b", None)),
    ),
    _namespaces(
        *(('a","salt":"b', None, None), ("aSb", None, None), ("aTb", None, None), ("a", "b", None)),
        *((f"aS{LENGTH_OF_ONE}b", None, None), ("None,b", None, None)),
    ),
    # Texts that begin with one another, and that differ in case, in spaces, or in how they are written.
    _namespaces(
        *((None, "s", None), (None, "sa", None), (None, "salt", None), (None, "salt ", None), (None, "SALT", None)),
        *((None, "\u00e9", None), (None, "e\u0301", None)),
    ),
    # Long texts that differ in the last character, or in the first one.
    *(
        _namespaces(*((None, salt, None) for length in lengths for salt in ("x" * length + end for end in "ab")))
        for lengths in (CUT_LENGTHS[:3], CUT_LENGTHS[3:])
    ),
    _namespaces(
        *((None, first + "x" * length, None) for length in CUT_LENGTHS[-2:] for first in "ab"),
        *(("x" * 64 + end, None, None) for end in "ab"),
        *((None, None, "x" * 64 + end) for end in "ab"),
    ),
)
"""Groups of namespaces that a weak key takes for one another."""


def base_pages(size: int) -> list[Page]:
    """Pages to compare others with: ids all over the range, small neighbours, and one id alone."""
    scattered = tuple((2_654_435_761 * at + 0x6789_ABCD) % (1 << ID_BITS - 1) + (1 << 25) for at in range(1, size + 1))
    return [scattered, tuple(range(1, size + 1)), (1 << 30,) * size]


def near_pages(page: Page) -> dict[str, set[Page]]:
    """Pages that a weak key takes for this one, by what they have in common with it."""
    size, pairs = len(page), list(_pairs(len(page)))
    starts = {0, size // 2 - 1, size - 2} if size > 1 else set[int]()
    found = {
        "all tokens but one": {_moved(page, {at: 1}) for at in range(size)},
        "all bits but one": {_flipped(page, {at % size: 1 << at % ID_BITS}) for at in range(max(size, ID_BITS))},
        "the low 16 bits": {_flipped(page, {at: 1 << 16}) for at in range(size)},
        "the low 24 bits": {_flipped(page, {at: 1 << 24}) for at in range(size)},
        "the tokens in another order": {page[::-1], page[1:] + page[:1], *(_swapped(page, *pair) for pair in pairs)},
        "the sum": {_moved(page, {a: by, b: -by}) for a, b in pairs for by in (1, 1 << 16)},
        "the exclusive or": {_flipped(page, {a: bits, b: bits}) for a, b in pairs for bits in (1, 1 << 20)},
        "the sum and the weighted sum": {_moved(page, {at: 1, at + 1: -2, at + 2: 1}) for at in range(size - 2)},
        "a polynomial": {_moved(page, {at: 1, at + 1: -by}) for at in starts for by in MULTIPLIERS},
        "a CRC": {_flipped(page, dict(enumerate(words, at))) for words in _crc_words() for at in starts},
        "the first and the last token": {(page[0], *(token ^ 4 for token in page[1:-1]), *page[1:][-1:])},
    }
    in_range = {
        name: {one for one in pages if one != page and min(one) >= 0 and max(one) < 1 << ID_BITS}
        for name, pages in found.items()
    }
    return {name: pages for name, pages in in_range.items() if pages}


def joined_pages(size: int) -> list[tuple[Page, Page]]:
    """Pairs of pages that are equal when their ids are joined without a fixed width."""
    rest = tuple(range(100, 100 + size - 2))
    return [((*first, *rest), (*second, *rest)) for first, second in JOINED] if size > 1 else []


def _pairs(size: int) -> Iterator[tuple[int, int]]:
    """Places of two tokens: neighbours, and the first and the last one."""
    if size > 1:
        yield from ((at, at + 1) for at in range(size - 1))
        yield 0, size - 1


def _moved(page: Page, by: dict[int, int]) -> Page:
    return tuple(token + by.get(at, 0) for at, token in enumerate(page))


def _flipped(page: Page, bits: dict[int, int]) -> Page:
    return tuple(token ^ bits.get(at, 0) for at, token in enumerate(page))


def _swapped(page: Page, first: int, second: int) -> Page:
    places = {first: second, second: first}
    return tuple(page[places.get(at, at)] for at in range(len(page)))


def _crc_words() -> Iterator[tuple[int, int]]:
    """Two words that a CRC does not notice, as little-endian bytes read from the first, or as numbers."""
    for polynomial in POLYNOMIALS:
        for shift in range(ID_BITS):
            low, high = (polynomial << shift) % (1 << 32), polynomial << shift >> 32
            if low < 1 << ID_BITS and high < 1 << ID_BITS:
                yield low, high
                yield high, low
