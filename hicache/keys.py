"""RadixKey: the whole pages of a prompt as bytes, in a namespace; and the chain of page hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hicache.errors import KeyFormError
from hicache.types import Namespace, TokenIds, Tokens

TOKEN_BYTES = 4
TOKEN_TYPE = np.dtype(np.int32)
LARGEST_TOKEN = 2**31 - 1
ALLOWED = f"token ids are integers from 0 to {LARGEST_TOKEN}"


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
    def of(cls, tokens: TokenIds, namespace: Namespace, page_size: int, bigram: bool) -> RadixKey:
        """Cut tokens, [n], to whole pages of elements. Raises KeyFormError for what `token_ids` refuses."""
        ids = token_ids(tokens)
        elements = np.stack((ids[:-1], ids[1:]), axis=1) if bigram and len(ids) else ids
        whole = len(elements) // page_size * page_size
        return cls(elements[:whole].astype("<i4", copy=False).tobytes(), namespace)


def token_ids(tokens: TokenIds) -> Tokens:
    """Token ids as int32, [n]. An int32 array is returned without a copy.

    `tokens`: a list or a tuple of integers, or an array of integers of any width, [n]; also one of another library
    that NumPy can read, such as a tensor of torch in CPU memory. Raises KeyFormError, with the position, the value and
    its type, for an id other than an integer from 0 to 2**31 - 1: no id is cut.
    """
    if (
        isinstance(tokens, np.ndarray)
        and tokens.dtype == TOKEN_TYPE
        and tokens.ndim == 1
        # Not `min`, which takes seven times as long for a short prompt.
        and (not len(tokens) or tokens.item(tokens.argmin()) >= 0)
    ):
        return tokens
    found = _of_list(tokens) if isinstance(tokens, list | tuple) else _of_array(tokens)
    outside = np.flatnonzero((found < 0) | (found > LARGEST_TOKEN))
    if len(outside):
        position = int(outside[0])
        raise _refusal(position, found[position], "int" if isinstance(tokens, list | tuple) else found.dtype)
    return found.astype(TOKEN_TYPE)


def _of_list(tokens: Sequence[object]) -> npt.NDArray[Any]:
    """The integers of a list, of any size."""
    if not set(map(type, tokens)) <= {int}:
        for position, token in enumerate(tokens):
            # Not isinstance: a bool would pass as an integer.
            if type(token) is not int and not isinstance(token, np.integer):
                raise _refusal(position, token, type(token).__name__)
        tokens = [int(token) for token in tokens]  # type: ignore[call-overload]
    try:
        return np.array(tokens, dtype=np.int64)
    except OverflowError:
        return np.array(tokens, dtype=np.object_)


def _of_array(tokens: object) -> npt.NDArray[Any]:
    """The integers of what NumPy reads as an array of one dimension."""
    try:
        found = np.asarray(tokens)
    except Exception as error:
        device = getattr(tokens, "device", "cpu")
        if str(device) != "cpu" and hasattr(tokens, "cpu"):
            raise KeyFormError(
                f"token ids are on {device}, and the cache reads them in CPU memory: give tokens.cpu().numpy()"
            ) from error
        raise KeyFormError(f"token ids are a {type(tokens).__name__} that NumPy cannot read: {error}") from error
    if not found.ndim:
        name = type(tokens).__name__
        raise KeyFormError(
            f"token ids are {tokens!r:.60} ({name}): a prompt is a list, an array or a tensor of token ids"
        )
    if found.ndim > 1:
        raise KeyFormError(f"token ids have shape {found.shape} and dtype {found.dtype}: a prompt has one dimension")
    if found.dtype.kind not in "iu":
        if len(found):
            raise _refusal(0, found[0], found.dtype)
        raise KeyFormError(f"token ids have dtype {found.dtype}: {ALLOWED}")
    return found


def _refusal(position: int, token: object, kind: object) -> KeyFormError:
    value = token.item() if isinstance(token, np.generic) else token
    return KeyFormError(f"token {position} is {value!r:.60} ({kind}): {ALLOWED}")


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
