"""RadixKey: the whole pages of a prompt as bytes, in a namespace; and the chain of page hashes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from hicache.errors import KeyFormError
from hicache.types import Namespace, Tokens

TOKEN_BYTES = 4
TOKEN_TYPE = np.dtype(np.int32)


def encode_namespace(namespace: Namespace) -> bytes:
    """Tag, length and text of each field that is set, so that no two namespaces have the same bytes; empty for none."""
    parts: list[bytes] = []
    for tag, text in ((b"L", namespace.lora), (b"S", namespace.salt), (b"T", namespace.tenant)):
        if text is not None:
            encoded = text.encode("utf-8")
            parts += [tag, len(encoded).to_bytes(8, "little"), encoded]
    return b"".join(parts)


@dataclass(frozen=True, slots=True)
class RadixKey:
    """The whole pages of a prompt.

    `data`: each element is a token id as 4 bytes little-endian, or with bigram keys a token and its successor (8
    bytes). It holds whole pages only, and is at once what the tree compares and what the page hashes are taken of.
    """

    data: bytes
    namespace: Namespace

    def __post_init__(self) -> None:
        if type(self.data) is not bytes or not isinstance(self.namespace, Namespace):
            raise KeyFormError(f"a key is bytes in a Namespace, got {type(self.data).__name__} in {self.namespace!r}")

    @classmethod
    def of(cls, tokens: Tokens, namespace: Namespace, page_size: int, bigram: bool) -> RadixKey:
        """Cut tokens (int32, [n]) to whole pages of elements. Raises KeyFormError on another shape or dtype."""
        require_tokens(tokens)
        elements = np.stack((tokens[:-1], tokens[1:]), axis=1) if bigram and len(tokens) else tokens
        whole = len(elements) // page_size * page_size
        return cls(elements[:whole].astype("<i4", copy=False).tobytes(), namespace)


def require_tokens(tokens: object) -> None:
    """Raise KeyFormError unless tokens are int32 of one dimension."""
    if not isinstance(tokens, np.ndarray) or tokens.ndim != 1 or tokens.dtype != TOKEN_TYPE:
        form = f"{tokens.dtype} of shape {tokens.shape}" if isinstance(tokens, np.ndarray) else repr(tokens)
        raise KeyFormError(f"tokens must be int32 of one dimension, got {form}")


def page_bytes(page_size: int, bigram: bool) -> int:
    """Bytes of one page in a key."""
    return page_size * TOKEN_BYTES * (2 if bigram else 1)


def chain_seed(namespace: Namespace) -> bytes:
    """The hash before the first page: empty without a namespace, as in SGLang, so that objects can be shared."""
    encoded = encode_namespace(namespace)
    return hashlib.sha256(encoded).digest() if encoded else b""


def hash_pages(data: bytes, bytes_per_page: int, previous: bytes) -> list[bytes]:
    """The SHA-256 chain over whole pages: h[i] = H(h[i-1] + page i), as 32-byte digests.

    The definition is SGLang's (previous digest's bytes, then the elements), sglang#12025.
    """
    digests: list[bytes] = []
    for start in range(0, len(data), bytes_per_page):
        previous = hashlib.sha256(previous + data[start : start + bytes_per_page]).digest()
        digests.append(previous)
    return digests
