"""Pages and namespaces that a cache takes for one another if its key is weak: a part, a sum or some bits of them."""

from __future__ import annotations

from collections.abc import Iterator

from hicache.types import Namespace

Page = tuple[int, ...]

ID_BITS = 31
"""Bits of a token id."""

MULTIPLIERS = (*range(1, 64), 127, 131, 137, 256, 257, 1_000, 65_536, 65_599, 1_000_003)
"""Multipliers of polynomial hashes, and of hashes that join tokens without a fixed width."""

VOCABULARIES = (
    *(1_000, 32_000, 32_768, 50_257, 65_536, 100_277, 100_352, 128_256, 129_280, 131_072, 151_643, 151_936, 152_064),
    *(163_840, 200_019, 201_088, 256_000, 262_144, 1_000_003),
)
"""Sizes of vocabularies, and other numbers that ids may be taken modulo of."""

POLYNOMIALS = (0x1_04C1_1DB7, 0x1_1EDC_6F41, 0x1_DB71_0641, 0x1_05EC_76F1)
"""Generators of CRC-32 and CRC-32C, and both in the reverse order of bits: a change by one changes no remainder."""

WIDTHS = ((10, 4), (10, 5), (10, 6), (16, 4), (16, 5), (36, 3), (36, 4))
"""Bases, and digits to which ids of a small vocabulary are padded."""


def _ones(base: int, digits: int) -> int:
    return int("1" * digits, base)


JOINED: tuple[tuple[Page, Page], ...] = (
    *(((1, 23), (12, 3)), ((1, 0x203), (0x102, 3)), ((0x1, 0x2_0003), (0x1_0002, 3))),
    *(((_ones(b, w + 1), _ones(b, w)), (_ones(b, w), _ones(b, w + 1))) for b, w in WIDTHS),
    *(((0, 5), (5, 0)), ((5, 5, 6), (5, 6, 6))),
)
"""Beginnings of pages that are equal once digits, bytes or words are joined, or zeros or repeated ids are dropped."""

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
    # Fields that contain what may stand between two of them.
    *(
        _namespaces(*((f"a{between}b", "c", None), ("a", f"b{between}c", None), (f"a{between}b{between}c", None, None)))
        for between in (":", "|", ",", "/", "\x1f", "\0", "-", "_", ".")
    ),
    # Numbers, and characters that an encoding drops, replaces or cuts off.
    _namespaces(*((None, salt, None) for salt in ("1", "01", "1.0", "+1", "1 ", "0x1", "\u0661"))),
    _namespaces(
        *((None, salt, None) for salt in ("\u00e4", "\u00f6", "\u65e5", "\u672c", "\u0161", "a", "?", "\ufffd"))
    ),
    _namespaces(*((None, salt, None) for salt in ("x", "x\0", "x\0y", "x\0z", "x\ny", "x\nz", "x#y", "x#z"))),
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
        "the ids modulo a number": {_moved(page, {size // 2: by}) for by in VOCABULARIES},
        "the tokens, in another order": {page[::-1], page[1:] + page[:1], *(_swapped(page, *pair) for pair in pairs)},
        "the sum": {_moved(page, {a: by, b: -by}) for a, b in pairs for by in (1, 1 << 16)},
        "the exclusive or": {_flipped(page, {a: bits, b: bits}) for a, b in pairs for bits in (1, 1 << 20)},
        "the exclusive or of shifted ids": {
            _flipped(page, {at: 1 << by, at + 1: 1}) for at in starts for by in (1, 2, 3, 5, 8)
        },
        "the sum and the weighted sum": {_moved(page, {at: 1, at + 1: -2, at + 2: 1}) for at in range(size - 2)},
        "the value of a polynomial": {_moved(page, {at: 1, at + 1: -by}) for at in starts for by in MULTIPLIERS},
        "the remainder of a CRC": {
            _flipped(page, dict(enumerate(words, at))) for words in _crc_words() for at in starts
        },
        "the first and the last token": {(page[0], *(token ^ 4 for token in page[1:-1]), *page[1:][-1:])},
    }
    in_range = {
        name: {one for one in pages if one != page and min(one) >= 0 and max(one) < 1 << ID_BITS}
        for name, pages in found.items()
    }
    return {name: pages for name, pages in in_range.items() if pages}


def joined_pages(size: int) -> list[tuple[Page, Page]]:
    """Pairs of pages that begin as those of JOINED, and go on alike."""
    rest = tuple(range(100, 100 + size))
    return [((*a, *rest)[:size], (*b, *rest)[:size]) for a, b in JOINED if len(a) <= size]


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
