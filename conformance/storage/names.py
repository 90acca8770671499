"""Valid keys, as a cache makes them, and malformed ones."""

from __future__ import annotations

import hashlib

LAYERED = (1, 63, 1000, 3032)
"""A page of 4096 bytes in four pieces of uneven sizes."""

TRAVERSALS = ("../a", "a/../b", "..", "a/..", "/etc/a", "a//b", "a/", "/", "a\\..\\b", "~/a", "file:///a", "%2e%2e/a")
MALFORMED = (*TRAVERSALS, "", ".", ".hidden", "a/.b", "a b", "a\x00b", "a\nb", "a\n", "é", "a?b", "a#b", "a" * 201)

NEIGHBOURS = (
    *("a", "a/b", "a/b/c", "A", "a.b", "a-b", "a_b", "ab", "a.tmp", "a..b", "-", "_", "index", "a/b.tmp", "0", "00"),
    *("a.", "a-", "a--b", "a--b--c", "a/-b", "a-/b", "a_/b", "a/_b"),
)
"""Similar keys that a backend might confuse with each other, or with its own files."""

LONGEST = ("a" * 200, "a" * 199 + "b", "/".join(["b" * 99, "c" * 100]), "/".join("d" * 100))


def page_keys(count: int, pool: str = "kv", prompt: int = 0) -> list[str]:
    """The keys of the pages of a prompt in one pool."""
    hashes = (hashlib.sha256(f"{prompt}/{page}".encode()).hexdigest() for page in range(count))
    return [f"{pool}.tp0of1.cp0of1.pp0of1/{page_hash}" for page_hash in hashes]
